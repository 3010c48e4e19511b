//! The statements of erasure that both have, with owned values.

use diesel::sql_types::{self, BigInt, Binary, Bool, Nullable, Text};
use uuid::Uuid;

use super::InMillis;
use crate::key::Scope;
use crate::store::due::page;
use crate::store::statement::statement;
use crate::store::{Page, Seen, SettledKey};

statement! {
    /// Whether the row is as an operator saw it, if one did.
    AsSeen in D: InMillis, rows sql_types::Untyped,
    { request_id: Option<Vec<u8>>, token: Option<i64>, status: Option<String> },
    "coalesce(k.request_id = ", request_id, ", true) AND coalesce(k.lease_token = ", token,
    ", true) AND coalesce(k.status = ", status, ", true)"
}

impl AsSeen {
    pub(in crate::store) fn by(seen: Option<&Seen>) -> Self {
        Self {
            request_id: seen.map(|seen| seen.request_id.as_bytes().to_vec()),
            token: seen.map(|seen| seen.lease_token),
            status: seen.map(|seen| seen.status.as_str().to_owned()),
        }
    }
}

statement! {
    /// Requests whose key was reaped before their jobs were delivered.
    CountOrphans in D: InMillis, rows BigInt,
    { scope: String, is_any: bool, key: String },
    "SELECT count(DISTINCT j.request_id) FROM atomic_phases_staged_jobs AS j \
     WHERE j.run_after IS NOT NULL AND j.scope = ", scope,
    " AND (", is_any, " OR j.idempotency_key = ", key, ") AND NOT EXISTS (SELECT 1 \
     FROM atomic_phases_keys AS k WHERE k.scope = j.scope \
     AND k.idempotency_key = j.idempotency_key AND k.request_id = j.request_id)"
}

statement! {
    /// A bounded part of a scope's keys, from one on, and whether each is to be erased. The index has no more than the key: a
    /// condition would let a page read all rows that are not, for example those that are erased.
    KeysToErase in D: InMillis, rows (Text, Binary, Text, Bool),
    { scope: String, after: String, limit: i64 },
    "SELECT idempotency_key, request_id, definition, status IN ('completed', 'dead_letter') AND fingerprint <> 'erased' \
     FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key > ", after,
    " ORDER BY idempotency_key LIMIT ", limit
}

pub(in crate::store) type SettledKeyRow = (String, Vec<u8>, String, bool);

pub(in crate::store) fn settled_keys(
    rows: Vec<SettledKeyRow>,
    limit: u32,
) -> Page<SettledKey, String> {
    let place = |(key, ..): &SettledKeyRow| key.clone();
    page(rows, limit, place, |(key, id, definition, is_settled)| {
        let request_id = Uuid::from_slice(&id).unwrap_or_default();
        is_settled.then_some(SettledKey { key, request_id, definition })
    })
}

impl KeysToErase {
    pub(in crate::store) fn of(scope: &Scope, after: &str, limit: u32) -> Self {
        let scope = scope.as_str().to_owned();
        Self { scope, after: after.to_owned(), limit: limit.into() }
    }
}

statement! {
    /// What a scope's erasure has left in a bounded part of its keys, from one on.
    CountUnerased in D: InMillis, rows (BigInt, BigInt, Nullable<Text>),
    { scope: String, after: String, limit: i64 },
    "SELECT count(CASE WHEN fingerprint <> 'erased' THEN 1 END), count(*), max(idempotency_key) \
     FROM (SELECT idempotency_key, fingerprint FROM atomic_phases_keys WHERE scope = ", scope,
    " AND idempotency_key > ", after, " ORDER BY idempotency_key LIMIT ", limit, ") AS looked"
}

impl CountUnerased {
    pub(in crate::store) fn of(scope: &Scope, after: &str, limit: u32) -> Self {
        let scope = scope.as_str().to_owned();
        Self { scope, after: after.to_owned(), limit: limit.into() }
    }
}

statement! {
    /// The jobs that are dead letters.
    DeadJobs in D: InMillis, rows BigInt, {},
    "SELECT count(*) FROM atomic_phases_staged_jobs WHERE run_after IS NULL"
}
