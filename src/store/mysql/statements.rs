//! Every statement of a request. What is written behind a row's lock takes its time from `SYSDATE`, which is
//! the time of the assignment, and not that of the statement's begin, in front of the wait.
//!
//! An UPDATE assigns from left to right, and each expression sees what was assigned before it. So a column
//! that decides about others, `status` or `recovery_point`, is assigned last.

use chrono::{DateTime, Utc};
use diesel::mysql::Mysql as Db;
use diesel::sql_types::{self, BigInt};

use crate::key::{IdempotencyKey, Scope};
use crate::store::row::millis;
use crate::store::statement::statement;
use crate::store::{Change, Guard, NewRow};

pub(super) use super::erasure::*;
pub(super) use super::job_statements::*;
pub(super) use super::rows::*;
pub(super) use super::searches::*;
pub(super) use super::words::CLOCK;
pub(super) use crate::store::in_millis::deliveries::*;
pub(super) use crate::store::in_millis::erasure::*;
pub(super) use crate::store::in_millis::searches::*;
pub(super) use crate::store::in_millis::statements::*;

/// Fails where the phase's transaction is not the one that was begun.
pub(super) const RELEASE: &str = "RELEASE SAVEPOINT atomic_phases";
pub(super) const COMMIT: &str = "COMMIT AND NO CHAIN NO RELEASE";

statement! {
    /// Reserves the key: creates the row, or violates the primary key where there is one (G10).
    Insert for Db, rows sql_types::Untyped,
    {
        scope: String, key: String, request_id: Vec<u8>, definition: String, version: i32,
        phases: String, fingerprint: String, status: String, first: i32,
        lease_ms: Option<i64>, due_ms: Option<i64>, retention_ms: i64, params: Vec<u8>,
        context: Option<Vec<u8>>, trace: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
     locked_until, run_after, advanced_at, created_at, expires_at, params, context, trace) \
     VALUES (", scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases, ", ", fingerprint, ", ", status, ", 'started', ", first, ", ", first, ", ", [CLOCK], " + ", lease_ms,
    ", ", [CLOCK], " + ", due_ms, ", ", [CLOCK], ", ", [CLOCK], ", ", [CLOCK], " + ", retention_ms, ", ", params,
    ", ", context, ", ", trace, ")"
}

impl Insert {
    pub(super) fn new(row: &NewRow<'_>) -> Self {
        Self {
            scope: row.scope.as_str().to_owned(),
            key: row.key.as_str().to_owned(),
            request_id: row.request_id.as_bytes().to_vec(),
            definition: row.definition.to_owned(),
            version: row.version.cast_signed(),
            phases: row.phases.to_owned(),
            fingerprint: row.fingerprint.to_owned(),
            status: row.birth.status().as_str().to_owned(),
            first: row.birth.attempts(),
            lease_ms: row.birth.lease().map(millis),
            due_ms: row.birth.due().map(millis),
            retention_ms: millis(row.retention),
            params: row.params.to_vec(),
            context: row.context.map(<[u8]>::to_vec),
            trace: row.trace.map(<[u8]>::to_vec),
        }
    }
}

statement! {
    /// Creates the row as its first phase leaves it, or violates the primary key where there is one.
    Create for Db, rows sql_types::Untyped,
    {
        scope: String, key: String, request_id: Vec<u8>, definition: String, version: i32,
        phases: String, fingerprint: String, status: String, to: String, first: i32,
        lease_ms: Option<i64>, due_ms: Option<i64>, created_at: i64, retention_ms: i64, params: Vec<u8>,
        context: Option<Vec<u8>>, trace: Option<Vec<u8>>, outputs: Option<Vec<u8>>, response_status: Option<i16>,
        response_headers: Option<Vec<u8>>, response_body: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
     locked_until, run_after, advanced_at, created_at, expires_at, params, context, trace, outputs, \
     response_status, response_headers, response_body) \
     VALUES (", scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases, ", ", fingerprint, ", ", status, ", ", to, ", ", first, ", ", first, ", ", [CLOCK], " + ", lease_ms,
    ", ", [CLOCK], " + ", due_ms, ", ", [CLOCK], ", ", created_at, ", ", [CLOCK], " + ", retention_ms, ", ", params, ", ",
    context, ", ", trace, ", ", outputs, ", ", response_status, ", ", response_headers, ", ", response_body, ")"
}

impl Create {
    pub(super) fn new(row: &NewRow<'_>, created_at: DateTime<Utc>, change: &Change<'_>) -> Self {
        Self {
            scope: row.scope.as_str().to_owned(),
            key: row.key.as_str().to_owned(),
            request_id: row.request_id.as_bytes().to_vec(),
            definition: row.definition.to_owned(),
            version: row.version.cast_signed(),
            phases: row.phases.to_owned(),
            fingerprint: row.fingerprint.to_owned(),
            status: change.status.as_str().to_owned(),
            to: change.recovery_point.to_owned(),
            first: row.birth.attempts(),
            lease_ms: change.lease().map(millis),
            due_ms: row.birth.due().map(millis),
            created_at: created_at.timestamp_millis(),
            retention_ms: millis(row.retention),
            params: row.params.to_vec(),
            context: row.context.map(<[u8]>::to_vec),
            trace: row.trace.map(<[u8]>::to_vec),
            outputs: change.outputs.map(<[u8]>::to_vec),
            response_status: change.response.map(|response| response.status.cast_signed()),
            response_headers: change.response.map(|response| response.headers.clone()),
            response_body: change.response.and_then(|response| response.body.clone()),
        }
    }
}

statement! {
    /// The times of a row that was just created, in its transaction.
    Times for Db, rows (BigInt, BigInt, BigInt),
    { scope: String, key: String },
    "SELECT created_at, advanced_at, expires_at FROM atomic_phases_keys WHERE scope = ", scope,
    " AND idempotency_key = ", key
}

impl Times {
    pub(super) fn of(scope: &Scope, key: &IdempotencyKey) -> Self {
        Self { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
    }
}

statement! {
    /// Locks the row for a transaction that keeps what it saw at its beginning, if it is as the guard says:
    /// the heartbeat would change it behind its back.
    Pin for Db, rows BigInt,
    { scope: String, key: String, request_id: Vec<u8>, token: i64, from: String },
    "SELECT lease_token FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND recovery_point = ", from,
    " AND status = 'in_progress' FOR UPDATE"
}

impl Pin {
    pub(super) fn new(guard: &Guard<'_>) -> Self {
        Self {
            scope: guard.scope.as_str().to_owned(),
            key: guard.key.as_str().to_owned(),
            request_id: guard.request_id.as_bytes().to_vec(),
            token: guard.lease_token,
            from: guard.recovery_point.to_owned(),
        }
    }
}
