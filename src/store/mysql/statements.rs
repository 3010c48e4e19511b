//! Every statement of a request. What is written behind a row's lock takes its time from `SYSDATE`, which is
//! the time of the assignment, and not that of the statement's begin, in front of the wait.
//!
//! An UPDATE assigns from left to right, and each expression sees what was assigned before it. So a column
//! that decides about others, `status` or `recovery_point`, is assigned last.

use diesel::mysql::Mysql as Db;
use diesel::sql_types::BigInt;

use crate::key::{IdempotencyKey, Scope};
use crate::store::Guard;
use crate::store::in_millis::InMillis;
use crate::store::statement::statement;

pub(super) use super::erasure::*;
pub(super) use super::job_statements::*;
pub(super) use super::rows::*;
pub(super) use super::searches::*;
pub(super) use crate::store::in_millis::births::*;
pub(super) use crate::store::in_millis::deliveries::*;
pub(super) use crate::store::in_millis::erasure::*;
pub(super) use crate::store::in_millis::searches::*;
pub(super) use crate::store::in_millis::statements::*;

/// Fails where the phase's transaction is not the one that was begun.
pub(super) const RELEASE: &str = "RELEASE SAVEPOINT atomic_phases";
pub(super) const COMMIT: &str = "COMMIT AND NO CHAIN NO RELEASE";

statement! {
    /// The time of a row that was just created, in its transaction.
    WrittenAt for Db, rows BigInt,
    { scope: String, key: String },
    "SELECT advanced_at FROM atomic_phases_keys", (Db::BY_KEY), " WHERE scope = ", scope,
    " AND idempotency_key = ", key
}

impl WrittenAt {
    pub(super) fn of(scope: &Scope, key: &IdempotencyKey) -> Self {
        Self { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
    }
}

statement! {
    /// Locks the row for a transaction that keeps what it saw at its beginning, if it is as the guard says:
    /// the heartbeat would change it behind its back.
    Pin for Db, rows BigInt,
    { scope: String, key: String, request_id: Vec<u8>, token: i64, from: String },
    "SELECT lease_token FROM atomic_phases_keys", (Db::BY_KEY), " WHERE scope = ", scope, " AND idempotency_key = ", key,
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

statement! {
    /// How many sessions the server has of this number, and whether it lists this one: where a user does not see even his own,
    /// nothing is known. A user without the right `PROCESS` sees his own.
    Sessions for Db, rows (BigInt, BigInt),
    { number: i64 },
    "SELECT COUNT(CASE WHEN id = ", number, " THEN 1 END), COUNT(CASE WHEN id = CONNECTION_ID() THEN 1 END) \
     FROM information_schema.processlist"
}
