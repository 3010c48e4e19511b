//! Every span, event and metric of the crate, in one place. The labels of calls' outcomes are in
//! `engine/observed.rs`, and the gauges that a worker reads from the database in `worker/gauges.rs`. None of them
//! shows a key, a parameter, an output or a body (G19): a request is identified by a short hash of its key, and a metric
//! by its definition, never by its key.
//!
//! The metrics belong to the cargo feature `metrics`: [`metrics`] has their table.

mod job_names;
pub(crate) mod metrics;
mod scopes;
pub(crate) mod spans;
mod unharmed;

use std::time::{Duration, Instant};

pub(crate) use self::scopes::Scopes;
pub(crate) use self::unharmed::{Span, catch};

use crate::error::Causes;
use crate::key::{IdempotencyKey, Scope, ShortHash};
use crate::repeats::Repeats;

/// Events as `tracing` has them, said by way of [`unharmed`].
macro_rules! debug {
    ($($event:tt)*) => { unharmed::caught(|| tracing::debug!($($event)*)) };
}
macro_rules! info {
    ($($event:tt)*) => { unharmed::caught(|| tracing::info!($($event)*)) };
}
macro_rules! warn {
    ($($event:tt)*) => { unharmed::caught(|| tracing::warn!($($event)*)) };
}

/// That of this module's own events, too.
const TARGET: &str = "atomic_phases::observe";

const ONE_SECOND: Duration = Duration::from_secs(1);
const ONE_MINUTE: Duration = Duration::from_secs(60);
const ONE_DAY: Duration = Duration::from_secs(24 * 3600);

/// The label of what is not distinguished.
pub(crate) const OTHER: &str = "other";

/// The call ran the request to its end.
pub(crate) const FINISHED: &str = "finished";

/// The call found the answer of an earlier one.
pub(crate) const REPLAYED: &str = "replayed";

/// The call found the request in progress.
pub(crate) const IN_PROGRESS: &str = "in_progress";

/// The key is another request's.
pub(crate) const MISMATCH: &str = "mismatch";

/// What was logged lately.
static REPEATS: Repeats = Repeats::new();

/// The same of single requests, of which there may be very many: they are not to crowd out the others.
static LEFT_ALONE: Repeats = Repeats::new();

/// The outcome of a call, as one label, and how long the call took.
pub(crate) fn answered(definition: &'static str, told: &'static str, took: Duration) {
    metrics::REQUESTS.add(1, [definition, told]);
    if told == FINISHED {
        metrics::REQUEST_DURATION.record(took.as_secs_f64(), [definition]);
    }
}

/// A call that the store could not serve.
pub(crate) fn unserved(kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
}

/// A call was refused before anything was looked at.
pub(crate) fn refused(definition: &'static str, told: &'static str) {
    metrics::REQUESTS.add(1, [definition, told]);
}

/// The same, of one scope.
pub(crate) fn refused_to(scopes: &Scopes, scope: &Scope) {
    metrics::SCOPE_CALLS.add(1, [scopes.label(scope), OTHER.into()]);
}

/// The outcome of a call of this scope.
pub(crate) fn answered_to(scopes: &Scopes, scope: &Scope, told: &'static str) {
    let (scope, word) = match told {
        REPLAYED | IN_PROGRESS | MISMATCH => (scopes.label_of_duplicate(scope), told),
        _ => (scopes.label(scope), OTHER),
    };
    metrics::SCOPE_CALLS.add(1, [scope, word.into()]);
}

/// How long it took to get a connection.
pub(crate) fn connected(began: Instant) {
    metrics::POOL_WAIT.record::<&str>(began.elapsed().as_secs_f64(), []);
}

/// A key was reserved, for a request that is new.
pub(crate) fn created(definition: &'static str) {
    metrics::CREATED.add(1, [definition]);
}

/// A holder found out that another one has its lease.
pub(crate) fn lost(definition: &'static str) {
    metrics::ZOMBIES.add(1, [definition]);
}

/// How long the body of a phase took.
pub(crate) fn phase_took(definition: &'static str, phase: &'static str, took: Duration) {
    metrics::PHASE_DURATION.record(took.as_secs_f64(), [definition, phase]);
}

/// What a foreign phase's call came to.
pub(crate) fn called(
    definition: &'static str,
    phase: &'static str,
    effect: &'static str,
    outcome: &'static str,
) {
    metrics::FOREIGN_CALLS.add(1, [definition, phase, effect, outcome]);
}

/// A request came to its answer, and the answer is stored.
/// `age`: since its creation.
pub(crate) fn completed(definition: &'static str, attempt: u32, age: Duration) {
    metrics::COMPLETED.add(1, [definition]);
    metrics::REQUEST_AGE.record(age.as_secs_f64(), [definition]);
    metrics::REQUEST_ATTEMPTS.record(attempt.into(), [definition]);
}

/// An engine is ready: its metrics are described to their recorder.
pub(crate) fn described() {
    metrics::describe();
    metrics::BUILD_INFO.set(1.0, [env!("CARGO_PKG_VERSION")]);
}

pub(crate) fn resumed(definition: &'static str, recovery_point: &str, attempt: u32) {
    metrics::RESUMES.add(1, [definition]);
    debug!(recovery_point, attempt, "resumed");
}

/// A worker has acquired a request ahead of its turn, which did not come, and made it pending again.
pub(crate) fn given_back(definition: &'static str) {
    metrics::GIVEN_BACK.add(1, [definition]);
}

pub(crate) fn committed(recovery_point: &str) {
    debug!(recovery_point, "committed");
}

/// An event about a request, with what an operator finds it by in the line itself.
macro_rules! event {
    ($level:ident, $subject:expr, { $($field:tt)* }, $text:literal) => {
        $level!(
            definition = $subject.definition,
            request_id = %$subject.request_id,
            scope = %ShortHash($subject.scope.as_str()),
            key = %ShortHash($subject.key.as_str()),
            $($field)*
            $text
        )
    };
}

/// A request, as far as a log may know it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) definition: &'a str,
    pub(crate) request_id: uuid::Uuid,
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
}

/// Why an attempt ended before its request did.
pub(crate) struct Failure<'a> {
    pub(crate) cause: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) phase: Option<&'static str>,
    /// Of a database error, a constraint, a table or a column, never a value.
    pub(crate) about: Option<&'a str>,
}

/// An attempt ended before the request did, and its row was released.
pub(crate) fn released(subject: Subject<'_>, failure: Failure<'_>, retry_after: Duration) {
    let Failure { cause, reason, phase, about } = failure;
    match cause {
        "shutting_down" => event!(debug, subject, { reason, }, "released"),
        cause => {
            event!(warn, subject, { phase, cause, reason, about, ?retry_after, }, "released");
        }
    }
}

/// The first phase of a request failed, and with it went its row.
pub(crate) fn not_begun(subject: Subject<'_>, failure: Failure<'_>) {
    let Failure { cause, reason, phase, about } = failure;
    event!(
        warn,
        subject,
        { phase, cause, reason, about, },
        "not begun: its first phase failed and left no row"
    );
}

/// The lease of another holder has ended, and this process goes on with its request: that process died, or was too slow. The
/// attempt is the one that takes over; the row's event has the one that ended.
pub(crate) fn taken_over(subject: Subject<'_>, recovery_point: &str, by_attempt: u32) {
    event!(
        info,
        subject,
        { recovery_point, by_attempt, },
        "taken over: its holder's lease has ended"
    );
}

/// This process does not continue a row: why, in one word and in a sentence. Said once a day for each request, of very
/// many for one in a second, and counted each time.
pub(crate) fn left_alone(subject: Subject<'_>, word: &'static str, because: &'static str) {
    // The definition may be any text, so it is not a label.
    metrics::LEFT_ALONE.add(1, [word]);
    if let Some(suppressed) = LEFT_ALONE.admits((subject.request_id, word), ONE_DAY) {
        event!(warn, subject, { because, suppressed, }, "left alone");
    }
}

/// A request became unknown, and the row says so.
pub(crate) fn unknown(
    definition: &'static str,
    subject: Subject<'_>,
    phase: &str,
    reason: &'static str,
) {
    metrics::UNKNOWN.add(1, [definition]);
    event!(warn, subject, { phase, reason, }, "outcome unknown: not repeated");
}

pub(crate) fn dead_letter(definition: &'static str, subject: Subject<'_>, reason: &str) {
    metrics::DEAD_LETTERS.add(1, [definition]);
    event!(warn, subject, { reason, }, "dead letter: an operator has to settle it");
}

/// A request begins to wait, and no notice of it is sent.
pub(crate) fn notice_failed(subject: Subject<'_>, error: &'static str) {
    event!(warn, subject, { error, }, "the codec failed for the notice that a request waits: it is not staged");
}

pub(crate) fn commit_unanswered(definition: &'static str, subject: Subject<'_>) {
    metrics::UNANSWERED.add(1, [definition]);
    event!(warn, subject, {}, "a commit got no answer; asking what became of it");
}

/// A reply has a header line that its replays will lack. In debug builds; once a day for each name.
pub(crate) fn header_not_replayed(subject: Subject<'_>, name: &str) {
    let what = ("not replayed", subject.definition, name.to_ascii_lowercase());
    if REPEATS.admits(what, ONE_DAY).is_some() {
        event!(
            warn,
            subject,
            { name, },
            "a reply's header line is on this answer only: replays have those of `store_header`"
        );
    }
}

/// A request could not be answered from its row. What repeats is counted and logged once a second.
pub(crate) fn call_failed(
    subject: Subject<'_>,
    what: &'static str,
    error: &(dyn std::error::Error + 'static),
) {
    if let Some(suppressed) = REPEATS.admits(("call", subject.definition, what), ONE_SECOND) {
        let error = Causes(error);
        event!(warn, subject, { %error, suppressed, }, "a request could not be answered");
    }
}

/// A call of a definition that the engine does not have.
pub(crate) fn not_registered_call(definition: &'static str, version: u32) {
    if let Some(suppressed) = REPEATS.admits(("not registered", definition, version), ONE_MINUTE) {
        warn!(definition, version, suppressed, "refused: the definition is not registered");
    }
}

/// A foreign phase returned an output, and its call is not made. Said once a day for each phase.
pub(crate) fn call_unmade(subject: Subject<'_>, phase: &str) {
    if REPEATS.admits(("unmade", subject.definition, phase), ONE_DAY).is_some() {
        event!(
            warn,
            subject,
            { phase, },
            "a foreign phase returned an output without making its call: nothing happened (if that is meant, `ForeignCall::skip`)"
        );
    }
}

/// The call of a foreign phase did not look at the derived key. Said once a day for each phase.
pub(crate) fn key_unread(subject: Subject<'_>, phase: &str) {
    if REPEATS.admits(("key unread", subject.definition, phase), ONE_DAY).is_some() {
        event!(
            warn,
            subject,
            { phase, },
            "the call of an idempotent phase did not read its derived key: a retry may have a second effect"
        );
    }
}

pub(crate) fn rerun(definition: &'static str, phase: &'static str, kind: &'static str) {
    metrics::PHASE_RERUNS.add(1, [definition, phase, kind]);
    debug!(phase, kind, "phase is run again");
}

pub(crate) fn reconciled(definition: &'static str, phase: &'static str, found: &'static str) {
    metrics::RECONCILES.add(1, [definition, found]);
    debug!(phase, found, "an unknown outcome is settled");
}

/// A reconcile function did not find out.
pub(crate) fn still_unknown(definition: &'static str, phase: &'static str) {
    metrics::RECONCILES.add(1, [definition, "still_unknown"]);
    debug!(phase, "an unknown outcome is not found out");
}

pub(crate) fn reconcile_failed(
    definition: &'static str,
    subject: Subject<'_>,
    phase: &'static str,
    how: &'static str,
) {
    metrics::RECONCILES.add(1, [definition, "failed"]);
    event!(warn, subject, { phase, how, }, "a reconcile function failed, panicked or did not answer in time");
}

/// `phase` is empty where the resolution is about the request as a whole. `by`: an operator, or the application, as for a
/// provider's webhook.
pub(crate) fn resolved(
    definition: &'static str,
    subject: Subject<'_>,
    resolution: &'static str,
    phase: &str,
    by: &'static str,
) {
    metrics::RESOLUTIONS.add(1, [definition, resolution]);
    event!(info, subject, { resolution, phase, by, }, "a resolution was written");
}

/// A worker could not drive a request on. What repeats is counted and logged once a second.
pub(crate) fn drive_failed(
    subject: Subject<'_>,
    kind: &'static str,
    error: &(dyn std::error::Error + 'static),
) {
    if let Some(suppressed) = REPEATS.admits(("drive", subject.definition, kind), ONE_SECOND) {
        let error = Causes(error);
        event!(warn, subject, { %error, suppressed, }, "a worker could not drive a request on");
    }
}

/// Since 1970.
pub(crate) fn seconds(time: chrono::DateTime<chrono::Utc>) -> f64 {
    // Exact to the millisecond for ages.
    time.timestamp_millis() as f64 / 1000.0
}

pub(crate) fn worker_failed(worker: &'static str, kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    warn!(worker, kind, "a worker could not search the store");
}

/// What operators have paused could not be read: counted, and said once a minute.
pub(crate) fn pauses_unread(kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    if let Some(suppressed) = REPEATS.admits("pauses", ONE_MINUTE) {
        warn!(suppressed, kind, "the pauses could not be read");
    }
}

/// A lease could not be renewed, and may end before its holder does: counted, and said once a minute.
pub(crate) fn lease_not_renewed(kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    if let Some(suppressed) = REPEATS.admits("leases", ONE_MINUTE) {
        warn!(suppressed, kind, "a lease could not be renewed");
    }
}

/// An operator did something, or was refused.
pub(crate) fn operated(act: &'static str, outcome: &'static str) {
    metrics::OPERATOR_ACTS.add(1, [act, outcome]);
}

/// From here on its panics are counted: a counter that begins at one has no rate.
pub(crate) fn worker_started(worker: &'static str) {
    metrics::WORKER_PANICS.add(0, [worker]);
}

/// A worker has searched for work.
pub(crate) fn worker_polled(worker: &'static str) {
    metrics::WORKER_POLL.set(seconds(chrono::Utc::now()), [worker]);
}

pub(crate) fn worker_panicked(worker: &'static str) {
    metrics::WORKER_PANICS.add(1, [worker]);
    warn!(worker, "a worker panicked and is started again");
}

pub(crate) fn reaped(keys: u32) {
    metrics::KEYS_REAPED.add::<&str>(keys.into(), []);
    debug!(keys, "reaped");
}

/// The server refused to delete so many expired keys of a batch; `kind` is its error for the last of them. Counted once.
pub(crate) fn not_reaped(keys: u32, kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    warn!(keys, kind, "the server refuses to delete expired keys; does a table refer to them?");
}

/// A batch of expired keys was not deleted in the time that an answer is waited for. So many are deleted at a time from now
/// on.
pub(crate) fn reaped_too_slowly(keys_at_a_time: u32) {
    warn!(
        keys_at_a_time,
        "the server takes too long to delete expired keys: fewer at a time are deleted; does a table refer to them that \
         has no index on its foreign key?"
    );
}

pub(crate) fn erased(keys: u32) {
    metrics::KEYS_ERASED.add::<&str>(keys.into(), []);
    debug!(keys, "erased");
}

/// The server refused to erase a settled request. Logged once a minute for each request (if there are very many, one each
/// second), and counted each time.
pub(crate) fn not_erased(subject: Subject<'_>, kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    if let Some(suppressed) = LEFT_ALONE.admits((subject.request_id, "not erased"), ONE_MINUTE) {
        event!(warn, subject, { kind, suppressed, }, "the server refuses to erase a settled request");
    }
}

/// The replay cache had the answer.
pub(crate) fn replay_cache_hit(definition: &'static str) {
    metrics::REPLAY_CACHE.add(1, [definition, "hit"]);
}

/// It said that the request is in progress.
pub(crate) fn replay_cache_hinted(definition: &'static str) {
    metrics::REPLAY_CACHE.add(1, [definition, "in_progress"]);
}

pub(crate) fn replay_cache_missed(definition: &'static str) {
    metrics::REPLAY_CACHE.add(1, [definition, "miss"]);
}

/// What it had is another request's, of another secret, made up, or past its time.
pub(crate) fn replay_cache_unusable(definition: &'static str) {
    metrics::REPLAY_CACHE.add(1, [definition, "unusable"]);
}

/// It gave no answer; where that continues, it is left alone.
pub(crate) fn replay_cache_failed() {
    metrics::REPLAY_CACHE.add(1, ["", "failed"]);
}

/// It answered that it would not. Counted, and said once a minute.
pub(crate) fn replay_cache_refused() {
    metrics::REPLAY_CACHE.add(1, ["", "refused"]);
    if let Some(suppressed) = REPEATS.admits("replay cache refused", ONE_MINUTE) {
        warn!(
            suppressed,
            "the replay cache refuses: it is full, say, or does not let this user in"
        );
    }
}

/// It was not asked, or not written to, because it gave no answer lately or too much is on its way to it.
pub(crate) fn replay_cache_unasked() {
    metrics::REPLAY_CACHE.add(1, ["", "unasked"]);
}

pub(crate) fn replay_cache_left_alone(rest: Duration) {
    warn!(
        ?rest,
        "the replay cache gives no answer; replays are read from the database until it does"
    );
}

pub(crate) fn replay_cache_is_back() {
    info!("the replay cache answers again");
}

/// The row is erased, and what the cache may have of it is not known to be gone.
pub(crate) fn replay_cache_not_buried(
    scope: &Scope,
    key: Option<&IdempotencyKey>,
    told_for: Duration,
) {
    let (scope, key) = (ShortHash(scope.as_str()), key.map(|key| ShortHash(key.as_str())));
    let key = key.as_ref().map(tracing::field::display);
    warn!(%scope, key, ?told_for, "the replay cache did not confirm an erasure; the engine asks again, and the cache may return the erased answer for `told_for` at most");
}

/// The application's adapter for traces panicked. Said once a minute.
pub(crate) fn trace_context_panicked() {
    if let Some(suppressed) = REPEATS.admits("trace context", ONE_MINUTE) {
        warn!(suppressed, "a TraceContext panicked; the request continues without its answer");
    }
}

/// Tells the application's recorder of metrics. That it panicked is said once a minute.
#[cfg(feature = "metrics")]
fn recorded(record: impl FnOnce()) {
    if catch(record).is_none()
        && let Some(suppressed) = REPEATS.admits("recorder", ONE_MINUTE)
    {
        warn!(suppressed, "a metrics recorder panicked; what it received is not counted");
    }
}

faults! {
    /// The engine is at a crash point. Its target tells it from what a request says.
    pub(crate) fn crash_point(phase: &str, place: &str) {
        unharmed::caught(|| tracing::trace!(target: "atomic_phases::fault", phase, place, "crash point"));
    }
}

/// A reply of a phase cannot be sent as it is.
#[cfg(feature = "http")]
pub(crate) fn header_not_sent() {
    warn!("a phase's reply has a header line that HTTP cannot carry");
}

/// What the engine cannot do because a pooler or a proxy is in front of the server, and what helps.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn sessions_are_proxied(advice: &str) {
    warn!("{advice}");
}

/// A worker met a row of a definition that is not registered here. Once for each definition.
pub(crate) fn not_registered(definition: &str, version: u32) {
    warn!(definition, version, "left alone: no such definition is registered in this process");
}

/// A staged job, as far as a log may know it.
pub(crate) struct JobSeen {
    pub(crate) id: uuid::Uuid,
    pub(crate) name: String,
    pub(crate) request_id: uuid::Uuid,
    pub(crate) scope: Scope,
    pub(crate) key: IdempotencyKey,
    pub(crate) attempt: u32,
}

impl JobSeen {
    /// Its name, where there is a metric that has it, and there are not too many of them.
    fn label(&self) -> &'static str {
        if cfg!(feature = "metrics") { job_names::label(&self.name) } else { "" }
    }
}

/// An event about a job, with what an operator finds it by.
macro_rules! job_event {
    ($level:ident, $job:expr, { $($field:tt)* }, $text:literal) => {
        $level!(
            job = $job.name,
            id = %$job.id,
            request_id = %$job.request_id,
            scope = %ShortHash($job.scope.as_str()),
            key = %ShortHash($job.key.as_str()),
            attempt = $job.attempt,
            $($field)*
            $text
        )
    };
}

pub(crate) fn job_delivered(job: &JobSeen, lag: Duration) {
    metrics::JOBS_DELIVERED.add(1, [job.label()]);
    metrics::JOB_LAG.record(lag.as_secs_f64(), [job.label()]);
    job_event!(debug, job, { ?lag, }, "job delivered");
}

pub(crate) fn job_failed(job: &JobSeen, reason: &'static str, back_off: Duration) {
    metrics::JOBS_FAILED.add(1, [job.label()]);
    job_event!(warn, job, { reason, ?back_off, }, "job not delivered; it is delivered again");
}

pub(crate) fn job_dead(job: &JobSeen, reason: &'static str) {
    metrics::JOBS_DEAD.add(1, [job.label()]);
    job_event!(warn, job, { reason, }, "job is a dead letter");
}

/// The store could not say whether the job is ours to deliver. Its id and key are not known before that.
pub(crate) fn job_not_claimed(
    name: &str,
    scope: &Scope,
    request_id: uuid::Uuid,
    kind: &'static str,
) {
    let scope = ShortHash(scope.as_str());
    warn!(job = name, %request_id, %scope, kind, "the store failed in front of a delivery");
}

/// The store failed behind a delivery. The job is delivered again, if it has to be.
pub(crate) fn job_unsettled(job: &JobSeen, kind: &'static str) {
    job_event!(warn, job, { kind, }, "the store failed behind a delivery");
}

/// An enqueuer met a job whose arguments its codec cannot open. Once for each name.
pub(crate) fn job_sealed(name: &str) {
    warn!(
        job = name,
        "left to other nodes: the codec of this process cannot open such a job's arguments"
    );
}

/// An enqueuer met a job that its sink does not handle. Once for each name.
pub(crate) fn job_not_handled(name: &str) {
    warn!(job = name, "left to other nodes: the sink of this process does not handle such jobs");
}

/// Workers start with a sink that does not handle a job which the requests of this process stage.
pub(crate) fn job_staged_and_not_handled(name: &str) {
    warn!(
        job = name,
        "the sink of this process does not handle such jobs, which its own requests stage: unless another node's does, \
         no node delivers them"
    );
}
