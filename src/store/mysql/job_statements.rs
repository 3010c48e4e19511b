//! The statements of staged jobs.

use std::time::Duration;

use diesel::mysql::Mysql as Db;
use diesel::sql_types::{self, BigInt, Binary, Bool, Integer, Nullable, Text};

use super::statements::{CLOCK, NOW, WAITS};
use crate::store::row::millis;
use crate::store::statement::statement;
use crate::store::{JobAt, Undelivered};

/// No earlier job of the same request is still to be delivered; a dead letter does not count. And no
/// later one is under way, as it may be where an operator lets an earlier one try again: it was claimed,
/// and no reason says how its delivery ended. Of a job that nobody let try again the later ones, of which
/// there may be many, are not read.
const IS_NEXT: &str = "NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.scope = j.scope AND other.request_id = j.request_id \
    AND other.run_after IS NOT NULL AND other.position < j.position AND j.position < 4611686018427387904) \
    AND (j.forgiven_attempts = 0 OR NOT EXISTS (SELECT 1 FROM atomic_phases_staged_jobs AS other \
    WHERE other.scope = j.scope AND other.request_id = j.request_id AND other.position > j.position \
    AND other.attempts > 0 AND other.reason IS NULL \
    AND other.run_after > CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)))";

statement! {
    /// A bounded part of the index of due jobs, from one place on, with what tells whether it is a
    /// job's turn.
    DueJobs for Db, rows (BigInt, Text, Binary, BigInt, BigInt, Text, Bool),
    { run_after: i64, scope: String, request_id: Vec<u8>, position: i64, limit: i64 },
    "SELECT run_after, scope, request_id, position, attempts, name, ", [IS_NEXT],
    " FROM atomic_phases_staged_jobs AS j WHERE run_after <= ", [CLOCK], " AND run_after >= ", run_after,
    " AND (run_after, scope, request_id, position) > (", run_after, ", ", scope, ", ", request_id,
    ", ", position, ") ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// Acquires the right to deliver a job: `attempts` is its fencing token. MySQL lets no UPDATE ask its own
    /// table, so what [`IS_NEXT`] says is asked of a table that is computed first.
    ClaimJob for Db, rows sql_types::Untyped,
    {
        lease_ms: i64, scope: String, request_id: Vec<u8>, position: i64, attempts: i32, again: String,
        once_more: Vec<u8>, behind: i64,
    },
    "UPDATE atomic_phases_staged_jobs AS j JOIN (SELECT \
     MIN(CASE WHEN run_after IS NOT NULL THEN position END) AS first, \
     COUNT(CASE WHEN position > ", behind, " AND attempts > 0 AND reason IS NULL \
     AND run_after > CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED) THEN 1 END) AS under_way \
     FROM atomic_phases_staged_jobs WHERE scope = ", again, " AND request_id = ", once_more,
    ") AS others ON (others.first = j.position OR j.position >= 4611686018427387904) AND (j.forgiven_attempts = 0 OR others.under_way = 0) \
     SET j.attempts = j.attempts + 1, j.reason = NULL, j.run_after = ", [NOW], " + ", lease_ms,
    " WHERE j.scope = ", scope, " AND j.request_id = ", request_id, " AND j.position = ", position,
    " AND j.attempts = ", attempts, " AND j.run_after <= ", [NOW]
}

impl ClaimJob {
    pub(super) fn new(at: &JobAt, lease: Duration) -> Self {
        let (scope, request_id) = (at.scope.as_str().to_owned(), at.request_id.as_bytes().to_vec());
        Self {
            lease_ms: millis(lease),
            scope: scope.clone(),
            request_id: request_id.clone(),
            position: at.position,
            attempts: at.attempts.cast_signed(),
            again: scope,
            once_more: request_id,
            behind: at.position,
        }
    }
}

type ClaimedSql = (Text, Binary, Text, Binary, BigInt, BigInt, BigInt, Nullable<Binary>);

statement! {
    /// A job that was claimed, by its new fencing token.
    ClaimedJob for Db, rows ClaimedSql, { claimed: Claimed },
    "SELECT idempotency_key, job_id, name, args, attempts, forgiven_attempts, ", [CLOCK],
    " - staged_at, trace FROM atomic_phases_staged_jobs", {claimed}
}

impl ClaimedJob {
    pub(super) fn new(at: &JobAt) -> Self {
        Self { claimed: Claimed { attempts: at.attempts.cast_signed() + 1, ..Claimed::new(at) } }
    }
}

statement! {
    /// The same, if the statement before has claimed it.
    JobIfClaimed for Db, rows ClaimedSql, { job: ClaimedJob },
    {job}, " AND ROW_COUNT() = 1"
}

impl JobIfClaimed {
    pub(super) fn new(at: &JobAt) -> Self {
        Self { job: ClaimedJob::new(at) }
    }
}

statement! {
    /// What a word about a delivery is guarded by: the fencing token.
    Claimed for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64, attempts: i32 },
    " WHERE scope = ", scope, " AND request_id = ", request_id, " AND position = ", position,
    " AND attempts = ", attempts
}

impl Claimed {
    fn new(at: &JobAt) -> Self {
        Self {
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
            attempts: at.attempts.cast_signed(),
        }
    }
}

statement! {
    /// A job that was delivered.
    JobDelivered for Db, rows sql_types::Untyped, { claimed: Claimed },
    "DELETE FROM atomic_phases_staged_jobs", {claimed}
}

impl JobDelivered {
    pub(super) fn new(at: &JobAt) -> Self {
        Self { claimed: Claimed::new(at) }
    }
}

statement! {
    /// A job that was not delivered: due again later, or, without a back-off, a dead letter.
    JobFailed for Db, rows sql_types::Untyped,
    { back_off_ms: Option<i64>, forgiven: i32, reason: String, claimed: Claimed },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW], " + ", back_off_ms,
    ", forgiven_attempts = LEAST(attempts, forgiven_attempts + ", forgiven, "), reason = ", reason, {claimed}
}

impl JobFailed {
    pub(super) fn new(at: &JobAt, becomes: Undelivered, reason: &str) -> Self {
        let (back_off, counts) = match becomes {
            Undelivered::Again(after) => (Some(after), true),
            Undelivered::Left => (Some(Duration::ZERO), false),
            Undelivered::Dead => (None, true),
        };
        Self {
            back_off_ms: back_off.map(millis),
            forgiven: (!counts).into(),
            reason: reason.to_owned(),
            claimed: Claimed::new(at),
        }
    }
}

statement! {
    /// Behind a job that has ended, the next that waits is due.
    MakeNextDue for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, again: String, once_more: Vec<u8>, position: i64 },
    "UPDATE atomic_phases_staged_jobs AS j JOIN (SELECT MIN(position) AS next \
     FROM atomic_phases_staged_jobs WHERE scope = ", again, " AND request_id = ", once_more,
    " AND position > ", position, " AND run_after IS NOT NULL) AS others ON others.next = j.position \
     SET j.run_after = ", [NOW], " WHERE j.scope = ", scope, " AND j.request_id = ", request_id,
    " AND j.run_after = ", [WAITS]
}

impl MakeNextDue {
    pub(super) fn new(at: &JobAt) -> Self {
        let scope = at.scope.as_str().to_owned();
        let request_id = at.request_id.as_bytes().to_vec();
        let (again, once_more) = (scope.clone(), request_id.clone());
        Self { scope, request_id, again, once_more, position: at.position }
    }
}

statement! {
    /// How many rows the statement before has written, for those behind it.
    NoteCount for Db, rows sql_types::Untyped, {}, "SET @atomic_phases = ROW_COUNT()"
}

statement! {
    /// What was noted.
    Noted for Db, rows BigInt, {}, "SELECT @atomic_phases"
}

statement! {
    /// [`MakeNextDue`], if one was noted.
    MakeNextDueIfNoted for Db, rows sql_types::Untyped, { next: MakeNextDue },
    {next}, " AND @atomic_phases = 1"
}

impl MakeNextDueIfNoted {
    pub(super) fn new(at: &JobAt) -> Self {
        Self { next: MakeNextDue::new(at) }
    }
}

statement! {
    /// The jobs of later phases, which are due, wait for one that was put back.
    LetOthersWait for Db, rows sql_types::Untyped,
    { scope: String, request_id: Vec<u8>, position: i64 },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [WAITS], " WHERE scope = ", scope,
    " AND request_id = ", request_id, " AND position > ", position, " AND position < 4611686018427387904 \
     AND run_after <= ", [CLOCK]
}

impl LetOthersWait {
    pub(super) fn new(at: &JobAt) -> Self {
        Self {
            scope: at.scope.as_str().to_owned(),
            request_id: at.request_id.as_bytes().to_vec(),
            position: at.position,
        }
    }
}

/// What an operator sees of a job.
const LISTED: &str = "SELECT scope, request_id, job_id, name, attempts, reason, staged_at \
    FROM atomic_phases_staged_jobs WHERE run_after ";

type ListedSql = (Text, Binary, Binary, Text, BigInt, Nullable<Text>, BigInt);

statement! {
    /// Staged jobs, bounded, by the indexes of due ones and of dead letters.
    SurveyJobs for Db, rows (Integer, Text, Nullable<Binary>),
    { most: i64, limit: i64, most_again: i64, again: i64 },
    "SELECT * FROM (SELECT 0 AS dead, name, CASE WHEN length(args) <= ", most, " THEN args END AS args \
     FROM atomic_phases_staged_jobs WHERE run_after IS NOT NULL ORDER BY run_after LIMIT ", limit,
    ") AS due UNION ALL SELECT * FROM (SELECT 1 AS dead, name, CASE WHEN length(args) <= ", most_again,
    " THEN args END AS args FROM atomic_phases_staged_jobs WHERE run_after IS NULL \
     ORDER BY staged_at LIMIT ", again, ") AS dead_letters"
}

impl SurveyJobs {
    pub(super) fn of(limit: u32, most_bytes: u32) -> Self {
        let (limit, most) = (i64::from(limit), i64::from(most_bytes));
        Self { most, limit, most_again: most, again: limit }
    }
}

statement! {
    /// A page of the jobs that are dead letters.
    ListDeadJobs for Db, rows ListedSql,
    { scope: String, job_id: Vec<u8>, limit: i64 },
    [LISTED], "IS NULL AND scope >= ", scope, " AND (scope, job_id) > (", scope, ", ", job_id,
    ") ORDER BY scope, job_id LIMIT ", limit
}

statement! {
    /// The jobs that have been due for longest.
    ListOverdueJobs for Db, rows ListedSql,
    { overdue_ms: i64, limit: i64 },
    [LISTED], "<= ", [CLOCK], " - ", overdue_ms,
    " ORDER BY run_after, scope, request_id, position LIMIT ", limit
}

statement! {
    /// An operator's word: all dead letters are delivered again, with a new count of attempts. The fencing
    /// token grows: what an earlier holder says of a job, late or once more, is of another life.
    ReviveJobs for Db, rows sql_types::Untyped, {},
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW],
    ", forgiven_attempts = attempts + 1, attempts = attempts + 1 WHERE run_after IS NULL"
}

statement! {
    /// The same for one.
    ReviveJob for Db, rows sql_types::Untyped,
    { scope: String, job_id: Vec<u8> },
    "UPDATE atomic_phases_staged_jobs SET run_after = ", [NOW],
    ", forgiven_attempts = attempts + 1, attempts = attempts + 1 WHERE run_after IS NULL AND scope = ", scope,
    " AND job_id = ", job_id
}

statement! {
    /// An operator's word: this dead letter is never delivered.
    DiscardJob for Db, rows sql_types::Untyped,
    { scope: String, job_id: Vec<u8> },
    "DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NULL AND scope = ", scope,
    " AND job_id = ", job_id
}
