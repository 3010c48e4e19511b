//! What is searched for, in bounded parts of an index, with owned values.

use std::time::Duration;

use diesel::sql_types::{self, BigInt, Binary, Bool, Integer, Nullable, Text};

use super::InMillis;
use crate::store::row::millis;
use crate::store::statement::statement;
use crate::store::{ExpiryPlace, HeldKey};

/// Where a row stands, and what a process must know to continue it.
const PLACE: &str = "scope, idempotency_key, definition, definition_version, phases, status, \
    recovery_point, open_intent, reason, attempts, resolution";

type SurveySql = (
    Integer,
    (Text, Text),
    (Text, Integer, Text),
    (Text, Text, Nullable<Text>, Nullable<Text>, Integer, Nullable<Text>),
);

statement! {
    /// Unfinished rows, bounded: those that a worker or an operator is to look at, and, of the rows that were
    /// created last, those that are not finished and that no worker would find: that are in progress, or in a status that
    /// only a later build knows.
    ///
    /// The last part is there where the youngest rows are more than were looked at.
    Survey in D: InMillis, rows SurveySql,
    { limit: i64, latest: i64, behind: i64, youth_ms: i64 },
    "SELECT * FROM (SELECT 0 AS found_by, ", [PLACE], " FROM atomic_phases_keys \
     WHERE run_after IS NOT NULL ORDER BY run_after LIMIT ", limit, ") AS due \
     UNION ALL SELECT * FROM (SELECT 1 AS found_by, ", [PLACE], " FROM atomic_phases_keys \
     WHERE waiting_since IS NOT NULL ORDER BY waiting_since LIMIT ", limit, ") AS waiting \
     UNION ALL SELECT 2, ", [PLACE], " FROM (SELECT run_after, waiting_since, ", [PLACE], " FROM atomic_phases_keys \
     ORDER BY expires_at DESC LIMIT ", latest, ") AS latest \
     WHERE status <> 'completed' AND run_after IS NULL AND waiting_since IS NULL \
     UNION ALL SELECT 3, ", [PLACE], " FROM (SELECT created_at, ", [PLACE], " FROM atomic_phases_keys \
     ORDER BY expires_at DESC LIMIT 1 OFFSET ", behind, ") AS oldest WHERE created_at > ", (D::CLOCK), " - ",
    youth_ms
}

impl Survey {
    pub(in crate::store) fn of(limit: u32, latest: u32, youth: Duration) -> Self {
        let latest = i64::from(latest);
        Self { limit: limit.into(), latest, behind: latest - 1, youth_ms: millis(youth) }
    }
}

statement! {
    /// The scope's keys that are not past their retention, counted up to a cap (G16): before and behind the
    /// reserved keys of requests that had none.
    CountKeys in D: InMillis, rows BigInt,
    { scope: String, most: i64, cap: i64 },
    "SELECT count(*) FROM (SELECT 1 FROM (SELECT * FROM (SELECT expires_at FROM atomic_phases_keys \
     WHERE scope = ", scope, " AND idempotency_key < '~keyless:' ORDER BY idempotency_key LIMIT ", most,
    ") AS front UNION ALL SELECT * FROM (SELECT expires_at FROM atomic_phases_keys \
     WHERE scope = ", scope, " AND idempotency_key >= '~keyless;' ORDER BY idempotency_key LIMIT ", most,
    ") AS back) AS looked WHERE expires_at > ", (D::CLOCK), " LIMIT ", cap, ") AS counted"
}

statement! {
    /// A bounded part of the index of due rows, from one place on.
    DueKeys in D: InMillis, rows (BigInt, Text, Text, Text, BigInt, Text, BigInt, Bool, Binary),
    { grace_ms: i64, run_after: i64, scope: String, key: String, limit: i64 },
    "SELECT run_after, scope, idempotency_key, status, lease_token, definition, definition_version, \
     run_after <= ", (D::CLOCK), " - ", grace_ms, ", request_id FROM atomic_phases_keys WHERE run_after <= ", (D::CLOCK),
    " AND (run_after, scope, idempotency_key) > (", run_after, ", ", scope, ", ", key,
    ") AND run_after >= ", run_after, " ORDER BY run_after, scope, idempotency_key LIMIT ", limit
}

statement! {
    /// A bounded part of the expired rows, from one place on. The index lacks the status: in a condition, it would let a page
    /// read all rows that are not completed.
    ExpiredKeys in D: InMillis, rows (BigInt, Text, Text, Binary, Bool),
    { expires_at: i64, scope: String, key: String, limit: i64 },
    "SELECT expires_at, scope, idempotency_key, request_id, status = 'completed' FROM atomic_phases_keys", (D::BY_EXPIRY),
    " WHERE expires_at <= ", (D::CLOCK), " AND (expires_at, scope, idempotency_key) > (", expires_at, ", ", scope, ", ", key,
    ") AND expires_at >= ", expires_at, " ORDER BY expires_at, scope, idempotency_key LIMIT ", limit
}

impl ExpiredKeys {
    pub(in crate::store) fn after(after: &ExpiryPlace, limit: u32) -> Self {
        Self {
            expires_at: after.expires_at.timestamp_millis(),
            scope: after.scope.clone(),
            key: after.key.clone(),
            limit: limit.into(),
        }
    }
}

statement! {
    /// The completed rows of a part of the index of expiry, from one place to another (G15).
    CompletedBetween in D: InMillis, rows sql_types::Untyped,
    { from: i64, from_scope: String, from_key: String, to: i64, to_scope: String, to_key: String },
    "(expires_at, scope, idempotency_key) >= (", from, ", ", from_scope, ", ", from_key,
    ") AND (expires_at, scope, idempotency_key) <= (", to, ", ", to_scope, ", ", to_key,
    ") AND expires_at >= ", from, " AND expires_at <= ", to, " AND status = 'completed'"
}

impl CompletedBetween {
    pub(in crate::store) fn new(from: &ExpiryPlace, to: &ExpiryPlace) -> Self {
        Self {
            from: from.expires_at.timestamp_millis(),
            from_scope: from.scope.clone(),
            from_key: from.key.clone(),
            to: to.expires_at.timestamp_millis(),
            to_scope: to.scope.clone(),
            to_key: to.key.clone(),
        }
    }
}

statement! {
    /// A row in progress that the index of due rows does not have, as it was found.
    NotEntered in D: InMillis, rows sql_types::Untyped,
    { scope: String, key: String, request_id: Vec<u8>, token: i64 },
    "scope = ", scope, " AND idempotency_key = ", key, " AND request_id = ", request_id,
    " AND lease_token = ", token, " AND status = 'in_progress' AND run_after IS NULL"
}

impl NotEntered {
    pub(in crate::store) fn new(held: &HeldKey) -> Self {
        Self {
            scope: held.scope.as_str().to_owned(),
            key: held.key.as_str().to_owned(),
            request_id: held.request_id.as_bytes().to_vec(),
            token: held.lease_token,
        }
    }
}

statement! {
    /// What is left of its lease; no row where it has moved on. From the greater of both times: where a difference is below its
    /// least number, MySQL reports an error.
    StillHeld in D: InMillis, rows BigInt, { not_entered: NotEntered },
    "SELECT ", (D::GREATEST), "(coalesce(locked_until, 0), ", (D::CLOCK), ") - ", (D::CLOCK), " FROM atomic_phases_keys WHERE ",
    not_entered
}
