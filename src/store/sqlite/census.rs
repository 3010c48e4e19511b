//! The statements of the census: those of `store::postgres::census`, with owned values.

use chrono::DateTime;
use diesel::sql_types::{self, BigInt, Nullable, Text};
use diesel::sqlite::Sqlite as Db;

use super::sql::NOW;
use crate::store::census::GroupColumns;
use crate::store::census::sql::{DEAD, DUE, GROUPED, STAGED, WAITING};
use crate::store::statement::statement;

type GroupSql = (
    (Text, BigInt, Text),
    (Text, Text, Nullable<Text>),
    (BigInt, BigInt, Nullable<BigInt>),
    (BigInt, BigInt, BigInt),
);

pub(super) type Grouped = (
    (String, i64, String),
    (String, String, Option<String>),
    (i64, i64, Option<i64>),
    (i64, i64, i64),
);

/// A row with a value that no row of ours has was written by hand, and is passed over.
pub(super) fn group(row: Grouped) -> Option<GroupColumns> {
    let ((definition, version, phases), names, stands, (rows, oldest, advanced_at)) = row;
    let time = DateTime::from_timestamp_millis;
    let definition = (definition, i32::try_from(version).ok()?, phases);
    Some((definition, names, stands, (rows, time(oldest)?, time(advanced_at)?)))
}

/// Of a row: behind it follows the time, and then what it is paused for.
const ROW: &str = "definition, definition_version, phases, status, recovery_point, open_intent, advanced_at, \
    coalesce(locked_until > ";
const HELD: &str = ", 0) AS is_held, run_after <= ";
const DUE_NOW: &str = " AS is_due, coalesce(reason = ";
const PAUSED: &str = ", 0) AS is_paused";

statement! {
    /// What is unfinished and does not run, by `atomic_phases_keys_waiting` and `atomic_phases_keys_due`.
    Groups for Db, rows GroupSql, { paused: String, again: String },
    [GROUPED], [ROW], [NOW], [HELD], [NOW], [DUE_NOW], paused, [PAUSED], [WAITING],
    [ROW], [NOW], [HELD], [NOW], [DUE_NOW], again, [PAUSED], [DUE]
}

statement! {
    /// Staged jobs, by `atomic_phases_staged_jobs_due` and `_dead`.
    Jobs for Db, rows (BigInt, Nullable<BigInt>, BigInt), {},
    [STAGED], [NOW], [DEAD]
}

statement! {
    /// The right to take it, where nobody else has it.
    ClaimCensus for Db, rows sql_types::Untyped, { holder: Vec<u8>, lease_ms: i64, again: Vec<u8> },
    "UPDATE atomic_phases_leases SET holder = ", holder, ", held_until = ", [NOW], " + ", lease_ms,
    " WHERE name = 'census' AND (holder = ", again, " OR held_until <= ", [NOW], ")"
}
