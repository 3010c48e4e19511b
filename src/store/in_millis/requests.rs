//! The statements of operators about requests: those of `store::postgres::ops_statements`, with owned values.

use chrono::DateTime;
use diesel::QueryResult;
use diesel::query_builder::AstPass;
use diesel::sql_types::{BigInt, Binary, Nullable, Text};
use uuid::Uuid;

use super::statements::COLUMNS;
use super::{Allowed, InMillis, RowSql};
use crate::store::operators::{
    IDS_PER_SEARCH, LATE_MS, ListRequests, ListedRow, RequestAt, ScopeLimits, Walk,
};
use crate::store::statement::{Part, statement};

pub(in crate::store) type ListedSql = (
    (Binary, Text, Text),
    (Text, BigInt, Text),
    (Text, Text, Text, Nullable<Text>, Nullable<Text>),
    (BigInt, Nullable<Text>),
    (Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>),
    (BigInt, BigInt),
);

pub(in crate::store) type StoredListed = (
    (Vec<u8>, String, String),
    (String, i64, String),
    (String, String, String, Option<String>, Option<String>),
    (i64, Option<String>),
    (Option<i64>, Option<i64>, Option<i64>),
    (i64, i64),
);

/// A row with a value that no row of ours has was written by hand, and is passed over.
pub(in crate::store) fn listed(row: StoredListed) -> Option<ListedRow> {
    let ((id, scope, key), (definition, version, phases), stands, counts, due, times) = row;
    let time = DateTime::from_timestamp_millis;
    Some((
        (Uuid::from_slice(&id).ok()?, scope, key),
        (definition, i32::try_from(version).ok()?, phases),
        stands,
        (i32::try_from(counts.0).ok()?, counts.1),
        (due.0.and_then(time), due.1.and_then(time), due.2.and_then(time)),
        (time(times.0)?, time(times.1)?),
    ))
}

/// What [`List`] reads of the rows that it looks at. MySQL copies each of these columns, of each row, into a temporary table,
/// which is a file where one of them is large: so none of them is a body.
const LOOKED_AT: &str = "request_id, scope, idempotency_key, definition, definition_version, phases, fingerprint, \
    status, recovery_point, open_intent, reason, attempts, resolution, locked_until, run_after, waiting_since, \
    created_at, expires_at";

/// The rows that a search looks at: a bounded part of one index, in its order, from one place on.
#[derive(Clone)]
pub(in crate::store) struct Walked {
    walk: Walk,
    time: i64,
    request_id: Vec<u8>,
}

impl Walked {
    fn of(list: &ListRequests) -> Self {
        Self {
            walk: list.walk,
            time: list.after.time.timestamp_millis(),
            request_id: list.after.request_id.as_bytes().to_vec(),
        }
    }

    /// `columns`: one behind the other.
    fn select<'b, D: InMillis>(
        &'b self,
        out: &mut AstPass<'_, 'b, D>,
        columns: &[&'static str],
    ) -> QueryResult<()>
    where
        i64: Part<D>,
        Vec<u8>: Part<D>,
    {
        let sql = self.walk.sql();
        out.push_sql("SELECT ");
        columns.iter().for_each(|part| out.push_sql(part));
        out.push_sql(" FROM atomic_phases_keys");
        out.push_sql(D::by_index(self.walk));
        out.push_sql(sql.rows);
        // This bounds MySQL's index; a comparison of rows does not.
        out.push_sql(self.walk.from());
        self.time.push(out)?;
        out.push_sql(" AND ");
        out.push_sql(sql.behind);
        self.time.push(out)?;
        out.push_sql(", ");
        self.request_id.push(out)?;
        out.push_sql(")");
        out.push_sql(sql.order);
        Ok(())
    }
}

impl<D: InMillis> Part<D> for Walked
where
    i64: Part<D>,
    Vec<u8>: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        self.select(out, &[LOOKED_AT])?;
        // `MAX_ROWS_PER_SEARCH`.
        out.push_sql(" LIMIT 10000");
        Ok(())
    }
}

/// The order of the rows that were found: that of the walk.
pub(in crate::store) struct InOrder(Walk);

impl<D: InMillis> Part<D> for InOrder {
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        out.push_sql(self.0.sql().order);
        Ok(())
    }
}

/// The last place that a search looked at, where it looked at as many rows as it may.
pub(in crate::store) struct LastLookedAt(Walked);

impl<D: InMillis> Part<D> for LastLookedAt
where
    i64: Part<D>,
    Vec<u8>: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        self.0.select(out, &[self.0.walk.sql().column, ", request_id"])?;
        out.push_sql(" LIMIT 1 OFFSET 9999");
        Ok(())
    }
}

/// See `store::operators::state_name`. Around the time of the database.
const STATE: [&str; 3] = [
    "CASE status WHEN 'pending' THEN 'accepted' WHEN 'in_progress' THEN \
     CASE WHEN waiting_since IS NOT NULL THEN 'unknown' WHEN locked_until > ",
    " THEN 'running' ELSE 'lease_ended' END WHEN 'failed_retryable' THEN CASE WHEN run_after > ",
    " THEN 'backing_off' ELSE 'due' END \
     WHEN 'completed' THEN CASE fingerprint WHEN 'erased' THEN 'erased' ELSE 'finished' END \
     WHEN 'unknown' THEN 'unknown' WHEN 'dead_letter' THEN 'dead_letter' ELSE 'unreadable' END AS state",
];

/// What a list has of a request, around its state.
const LISTED: [&str; 2] = [
    "SELECT request_id, scope, idempotency_key, definition, definition_version, phases, ",
    ", status, recovery_point, open_intent, reason, attempts, resolution, locked_until, \
     run_after, waiting_since, created_at, expires_at FROM ",
];

statement! {
    /// A page of requests: of the rows that are looked at, those that are asked for.
    List in D: InMillis as varying, rows ListedSql,
    {
        walked: Walked, allowed: Allowed, states: Option<String>, scope: Option<String>,
        definition: Option<String>, version: Option<i64>,
        reason: Option<String>, older_ms: Option<i64>, waiting_ms: Option<i64>,
        order: InOrder, limit: i64,
    },
    (LISTED[0]), "state", (LISTED[1]), "(SELECT looked.*, ",
    (STATE[0]), (D::CLOCK), (STATE[1]), (D::CLOCK), (STATE[2]), " FROM (", walked,
    ") AS looked) AS k WHERE ", allowed, " AND (", states,
    " IS NULL OR ", (D::AMONG[0]), "state", (D::AMONG[1]), states, (D::AMONG[2]), ") AND coalesce(scope = ", scope,
    ", true) AND coalesce(definition = ", definition, ", true) AND coalesce(definition_version = ",
    version, ", true) AND (", reason,
    " IS NULL OR instr(coalesce(reason, ''), ", reason, ") > 0) AND coalesce(created_at <= ", (D::CLOCK), " - ",
    older_ms, ", true) AND (", waiting_ms, " IS NULL OR coalesce(waiting_since <= ", (D::CLOCK), " - ",
    waiting_ms, ", false))", order, " LIMIT ", limit
}

impl List {
    pub(in crate::store) fn new<D: InMillis>(list: &ListRequests) -> Self {
        Self {
            walked: Walked::of(list),
            allowed: Allowed::by::<D>(&list.limits),
            states: list.states.as_deref().map(D::list),
            scope: list.scope.clone(),
            definition: list.definition.clone(),
            version: list.version.map(|version| version.cast_signed().into()),
            reason: list.reason.clone(),
            older_ms: list.older_ms,
            waiting_ms: list.waiting_ms,
            order: InOrder(list.walk),
            limit: list.limit.into(),
        }
    }
}

statement! {
    /// How far a search looked.
    EndOfLook in D: InMillis as varying, rows (BigInt, Binary), { last: LastLookedAt }, last
}

impl EndOfLook {
    pub(in crate::store) fn new(list: &ListRequests) -> Self {
        Self { last: LastLookedAt(Walked::of(list)) }
    }
}

/// Always [`IDS_PER_SEARCH`] ids, so that a connection prepares one text: the last one is repeated.
pub(in crate::store) struct Ids(Vec<Vec<u8>>);

impl Ids {
    fn of(ids: &[Uuid]) -> Self {
        let last = ids.last().copied().unwrap_or_default();
        let filled = ids.iter().copied().chain(std::iter::repeat(last)).take(IDS_PER_SEARCH);
        Self(filled.map(|id| id.as_bytes().to_vec()).collect())
    }
}

impl<D: InMillis> Part<D> for Ids
where
    Vec<u8>: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        for (index, id) in self.0.iter().enumerate() {
            out.push_sql(if index == 0 { "request_id IN (" } else { ", " });
            id.push(out)?;
        }
        out.push_sql(")");
        Ok(())
    }
}

statement! {
    /// Requests by their ids, as a list has them, by `atomic_phases_keys_request`.
    ByIds in D: InMillis as varying, rows ListedSql, { ids: Ids, allowed: Allowed },
    (LISTED[0]), (STATE[0]), (D::CLOCK), (STATE[1]), (D::CLOCK), (STATE[2]), (LISTED[1]),
    "atomic_phases_keys WHERE ", ids, " AND ", allowed
}

impl ByIds {
    pub(in crate::store) fn new<D: InMillis>(ids: &[Uuid], limits: &ScopeLimits) -> Self {
        Self { ids: Ids::of(ids), allowed: Allowed::by::<D>(limits) }
    }
}

/// By its id, or by its key.
pub(in crate::store) enum At {
    Id(Vec<u8>),
    Key(String, String),
}

impl<D: InMillis> Part<D> for At
where
    String: Part<D>,
    Vec<u8>: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        match self {
            Self::Id(id) => {
                out.push_sql("request_id = ");
                id.push(out)
            }
            Self::Key(scope, key) => {
                out.push_sql("scope = ");
                scope.push(out)?;
                out.push_sql(" AND idempotency_key = ");
                key.push(out)
            }
        }
    }
}

statement! {
    /// One request, by `atomic_phases_keys_request` or by its primary key.
    Find in D: InMillis as varying, rows (Text, Text, RowSql), { at: At, allowed: Allowed },
    "SELECT scope, idempotency_key, ", (COLUMNS[0]), (D::CLOCK), (COLUMNS[1]), " FROM atomic_phases_keys WHERE ", at, " AND ",
    allowed, " LIMIT 1"
}

impl Find {
    pub(in crate::store) fn new<D: InMillis>(at: RequestAt<'_>, limits: &ScopeLimits) -> Self {
        let at = match at {
            RequestAt::Id(id) => At::Id(id.as_bytes().to_vec()),
            RequestAt::Key(scope, key) => {
                At::Key(scope.as_str().to_owned(), key.as_str().to_owned())
            }
        };
        Self { at, allowed: Allowed::by::<D>(limits) }
    }
}

/// One more than is counted, which tells that there are more.
const BOUNDED: &str = " LIMIT 10001) AS looked";
const OF_THOSE: &str = "COUNT(CASE WHEN allowed AND ";

statement! {
    /// How much waits, among the first of each index. A row that waits and is in progress is looked into: its outcome is
    /// still unknown.
    Count in D: InMillis, rows (
        (BigInt, BigInt, BigInt, Nullable<BigInt>), (BigInt, BigInt), (BigInt, BigInt), (BigInt, BigInt)
    ),
    { allowed: Allowed, late_ms: i64 },
    "SELECT * FROM (SELECT count(*), ", [OF_THOSE], "status IN ('unknown', 'in_progress') THEN 1 END), ",
    [OF_THOSE], "status = 'dead_letter' THEN 1 END), \
     MIN(CASE WHEN allowed AND status IN ('unknown', 'in_progress', 'dead_letter') THEN waiting_since END) \
     FROM (SELECT status, waiting_since, ", allowed,
    " AS allowed FROM atomic_phases_keys WHERE waiting_since IS NOT NULL ORDER BY waiting_since", [BOUNDED],
    ") AS waiting, (SELECT count(*), ", [OF_THOSE], "waiting_since IS NULL AND run_after <= ", (D::CLOCK),
    " THEN 1 END) FROM (SELECT run_after, waiting_since, ", allowed,
    " AS allowed FROM atomic_phases_keys WHERE run_after IS NOT NULL ORDER BY run_after", [BOUNDED],
    ") AS due, (SELECT count(*), COUNT(CASE WHEN allowed THEN 1 END) FROM (SELECT ", allowed,
    " AS allowed FROM atomic_phases_staged_jobs WHERE run_after IS NULL", [BOUNDED],
    ") AS jobs, (SELECT count(*), COUNT(CASE WHEN allowed THEN 1 END) FROM (SELECT ", allowed,
    " AS allowed FROM atomic_phases_staged_jobs", (D::BY_DUE_JOBS), " WHERE run_after <= ", (D::CLOCK), " - ", late_ms,
    " ORDER BY run_after", [BOUNDED], ") AS late"
}

impl Count {
    pub(in crate::store) fn new<D: InMillis>(limits: &ScopeLimits) -> Self {
        Self { allowed: Allowed::by::<D>(limits), late_ms: LATE_MS }
    }
}
