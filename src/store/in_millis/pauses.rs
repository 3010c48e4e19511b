//! The statements of paused phases, with owned values.

use chrono::DateTime;
use diesel::sql_types::{self, BigInt, Nullable, Text};

use super::InMillis;
use crate::store::pauses::{PauseAct, PauseRow, PauseWhat};
use crate::store::row::millis;
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

statement! {
    /// The audit row of a pause, or of the end of one, while the row of before is there: what is replaced stands in it.
    AuditPause in D: InMillis, rows sql_types::Untyped,
    {
        id: Vec<u8>, actor: String, act: String, outcome: String, reason: String, definition: String,
        phase: String, ends: bool, for_ms: Option<i64>,
    },
    "INSERT INTO atomic_phases_audit (at, id, actor, act, outcome, reason, definition, phase, status_before, \
     status_after) SELECT ", (D::NOW), ", ", id, ", ", actor, ", ", act, ", ", outcome, ", ", reason, ", ",
    definition, ", ", phase, ", CASE WHEN ends_at <= ", (D::CLOCK), " THEN 'runs' ELSE coalesce(",
    (D::PAUSED_UNTIL[0]), "ends_at", (D::PAUSED_UNTIL[1]), ", 'paused') END, CASE WHEN ", ends,
    " THEN 'runs' ELSE coalesce(", (D::PAUSED_UNTIL[0]), "(", (D::CLOCK), " + ", for_ms, ")",
    (D::PAUSED_UNTIL[1]), ", 'paused') END FROM atomic_phases_pauses WHERE definition = ", definition,
    " AND phase = ", phase
}

impl AuditPause {
    pub(in crate::store) fn of(act: &PauseAct<'_>) -> Self {
        let PauseAct { definition, phase, what, audit } = *act;
        let (ends, for_ms) = match what {
            PauseWhat::Begin(length) => (false, length.map(millis)),
            PauseWhat::End => (true, None),
        };
        Self {
            id: audit.id.as_bytes().to_vec(),
            actor: audit.actor.clone(),
            act: audit.act.to_owned(),
            outcome: audit.outcome.to_owned(),
            reason: audit.reason.clone(),
            definition: definition.to_owned(),
            phase: phase.to_owned(),
            ends,
            for_ms,
        }
    }
}
