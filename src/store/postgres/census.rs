//! The statements of the census.

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::sql_types::{self, BigInt, Integer, Nullable, Text};
use uuid::Uuid;

use super::ops_statements::Allowed;
use super::timestamptz::Timestamptz;
use crate::store::census::sql::{DEAD, DUE, GROUPED, STAGED, WAITING};
use crate::store::operators::ScopeLimits;
use crate::store::statement::statement;

type GroupSql = (
    (Text, Integer, Text),
    (Text, Text, Nullable<Text>, Nullable<Text>),
    (BigInt, BigInt, BigInt, Nullable<BigInt>),
    (BigInt, BigInt, Timestamptz, Timestamptz, Timestamptz),
);

/// Of a row: behind it follows what it is paused for. By these columns it is told whether a build could go on
/// with it; which attempt was the last matters only behind a word about it.
const ROW: &str = "definition, definition_version, phases, \
    CASE WHEN status = 'in_progress' AND waiting_since IS NOT NULL THEN 'looked_into' ELSE status::text END AS status, \
    recovery_point, open_intent, resolution, \
    (CASE WHEN resolution IS NULL AND attempts > 1 THEN 1 ELSE attempts END)::bigint AS attempts, \
    advanced_at, created_at, coalesce(locked_until > clock_timestamp(), false)::int::bigint AS is_held, \
    (run_after <= clock_timestamp())::int::bigint AS is_due, coalesce(reason = ";
const PAUSED: &str = ", false)::int::bigint AS is_paused, ";

statement! {
    /// What is unfinished and does not run, by `atomic_phases_keys_waiting` and `atomic_phases_keys_due`.
    Groups<'a> for Pg, rows GroupSql, { paused: &'a str, allowed: Allowed<'a> },
    [GROUPED], [ROW], paused, [PAUSED], {allowed}, [WAITING], [ROW], paused, [PAUSED], {allowed}, [DUE]
}

impl<'a> Groups<'a> {
    pub(super) fn of(limits: &'a ScopeLimits, paused: &'a str) -> Self {
        Self { paused, allowed: Allowed::by(limits) }
    }
}

statement! {
    /// Staged jobs, by `atomic_phases_staged_jobs_due` and `_dead`.
    Jobs for Pg, rows (BigInt, Nullable<Timestamptz>, BigInt), {},
    [STAGED], "clock_timestamp()", [DEAD]
}

pub(super) type JobsRow = (i64, Option<DateTime<Utc>>, i64);

statement! {
    /// The right to take it, where no other process has it.
    ClaimCensus for Pg, rows sql_types::Untyped, { holder: Uuid, lease_ms: i64 },
    "UPDATE atomic_phases_leases SET holder = ", holder, ", held_until = clock_timestamp() + ", lease_ms,
    " * interval '1 millisecond' WHERE name = 'census' AND (holder = ", holder,
    " OR held_until <= clock_timestamp())"
}
