//! The statements of `ops`. Each walks one index from one place on, and looks at a bounded part of it; what
//! an operator may see is a condition of each ([`Allowed`]).

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::{self, BigInt, Binary, Bool, Integer, Nullable, Text, Uuid as SqlUuid};
use uuid::Uuid;

use super::commit_statements::Write;
use super::statements::{COLUMNS, ERASE, ERASED_JOBS, NotLocked, RowSql, SETTLED};
use super::timestamptz::Timestamptz;
use crate::store::EraseAct;
use crate::store::audit::{AuditEntry, AuditSearch};
use crate::store::operators::{LATE_MS, ListPlace, ListRequests, ScopeLimits, Walk};
use crate::store::pauses::{PauseAct, PausedPhase};
use crate::store::statement::{push_bind, statement};

statement! {
    /// As [`Applied`](crate::store::migrations::Applied), of the table that diesel would create if it were not there: one in
    /// another schema of the search path tells of other tables.
    AppliedHere for Pg, rows Text, {},
    "SELECT version FROM __diesel_schema_migrations AS m \
     WHERE m.tableoid = to_regclass(format('%I.__diesel_schema_migrations', current_schema()))"
}

statement! {
    /// Whether sessions of this user can only read: those of a standby, or by what is set for them. Asked in a
    /// transaction that reads only itself.
    IsReadOnly for Pg, rows Bool, {},
    "SELECT pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean"
}

statement! {
    /// One snapshot, and no write.
    BeginReadOnly for Pg, rows sql_types::Untyped, {},
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
}

statement! {
    /// How long a search may take, and that it walks its index whatever a scan would cost: the index has the
    /// order, and the search ends early. What is scanned all the same, because it has a few rows and no index, seems
    /// so dear then that PostgreSQL would compile it. Of this transaction only, so that it passes through any pooler.
    SearchLimit<'a> for Pg, rows sql_types::Untyped, { bound: &'a str },
    "SELECT set_config('statement_timeout', ", bound, ", true), \
     set_config('idle_in_transaction_session_timeout', '15s', true), \
     set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), \
     set_config('jit', 'off', true)"
}

statement! {
    /// Whether the operator may see the row's scope.
    Allowed<'a> for Pg, rows sql_types::Untyped, { only: Option<Vec<String>>, prefix: &'a str },
    "coalesce(scope = ANY(", only, "), true) AND starts_with(scope, ", prefix, ")"
}

impl<'a> Allowed<'a> {
    pub(super) fn by(limits: &'a ScopeLimits) -> Self {
        Self { only: limits.only.clone(), prefix: &limits.prefix }
    }
}

/// The rows that a search looks at: a bounded part of one index, in its order, from one place on.
pub(in crate::store) struct Walked {
    walk: Walk,
    after: ListPlace,
}

impl Walked {
    /// `columns`: literals, one behind the other.
    fn push<'b>(
        &'b self,
        out: &mut AstPass<'_, 'b, Pg>,
        columns: &[&'static str],
    ) -> QueryResult<()> {
        let sql = self.walk.sql();
        out.push_sql("SELECT ");
        columns.iter().for_each(|part| out.push_sql(part));
        out.push_sql(" FROM atomic_phases_keys");
        out.push_sql(sql.rows);
        out.push_sql(sql.behind);
        push_bind(out, &self.after.time)?;
        out.push_sql(", ");
        push_bind(out, &self.after.request_id)?;
        out.push_sql(")");
        out.push_sql(sql.order);
        Ok(())
    }
}

impl QueryFragment<Pg> for Walked {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        self.push(&mut out, &["*"])?;
        // `MAX_ROWS_PER_SEARCH`.
        out.push_sql(" LIMIT 10000");
        Ok(())
    }
}

/// The order of the rows that were found: that of the walk.
pub(in crate::store) struct InOrder(Walk);

impl QueryFragment<Pg> for InOrder {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(self.0.sql().order);
        Ok(())
    }
}

/// See `store::operators::state_name`.
const STATE: &str = "CASE status::text WHEN 'pending' THEN 'accepted' \
    WHEN 'in_progress' THEN CASE WHEN waiting_since IS NOT NULL THEN 'unknown' \
    WHEN locked_until > clock_timestamp() THEN 'running' ELSE 'lease_ended' END \
    WHEN 'failed_retryable' THEN CASE WHEN run_after > clock_timestamp() THEN 'backing_off' ELSE 'due' END \
    WHEN 'completed' THEN CASE fingerprint WHEN 'erased' THEN 'erased' ELSE 'finished' END \
    WHEN 'unknown' THEN 'unknown' WHEN 'dead_letter' THEN 'dead_letter' ELSE 'unreadable' END AS state";

/// What a list has of a request, around its state.
const LISTED: [&str; 2] = [
    "SELECT request_id, scope, idempotency_key, definition, definition_version, phases, ",
    ", status::text, recovery_point, open_intent, reason, attempts, resolution, locked_until, \
     run_after, waiting_since, created_at, expires_at FROM ",
];

type ListedSql = (
    (SqlUuid, Text, Text),
    (Text, Integer, Text),
    (Text, Text, Text, Nullable<Text>, Nullable<Text>),
    (Integer, Nullable<Text>),
    (Nullable<Timestamptz>, Nullable<Timestamptz>, Nullable<Timestamptz>),
    (Timestamptz, Timestamptz),
);

statement! {
    /// A page of requests: of the rows that are looked at, those that are asked for. A page that is full
    /// early ends the walk there.
    List<'a> for Pg as varying, rows ListedSql,
    {
        walked: Walked, allowed: Allowed<'a>, states: Option<Vec<String>>, scope: Option<&'a str>,
        definition: Option<&'a str>, version: Option<i32>,
        reason: Option<&'a str>, older_ms: Option<i64>, waiting_ms: Option<i64>,
        order: InOrder, limit: i64,
    },
    (LISTED[0]), "state", (LISTED[1]), "(SELECT *, ", [STATE], " FROM (", {walked},
    ") AS looked) AS k WHERE ", {allowed}, " AND coalesce(state = ANY(", states,
    "), true) AND coalesce(scope = ", scope, ", true) AND coalesce(definition = ", definition,
    ", true) AND coalesce(definition_version = ", version, ", true) \
     AND strpos(coalesce(reason, ''), coalesce(", reason,
    ", '')) > 0 AND coalesce(created_at <= clock_timestamp() - ", older_ms,
    " * interval '1 millisecond', true) \
     AND coalesce(coalesce(waiting_since, 'infinity') <= clock_timestamp() - ", waiting_ms,
    " * interval '1 millisecond', true)", {order}, " LIMIT ", limit
}

impl<'a> List<'a> {
    pub(super) fn new(list: &'a ListRequests) -> Self {
        Self {
            walked: Walked { walk: list.walk, after: list.after },
            allowed: Allowed::by(&list.limits),
            states: list.states.clone(),
            scope: list.scope.as_deref(),
            definition: list.definition.as_deref(),
            version: list.version.map(u32::cast_signed),
            reason: list.reason.as_deref(),
            older_ms: list.older_ms,
            waiting_ms: list.waiting_ms,
            order: InOrder(list.walk),
            limit: list.limit.into(),
        }
    }
}

/// The last place that a search looked at, where it looked at as many rows as it may.
pub(in crate::store) struct LastLookedAt(Walked);

impl QueryFragment<Pg> for LastLookedAt {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        self.0.push(&mut out, &[self.0.walk.sql().column, ", request_id"])?;
        out.push_sql(" OFFSET 9999 LIMIT 1");
        Ok(())
    }
}

statement! {
    /// How far a search looked.
    EndOfLook for Pg as varying, rows (Timestamptz, SqlUuid), { last: LastLookedAt }, {last}
}

impl EndOfLook {
    pub(super) fn new(list: &ListRequests) -> Self {
        Self { last: LastLookedAt(Walked { walk: list.walk, after: list.after }) }
    }
}

statement! {
    /// The request of this id, by `atomic_phases_keys_request`.
    ById<'a> for Pg, rows (Text, Text, RowSql), { request_id: Uuid, allowed: Allowed<'a> },
    "SELECT scope, idempotency_key, ", [COLUMNS], " FROM atomic_phases_keys WHERE request_id = ",
    request_id, " AND ", {allowed}, " LIMIT 1"
}

statement! {
    /// Requests by their ids, as a list has them, by `atomic_phases_keys_request`.
    ByIds<'a> for Pg, rows ListedSql, { ids: Vec<Uuid>, allowed: Allowed<'a> },
    (LISTED[0]), [STATE], (LISTED[1]), "atomic_phases_keys WHERE request_id = ANY(", ids, ") AND ", {allowed}
}

statement! {
    /// The request under this key.
    ByKey<'a> for Pg, rows (Text, Text, RowSql),
    { scope: &'a str, key: &'a str, allowed: Allowed<'a> },
    "SELECT scope, idempotency_key, ", [COLUMNS], " FROM atomic_phases_keys WHERE scope = ", scope,
    " AND idempotency_key = ", key, " AND ", {allowed}
}

/// One more than is counted, which tells that there are more.
const BOUNDED: &str = " LIMIT 10001) AS looked";
const OF_THOSE: &str = "count(*) FILTER (WHERE allowed AND ";

statement! {
    /// How much waits, among the first of each index. A row that waits and is in progress is looked into: its outcome is
    /// still unknown.
    Count<'a> for Pg, rows (
        (BigInt, BigInt, BigInt, Nullable<Timestamptz>), (BigInt, BigInt), (BigInt, BigInt), (BigInt, BigInt)
    ),
    { allowed: Allowed<'a>, late_ms: i64 },
    "SELECT * FROM (SELECT count(*), ", [OF_THOSE], "status IN ('unknown', 'in_progress')), ",
    [OF_THOSE], "status = 'dead_letter'), min(waiting_since) FILTER (WHERE allowed \
     AND status IN ('unknown', 'in_progress', 'dead_letter')) \
     FROM (SELECT status, waiting_since, ", {allowed},
    " AS allowed FROM atomic_phases_keys WHERE waiting_since IS NOT NULL ORDER BY waiting_since", [BOUNDED],
    ") AS waiting, (SELECT count(*), ", [OF_THOSE], "waiting_since IS NULL \
     AND run_after <= clock_timestamp()) FROM (SELECT run_after, waiting_since, ", {allowed},
    " AS allowed FROM atomic_phases_keys WHERE run_after IS NOT NULL ORDER BY run_after", [BOUNDED],
    ") AS due, (SELECT count(*), count(*) FILTER (WHERE allowed) FROM (SELECT ", {allowed},
    " AS allowed FROM atomic_phases_staged_jobs WHERE run_after IS NULL", [BOUNDED],
    ") AS jobs, (SELECT count(*), count(*) FILTER (WHERE allowed) FROM (SELECT ", {allowed},
    " AS allowed FROM atomic_phases_staged_jobs WHERE run_after <= statement_timestamp() - ", late_ms,
    " * interval '1 millisecond' ORDER BY run_after", [BOUNDED], ") AS late"
}

impl<'a> Count<'a> {
    pub(super) fn new(limits: &'a ScopeLimits) -> Self {
        Self { allowed: Allowed::by(limits), late_ms: LATE_MS }
    }
}

/// What an operator sees of a job.
const JOB: &str = "SELECT job_id, scope, request_id, position, name, attempts, reason, staged_at, \
    run_after FROM atomic_phases_staged_jobs WHERE ";

type JobSql = (
    (SqlUuid, Text, SqlUuid, BigInt),
    (Text, Integer, Nullable<Text>, Timestamptz, Nullable<Timestamptz>),
);

statement! {
    /// The jobs of one request, in order.
    JobsOf<'a> for Pg, rows JobSql, { scope: &'a str, request_id: Uuid },
    [JOB], "scope = ", scope, " AND request_id = ", request_id, " ORDER BY position LIMIT 100"
}

statement! {
    /// Jobs that are dead letters, by `atomic_phases_staged_jobs_dead_oldest`.
    DeadJobsAfter<'a> for Pg, rows JobSql,
    { staged_at: DateTime<Utc>, id: Uuid, allowed: Allowed<'a>, limit: i64 },
    "SELECT job_id, scope, request_id, position, name, attempts, reason, staged_at, run_after FROM \
     (SELECT * FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND (staged_at, job_id) > (",
    staged_at, ", ", id, ") ORDER BY staged_at, job_id LIMIT 10000) AS looked WHERE ", {allowed},
    " ORDER BY staged_at, job_id LIMIT ", limit
}

statement! {
    /// How far it looked.
    EndOfDeadJobs for Pg, rows (Timestamptz, SqlUuid), { staged_at: DateTime<Utc>, id: Uuid },
    "SELECT staged_at, job_id FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     AND (staged_at, job_id) > (", staged_at, ", ", id,
    ") ORDER BY staged_at, job_id OFFSET 9999 LIMIT 1"
}

statement! {
    /// Jobs that are late, by `atomic_phases_staged_jobs_due`. The time is that of the statement: the index is searched by it.
    LateJobs<'a> for Pg, rows JobSql, { late_ms: i64, allowed: Allowed<'a>, limit: i64 },
    "SELECT job_id, scope, request_id, position, name, attempts, reason, staged_at, run_after FROM \
     (SELECT * FROM atomic_phases_staged_jobs WHERE run_after <= statement_timestamp() - ", late_ms,
    " * interval '1 millisecond' ORDER BY run_after, scope, request_id, position LIMIT 10000) AS looked WHERE ",
    {allowed}, " ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// A dead letter, by `atomic_phases_staged_jobs_dead_id`.
    DeadJob<'a> for Pg, rows JobSql, { id: Uuid, allowed: Allowed<'a> },
    [JOB], "run_after IS NULL AND job_id = ", id, " AND ", {allowed}, " LIMIT 1"
}

statement! {
    /// An audit row; `FROM` what was written in its transaction may follow, and then there is one only if
    /// that was.
    InsertAudit<'a> for Pg, rows sql_types::Untyped,
    {
        id: Uuid, actor: &'a str, act: &'a str, outcome: &'a str, refused_because: Option<&'a str>,
        reason: &'a str, scope: Option<&'a str>, request_id: Option<Uuid>, job_id: Option<Uuid>,
        bulk_id: Option<Uuid>,
        definition: Option<&'a str>, version: Option<i32>, phase: Option<&'a str>,
        before: Option<&'a str>, after: Option<&'a str>, attempt: Option<i32>,
        value_sha256: Option<&'a [u8]>, value_bytes: Option<i64>,
    },
    "INSERT INTO atomic_phases_audit (id, actor, act, outcome, refused_because, reason, scope, \
     request_id, job_id, bulk_id, definition, definition_version, phase, status_before, status_after, attempt, \
     value_sha256, value_bytes) SELECT ", id,
    ", ", actor, ", ", act, ", ", outcome, ", ", refused_because, ", ", reason, ", ", scope, ", ",
    request_id, ", ", job_id, ", ", bulk_id, ", ", definition, ", ", version, ", ", phase, ", ", before, ", ",
    after, ", ", attempt, ", ", value_sha256, ", ", value_bytes
}

impl<'a> InsertAudit<'a> {
    pub(super) fn of(entry: &'a AuditEntry) -> Self {
        Self {
            id: entry.id,
            actor: &entry.actor,
            act: entry.act,
            outcome: entry.outcome,
            refused_because: entry.refused_because.as_deref(),
            reason: &entry.reason,
            scope: entry.scope.as_deref(),
            request_id: entry.request_id,
            job_id: entry.job_id,
            bulk_id: entry.bulk_id,
            definition: entry.definition.as_deref(),
            version: entry.version.map(u32::cast_signed),
            phase: entry.phase.as_deref(),
            before: entry.before.as_deref(),
            after: entry.after.as_deref(),
            attempt: entry.attempt.map(u32::cast_signed),
            value_sha256: entry.value.as_ref().map(|value| &value.sha256[..]),
            value_bytes: entry.value.map(|value| value.bytes.cast_signed()),
        }
    }
}

statement! {
    /// An audit row by itself.
    Record<'a> for Pg, rows sql_types::Untyped, { audit: InsertAudit<'a> }, {audit}
}

statement! {
    /// An operator's word about a request, and its audit row: both or neither. The number of rows tells.
    WriteAudited<'a> for Pg as varying, rows sql_types::Untyped,
    { write: Write<'a>, audit: InsertAudit<'a> },
    "WITH written AS (", {write}, " RETURNING 1) ", {audit}, " FROM written"
}

statement! {
    /// Erases a settled row that is as an operator saw it, and writes the audit row.
    EraseSeen<'a> for Pg, rows BigInt,
    {
        retention_ms: i64, scope: &'a str, key: &'a str, request_id: Uuid, token: i64,
        status: &'a str, not_locked: NotLocked<'a>, audit: InsertAudit<'a>,
    },
    [ERASE], retention_ms, " * interval '1 millisecond')) END WHERE k.scope = ", scope,
    " AND k.idempotency_key = ", key, " AND k.request_id = ", request_id, " AND k.lease_token = ", token,
    " AND k.status = ", status, "::atomic_phases_status AND ", {not_locked}, [SETTLED],
    "idempotency_key = k.idempotency_key", [ERASED_JOBS], ", audited AS (", {audit},
    " FROM erased) SELECT count(*) FROM erased"
}

impl<'a> EraseSeen<'a> {
    pub(super) fn new(
        retention_ms: i64,
        (scope, key): (&'a str, &'a str),
        act: &'a EraseAct<'a>,
        not_locked: NotLocked<'a>,
    ) -> Self {
        Self {
            retention_ms,
            scope,
            key,
            request_id: act.seen.request_id,
            token: act.seen.lease_token,
            status: act.seen.status.as_str(),
            not_locked,
            audit: InsertAudit::of(act.audit),
        }
    }
}

statement! {
    /// A dead letter is delivered again, with a new count of attempts, and the audit row. The fencing token grows: what
    /// an earlier holder says of the job, late or once more, is of another life.
    RetryJob<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, job_id: Uuid, attempts: i32, audit: InsertAudit<'a> },
    "WITH settled AS (UPDATE atomic_phases_staged_jobs SET run_after = (SELECT clock_timestamp()), \
     attempts = attempts + 1, forgiven_attempts = attempts + 1 WHERE run_after IS NULL AND scope = ",
    scope, " AND job_id = ", job_id, " AND attempts = ", attempts, " RETURNING 1) ", {audit},
    " FROM settled"
}

statement! {
    /// A dead letter is never delivered, and the audit row.
    DiscardDeadJob<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, job_id: Uuid, attempts: i32, audit: InsertAudit<'a> },
    "WITH settled AS (DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ",
    scope, " AND job_id = ", job_id, " AND attempts = ", attempts, " RETURNING 1) ", {audit},
    " FROM settled"
}

statement! {
    /// The phases that are paused, by the primary key.
    Pauses for Pg, rows PauseSql, {},
    "SELECT definition, phase, reason, paused_by, paused_at, ends_at, clock_timestamp() \
     FROM atomic_phases_pauses WHERE coalesce(ends_at > clock_timestamp(), true) \
     ORDER BY definition, phase LIMIT 1100"
}

type PauseSql = ((Text, Text, Text, Text), (Timestamptz, Nullable<Timestamptz>, Timestamptz));

statement! {
    /// The audit row of a pause, or of the end of one. How the phase stood before and stands after follows, and `FROM`
    /// what was written.
    AuditPause<'a> for Pg, rows sql_types::Untyped,
    {
        id: Uuid, actor: &'a str, act: &'a str, outcome: &'a str, reason: &'a str,
        definition: &'a str, phase: &'a str,
    },
    "INSERT INTO atomic_phases_audit (id, actor, act, outcome, reason, definition, phase, status_before, \
     status_after) SELECT ", id, ", ", actor, ", ", act, ", ", outcome, ", ", reason, ", ", definition, ", ", phase
}

impl<'a> AuditPause<'a> {
    pub(super) fn of(act: &PauseAct<'a>) -> Self {
        let PauseAct { definition, phase, audit, .. } = *act;
        Self {
            id: audit.id,
            actor: &audit.actor,
            act: audit.act,
            outcome: audit.outcome,
            reason: &audit.reason,
            definition,
            phase,
        }
    }
}

/// How a phase stands whose pause has this end, as the audit says it: what stands before the end, and behind it.
const PAUSED_UNTIL: [&str; 2] = [
    "coalesce(to_char(",
    " AT TIME ZONE 'UTC', '\"paused until \"YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), 'paused')",
];

statement! {
    /// Whether the row is the pause that was seen, and lasts.
    SeenPause<'a> for Pg, rows sql_types::Untyped,
    { reason: &'a str, paused_by: &'a str, paused_at: DateTime<Utc>, ends_at: Option<DateTime<Utc>> },
    "reason = ", reason, " AND paused_by = ", paused_by, " AND paused_at = ", paused_at,
    " AND ends_at IS NOT DISTINCT FROM ", ends_at, " AND coalesce(ends_at > clock_timestamp(), true)"
}

impl<'a> SeenPause<'a> {
    pub(super) fn of(seen: &'a PausedPhase) -> Self {
        let PausedPhase { reason, paused_by, paused_at, ends_at, .. } = seen;
        Self { reason, paused_by, paused_at: *paused_at, ends_at: *ends_at }
    }
}

statement! {
    /// Pauses a phase that is not paused, unless a thousand others are, for so long or until an operator ends it, and the
    /// audit row. Waits for another operator who is about to pause it or to end its pause.
    PausePhase<'a> for Pg, rows sql_types::Untyped,
    {
        definition: &'a str, phase: &'a str, reason: &'a str, paused_by: &'a str,
        for_ms: Option<i64>, audit: AuditPause<'a>,
    },
    "WITH paused AS (INSERT INTO atomic_phases_pauses (definition, phase, reason, paused_by, paused_at, ends_at) SELECT ",
    definition, ", ", phase, ", ", reason, ", ", paused_by, ", clock_timestamp(), clock_timestamp() + ", for_ms,
    " * interval '1 millisecond' WHERE (SELECT count(*) FROM atomic_phases_pauses AS p \
     WHERE coalesce(p.ends_at > clock_timestamp(), true)) < 1000 \
     ON CONFLICT (definition, phase) DO UPDATE SET reason = excluded.reason, \
     paused_by = excluded.paused_by, paused_at = excluded.paused_at, ends_at = excluded.ends_at \
     WHERE atomic_phases_pauses.ends_at <= clock_timestamp() RETURNING ends_at) ", {audit}, ", 'runs', ",
    (PAUSED_UNTIL[0]), "ends_at", (PAUSED_UNTIL[1]), " FROM paused"
}

statement! {
    /// The same in the place of the pause that was seen, whose end the audit row says.
    ReplacePause<'a> for Pg, rows sql_types::Untyped,
    {
        definition: &'a str, phase: &'a str, reason: &'a str, paused_by: &'a str,
        for_ms: Option<i64>, seen: SeenPause<'a>, ended_at: Option<DateTime<Utc>>, audit: AuditPause<'a>,
    },
    "WITH paused AS (UPDATE atomic_phases_pauses SET reason = ", reason, ", paused_by = ", paused_by,
    ", paused_at = clock_timestamp(), ends_at = clock_timestamp() + ", for_ms,
    " * interval '1 millisecond' WHERE definition = ", definition, " AND phase = ", phase, " AND ", {seen},
    " RETURNING ends_at) ", {audit}, ", ", (PAUSED_UNTIL[0]), ended_at, (PAUSED_UNTIL[1]), ", ",
    (PAUSED_UNTIL[0]), "ends_at", (PAUSED_UNTIL[1]), " FROM paused"
}

statement! {
    /// Ends the pause that was seen, and the audit row.
    UnpausePhase<'a> for Pg, rows sql_types::Untyped,
    { definition: &'a str, phase: &'a str, seen: SeenPause<'a>, audit: AuditPause<'a> },
    "WITH ended AS (DELETE FROM atomic_phases_pauses WHERE definition = ", definition, " AND phase = ", phase,
    " AND ", {seen}, " RETURNING ends_at) ", {audit}, ", ", (PAUSED_UNTIL[0]), "ends_at", (PAUSED_UNTIL[1]),
    ", 'runs' FROM ended"
}

statement! {
    /// The events of a request, by the primary key.
    Events<'a> for Pg, rows (Nullable<Text>, Nullable<Integer>),
    { scope: &'a str, key: &'a str, request_id: Uuid },
    "SELECT events, events_written FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}

statement! {
    /// As [`Allowed`]. A row without a scope is of what was not found: for those who may see all. Of those that may be seen,
    /// those of the actor and of the acts that are asked for.
    AskedAudit<'a> for Pg, rows sql_types::Untyped,
    { only: Option<Vec<String>>, prefix: &'a str, actor: Option<&'a str>, acts: Option<Vec<String>> },
    "coalesce(coalesce(scope, '') = ANY(", only, "), true) AND starts_with(coalesce(scope, ''), ",
    prefix, ") AND coalesce(actor = ", actor, ", true) AND coalesce(act = ANY(", acts, "), true)"
}

impl<'a> AskedAudit<'a> {
    pub(super) fn of(search: &'a AuditSearch, limits: &'a ScopeLimits) -> Self {
        let (only, prefix) = (limits.only.clone(), &*limits.prefix);
        Self { only, prefix, actor: search.actor.as_deref(), acts: search.acts.clone() }
    }
}

/// The columns of an audit row.
const AUDIT: &str = "SELECT at, id, actor, act, outcome, refused_because, reason, scope, request_id, \
    job_id, bulk_id, definition, definition_version, phase, status_before, status_after, attempt, \
    value_sha256, value_bytes FROM (SELECT * FROM atomic_phases_audit WHERE ";

type AuditSql = (
    (Timestamptz, SqlUuid, Text, Text),
    (Text, Nullable<Text>, Text),
    (Nullable<Text>, Nullable<SqlUuid>, Nullable<SqlUuid>, Nullable<SqlUuid>),
    (
        Nullable<Text>,
        Nullable<Integer>,
        Nullable<Text>,
        Nullable<Text>,
        Nullable<Text>,
        Nullable<Integer>,
        Nullable<Binary>,
        Nullable<BigInt>,
    ),
);

const LATEST: &str = ") ORDER BY at DESC, id DESC LIMIT 10000) AS looked WHERE ";
const END_OF_AUDIT: &str = ") ORDER BY at DESC, id DESC OFFSET 9999 LIMIT 1";

statement! {
    /// What was done with one request, the newest first.
    AuditOf<'a> for Pg, rows AuditSql,
    { request_id: Uuid, at: DateTime<Utc>, id: Uuid, asked: AskedAudit<'a>, limit: i64 },
    [AUDIT], "request_id = ", request_id, " AND (at, id) < (", at, ", ", id, [LATEST], {asked},
    " ORDER BY at DESC, id DESC LIMIT ", limit
}

statement! {
    /// How far it looked.
    EndOfAuditOf for Pg, rows (Timestamptz, SqlUuid),
    { request_id: Uuid, at: DateTime<Utc>, id: Uuid },
    "SELECT at, id FROM atomic_phases_audit WHERE request_id = ", request_id, " AND (at, id) < (",
    at, ", ", id, [END_OF_AUDIT]
}

statement! {
    /// What was done, the newest first.
    AuditOfAll<'a> for Pg, rows AuditSql,
    { at: DateTime<Utc>, id: Uuid, asked: AskedAudit<'a>, limit: i64 },
    [AUDIT], "(at, id) < (", at, ", ", id, [LATEST], {asked}, " ORDER BY at DESC, id DESC LIMIT ",
    limit
}

statement! {
    /// How far it looked.
    EndOfAudit for Pg, rows (Timestamptz, SqlUuid), { at: DateTime<Utc>, id: Uuid },
    "SELECT at, id FROM atomic_phases_audit WHERE (at, id) < (", at, ", ", id, [END_OF_AUDIT]
}
