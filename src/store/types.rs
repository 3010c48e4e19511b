//! What passes through the door of a [`Store`](super::Store): rows as they are read, changes as they are to be
//! written, and what became of a commit.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::audit::AuditEntry;
use super::{Store, StoreError};
use crate::caller::Caller;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::traces::StoredTrace;

/// What a client gave, as it is stored: parameters and context.
pub(crate) type ParamsAndContext = (Vec<u8>, Option<Vec<u8>>);

/// How the server knows an open transaction.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TransactionId(pub(crate) String);

/// The status of a row. `expired` is not a status: expiry is judged when the key is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Accepted, to be run in the background.
    Pending,
    /// A holder runs it or has crashed; lease expiry distinguishes the two.
    InProgress,
    /// Released after a transient failure; safe to resume.
    FailedRetryable,
    /// Finished; the reply is stored.
    Completed,
    /// A foreign effect may or may not have happened.
    Unknown,
    /// Gave up at the attempt cap.
    DeadLetter,
}

impl Status {
    /// The status as it is stored.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::FailedRetryable => "failed_retryable",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
            Self::DeadLetter => "dead_letter",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [
            Self::Pending,
            Self::InProgress,
            Self::FailedRetryable,
            Self::Completed,
            Self::Unknown,
            Self::DeadLetter,
        ]
        .into_iter()
        .find(|status| status.as_str() == text)
    }
}

/// What a row means for a call is seen by this much of it (`engine::decide`), with everything about
/// time already judged by the database's clock.
#[derive(Debug)]
pub struct KeySummary {
    pub(crate) request_id: Uuid,
    pub(crate) definition: String,
    pub(crate) version: u32,
    pub(crate) fingerprint: String,
    pub(crate) status: Status,
    pub(crate) lease_token: i64,
    /// Until the lease ends; zero once it has ended.
    pub(crate) lease_left: Duration,
    /// Until the back-off of a released or unknown row ends.
    pub(crate) back_off_left: Duration,
    /// Whether a worker has to look at it some time.
    pub(crate) for_workers: bool,
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) expired: bool,
    /// Behind a pointer, because most rows have none, and every call has a summary.
    pub(crate) trace: Option<Box<StoredTrace>>,
    pub(crate) response: Option<StoredResponse>,
}

impl KeySummary {
    /// Whether the request is finished and the key free for another one.
    pub(crate) fn is_over(&self) -> bool {
        self.status == Status::Completed && self.expired
    }
}

/// A row of the key table, with everything about time already judged by the database's clock.
#[derive(Debug)]
pub struct KeyRow {
    pub(crate) request_id: Uuid,
    pub(crate) definition: String,
    pub(crate) version: u32,
    pub(crate) fingerprint: String,
    pub(crate) status: Status,
    pub(crate) recovery_point: String,
    pub(crate) open_intent: Option<String>,
    pub(crate) lease_token: i64,
    pub(crate) attempts: u32,
    /// As many of them an operator's word has forgiven.
    pub(crate) forgiven_attempts: u32,
    /// How often the unknown outcome was looked into.
    pub(crate) reconciles: u32,
    /// The last word about an unknown outcome; see `engine::resolve`.
    pub(crate) resolution: Option<String>,
    /// The phases that it is run under, as text (`definition::PhaseList`).
    pub(crate) phases: String,
    /// Why the last attempt ended before the request did.
    pub(crate) reason: Option<String>,
    /// Since when it waits for a reconcile function or an operator.
    pub(crate) waiting_since: Option<DateTime<Utc>>,
    /// Until the lease ends; zero once it has ended.
    pub(crate) lease_left: Duration,
    /// Until the back-off of a released or unknown row ends.
    pub(crate) back_off_left: Duration,
    /// Whether a worker has to look at it some time.
    pub(crate) for_workers: bool,
    /// Since the last recovery point was committed.
    pub(crate) since_advance: Duration,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) expired: bool,
    pub(crate) trace: Option<StoredTrace>,
    /// Absent in a completed row, where nobody needs them.
    pub(crate) work: Option<Work>,
    pub(crate) response: Option<StoredResponse>,
}

/// What a run needs to go on.
pub(crate) struct Work {
    pub(crate) params: Vec<u8>,
    pub(crate) context: Option<Vec<u8>>,
    pub(crate) outputs: Option<Vec<u8>>,
}

/// A reply as it is stored. `body: None` marks one that was over the cap and was not retained.
#[derive(Clone)]
pub(crate) struct StoredResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Option<Vec<u8>>,
}

// G19: a row that is printed shows sizes, never content.
impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Work({} bytes of parameters)", self.params.len())
    }
}

impl std::fmt::Debug for StoredResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoredResponse({})", self.status)
    }
}

/// A row to be created, at its first recovery point.
pub struct NewRow<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) definition: &'a str,
    pub(crate) version: u32,
    /// The phases of the definition, as text (`definition::PhaseList`).
    pub(crate) phases: &'a str,
    pub(crate) fingerprint: &'a str,
    pub(crate) params: &'a [u8],
    pub(crate) context: Option<&'a [u8]>,
    /// A [`StoredTrace`], as it is stored.
    pub(crate) trace: Option<&'a [u8]>,
    pub(crate) birth: Birth,
    pub(crate) retention: Duration,
    pub(crate) lock_wait: Duration,
    /// Who asked for it. Nothing waits for the row's lock any more once they are gone.
    pub(crate) caller: &'a Caller,
    /// A finished, expired life of the same key, which this row replaces.
    pub(crate) replaces: Option<Uuid>,
}

impl<'a> NewRow<'a> {
    /// What the first phase's writes are guarded by: nothing but that the row is new.
    pub(crate) fn guard(&self) -> Guard<'a> {
        Guard {
            scope: self.scope,
            key: self.key,
            request_id: self.request_id,
            lease_token: 1,
            recovery_point: "",
        }
    }
}

/// How a row begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Birth {
    /// In progress: its creator runs it, and holds it for so long.
    Held(Duration),
    /// Accepted: a worker is to run it, at once.
    Pending,
}

impl Birth {
    pub(super) fn status(self) -> Status {
        match self {
            Self::Held(_) => Status::InProgress,
            Self::Pending => Status::Pending,
        }
    }

    /// Acquisitions of the lease so far, which is also the first fencing token.
    pub(super) fn attempts(self) -> i32 {
        (self != Self::Pending).into()
    }

    pub(super) fn lease(self) -> Option<Duration> {
        match self {
            Self::Held(lease) => Some(lease),
            Self::Pending => None,
        }
    }

    pub(super) fn due(self) -> Option<Duration> {
        (self == Self::Pending).then_some(Duration::ZERO)
    }
}

/// What became of a reservation.
pub enum Reserved<T> {
    /// The row is in this open transaction.
    Fresh { tx: T, created_at: DateTime<Utc>, expires_at: DateTime<Utc> },
    /// The key has this row. `None`: it was created while the statement ran, too late for it to see
    /// (H20): ask again.
    Exists(Option<KeySummary>),
    /// Another transaction is about to create it, and took longer than the bound.
    Busy,
}

/// What a phase handed over.
pub(crate) struct Statements<S: Store> {
    pub(crate) all: Vec<S::Statement>,
    /// Whether one of them may need what stands before it.
    pub(crate) in_order: bool,
}

impl<S: Store> Default for Statements<S> {
    fn default() -> Self {
        Self { all: Vec::new(), in_order: false }
    }
}

/// What a phase hands over.
pub struct Writes<'a, S: Store> {
    pub(crate) statements: Statements<S>,
    pub(crate) jobs: &'a [StagedJob],
    /// How long the database may take for all of it. Past it the connection is destroyed, and the
    /// outcome is unknown.
    pub(crate) within: Duration,
}

/// Since when a row that was just created is there, and until when it is kept, by the database's clock.
#[derive(Clone, Copy, Debug)]
pub struct RowTimes {
    pub(crate) now: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
}

/// Which row to take over, and by what right.
pub struct Claim<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) request_id: Uuid,
    /// Token and status that were read: who changed them since then was faster.
    pub(crate) lease_token: i64,
    pub(crate) status: Status,
    /// The recovery point that was read; `None`, for a row of our own: wherever it stands.
    pub(crate) recovery_point: Option<&'a str>,
    /// The phases that it is run under from now on; `None` leaves those that it was written under.
    pub(crate) phases: Option<&'a str>,
    pub(crate) right: Right,
    /// A [line](super::events::line) of what was found.
    pub(crate) event: Option<&'a str>,
    /// A [`StoredTrace`], as it is stored; `None` leaves the one that the row has.
    pub(crate) trace: Option<&'a [u8]>,
}

impl<'a> Claim<'a> {
    /// What a write behind the takeover is guarded by. Of a claim that says no recovery point, nothing fits it.
    pub(super) fn behind(&self) -> Guard<'a> {
        Guard {
            scope: self.scope,
            key: self.key,
            request_id: self.request_id,
            // A token of no engine may be any number.
            lease_token: self.lease_token.saturating_add(1),
            recovery_point: self.recovery_point.unwrap_or_default(),
        }
    }
}

/// For how long: the lease, and, whatever becomes of the request, the key at least. A request that is
/// resumed on its third day replays its answer for as long as any other.
#[derive(Clone, Copy)]
pub struct Hold {
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

/// What to erase.
pub struct Erase<'a> {
    pub(crate) scope: &'a Scope,
    /// `None`: any key of the scope that is not erased yet.
    pub(crate) key: Option<&'a IdempotencyKey>,
    pub(crate) limit: u32,
    /// A dead letter is closed by it, and its key kept for so long from now: it may be past its
    /// expiry already, and must not be free for a late retry.
    pub(crate) retention: Duration,
    /// Of one key: the row as an operator saw it, and the audit row of the act.
    pub(crate) act: Option<EraseAct<'a>>,
}

/// An operator's erasure of a row.
#[derive(Clone, Copy)]
pub(crate) struct EraseAct<'a> {
    pub(crate) seen: &'a Seen,
    pub(crate) audit: &'a AuditEntry,
}

/// A row as it was seen: whoever takes it over, settles it or goes on with it makes it another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) request_id: Uuid,
    pub(crate) lease_token: i64,
    pub(crate) status: Status,
    pub(crate) recovery_point: String,
}

impl Seen {
    pub(crate) fn of(row: &KeyRow) -> Self {
        Self {
            request_id: row.request_id,
            lease_token: row.lease_token,
            status: row.status,
            recovery_point: row.recovery_point.clone(),
        }
    }

    /// What no row is: it was seen as it is no more.
    pub(crate) fn gone(row: &KeyRow) -> Self {
        Self { lease_token: -1, ..Self::of(row) }
    }

    pub(crate) fn is(&self, row: &KeyRow) -> bool {
        *self == Self::of(row)
    }
}

/// Stands in the place of an erased row's fingerprint. No version of a fingerprint looks like it, so
/// that a process that is too old to know it leaves the row alone (G14).
pub(crate) const ERASED: &str = "erased";

/// By what right a lease is acquired.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// The row is accepted or released, or its lease has run out: another attempt begins.
    Free,
    /// The lease is ours, and a commit of ours got no answer: the guarded update waits for that
    /// commit and fences it off (H4, H5), then tells which recovery point holds.
    Own,
    /// The outcome is unknown and somebody is going to look into it.
    Reconcile,
    /// Somebody knows: a webhook or an operator.
    Resolve,
}

/// What every write of the engine is guarded by (G3).
#[derive(Clone, Copy)]
pub struct Guard<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) lease_token: i64,
    pub(crate) recovery_point: &'a str,
}

/// What a word about an unknown outcome settles, besides that outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settles {
    /// There is no word.
    Nothing,
    /// No call was made: a provider's window begins anew. The attempts so far count.
    Window,
    /// The attempts so far: from outside the request is given as many again, or it went on.
    Attempts,
    /// Both.
    WindowAndAttempts,
}

impl Settles {
    pub(super) fn outcome(self) -> bool {
        self != Self::Nothing
    }

    pub(super) fn window(self) -> bool {
        matches!(self, Self::Window | Self::WindowAndAttempts)
    }

    pub(crate) fn attempts(self) -> bool {
        matches!(self, Self::Attempts | Self::WindowAndAttempts)
    }
}

/// The next state of a row.
pub struct Change<'a> {
    pub(crate) status: Status,
    pub(crate) recovery_point: &'a str,
    pub(crate) outputs: Option<&'a [u8]>,
    pub(crate) open_intent: Option<&'a str>,
    /// From now, by the database's clock: how long the lease holds (`InProgress`), or how long the
    /// back-off lasts (any other status, whose lease is gone). `None` where no worker has to look at the row:
    /// it is over, or an operator's alone.
    pub(crate) hold: Option<Duration>,
    /// A word about an unknown outcome, and what it settles.
    pub(crate) resolution: Option<&'a str>,
    pub(crate) settles: Settles,
    /// Why an attempt ended before the request did. `None` leaves the last reason where it is.
    pub(crate) reason: Option<&'a str>,
    /// How many attempts are taken off the count against the cap.
    pub(crate) forgiven_attempts: u32,
    /// The takeover was no attempt after all: nothing was called, and its number is the next attempt's.
    pub(crate) was_no_attempt: bool,
    pub(crate) response: Option<&'a StoredResponse>,
    /// A [line](super::events::line) of what became of it. What runs its usual way has none.
    pub(crate) event: Option<&'a str>,
}

impl Change<'_> {
    /// Whether the row is left to a reconcile function or an operator.
    pub(super) fn waits(&self) -> bool {
        matches!(self.status, Status::Unknown | Status::DeadLetter)
    }

    pub(super) fn lease(&self) -> Option<Duration> {
        self.hold.filter(|_| self.status == Status::InProgress)
    }

    /// When a worker has to look at the row; never, where nothing is left for it to do.
    pub(super) fn due(&self) -> Option<Duration> {
        self.hold
    }
}

/// What becomes of a job that was not delivered.
#[derive(Clone, Copy)]
pub enum Undelivered {
    /// It is due again after so long.
    Again(Duration),
    /// It is due at once, for another node. The attempt does not count.
    Left,
    /// It is a dead letter.
    Dead,
}

/// What became of a guarded write. Never a guess (G7).
#[derive(Debug)]
pub enum Commit<T = ()> {
    /// Durable.
    Done(T),
    /// The lease is another holder's, or the key of a row that was to be created has one: nothing was
    /// written (G3).
    Fenced,
    /// The phase broke the rules of its transaction: nothing was written by us.
    Refused(Refusal),
    /// Certainly not committed.
    Failed(StoreError),
    /// Sent, and no answer came: resolve it by [`Right::Own`] before anything else.
    Unknown(StoreError),
}

impl Commit {
    /// What became of a guarded write that committed by itself. `false`: the row is not as the guard says.
    #[cfg(any(feature = "postgres", feature = "simulation"))]
    pub(super) fn of(written: Result<bool, StoreError>) -> Self {
        match written {
            Ok(true) => Self::Done(()),
            Ok(false) => Self::Fenced,
            Err(error @ (StoreError::NoConnection(_) | StoreError::Locked)) => Self::Failed(error),
            Err(error) if error.is_from_server() => Self::Failed(error),
            Err(error) => Self::Unknown(error),
        }
    }
}

impl<T> Commit<T> {
    /// The same, with what is known of a durable one replaced.
    pub(crate) fn map<U>(self, done: impl FnOnce(T) -> U) -> Commit<U> {
        match self {
            Self::Done(known) => Commit::Done(done(known)),
            Self::Fenced => Commit::Fenced,
            Self::Refused(refusal) => Commit::Refused(refusal),
            Self::Failed(error) => Commit::Failed(error),
            Self::Unknown(error) => Commit::Unknown(error),
        }
    }
}

/// How a phase broke the rules of its transaction (G4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A statement failed, the phase ignored it and returned an output.
    SwallowedError,
    /// The phase ended the transaction itself (a raw `COMMIT` or `ROLLBACK`).
    LeftTransaction,
    /// A nested transaction was neither committed nor rolled back: its future was dropped half-way.
    OpenSavepoint,
    /// A statement's text holds several statements, of which SQLite would execute the first alone.
    SeveralStatements,
    /// The phase changed the role or the search path, and the engine cannot reach its tables.
    OutOfReach,
}

/// Whether diesel takes a nested transaction for open, in one that the engine began. What was executed
/// in it must not be committed: what was to follow never came.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(super) fn is_nested(status: &diesel::connection::TransactionManagerStatus) -> bool {
    // In an error, or in no transaction at all, the rule is another one, and found by the database.
    matches!(status.transaction_depth(), Ok(Some(depth)) if depth.get() > 1)
}

/// Unfinished rows with the same state, whose status this build does not know: a later build wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct UnknownStatus {
    /// Name of their definition.
    pub definition: String,
    /// Version of their definition.
    pub version: u32,
    /// Their recovery point.
    pub recovery_point: String,
    /// Their status, as it is stored.
    pub status: String,
    /// How many of them were found.
    pub rows: u64,
}

impl UnknownStatus {
    /// Counts the rows with those that are the same.
    pub(crate) fn count_among(self, all: &mut Vec<Self>) {
        let is_same = |other: &&mut Self| {
            let Self { definition, version, recovery_point, status, .. } = &**other;
            (definition, version) == (&self.definition, &self.version)
                && (recovery_point, status) == (&self.recovery_point, &self.status)
        };
        match all.iter_mut().find(is_same) {
            Some(same) => same.rows += self.rows,
            None => all.push(self),
        }
    }
}

/// An unfinished row, as [`Store::survey`] sees it.
pub struct SurveyedRow {
    pub(crate) found_by: FoundBy,
    pub(crate) scope: String,
    pub(crate) key: String,
    /// Of this row alone.
    pub(crate) standing: Result<Standing, UnknownStatus>,
}

/// A staged job, as [`Store::survey_jobs`] sees it.
pub struct SurveyedJob {
    pub(crate) is_dead: bool,
    pub(crate) name: String,
    /// As they are stored. `None` where they are long.
    pub(crate) args: Option<Vec<u8>>,
}

/// By which index a row was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// A worker has to look at it some time.
    Due,
    /// It waits for a reconcile function or an operator.
    Waiting,
    /// It was created lately, and is in progress.
    Youth,
    /// It was created lately, and is the last that the search for such rows looked at.
    OldestOfYouth,
}

/// Unfinished rows with the same state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Standing {
    /// Name of their definition.
    pub definition: String,
    /// Version of their definition.
    pub version: u32,
    /// The phases under which they were written, in stored form.
    pub phases: String,
    /// Their recovery point.
    pub recovery_point: String,
    /// Their status.
    pub status: Status,
    /// The phase whose call may have been made and has no outcome yet.
    pub open_intent: Option<String>,
    /// Why their last attempt ended without finishing the request.
    pub reason: Option<String>,
    /// How many of them were found.
    pub rows: u64,
}
