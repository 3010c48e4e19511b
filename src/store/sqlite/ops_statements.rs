//! The statements of `ops`: those of `store::postgres::ops_statements`, with owned values.

use diesel::sql_types::{self, Integer, Nullable, Text};
use diesel::sqlite::Sqlite as Db;

use super::statements::NOW;
pub(super) use crate::store::in_millis::audit::*;
pub(super) use crate::store::in_millis::health::*;
pub(super) use crate::store::in_millis::jobs::*;
pub(super) use crate::store::in_millis::pauses::*;
pub(super) use crate::store::in_millis::requests::*;
use crate::store::statement::statement;

statement! {
    /// The events of a request, by the primary key.
    Events for Db, rows (Nullable<Text>, Nullable<Integer>),
    { scope: String, key: String, request_id: Vec<u8> },
    "SELECT events, events_written FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}

statement! {
    /// The row of a phase that is about to be paused: where there is none, that of a pause that is over.
    HoldPause for Db, rows sql_types::Untyped, { definition: String, phase: String },
    "INSERT INTO atomic_phases_pauses (definition, phase, reason, paused_by, paused_at, ends_at) VALUES (",
    definition, ", ", phase, ", '', '', 0, 0) ON CONFLICT (definition, phase) DO NOTHING"
}

statement! {
    /// Pauses a phase, for so long or until an operator ends it.
    PausePhase for Db, rows sql_types::Untyped,
    {
        definition: String, phase: String, reason: String, paused_by: String, for_ms: Option<i64>,
    },
    "INSERT INTO atomic_phases_pauses (definition, phase, reason, paused_by, paused_at, ends_at) VALUES (",
    definition, ", ", phase, ", ", reason, ", ", paused_by, ", ", [NOW], ", ", [NOW], " + ", for_ms,
    ") ON CONFLICT (definition, phase) DO UPDATE SET reason = excluded.reason, \
     paused_by = excluded.paused_by, paused_at = excluded.paused_at, ends_at = excluded.ends_at"
}

statement! {
    /// A request of it.
    AddItem for Db, rows sql_types::Untyped,
    { id: Vec<u8>, position: i64, request_id: Vec<u8>, seen: String },
    "INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen) VALUES (", id, ", ", position,
    ", ", request_id, ", ", seen, ")"
}
