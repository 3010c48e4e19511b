//! What workers look for among the rows, and write to them; and what `check` reads of them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::sql_types;
use diesel::sql_types::{BigInt, Bool, Integer, Nullable, Text, Uuid as SqlUuid};
use uuid::Uuid;

use super::super::timestamptz::Timestamptz;
use super::lease::{Held, NotLocked};
use crate::store::HeldKey;
use crate::store::row::millis;
use crate::store::statement::statement;

/// Where a row stands, and what a process must know to go on with it.
const PLACE: &str = "scope, idempotency_key, definition, definition_version, phases, status, \
    recovery_point, open_intent, reason, attempts, resolution";

type SurveySql = (
    Integer,
    (Text, Text),
    (Text, Integer, Text),
    (Text, Text, Nullable<Text>, Nullable<Text>, Integer, Nullable<Text>),
);

statement! {
    /// Unfinished rows, bounded: those that the partial indexes have, and, of the rows that were created
    /// last, those that are not finished and that no partial index has: that are in progress, or in a status that only
    /// a later build knows.
    ///
    /// The last part is there where the youngest rows are more than were looked at: the oldest of those was
    /// created a moment ago.
    Survey for Pg, rows SurveySql,
    { limit: i64, latest: i64, behind: i64, youth_ms: i64 },
    "SELECT * FROM (SELECT 0, ", [PLACE], " FROM atomic_phases_keys WHERE run_after IS NOT NULL \
     ORDER BY run_after LIMIT ", limit, ") AS due \
     UNION ALL SELECT * FROM (SELECT 1, ", [PLACE], " FROM atomic_phases_keys \
     WHERE waiting_since IS NOT NULL ORDER BY waiting_since LIMIT ", limit, ") AS waiting \
     UNION ALL SELECT 2, ", [PLACE], " FROM (SELECT * FROM atomic_phases_keys \
     ORDER BY expires_at DESC LIMIT ", latest, ") AS latest \
     WHERE status <> 'completed' AND run_after IS NULL AND waiting_since IS NULL \
     UNION ALL SELECT 3, ", [PLACE], " FROM (SELECT * FROM atomic_phases_keys \
     ORDER BY expires_at DESC OFFSET ", behind, " LIMIT 1) AS oldest \
     WHERE created_at > statement_timestamp() - ", youth_ms, " * interval '1 millisecond'"
}

impl Survey {
    pub(in crate::store::postgres) fn of(limit: u32, latest: u32, youth: Duration) -> Self {
        let latest = i64::from(latest);
        Self { limit: limit.into(), latest, behind: latest - 1, youth_ms: millis(youth) }
    }
}

// The workers' looks compare with `statement_timestamp()`: an index can be searched for it, and not for
// the volatile `clock_timestamp()`. They take no lock, and no guarantee rests on them.

statement! {
    /// A bounded part of the index of due rows, from one place on: rows of every status that a worker
    /// looks for, so that none of them can stand in another's way.
    DueKeys<'a> for Pg, rows (Timestamptz, Text, Text, Text, BigInt, Text, Integer, Bool, SqlUuid),
    { grace_ms: i64, run_after: DateTime<Utc>, scope: &'a str, key: &'a str, limit: i64 },
    "SELECT run_after, scope, idempotency_key, status::text, lease_token, definition, \
     definition_version, run_after <= statement_timestamp() - ", grace_ms, " * interval '1 millisecond', \
     request_id FROM atomic_phases_keys WHERE run_after <= statement_timestamp() \
     AND (run_after, scope, idempotency_key) > (", run_after, ", ", scope, ", ", key, ") \
     ORDER BY run_after, scope, idempotency_key LIMIT ", limit
}

statement! {
    /// A bounded part of the index of expiry, from one place on. Of the rows that are read there, those in
    /// progress that the index of due rows does not have; and, of a full page, where it ends.
    HeldKeys<'a> for Pg, rows (Timestamptz, Text, Text, SqlUuid, BigInt, BigInt, Bool),
    {
        from: DateTime<Utc>, to: DateTime<Utc>, expires_at: DateTime<Utc>, scope: &'a str, key: &'a str,
        limit: i64,
    },
    "WITH read AS MATERIALIZED (SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     locked_until, status = 'in_progress' AND run_after IS NULL AS is_held FROM atomic_phases_keys \
     WHERE expires_at >= ", from, " AND expires_at <= ", to,
    " AND (expires_at, scope, idempotency_key) > (", expires_at, ", ", scope, ", ", key, ") \
     ORDER BY expires_at, scope, idempotency_key LIMIT ", limit, ") \
     SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     ", [LEASE_LEFT], ", false FROM read WHERE is_held \
     UNION ALL (SELECT expires_at, scope, idempotency_key, request_id, lease_token, 0::bigint, true FROM read \
     WHERE (SELECT count(*) FROM read) = ", limit,
    " ORDER BY expires_at DESC, scope DESC, idempotency_key DESC LIMIT 1)"
}

statement! {
    /// What guards the entry of such a row, but for its lease.
    NotEntered<'a> for Pg, rows sql_types::Untyped, { held: Held<'a> }, {held}, " AND run_after IS NULL"
}

impl<'a> NotEntered<'a> {
    fn new(held: &'a HeldKey) -> Self {
        let (scope, key) = (held.scope.as_str(), held.key.as_str());
        let (request_id, token) = (held.request_id, held.lease_token);
        Self { held: Held { scope, key, request_id, token } }
    }
}

statement! {
    /// Enters such a row in the index of due rows, if its lease has ended. Never waits for its lock: the rows
    /// behind it would wait as long.
    Enrol<'a> for Pg, rows sql_types::Untyped, { not_entered: NotEntered<'a>, not_locked: NotLocked<'a> },
    "UPDATE atomic_phases_keys SET run_after = locked_until", {not_entered},
    " AND locked_until <= (SELECT clock_timestamp()) AND ", {not_locked}
}

impl<'a> Enrol<'a> {
    pub(in crate::store::postgres) fn new(held: &'a HeldKey) -> Self {
        let not_locked = NotLocked::new(&held.scope, &held.key);
        Self { not_entered: NotEntered::new(held), not_locked }
    }
}

/// What is left of the lease of a row in progress, in milliseconds. PostgreSQL subtracts no time from an `infinity` that was
/// written by hand: its error would be that of the whole page.
const LEASE_LEFT: &str = "(extract(epoch FROM least(greatest(locked_until, statement_timestamp()), \
    timestamptz '9999-12-31 00:00:00+00') - statement_timestamp()) * 1000)::bigint";

statement! {
    /// What is left of the lease of such a row that was not entered; no row where it has moved on.
    StillHeld<'a> for Pg, rows BigInt, { not_entered: NotEntered<'a> },
    "SELECT ", [LEASE_LEFT], " FROM atomic_phases_keys", {not_entered}
}

impl<'a> StillHeld<'a> {
    pub(in crate::store::postgres) fn new(held: &'a HeldKey) -> Self {
        Self { not_entered: NotEntered::new(held) }
    }
}

/// A row as it was found, of those that are given.
const IS_GIVEN: &str = "scope = given.of_scope AND idempotency_key = given.of_key \
    AND request_id = given.of_request AND lease_token = given.token AND status = 'in_progress' \
    AND run_after IS NULL";

statement! {
    /// [`Enrol`] of many, each guarded as it is alone, with their numbers counted from one; and [`StillHeld`] of
    /// those that were not entered. A row that is locked is passed over.
    EnrolMany for Pg, rows (BigInt, Nullable<BigInt>),
    { scopes: Vec<String>, keys: Vec<String>, requests: Vec<Uuid>, tokens: Vec<i64> },
    "WITH given AS MATERIALIZED (SELECT * FROM unnest(", scopes, ", ", keys, ", ", requests, ", ", tokens,
    ") WITH ORDINALITY AS given (of_scope, of_key, of_request, token, number)), \
     entered AS (UPDATE atomic_phases_keys SET run_after = locked_until FROM given, \
     (SELECT clock_timestamp() AS now OFFSET 0) AS clock WHERE ", [IS_GIVEN],
    " AND locked_until <= clock.now AND EXISTS (SELECT 1 FROM atomic_phases_keys AS free \
     WHERE free.scope = given.of_scope AND free.idempotency_key = given.of_key \
     FOR NO KEY UPDATE SKIP LOCKED) RETURNING given.number) \
     SELECT number, NULL FROM entered UNION ALL SELECT number, ", [LEASE_LEFT],
    " FROM given, atomic_phases_keys WHERE ", [IS_GIVEN],
    " AND number NOT IN (SELECT number FROM entered)"
}

impl EnrolMany {
    pub(in crate::store::postgres) fn new(held: &[HeldKey]) -> Self {
        Self {
            scopes: held.iter().map(|held| held.scope.as_str().to_owned()).collect(),
            keys: held.iter().map(|held| held.key.as_str().to_owned()).collect(),
            requests: held.iter().map(|held| held.request_id).collect(),
            tokens: held.iter().map(|held| held.lease_token).collect(),
        }
    }
}

statement! {
    /// A bounded part of the expired rows, from one place on. The index lacks the status: in a condition, it would let a page
    /// read all rows that are not completed.
    ExpiredKeys<'a> for Pg, rows (Timestamptz, Text, Text, SqlUuid, Bool),
    { expires_at: DateTime<Utc>, scope: &'a str, key: &'a str, limit: i64 },
    "SELECT expires_at, scope, idempotency_key, request_id, status = 'completed' FROM atomic_phases_keys \
     WHERE expires_at <= statement_timestamp() \
     AND (expires_at, scope, idempotency_key) > (", expires_at, ", ", scope, ", ", key, ") \
     ORDER BY expires_at, scope, idempotency_key LIMIT ", limit
}

statement! {
    /// Deletes an expired row that still is completed and expired when it is locked (G15). Never waits
    /// for the lock: it holds those of other scopes' rows by then (G16).
    Reap<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str, request_id: Uuid },
    "DELETE FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND status = 'completed' AND expires_at <= statement_timestamp() \
     AND EXISTS (SELECT 1 FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ",
    key, " FOR UPDATE SKIP LOCKED)"
}
