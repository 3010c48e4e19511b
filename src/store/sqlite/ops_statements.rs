//! The statements of `ops`: those of `store::postgres::ops_statements`, with owned values.

use diesel::sql_types::{self, Integer, Nullable, Text};
use diesel::sqlite::Sqlite as Db;

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
    /// A request of it.
    AddItem for Db, rows sql_types::Untyped,
    { id: Vec<u8>, position: i64, request_id: Vec<u8>, seen: String },
    "INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen) VALUES (", id, ", ", position,
    ", ", request_id, ", ", seen, ")"
}
