//! The statements of `ops`: those of `store::postgres::ops_statements`, with owned values.

use diesel::mysql::Mysql as Db;
use diesel::sql_types::{self, Binary, Integer, Nullable};

pub(super) use crate::store::in_millis::audit::*;
pub(super) use crate::store::in_millis::health::*;
pub(super) use crate::store::in_millis::jobs::*;
pub(super) use crate::store::in_millis::pauses::*;
pub(super) use crate::store::in_millis::requests::*;
use crate::store::statement::statement;

statement! {
    /// The events of a request, by the primary key. Bytes: the first line may be cut within a character.
    Events for Db, rows (Nullable<Binary>, Nullable<Integer>),
    { scope: String, key: String, request_id: Vec<u8> },
    "SELECT events, events_written FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}

statement! {
    /// Locks the row of a pause that is about to end.
    HoldPaused for Db, rows sql_types::Untyped, { definition: String, phase: String },
    "UPDATE atomic_phases_pauses SET reason = reason WHERE definition = ", definition, " AND phase = ", phase
}

statement! {
    /// Its requests: a JSON array of pairs, id and version.
    AddItems for Db, rows sql_types::Untyped, { id: Vec<u8>, requests: String },
    "INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen) SELECT ", id,
    ", item.position - 1, UNHEX(item.id), item.seen FROM JSON_TABLE(CONVERT(", requests,
    " USING utf8mb4), '$[*]' COLUMNS (position FOR ORDINALITY, id VARCHAR(32) PATH '$[0]', \
     seen VARCHAR(100) PATH '$[1]')) AS item"
}
