//! Staged jobs, as the enqueuer finds, claims and settles them (G18).

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::sql_types;
use diesel::sql_types::{BigInt, Binary, Bool, Integer, Nullable, Text, Uuid as SqlUuid};
use uuid::Uuid;

use super::super::timestamptz::Timestamptz;
use crate::store::JobAt;
use crate::store::row::millis;
use crate::store::statement::statement;

/// When a job is due that waits for another one of its request: not before the end of that one makes it due.
/// So a search never meets it, however many wait (G16). A time that any client can read.
pub(in crate::store::postgres) const WAITS: &str = "timestamptz '9999-12-31 00:00:00+00'";

// Whether it is a job's turn: no earlier one of the same request is still to be delivered; a dead letter does not
// count. And no later one is under way, as it may be where an operator lets an earlier one try again: it was claimed,
// and no reason says how its delivery ended. One that `WAITS` is not, however its last delivery ended. Of a job that
// no operator let try again the later ones, of which there may be many, are not read. A notice waits for none, and none
// waits for it: its position is 2^62 or more.
//
// A query that ends with the scope is given its own: `j.scope`, or where one job is asked for by a distributed
// table, the parameter. There no shard is known for it otherwise.

// A condition on `run_after` stands in `coalesce`, where a job is to be found by its request: by the condition alone the
// server may plan to read the index of all due jobs, or of all dead letters, for each.

const NONE_BEFORE: &str = "NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.scope = j.scope AND other.request_id = j.request_id \
    AND coalesce(other.run_after, '-infinity') > '-infinity' AND other.position < j.position AND j.position < 4611686018427387904)";

const NONE_BEHIND: &str = " AND (j.forgiven_attempts = 0 OR NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.request_id = j.request_id AND other.position > j.position AND other.position < 4611686018427387904 \
    AND other.attempts > 0 AND other.reason IS NULL AND coalesce(other.run_after, '-infinity') > statement_timestamp() \
    AND coalesce(other.run_after, '-infinity') < timestamptz '9999-12-31 00:00:00+00' AND other.scope = ";

const DEAD_BEFORE: &str = " FROM atomic_phases_staged_jobs AS dead WHERE dead.request_id = j.request_id \
    AND dead.position < j.position AND coalesce(dead.run_after, 'infinity') = 'infinity' AND dead.scope = ";

statement! {
    /// A bounded part of the index of due jobs, from one place on, with what tells whether it is a
    /// job's turn.
    DueJobs<'a> for Pg, rows (Timestamptz, Text, SqlUuid, BigInt, Integer, Text, Bool),
    {
        run_after: DateTime<Utc>, scope: &'a str, request_id: Uuid, position: i64, limit: i64,
    },
    "SELECT run_after, scope, request_id, position, attempts, name, ", [NONE_BEFORE],
    [NONE_BEHIND], "j.scope)) FROM (SELECT * FROM atomic_phases_staged_jobs WHERE run_after <= statement_timestamp() \
     AND (run_after, scope, request_id, position) > (", run_after, ", ", scope, ", ", request_id,
    ", ", position, ") ORDER BY run_after, scope, request_id, position LIMIT ", limit, ") AS j \
     ORDER BY run_after, scope, request_id, position"
}

statement! {
    /// It is the job's turn, and will be until this is committed: none of the dead jobs in front of it is about to be
    /// revived, for each of them is locked. The turn sees only what was committed when the statement began.
    IsNext<'a> for Pg, rows sql_types::Untyped, { behind: &'a str, dead: &'a str, locked: &'a str },
    [NONE_BEFORE], [NONE_BEHIND], behind, ")) AND (SELECT count(*)", [DEAD_BEFORE], dead,
    ") = (SELECT count(*) FROM (SELECT", [DEAD_BEFORE], locked, " FOR SHARE SKIP LOCKED) AS locked)"
}

/// When a job was staged, as a time that can be subtracted. An error of one job's `infinity` would be that of all jobs that are
/// claimed with it.
const STAGED_AT: &str = "least(greatest(staged_at, 'epoch'), timestamptz '9999-12-31 00:00:00+00')";

type JobSql = (Text, SqlUuid, Text, Binary, Integer, Integer, BigInt, Nullable<Binary>);

statement! {
    /// Acquires the right to deliver a job: `attempts` is its fencing token.
    ClaimJob<'a> for Pg, rows JobSql,
    {
        lease_ms: i64, scope: &'a str, request_id: Uuid, position: i64, attempts: i32,
        is_next: IsNext<'a>,
    },
    "UPDATE atomic_phases_staged_jobs AS j SET attempts = attempts + 1, \
     reason = NULL, run_after = (SELECT clock_timestamp() + ", lease_ms, " * interval '1 millisecond') \
     WHERE scope = ", scope, " AND request_id = ", request_id, " AND position = ", position,
    " AND attempts = ", attempts, " AND run_after <= (SELECT clock_timestamp()) AND ", {is_next},
    " RETURNING idempotency_key, job_id, name, args, attempts, forgiven_attempts, \
     (extract(epoch FROM (SELECT clock_timestamp()) - ", [STAGED_AT], ") * 1000)::bigint, trace"
}

impl<'a> ClaimJob<'a> {
    pub(in crate::store::postgres) fn new(at: &'a JobAt, lease: Duration) -> Self {
        let scope = at.scope.as_str();
        Self {
            lease_ms: millis(lease),
            scope,
            request_id: at.request_id,
            position: at.position,
            attempts: at.attempts.cast_signed(),
            is_next: IsNext { behind: scope, dead: scope, locked: scope },
        }
    }
}

statement! {
    /// Jobs, each with its fencing token, and their numbers.
    Given for Pg, rows sql_types::Untyped,
    { scopes: Vec<String>, requests: Vec<Uuid>, positions: Vec<i64>, attempts: Vec<i32> },
    "unnest(", scopes, ", ", requests, ", ", positions, ", ", attempts,
    ") WITH ORDINALITY AS given (scope, request_id, position, attempts, number)"
}

impl Given {
    fn new(at: &[JobAt]) -> Self {
        Self {
            scopes: at.iter().map(|at| at.scope.as_str().to_owned()).collect(),
            requests: at.iter().map(|at| at.request_id).collect(),
            positions: at.iter().map(|at| at.position).collect(),
            attempts: at.iter().map(|at| at.attempts.cast_signed()).collect(),
        }
    }
}

/// A job as it was given.
const IS_GIVEN: &str = "j.scope = given.scope AND j.request_id = given.request_id \
    AND j.position = given.position AND j.attempts = given.attempts";

statement! {
    /// How a statement about many rows is planned: once for a connection, and so that each row is looked up by its
    /// key. For few rows at hand the server would plan anew each time: of arrays that it does not know it expects ten
    /// elements. While the table is small, it would read an index from end to end for each of them, and lock what it
    /// was given again for each row there, by a plan that stays when the table has grown: only a bitmap scan always has
    /// a condition. Where the server cannot follow, it counts that as a cost that is worth compiling for.
    ByKey for Pg, rows sql_types::Untyped, {},
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true), \
     set_config('enable_indexonlyscan', 'off', true), set_config('enable_hashjoin', 'off', true), \
     set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true), \
     set_config('plan_cache_mode', 'force_generic_plan', true)"
}

statement! {
    /// [`ClaimJob`] of many. Never waits for a lock: it holds those of other scopes' jobs by then (G16), and two
    /// that claim the same jobs must not wait for each other.
    ClaimJobs for Pg, rows (BigInt, JobSql),
    { given: Given, lease_ms: i64 },
    "UPDATE atomic_phases_staged_jobs AS j SET attempts = j.attempts + 1, reason = NULL, \
     run_after = clock.lease_ends FROM ", {given}, ", (SELECT clock_timestamp() AS now, clock_timestamp() + ",
    lease_ms, " * interval '1 millisecond' AS lease_ends OFFSET 0) AS clock WHERE ", [IS_GIVEN],
    " AND coalesce(j.run_after, 'infinity') <= clock.now AND EXISTS (SELECT FROM atomic_phases_staged_jobs AS free \
     WHERE free.scope = given.scope AND free.request_id = given.request_id \
     AND free.position = given.position FOR UPDATE SKIP LOCKED) AND ",
    [NONE_BEFORE], [NONE_BEHIND], "j.scope)) AND (SELECT count(*)", [DEAD_BEFORE],
    "j.scope) = (SELECT count(*) FROM (SELECT", [DEAD_BEFORE],
    "j.scope FOR SHARE SKIP LOCKED) AS locked) RETURNING given.number, j.idempotency_key, j.job_id, j.name, \
     j.args, j.attempts, j.forgiven_attempts, \
     (extract(epoch FROM clock.now - ", [STAGED_AT], ") * 1000)::bigint, j.trace"
}

impl ClaimJobs {
    pub(in crate::store::postgres) fn new(at: &[JobAt], lease: Duration) -> Self {
        Self { lease_ms: millis(lease), given: Given::new(at) }
    }
}

statement! {
    /// [`JobDelivered`] of many, each of another request.
    JobsDelivered for Pg, rows BigInt, { given: Given },
    "WITH ended AS (DELETE FROM atomic_phases_staged_jobs AS j USING ", {given}, " WHERE ", [IS_GIVEN],
    " RETURNING j.scope, j.request_id, j.position, given.number), \
     made_due AS (UPDATE atomic_phases_staged_jobs AS j SET run_after = (SELECT clock_timestamp()) FROM ended, \
     LATERAL (SELECT n.scope, n.request_id, n.position FROM atomic_phases_staged_jobs AS n WHERE n.scope = ended.scope \
     AND n.request_id = ended.request_id AND n.position > ended.position AND coalesce(n.run_after, '-infinity') > '-infinity' \
     ORDER BY n.position LIMIT 1) AS next WHERE j.scope = next.scope AND j.request_id = next.request_id \
     AND j.position = next.position AND coalesce(j.run_after, '-infinity') = ", [WAITS], ") SELECT number FROM ended"
}

impl JobsDelivered {
    pub(in crate::store::postgres) fn new(at: &[JobAt]) -> Self {
        Self { given: Given::new(at) }
    }
}

statement! {
    /// What a word about a delivery is guarded by: the fencing token.
    Claimed<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, request_id: Uuid, position: i64, attempts: i32 },
    " WHERE scope = ", scope, " AND request_id = ", request_id, " AND position = ", position,
    " AND attempts = ", attempts
}

impl<'a> Claimed<'a> {
    fn new(at: &'a JobAt) -> Self {
        Self {
            scope: at.scope.as_str(),
            request_id: at.request_id,
            position: at.position,
            attempts: at.attempts.cast_signed(),
        }
    }
}

statement! {
    /// Behind a job that has `ended`, the next that waits is due.
    MakeNextDue<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, request_id: Uuid },
    "UPDATE atomic_phases_staged_jobs AS j SET run_after = (SELECT clock_timestamp()) FROM ended, \
     LATERAL (SELECT n.position FROM atomic_phases_staged_jobs AS n WHERE n.scope = ", scope,
    " AND n.request_id = ", request_id, " AND n.position > ended.position AND n.run_after IS NOT NULL \
     ORDER BY n.position LIMIT 1) AS next WHERE j.scope = ", scope, " AND j.request_id = ", request_id,
    " AND j.position = next.position AND j.run_after = ", [WAITS]
}

impl<'a> MakeNextDue<'a> {
    fn new(at: &'a JobAt) -> Self {
        Self { scope: at.scope.as_str(), request_id: at.request_id }
    }
}

statement! {
    /// A job that was delivered.
    JobDelivered<'a> for Pg, rows BigInt, { claimed: Claimed<'a>, next: MakeNextDue<'a> },
    "WITH ended AS (DELETE FROM atomic_phases_staged_jobs", {claimed},
    " RETURNING position), made_due AS (", {next}, ") SELECT count(*) FROM ended"
}

impl<'a> JobDelivered<'a> {
    pub(in crate::store::postgres) fn new(at: &'a JobAt) -> Self {
        Self { claimed: Claimed::new(at), next: MakeNextDue::new(at) }
    }
}

statement! {
    /// A job that is a dead letter.
    JobDead<'a> for Pg, rows BigInt, { reason: &'a str, claimed: Claimed<'a>, next: MakeNextDue<'a> },
    "WITH ended AS (UPDATE atomic_phases_staged_jobs SET run_after = NULL, reason = ", reason, {claimed},
    " RETURNING position), made_due AS (", {next}, ") SELECT count(*) FROM ended"
}

impl<'a> JobDead<'a> {
    pub(in crate::store::postgres) fn new(at: &'a JobAt, reason: &'a str) -> Self {
        Self { reason, claimed: Claimed::new(at), next: MakeNextDue::new(at) }
    }
}

statement! {
    /// A job that was not delivered, and is due again later. Those of later phases, which are due, wait for it.
    JobPutBack<'a> for Pg, rows BigInt,
    {
        back_off_ms: i64, forgiven: i32, reason: &'a str, claimed: Claimed<'a>, scope: &'a str,
        request_id: Uuid,
    },
    "WITH put_back AS (UPDATE atomic_phases_staged_jobs SET run_after = (SELECT clock_timestamp() + ", back_off_ms,
    " * interval '1 millisecond'), forgiven_attempts = least(attempts, forgiven_attempts + ", forgiven,
    "), reason = ", reason, {claimed}, " RETURNING position), \
     waits AS (UPDATE atomic_phases_staged_jobs AS j SET run_after = ", [WAITS],
    " FROM put_back WHERE j.scope = ", scope, " AND j.request_id = ", request_id,
    " AND j.position > put_back.position AND j.position < 4611686018427387904 AND j.run_after <= (SELECT clock_timestamp())) SELECT count(*) FROM put_back"
}

impl<'a> JobPutBack<'a> {
    pub(in crate::store::postgres) fn new(
        at: &'a JobAt,
        after: Duration,
        counts: bool,
        reason: &'a str,
    ) -> Self {
        Self {
            back_off_ms: millis(after),
            forgiven: (!counts).into(),
            reason,
            claimed: Claimed::new(at),
            scope: at.scope.as_str(),
            request_id: at.request_id,
        }
    }
}
