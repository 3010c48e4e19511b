//! The statements of paused phases, with owned values.

use chrono::DateTime;
use diesel::sql_types::{self, BigInt, Nullable, Text};

use super::InMillis;
use crate::store::pauses::PauseRow;
use crate::store::statement::statement;

statement! {
    /// The phases that are paused, by the primary key.
    Pauses in D: InMillis, rows PauseSql, {},
    "SELECT definition, phase, reason, paused_by, paused_at, ends_at, ", (D::CLOCK),
    " FROM atomic_phases_pauses WHERE coalesce(ends_at > ", (D::CLOCK),
    ", true) ORDER BY definition, phase LIMIT 1000"
}

type PauseSql = ((Text, Text, Text, Text), (BigInt, Nullable<BigInt>, BigInt));

pub(in crate::store) type StoredPause = ((String, String, String, String), (i64, Option<i64>, i64));

pub(in crate::store) fn pause((said, (paused_at, ends_at, now)): StoredPause) -> Option<PauseRow> {
    let time = DateTime::from_timestamp_millis;
    Some((said, (time(paused_at)?, ends_at.and_then(time), time(now)?)))
}

statement! {
    /// Ends the pause of a phase.
    UnpausePhase in D: InMillis, rows sql_types::Untyped, { definition: String, phase: String },
    "DELETE FROM atomic_phases_pauses WHERE definition = ", definition, " AND phase = ", phase
}
