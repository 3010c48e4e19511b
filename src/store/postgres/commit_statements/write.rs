//! What is written to a row between phases, in a transaction of its own.

use diesel::pg::Pg;
use diesel::sql_types;
use uuid::Uuid;

use super::super::statements::{Guarded, NewEvent, NotLocked};
use super::INSERT_JOBS;
use super::row::NextState;
use crate::job::StagedJob;
use crate::store::statement::statement;
use crate::store::{Change, Guard};

statement! {
    /// Between phases, in a transaction of its own: the number of rows tells. The recovery point may
    /// stay, and there may be a word about an outcome that was unknown. Never waits for the row's lock.
    Write<'a> for Pg as varying, rows sql_types::Untyped,
    {
        next: NextState<'a>, to: &'a str, resolution: Option<&'a str>, window: bool, outcome: bool, attempts: bool,
        forgiven: i32, no_attempt: i32, reason: Option<&'a str>, waits: bool, event: NewEvent<'a>,
        guarded: Guarded<'a>, not_locked: NotLocked<'a>,
    },
    {next}, ", advanced_at = CASE WHEN recovery_point = ", to, " AND NOT ", window,
    " THEN advanced_at ELSE (SELECT clock_timestamp()) END, resolution = coalesce(", resolution,
    ", resolution), reconciles = CASE WHEN ", outcome,
    " THEN 0 ELSE reconciles END, forgiven_attempts = CASE WHEN ", attempts,
    " THEN attempts ELSE least(attempts, forgiven_attempts + ", forgiven,
    ") END, attempts = attempts - ", no_attempt, ", reason = coalesce(", reason,
    ", reason), waiting_since = CASE WHEN ", waits,
    " THEN coalesce(waiting_since, (SELECT clock_timestamp())) END", {event}, {guarded}, " AND ", {not_locked}
}

impl<'a> Write<'a> {
    pub(in crate::store::postgres) fn new(guard: &Guard<'a>, change: &Change<'a>) -> Self {
        Self {
            next: NextState::new(change),
            to: change.recovery_point,
            resolution: change.resolution,
            window: change.settles.window(),
            outcome: change.settles.outcome(),
            attempts: change.settles.attempts(),
            forgiven: change.forgiven_attempts.cast_signed(),
            no_attempt: change.was_no_attempt.into(),
            reason: change.reason,
            waits: change.waits(),
            event: NewEvent(change.event),
            guarded: Guarded::new(guard),
            not_locked: NotLocked::new(guard.scope, guard.key),
        }
    }
}

statement! {
    /// [`Write`], and the notice of it: both or neither. The number of rows tells.
    WriteWithNotice<'a> for Pg as varying, rows sql_types::Untyped,
    {
        write: Write<'a>, scope: &'a str, job_id: Uuid, position: i64, name: &'a str, args: &'a [u8],
        trace: Option<&'a [u8]>,
    },
    "WITH written AS (", {write}, " RETURNING idempotency_key, request_id, (SELECT clock_timestamp()) AS told_at) ",
    [INSERT_JOBS], scope, ", idempotency_key, request_id, ", job_id, ", ", position, ", ", name, ", ", args,
    ", told_at, told_at, ", trace, " FROM written"
}

impl<'a> WriteWithNotice<'a> {
    pub(in crate::store::postgres) fn new(
        write: Write<'a>,
        guard: &Guard<'a>,
        job: &'a StagedJob,
    ) -> Self {
        Self {
            write,
            scope: guard.scope.as_str(),
            job_id: job.id,
            position: job.position,
            name: &job.name,
            args: &job.args,
            trace: job.trace(),
        }
    }
}
