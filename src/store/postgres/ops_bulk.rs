//! The statements of bulk acts.

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::sql_types::{self, BigInt, Integer, Nullable, Text, Uuid as SqlUuid};
use uuid::Uuid;

use super::ops_statements::InsertAudit;
use super::timestamptz::Timestamptz;
use crate::store::bulk::{NewBulk, limits_text};
use crate::store::statement::statement;

type BulkSql = (
    (SqlUuid, Text, Text, Text),
    (Text, Integer, BigInt, BigInt),
    (Timestamptz, Nullable<Timestamptz>, Nullable<Text>, BigInt),
);

/// A bulk act, with how far it came.
const BULK: &str = "SELECT id, act, actor, reason, limits, items, \
    (SELECT count(*) FROM atomic_phases_bulk_items AS i WHERE i.bulk_id = b.id AND i.outcome IS NOT NULL), \
    (SELECT count(*) FROM atomic_phases_bulk_items AS i WHERE i.bulk_id = b.id AND i.outcome = 'applied'), \
    started_at, ended_at, stopped_by, lease_token FROM atomic_phases_bulk AS b WHERE ";

/// A bulk act, without that: its requests are not read.
const UNCOUNTED: &str = "SELECT id, act, actor, reason, limits, items, CAST(0 AS bigint), CAST(0 AS bigint), \
    started_at, ended_at, stopped_by, lease_token FROM atomic_phases_bulk AS b WHERE ";

statement! {
    /// A bulk act, its requests, and the audit row.
    StartBulk<'a> for Pg, rows sql_types::Untyped,
    {
        id: Uuid, act: &'static str, actor: &'a str, reason: &'a str, limits: String, items: i32,
        requests: Vec<String>, seen: Vec<String>, audit: InsertAudit<'a>,
    },
    "WITH started AS (INSERT INTO atomic_phases_bulk (id, act, actor, reason, limits, items, started_at) \
     VALUES (", id, ", ", act, ", ", actor, ", ", reason, ", ", limits, ", ", items,
    ", clock_timestamp()) RETURNING id), its AS (INSERT INTO atomic_phases_bulk_items (bulk_id, position, \
     request_id, seen) SELECT started.id, item.position - 1, item.request_id, item.seen FROM started, unnest(CAST(",
    requests, " AS uuid[]), ", seen, ") WITH ORDINALITY AS item (request_id, seen, position)) ", {audit},
    " FROM started"
}

impl<'a> StartBulk<'a> {
    pub(super) fn new(bulk: &NewBulk<'a>) -> Self {
        let (requests, seen) =
            bulk.items.iter().map(|(id, seen)| (id.to_string(), seen.clone())).unzip();
        Self {
            id: bulk.id,
            act: bulk.act,
            actor: &bulk.audit.actor,
            reason: &bulk.audit.reason,
            limits: limits_text(bulk.limits),
            items: i32::try_from(bulk.items.len()).unwrap_or(i32::MAX),
            requests,
            seen,
            audit: InsertAudit::of(bulk.audit),
        }
    }
}

statement! {
    /// The newest bulk acts, by `atomic_phases_bulk_started`.
    Bulks for Pg, rows BulkSql,
    { started_at: DateTime<Utc>, id: Uuid, limit: i64 },
    [UNCOUNTED], "(started_at, id) < (", started_at, ", ", id,
    ") ORDER BY started_at DESC, id DESC LIMIT ", limit
}

statement! {
    /// Those of these ids.
    CountedBulks for Pg, rows BulkSql, { ids: Vec<String> },
    [BULK], "id = ANY(CAST(", ids, " AS uuid[]))"
}

statement! {
    /// One of them.
    Bulk for Pg, rows BulkSql, { id: Uuid },
    [BULK], "id = ", id
}

statement! {
    /// Those that no process works on, by `atomic_phases_bulk_open`.
    OpenBulks for Pg, rows BulkSql, { limit: i64 },
    [UNCOUNTED], "ended_at IS NULL AND coalesce(locked_until <= clock_timestamp(), true) ORDER BY started_at LIMIT ",
    limit
}

statement! {
    /// The requests of one, in order.
    BulkItems for Pg, rows (Integer, SqlUuid, Text, Nullable<Text>, Nullable<Text>),
    { id: Uuid, all: bool, limit: i64 },
    "SELECT position, request_id, seen, outcome, because FROM atomic_phases_bulk_items WHERE bulk_id = ", id,
    " AND (", all, " OR outcome IS NULL) ORDER BY position LIMIT ", limit
}

statement! {
    /// The right to do a slice.
    ClaimBulk for Pg, rows sql_types::Untyped, { token: i64, lease_ms: i64, id: Uuid },
    "UPDATE atomic_phases_bulk SET lease_token = ", token, " + 1, locked_until = clock_timestamp() + ", lease_ms,
    " * interval '1 millisecond' WHERE id = ", id, " AND lease_token = ", token, " AND ended_at IS NULL"
}

statement! {
    /// What became of a request, if the token is still the holder's.
    SettleItem<'a> for Pg, rows sql_types::Untyped,
    { outcome: &'static str, because: Option<&'a str>, id: Uuid, position: i32, token: i64 },
    "UPDATE atomic_phases_bulk_items SET outcome = ", outcome, ", because = ", because, " WHERE bulk_id = ", id,
    " AND position = ", position, " AND outcome IS NULL AND EXISTS (SELECT 1 FROM atomic_phases_bulk WHERE id = ",
    id, " AND lease_token = ", token, ")"
}

statement! {
    /// The same, and the audit row.
    SettleAudited<'a> for Pg, rows sql_types::Untyped, { settle: SettleItem<'a>, audit: InsertAudit<'a> },
    "WITH settled AS (", {settle}, " RETURNING 1) ", {audit}, " FROM settled"
}

statement! {
    /// The end of a slice, and of the bulk act where no request is left or it was stopped.
    LeaveBulk for Pg, rows sql_types::Untyped, { id: Uuid, token: i64 },
    "UPDATE atomic_phases_bulk AS b SET locked_until = NULL, ended_at = CASE WHEN stopped_by IS NOT NULL \
     OR NOT EXISTS (SELECT 1 FROM atomic_phases_bulk_items AS i WHERE i.bulk_id = b.id AND i.outcome IS NULL) \
     THEN clock_timestamp() END WHERE id = ", id, " AND lease_token = ", token, " AND ended_at IS NULL"
}

statement! {
    /// No further request, and the audit row. A slice that is under way ends first.
    StopBulk<'a> for Pg, rows sql_types::Untyped,
    { by: &'a str, id: Uuid, audit: InsertAudit<'a> },
    "WITH stopped AS (UPDATE atomic_phases_bulk SET ended_at = CASE WHEN locked_until IS NULL THEN clock_timestamp() END, \
     stopped_by = ", by, " WHERE id = ", id, " AND ended_at IS NULL AND stopped_by IS NULL RETURNING 1) ", {audit}, " FROM stopped"
}
