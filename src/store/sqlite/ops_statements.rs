//! The statements of `ops`: those of `store::postgres::ops_statements`, with owned values.

use chrono::DateTime;
use diesel::QueryResult;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, BigInt, Binary, Integer, Nullable, Text};
use diesel::sqlite::Sqlite as Db;
use uuid::Uuid;

use super::sql::{COLUMNS, NOW, RowSql};
use crate::store::audit::{AuditEntry, AuditRow};
use crate::store::in_millis::{Allowed, InMillis};
use crate::store::operators::{Limits, ListRequests, ListedRow, OperatedRow, RequestAt, Walk};
use crate::store::pauses::PauseRow;
use crate::store::statement::{push_bind, statement};

statement! {
    /// The versions of the migrations that have run, the application's own among them.
    Applied for Db, rows Text, {}, "SELECT version FROM __diesel_schema_migrations"
}

/// The rows that a search looks at: a bounded part of one index, in its order, from one place on.
#[derive(Clone)]
pub(super) struct Walked {
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

    /// `columns`: literals, one behind the other.
    fn push<'b>(
        &'b self,
        out: &mut AstPass<'_, 'b, Db>,
        columns: &[&'static str],
    ) -> QueryResult<()> {
        let sql = self.walk.sql();
        out.push_sql("SELECT ");
        columns.iter().for_each(|part| out.push_sql(part));
        out.push_sql(sql.rows);
        out.push_sql(sql.behind);
        push_bind(out, &self.time)?;
        out.push_sql(", ");
        push_bind(out, &self.request_id)?;
        out.push_sql(")");
        out.push_sql(sql.order);
        Ok(())
    }
}

impl QueryFragment<Db> for Walked {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        self.push(&mut out, &["*"])?;
        // `MOST_LOOKED_AT`.
        out.push_sql(" LIMIT 10000");
        Ok(())
    }
}

/// The order of the rows that were found: that of the walk.
pub(super) struct InOrder(Walk);

impl QueryFragment<Db> for InOrder {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        out.push_sql(self.0.sql().order);
        Ok(())
    }
}

/// See `store::operators::state_name`.
const STATE: &str = "CASE status WHEN 'pending' THEN 'accepted' \
    WHEN 'in_progress' THEN CASE WHEN locked_until > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) \
    THEN 'running' ELSE 'lease_ended' END \
    WHEN 'failed_retryable' THEN CASE WHEN run_after > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) \
    THEN 'backing_off' ELSE 'due' END \
    WHEN 'completed' THEN CASE fingerprint WHEN 'erased' THEN 'erased' ELSE 'finished' END \
    WHEN 'unknown' THEN 'unknown' WHEN 'dead_letter' THEN 'dead_letter' ELSE 'unreadable' END AS state";

type ListedSql = (
    (Binary, Text, Text),
    (Text, BigInt, Text),
    (Text, Text, Text, Nullable<Text>, Nullable<Text>),
    (BigInt, BigInt, Nullable<Text>),
    (Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>),
    (BigInt, BigInt),
);

pub(super) type ListedLite = (
    (Vec<u8>, String, String),
    (String, i64, String),
    (String, String, String, Option<String>, Option<String>),
    (i64, i64, Option<String>),
    (Option<i64>, Option<i64>, Option<i64>),
    (i64, i64),
);

/// A row with a value that no row of ours has was written by hand, and is passed over.
pub(super) fn listed(row: ListedLite) -> Option<ListedRow> {
    let ((id, scope, key), (definition, version, phases), stands, counts, due, times) = row;
    let time = DateTime::from_timestamp_millis;
    Some((
        (Uuid::from_slice(&id).ok()?, scope, key),
        (definition, i32::try_from(version).ok()?, phases),
        stands,
        (counts.0, i32::try_from(counts.1).ok()?, counts.2),
        (due.0.and_then(time), due.1.and_then(time), due.2.and_then(time)),
        (time(times.0)?, time(times.1)?),
    ))
}

statement! {
    /// A page of requests: of the rows that are looked at, those that are asked for.
    List for Db as varying, rows ListedSql,
    {
        walked: Walked, allowed: Allowed, states: Option<String>, scope: Option<String>,
        definition: Option<String>, version: Option<i64>, phase: Option<String>,
        reason: Option<String>, older_ms: Option<i64>, waiting_ms: Option<i64>,
        order: InOrder, limit: i64,
    },
    "SELECT request_id, scope, idempotency_key, definition, definition_version, phases, state, \
     status, recovery_point, open_intent, reason, lease_token, attempts, resolution, locked_until, \
     run_after, waiting_since, created_at, expires_at FROM (SELECT *, ", [STATE], " FROM (", {walked},
    ") AS looked) AS k WHERE ", {allowed}, " AND (", states,
    " IS NULL OR state IN (SELECT value FROM json_each(", states, "))) AND coalesce(scope = ", scope,
    ", true) AND coalesce(definition = ", definition, ", true) AND coalesce(definition_version = ",
    version, ", true) AND coalesce(", phase,
    " IN (recovery_point, coalesce(open_intent, recovery_point)), true) AND (", reason,
    " IS NULL OR instr(coalesce(reason, ''), ", reason, ") > 0) AND coalesce(created_at <= ", [NOW], " - ",
    older_ms, ", true) AND (", waiting_ms, " IS NULL OR coalesce(waiting_since <= ", [NOW], " - ",
    waiting_ms, ", false))", {order}, " LIMIT ", limit
}

impl List {
    pub(super) fn new(list: &ListRequests) -> Self {
        Self {
            walked: Walked::of(list),
            allowed: Allowed::by::<Db>(&list.limits),
            states: list.states.as_deref().map(Db::list),
            scope: list.scope.clone(),
            definition: list.definition.clone(),
            version: list.version.map(|version| version.cast_signed().into()),
            phase: list.phase.clone(),
            reason: list.reason.clone(),
            older_ms: list.older_ms,
            waiting_ms: list.waiting_ms,
            order: InOrder(list.walk),
            limit: list.limit.into(),
        }
    }
}

/// The last place that a search looked at, where it looked at as many rows as it may.
pub(super) struct LastLookedAt(Walked);

impl QueryFragment<Db> for LastLookedAt {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        self.0.push(&mut out, &[self.0.walk.sql().column, ", request_id"])?;
        out.push_sql(" LIMIT 1 OFFSET 9999");
        Ok(())
    }
}

statement! {
    /// How far a search looked.
    EndOfLook for Db as varying, rows (BigInt, Binary), { last: LastLookedAt }, {last}
}

impl EndOfLook {
    pub(super) fn new(list: &ListRequests) -> Self {
        Self { last: LastLookedAt(Walked::of(list)) }
    }
}

/// By its id, or by its key.
pub(super) enum At {
    Id(Vec<u8>),
    Key(String, String),
}

impl QueryFragment<Db> for At {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        match self {
            Self::Id(id) => {
                out.push_sql("request_id = ");
                push_bind(&mut out, id)
            }
            Self::Key(scope, key) => {
                out.push_sql("scope = ");
                push_bind(&mut out, scope)?;
                out.push_sql(" AND idempotency_key = ");
                push_bind(&mut out, key)
            }
        }
    }
}

statement! {
    /// One request, by `atomic_phases_keys_request` or by its primary key.
    Find for Db as varying, rows (Text, Text, RowSql), { at: At, allowed: Allowed },
    "SELECT scope, idempotency_key, ", [COLUMNS], " FROM atomic_phases_keys WHERE ", {at}, " AND ",
    {allowed}, " LIMIT 1"
}

impl Find {
    pub(super) fn new(at: RequestAt<'_>, limits: &Limits) -> Self {
        let at = match at {
            RequestAt::Id(id) => At::Id(id.as_bytes().to_vec()),
            RequestAt::Key(scope, key) => {
                At::Key(scope.as_str().to_owned(), key.as_str().to_owned())
            }
        };
        Self { at, allowed: Allowed::by::<Db>(limits) }
    }
}

/// One more than is counted, which tells that there are more.
const BOUNDED: &str = " LIMIT 10001) AS looked";
const OF_THOSE: &str = "count(*) FILTER (WHERE allowed AND ";

statement! {
    /// How much waits, among the first of each index.
    Count for Db, rows ((BigInt, BigInt, BigInt, Nullable<BigInt>), (BigInt, BigInt), (BigInt, BigInt)),
    { waiting: Allowed, due: Allowed, jobs: Allowed },
    "SELECT * FROM (SELECT count(*), ", [OF_THOSE], "status = 'unknown'), ", [OF_THOSE],
    "status = 'dead_letter'), min(waiting_since) FILTER (WHERE allowed \
     AND status IN ('unknown', 'dead_letter')) FROM (SELECT status, waiting_since, ", {waiting},
    " AS allowed FROM atomic_phases_keys WHERE waiting_since IS NOT NULL ORDER BY waiting_since", [BOUNDED],
    ") AS waiting, (SELECT count(*), ", [OF_THOSE], "waiting_since IS NULL AND run_after <= ", [NOW],
    ") FROM (SELECT run_after, waiting_since, ", {due},
    " AS allowed FROM atomic_phases_keys WHERE run_after IS NOT NULL ORDER BY run_after", [BOUNDED],
    ") AS due, (SELECT count(*), count(*) FILTER (WHERE allowed) FROM (SELECT ", {jobs},
    " AS allowed FROM atomic_phases_staged_jobs WHERE run_after IS NULL", [BOUNDED], ") AS jobs"
}

impl Count {
    pub(super) fn new(limits: &Limits) -> Self {
        let allowed = || Allowed::by::<Db>(limits);
        Self { waiting: allowed(), due: allowed(), jobs: allowed() }
    }
}

/// What an operator sees of a job.
const JOB: &str = "SELECT job_id, scope, request_id, position, name, attempts, reason, staged_at, \
    run_after FROM ";

type JobSql =
    ((Binary, Text, Binary, BigInt), (Text, BigInt, Nullable<Text>, BigInt, Nullable<BigInt>));

pub(super) type OperatedLite =
    ((Vec<u8>, String, Vec<u8>, i64), (String, i64, Option<String>, i64, Option<i64>));

pub(super) fn operated(row: OperatedLite) -> Option<OperatedRow> {
    let ((id, scope, request_id, position), (name, attempts, reason, staged_at, run_after)) = row;
    let (id, request_id) = (Uuid::from_slice(&id).ok()?, Uuid::from_slice(&request_id).ok()?);
    let staged_at = DateTime::from_timestamp_millis(staged_at)?;
    let run_after = run_after.and_then(DateTime::from_timestamp_millis);
    let attempts = i32::try_from(attempts).ok()?;
    Some(((id, scope, request_id, position), (name, attempts, reason, staged_at, run_after)))
}

statement! {
    /// The jobs of one request, in order.
    JobsOf for Db, rows JobSql, { scope: String, request_id: Vec<u8> },
    [JOB], "atomic_phases_staged_jobs WHERE scope = ", scope, " AND request_id = ", request_id,
    " ORDER BY position LIMIT 100"
}

statement! {
    /// Jobs that are dead letters, by `atomic_phases_staged_jobs_dead_oldest`.
    DeadJobsAfter for Db, rows JobSql,
    { staged_at: i64, id: Vec<u8>, allowed: Allowed, limit: i64 },
    [JOB], "(SELECT * FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     AND (staged_at, job_id) > (", staged_at, ", ", id,
    ") ORDER BY staged_at, job_id LIMIT 10000) AS looked WHERE ", {allowed},
    " ORDER BY staged_at, job_id LIMIT ", limit
}

statement! {
    /// How far it looked.
    EndOfDeadJobs for Db, rows (BigInt, Binary), { staged_at: i64, id: Vec<u8> },
    "SELECT staged_at, job_id FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     AND (staged_at, job_id) > (", staged_at, ", ", id,
    ") ORDER BY staged_at, job_id LIMIT 1 OFFSET 9999"
}

statement! {
    /// One of them, by `atomic_phases_staged_jobs_dead_id`.
    DeadJob for Db, rows JobSql, { id: Vec<u8>, allowed: Allowed },
    [JOB], "atomic_phases_staged_jobs WHERE run_after IS NULL AND job_id = ", id, " AND ", {allowed},
    " LIMIT 1"
}

statement! {
    /// A dead letter is delivered again.
    RetryJob for Db, rows sql_types::Untyped, { scope: String, job_id: Vec<u8>, attempts: i32 },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW],
    ", attempts = attempts + 1, forgiven_attempts = attempts + 1 WHERE run_after IS NULL AND scope = ",
    scope, " AND job_id = ", job_id, " AND attempts = ", attempts
}

statement! {
    /// A dead letter is never delivered.
    DiscardDeadJob for Db, rows sql_types::Untyped,
    { scope: String, job_id: Vec<u8>, attempts: i32 },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND job_id = ", job_id, " AND attempts = ", attempts
}

statement! {
    /// An audit row.
    InsertAudit for Db, rows sql_types::Untyped,
    {
        id: Vec<u8>, actor: String, act: String, outcome: String, refused_because: Option<String>,
        reason: String, scope: Option<String>, request_id: Option<Vec<u8>>,
        job_id: Option<Vec<u8>>, bulk_id: Option<Vec<u8>>, definition: Option<String>,
        version: Option<i64>,
        phase: Option<String>, before: Option<String>, after: Option<String>,
    },
    "INSERT INTO atomic_phases_audit (id, actor, act, outcome, refused_because, reason, scope, \
     request_id, job_id, bulk_id, definition, definition_version, phase, status_before, status_after) VALUES (", id,
    ", ", actor, ", ", act, ", ", outcome, ", ", refused_because, ", ", reason, ", ", scope, ", ",
    request_id, ", ", job_id, ", ", bulk_id, ", ", definition, ", ", version, ", ", phase, ", ", before, ", ",
    after, ")"
}

impl InsertAudit {
    pub(super) fn of(entry: &AuditEntry) -> Self {
        let bytes = |id: Option<Uuid>| id.map(|id| id.as_bytes().to_vec());
        Self {
            id: entry.id.as_bytes().to_vec(),
            actor: entry.actor.clone(),
            act: entry.act.to_owned(),
            outcome: entry.outcome.to_owned(),
            refused_because: entry.refused_because.clone(),
            reason: entry.reason.clone(),
            scope: entry.scope.clone(),
            request_id: bytes(entry.request_id),
            job_id: bytes(entry.job_id),
            bulk_id: bytes(entry.bulk_id),
            definition: entry.definition.clone(),
            version: entry.version.map(|version| version.cast_signed().into()),
            phase: entry.phase.clone(),
            before: entry.before.clone(),
            after: entry.after.clone(),
        }
    }
}

statement! {
    /// The events of a request, by the primary key.
    Events for Db, rows (Nullable<Text>, Nullable<Integer>),
    { scope: String, key: String, request_id: Vec<u8> },
    "SELECT events, events_written FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}

statement! {
    /// The phases that are paused, by the primary key.
    Pauses for Db, rows PauseSql, {},
    "SELECT definition, phase, reason, paused_by, paused_at, ends_at, ", [NOW],
    " FROM atomic_phases_pauses WHERE coalesce(ends_at > ", [NOW],
    ", true) ORDER BY definition, phase LIMIT 1000"
}

type PauseSql = ((Text, Text, Text, Text), (BigInt, Nullable<BigInt>, BigInt));

pub(super) type PauseLite = ((String, String, String, String), (i64, Option<i64>, i64));

pub(super) fn pause((said, (paused_at, ends_at, now)): PauseLite) -> Option<PauseRow> {
    let time = DateTime::from_timestamp_millis;
    Some((said, (time(paused_at)?, ends_at.and_then(time), time(now)?)))
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
    /// Ends the pause of a phase.
    UnpausePhase for Db, rows sql_types::Untyped, { definition: String, phase: String },
    "DELETE FROM atomic_phases_pauses WHERE definition = ", definition, " AND phase = ", phase
}

type AuditSql = (
    (BigInt, Binary, Text, Text),
    (Text, Nullable<Text>, Text),
    (Nullable<Text>, Nullable<Binary>, Nullable<Binary>, Nullable<Binary>),
    (Nullable<Text>, Nullable<BigInt>, Nullable<Text>, Nullable<Text>, Nullable<Text>),
);

pub(super) type AuditLite = (
    (i64, Vec<u8>, String, String),
    (String, Option<String>, String),
    (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>),
    (Option<String>, Option<i64>, Option<String>, Option<String>, Option<String>),
);

pub(super) fn audit(row: AuditLite) -> Option<AuditRow> {
    let ((at, id, actor, act), said, (scope, request_id, job_id, bulk_id), what) = row;
    let uuid = |id: Option<Vec<u8>>| id.and_then(|id| Uuid::from_slice(&id).ok());
    let (definition, version, phase, before, after) = what;
    let version = version.and_then(|version| i32::try_from(version).ok());
    Some((
        (DateTime::from_timestamp_millis(at)?, Uuid::from_slice(&id).ok()?, actor, act),
        said,
        (scope, uuid(request_id), uuid(job_id), uuid(bulk_id)),
        (definition, version, phase, before, after),
    ))
}

/// The audit rows from one place on, of one request or of all.
#[derive(Clone)]
pub(super) struct AuditFrom {
    request_id: Option<Vec<u8>>,
    at: i64,
    id: Vec<u8>,
}

impl QueryFragment<Db> for AuditFrom {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Db>) -> QueryResult<()> {
        out.push_sql(" FROM atomic_phases_audit WHERE ");
        if let Some(request_id) = &self.request_id {
            out.push_sql("request_id = ");
            push_bind(&mut out, request_id)?;
            out.push_sql(" AND ");
        }
        out.push_sql("(at, id) < (");
        push_bind(&mut out, &self.at)?;
        out.push_sql(", ");
        push_bind(&mut out, &self.id)?;
        out.push_sql(") ORDER BY at DESC, id DESC");
        Ok(())
    }
}

statement! {
    /// What was done, the newest first. What has no scope is for those who may see all.
    Audit for Db as varying, rows AuditSql,
    { from: AuditFrom, only: Option<String>, prefix: String, limit: i64 },
    "SELECT at, id, actor, act, outcome, refused_because, reason, scope, request_id, job_id, bulk_id, \
     definition, definition_version, phase, status_before, status_after FROM (SELECT *", {from},
    " LIMIT 10000) AS looked WHERE (", only,
    " IS NULL OR coalesce(scope, '') IN (SELECT value FROM json_each(", only,
    "))) AND substr(coalesce(scope, ''), 1, length(", prefix, ")) = ", prefix,
    " ORDER BY at DESC, id DESC LIMIT ", limit
}

impl Audit {
    pub(super) fn new(
        request_id: Option<Uuid>,
        (at, id): (i64, Vec<u8>),
        limits: &Limits,
        limit: u32,
    ) -> Self {
        let request_id = request_id.map(|id| id.as_bytes().to_vec());
        let only = limits.only.as_deref().map(Db::list);
        let (prefix, limit) = (limits.prefix.clone(), limit.into());
        Self { from: AuditFrom { request_id, at, id }, only, prefix, limit }
    }
}

statement! {
    /// How far it looked.
    EndOfAudit for Db as varying, rows (BigInt, Binary), { from: AuditFrom },
    "SELECT at, id", {from}, " LIMIT 1 OFFSET 9999"
}

impl EndOfAudit {
    pub(super) fn new(request_id: Option<Uuid>, (at, id): (i64, Vec<u8>)) -> Self {
        let request_id = request_id.map(|id| id.as_bytes().to_vec());
        Self { from: AuditFrom { request_id, at, id } }
    }
}

statement! {
    /// A request of it.
    AddItem for Db, rows sql_types::Untyped,
    { id: Vec<u8>, position: i64, request_id: Vec<u8>, seen: String },
    "INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen) VALUES (", id, ", ", position,
    ", ", request_id, ", ", seen, ")"
}
