//! What workers search for, in bounded parts of an index, without a lock (H19).
//!
//! InnoDB has no partial index. `run_after` and `waiting_since` are NULL in most rows; those stand together at
//! one end of a plain index, and no search comes there.

use diesel::mysql::Mysql as Db;
use diesel::sql_types::{self, BigInt, Binary, Bool, Nullable, Text};

use super::words::CLOCK;
use crate::store::in_millis::InMillis;
use crate::store::in_millis::searches::{CompletedBetween, NotEntered, StillHeld};
use crate::store::statement::statement;

statement! {
    /// A bounded part of the index of expiry, from one place on. Of the rows that are read there, those in
    /// progress that the index of due rows does not have; and, of a full page, where it ends. On its own, the server
    /// would read and sort a table of a few pages.
    HeldKeys for Db, rows (BigInt, Text, Text, Binary, BigInt, BigInt, Bool),
    { from: i64, to: i64, expires_at: i64, scope: String, key: String, limit: i64 },
    "WITH looked AS (SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     locked_until, status = 'in_progress' AND run_after IS NULL AS is_held FROM atomic_phases_keys \
     FORCE INDEX (atomic_phases_keys_expiry) WHERE expires_at >= ", from, " AND expires_at <= ", to, " AND expires_at >= ", expires_at,
    " AND (expires_at, scope, idempotency_key) > (", expires_at, ", ", scope, ", ", key,
    ") ORDER BY expires_at, scope, idempotency_key LIMIT ", limit,
    ") SELECT expires_at, scope, idempotency_key, request_id, lease_token, \
     GREATEST(coalesce(locked_until, 0), ", [CLOCK], ") - ", [CLOCK], ", 0 FROM looked WHERE is_held \
     UNION ALL SELECT * FROM (SELECT expires_at, scope, idempotency_key, request_id, lease_token, 0 AS lease, \
     1 AS is_the_last FROM looked WHERE (SELECT count(*) FROM looked) = ", limit,
    " ORDER BY expires_at DESC, scope DESC, idempotency_key DESC LIMIT 1) AS ends"
}

statement! {
    /// Enters such a row in the index of due rows, unless a holder has it by now, or another transaction has
    /// locked it.
    Enrol for Db, rows sql_types::Untyped, { not_entered: NotEntered },
    "UPDATE (SELECT scope, idempotency_key FROM atomic_phases_keys FORCE INDEX (PRIMARY) WHERE ", not_entered,
    " AND locked_until <= ", [CLOCK], " LIMIT 1 FOR UPDATE SKIP LOCKED) AS d \
     STRAIGHT_JOIN atomic_phases_keys AS k ON k.scope = d.scope AND k.idempotency_key = d.idempotency_key \
     SET k.run_after = k.locked_until"
}

statement! {
    /// How many rows were noted; and what is left of the lease of a row that was not entered.
    NotedOrHeld for Db, rows (BigInt, Nullable<BigInt>), { held: StillHeld },
    "SELECT @atomic_phases, (", held, ")"
}

statement! {
    /// Deletes the completed rows of a part of the index of expiry, but for those that another transaction has locked (G15).
    Reap for Db, rows sql_types::Untyped,
    { completed: CompletedBetween, limit: i64 },
    "DELETE k FROM (SELECT scope, idempotency_key FROM atomic_phases_keys", (Db::BY_EXPIRY), " WHERE ", completed,
    " LIMIT ", limit, " FOR UPDATE SKIP LOCKED) AS d STRAIGHT_JOIN atomic_phases_keys AS k \
     ON k.scope = d.scope AND k.idempotency_key = d.idempotency_key"
}
