//! The statements of paused phases, with owned values.

use chrono::DateTime;
use diesel::sql_types::{self, BigInt, Nullable, Text};

use super::InMillis;
use crate::store::pauses::{PauseAct, PauseRow, PauseWhat, PausedPhase};
use crate::store::row::millis;
use crate::store::statement::statement;

statement! {
    /// The phases that are paused, by the primary key.
    Pauses in D: InMillis, rows PauseSql, {},
    "SELECT definition, phase, reason, paused_by, paused_at, ends_at, ", (D::CLOCK),
    " FROM atomic_phases_pauses WHERE coalesce(ends_at > ", (D::CLOCK),
    ", true) ORDER BY definition, phase LIMIT 1100"
}

type PauseSql = ((Text, Text, Text, Text), (BigInt, Nullable<BigInt>, BigInt));

pub(in crate::store) type StoredPause = ((String, String, String, String), (i64, Option<i64>, i64));

pub(in crate::store) fn pause((said, (paused_at, ends_at, now)): StoredPause) -> Option<PauseRow> {
    let time = DateTime::from_timestamp_millis;
    Some((said, (time(paused_at)?, ends_at.and_then(time), time(now)?)))
}

statement! {
    /// Locks the row of a phase that is about to be paused: where there is none, that of a pause that is over.
    HoldPause in D: InMillis, rows sql_types::Untyped, { definition: String, phase: String },
    "INSERT INTO atomic_phases_pauses (definition, phase, reason, paused_by, paused_at, ends_at) VALUES (",
    definition, ", ", phase, ", '', '', 0, 0)", (D::HOLDS_PAUSE)
}

statement! {
    /// Pauses a phase, for so long or until an operator ends it.
    PausePhase in D: InMillis, rows sql_types::Untyped,
    {
        definition: String, phase: String, reason: String, paused_by: String, for_ms: Option<i64>,
    },
    "INSERT INTO atomic_phases_pauses (definition, phase, reason, paused_by, paused_at, ends_at) VALUES (",
    definition, ", ", phase, ", ", reason, ", ", paused_by, ", ", (D::CLOCK), ", ", (D::CLOCK), " + ", for_ms, ")",
    (D::UPDATES_PAUSE)
}

statement! {
    /// Ends the pause of a phase.
    UnpausePhase in D: InMillis, rows sql_types::Untyped, { definition: String, phase: String },
    "DELETE FROM atomic_phases_pauses WHERE definition = ", definition, " AND phase = ", phase
}

statement! {
    /// Whether the row is the pause that was seen, and lasts. If none was seen: whether its pause is over, and another may
    /// begin.
    SeenPause in D: InMillis, rows sql_types::Untyped,
    { paused_at: Option<i64>, paused_by: String, reason: String, ends_at: Option<i64> },
    "CASE WHEN ", paused_at, " IS NULL THEN ends_at <= ", (D::CLOCK),
    " AND (SELECT count(*) FROM atomic_phases_pauses AS p WHERE coalesce(p.ends_at > ", (D::CLOCK),
    ", true)) < 1000 ELSE paused_at = ", paused_at,
    " AND paused_by = ", paused_by, " AND reason = ", reason, " AND coalesce(ends_at, -1) = coalesce(", ends_at,
    ", -1) AND coalesce(ends_at > ", (D::CLOCK), ", true) END"
}

impl SeenPause {
    fn of(seen: Option<&PausedPhase>) -> Self {
        let Some(PausedPhase { reason, paused_by, paused_at, ends_at, .. }) = seen else {
            let (paused_by, reason) = (String::new(), String::new());
            return Self { paused_at: None, paused_by, reason, ends_at: None };
        };
        Self {
            paused_at: Some(paused_at.timestamp_millis()),
            paused_by: paused_by.clone(),
            reason: reason.clone(),
            ends_at: ends_at.map(|ends| ends.timestamp_millis()),
        }
    }
}

statement! {
    /// The audit row of a pause, or of the end of one, while the row of before is there: what is replaced stands in it. Writes
    /// nothing where that row is not as it was seen.
    AuditPause in D: InMillis, rows sql_types::Untyped,
    {
        id: Vec<u8>, actor: String, act: String, outcome: String, reason: String, definition: String,
        phase: String, ends: bool, for_ms: Option<i64>, seen: SeenPause,
    },
    "INSERT INTO atomic_phases_audit (at, id, actor, act, outcome, reason, definition, phase, status_before, \
     status_after) SELECT ", (D::NOW), ", ", id, ", ", actor, ", ", act, ", ", outcome, ", ", reason, ", ",
    definition, ", ", phase, ", CASE WHEN ends_at <= ", (D::CLOCK), " THEN 'runs' ELSE coalesce(",
    (D::PAUSED_UNTIL[0]), "ends_at", (D::PAUSED_UNTIL[1]), ", 'paused') END, CASE WHEN ", ends,
    " THEN 'runs' ELSE coalesce(", (D::PAUSED_UNTIL[0]), "(", (D::CLOCK), " + ", for_ms, ")",
    (D::PAUSED_UNTIL[1]), ", 'paused') END FROM atomic_phases_pauses WHERE definition = ", definition,
    " AND phase = ", phase, " AND ", seen
}

impl AuditPause {
    pub(in crate::store) fn of(act: &PauseAct<'_>) -> Self {
        let PauseAct { definition, phase, what, audit } = *act;
        let (ends, for_ms, seen) = match what {
            PauseWhat::Begin(length) => (false, length.map(millis), None),
            PauseWhat::Replace(seen, length) => (false, length.map(millis), Some(seen)),
            PauseWhat::End(seen) => (true, None, Some(seen)),
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
            seen: SeenPause::of(seen),
        }
    }
}
