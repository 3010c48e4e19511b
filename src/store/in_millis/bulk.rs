//! The statements of bulk acts: those of `store::postgres::ops_bulk`, with owned values.

use chrono::DateTime;
use diesel::sql_types::{self, BigInt, Binary, Nullable, Text};
use uuid::Uuid;

use super::InMillis;
use crate::store::bulk::{BulkColumns, BulkRow, ItemColumns};
use crate::store::statement::statement;

type BulkSql = (
    (Binary, Text, Text, Text),
    (Text, BigInt, BigInt, BigInt),
    (BigInt, Nullable<BigInt>, Nullable<Text>, BigInt),
);

pub(in crate::store) type StoredBulk = (
    (Vec<u8>, String, String, String),
    (String, i64, i64, i64),
    (i64, Option<i64>, Option<String>, i64),
);

/// A row with a value that no row of ours has was written by hand, and is passed over.
pub(in crate::store) fn bulk(
    ((id, act, actor, reason), counts, times): StoredBulk,
) -> Option<BulkColumns> {
    let (limits, items, settled, applied) = counts;
    let (started_at, ended_at, stopped_by, lease_token) = times;
    let time = DateTime::from_timestamp_millis;
    Some((
        (Uuid::from_slice(&id).ok()?, act, actor, reason),
        (limits, i32::try_from(items).ok()?, settled, applied),
        (time(started_at)?, ended_at.and_then(time), stopped_by, lease_token),
    ))
}

pub(in crate::store) type StoredItem = (i64, Vec<u8>, String, Option<String>, Option<String>);

pub(in crate::store) fn item(
    (position, id, seen, outcome, because): StoredItem,
) -> Option<ItemColumns> {
    let position = i32::try_from(position).ok()?;
    Some((position, Uuid::from_slice(&id).ok()?, seen, outcome, because))
}

/// A bulk act, with how far it came.
const BULK: &str = "SELECT id, act, actor, reason, limits, items, \
    (SELECT count(*) FROM atomic_phases_bulk_items AS i WHERE i.bulk_id = b.id AND i.outcome IS NOT NULL), \
    (SELECT count(*) FROM atomic_phases_bulk_items AS i WHERE i.bulk_id = b.id AND i.outcome = 'applied'), \
    started_at, ended_at, stopped_by, lease_token FROM atomic_phases_bulk AS b WHERE ";

/// A bulk act, without that: its requests are not read.
const UNCOUNTED: &str = "SELECT id, act, actor, reason, limits, items, 0, 0, \
    started_at, ended_at, stopped_by, lease_token FROM atomic_phases_bulk AS b WHERE ";

statement! {
    /// A bulk act.
    StartBulk in D: InMillis, rows sql_types::Untyped,
    { id: Vec<u8>, act: String, actor: String, reason: String, limits: String, items: i64 },
    "INSERT INTO atomic_phases_bulk (id, act, actor, reason, limits, items, started_at) VALUES (", id, ", ", act,
    ", ", actor, ", ", reason, ", ", limits, ", ", items, ", ", (D::NOW), ")"
}

statement! {
    /// The newest bulk acts, by `atomic_phases_bulk_started`. On MySQL a comparison of rows bounds no index, so the time is
    /// compared, too; behind it, for SQLite bounds the index by the first condition that can.
    Bulks in D: InMillis, rows BulkSql, { started_at: i64, id: Vec<u8>, limit: i64 },
    [UNCOUNTED], "(started_at, id) < (", started_at, ", ", id, ") AND started_at <= ",
    started_at, " ORDER BY started_at DESC, id DESC LIMIT ", limit
}

statement! {
    /// Those of these ids, a list of texts in hex, that were started from `oldest` to `newest`.
    CountedBulks in D: InMillis, rows BulkSql, { oldest: i64, newest: i64, ids: String },
    [BULK], "started_at >= ", oldest, " AND started_at <= ", newest, " AND ",
    (D::AMONG[0]), "hex(id)", (D::AMONG[1]), ids, (D::AMONG[2])
}

impl CountedBulks {
    pub(in crate::store) fn of<D: InMillis>(bulks: &[BulkRow]) -> Self {
        let times = || bulks.iter().map(|bulk| bulk.started_at.timestamp_millis());
        let ids: Vec<String> = bulks
            .iter()
            .map(|bulk| bulk.id.simple().encode_upper(&mut Uuid::encode_buffer()).to_owned())
            .collect();
        Self {
            oldest: times().min().unwrap_or_default(),
            newest: times().max().unwrap_or_default(),
            ids: D::list(&ids),
        }
    }
}

statement! {
    /// One of them.
    Bulk in D: InMillis, rows BulkSql, { id: Vec<u8> },
    [BULK], "id = ", id
}

statement! {
    /// Those that no runner holds, by `atomic_phases_bulk_open`.
    OpenBulks in D: InMillis, rows BulkSql, { limit: i64 },
    [UNCOUNTED], "ended_at IS NULL AND coalesce(locked_until <= ", (D::CLOCK), ", true) ORDER BY started_at LIMIT ", limit
}

statement! {
    /// The requests of one, in order.
    BulkItems in D: InMillis, rows (BigInt, Binary, Text, Nullable<Text>, Nullable<Text>),
    { id: Vec<u8>, all: bool, limit: i64 },
    "SELECT position, request_id, seen, outcome, because FROM atomic_phases_bulk_items WHERE bulk_id = ", id,
    " AND (", all, " OR outcome IS NULL) ORDER BY position LIMIT ", limit
}

statement! {
    /// The right to do a slice.
    ClaimBulk in D: InMillis, rows sql_types::Untyped, { token: i64, lease_ms: i64, id: Vec<u8> },
    "UPDATE atomic_phases_bulk SET lease_token = ", token, " + 1, locked_until = ", (D::NOW), " + ", lease_ms,
    " WHERE id = ", id, " AND lease_token = ", token, " AND ended_at IS NULL"
}

statement! {
    /// The outcome of a request, if the token is still the holder's.
    SettleItem in D: InMillis, rows sql_types::Untyped,
    { outcome: String, because: Option<String>, id: Vec<u8>, position: i64, token: i64 },
    "UPDATE atomic_phases_bulk_items SET outcome = ", outcome, ", because = ", because, " WHERE bulk_id = ", id,
    " AND position = ", position, " AND outcome IS NULL AND EXISTS (SELECT 1 FROM atomic_phases_bulk WHERE id = ",
    id, " AND lease_token = ", token, ")"
}

statement! {
    /// The end of a slice, and of the bulk act where no request is left or it was stopped.
    LeaveBulk in D: InMillis, rows sql_types::Untyped, { id: Vec<u8>, token: i64 },
    "UPDATE atomic_phases_bulk AS b SET locked_until = NULL, ended_at = CASE WHEN stopped_by IS NOT NULL \
     OR NOT EXISTS (SELECT 1 FROM atomic_phases_bulk_items AS i WHERE i.bulk_id = b.id AND i.outcome IS NULL) \
     THEN ", (D::NOW),
    " END WHERE id = ", id, " AND lease_token = ", token, " AND ended_at IS NULL"
}

statement! {
    /// No further request. A slice that is under way ends first.
    StopBulk in D: InMillis, rows sql_types::Untyped, { by: String, id: Vec<u8> },
    "UPDATE atomic_phases_bulk SET ended_at = CASE WHEN locked_until IS NULL THEN ", (D::NOW), " END, stopped_by = ", by,
    " WHERE id = ", id, " AND ended_at IS NULL AND stopped_by IS NULL"
}
