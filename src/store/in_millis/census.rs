//! The statements of the census: those of `store::postgres::census`, with owned values.

use chrono::DateTime;
use diesel::sql_types::{self, BigInt, Nullable, Text};

use super::{Allowed, InMillis};
use crate::store::census::GroupColumns;
use crate::store::census::sql::{DEAD, DUE, GROUPED, STAGED, WAITING};
use crate::store::operators::ScopeLimits;
use crate::store::statement::statement;

type GroupSql = (
    (Text, BigInt, Text),
    (Text, Text, Nullable<Text>, Nullable<Text>),
    (BigInt, BigInt, BigInt, Nullable<BigInt>),
    (BigInt, BigInt, BigInt, BigInt, BigInt),
);

pub(in crate::store) type Grouped = (
    (String, i64, String),
    (String, String, Option<String>, Option<String>),
    (i64, i64, i64, Option<i64>),
    (i64, i64, i64, i64, i64),
);

/// A row with a value that no row of ours has was written by hand, and is passed over.
pub(in crate::store) fn group(row: Grouped) -> Option<GroupColumns> {
    let ((definition, version, phases), names, stands, found) = row;
    let (rows, waiting, oldest, advanced_at, created_at) = found;
    let time = DateTime::from_timestamp_millis;
    let definition = (definition, i32::try_from(version).ok()?, phases);
    let times = (time(oldest)?, time(advanced_at)?, time(created_at)?);
    Some((definition, names, stands, (rows, waiting, times.0, times.1, times.2)))
}

/// Of a row: behind it follows the time, and then what it is paused for. By these columns it is told whether a
/// build could continue it; the number of the last attempt matters only after a resolution of it.
const ROW: &str = "definition, definition_version, phases, \
    CASE WHEN status = 'in_progress' AND waiting_since IS NOT NULL THEN 'looked_into' ELSE status END AS status, \
    recovery_point, open_intent, resolution, \
    CASE WHEN resolution IS NULL AND attempts > 1 THEN 1 ELSE attempts END AS attempts, advanced_at, created_at, \
    coalesce(locked_until > ";
const HELD: &str = ", 0) AS is_held, run_after <= ";
const DUE_NOW: &str = " AS is_due, coalesce(reason = ";
const PAUSED: &str = ", 0) AS is_paused, ";

statement! {
    /// What is unfinished and does not run, by `atomic_phases_keys_waiting` and `atomic_phases_keys_due`.
    Groups in D: InMillis, rows GroupSql, { paused: String, allowed: Allowed },
    [GROUPED], [ROW], (D::CLOCK), [HELD], (D::CLOCK), [DUE_NOW], paused, [PAUSED], allowed, [WAITING],
    [ROW], (D::CLOCK), [HELD], (D::CLOCK), [DUE_NOW], paused, [PAUSED], allowed, [DUE]
}

impl Groups {
    pub(in crate::store) fn of<D: InMillis>(limits: &ScopeLimits, paused: &str) -> Self {
        Self { paused: paused.to_owned(), allowed: Allowed::by::<D>(limits) }
    }
}

statement! {
    /// Staged jobs, by `atomic_phases_staged_jobs_due` and `_dead`.
    Jobs in D: InMillis, rows (BigInt, Nullable<BigInt>, BigInt), {},
    [STAGED], (D::CLOCK), [DEAD]
}

pub(in crate::store) type JobsRow = (i64, Option<i64>, i64);

statement! {
    /// The right to take it, if no other process has it.
    ClaimCensus in D: InMillis, rows sql_types::Untyped, { holder: Vec<u8>, lease_ms: i64 },
    "UPDATE atomic_phases_leases SET holder = ", holder, ", held_until = ", (D::NOW), " + ", lease_ms,
    " WHERE name = 'census' AND (holder = ", holder, " OR held_until <= ", (D::NOW), ")"
}
