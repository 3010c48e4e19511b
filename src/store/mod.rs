//! [`Store`]: the engine's only door to a database, and the rows that pass through it.
//!
//! All SQL lives in the stores, and only here. A store decides nothing about a request: it reads
//! and writes rows, guards every write (G3), and says honestly what became of a commit (G7).

pub(crate) mod audit;
mod by_text;
/// The tests' own server.
#[cfg(all(test, feature = "postgres"))]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#[path = "../../tests/support/cluster.rs"]
pub(crate) mod cluster;
mod due;
#[cfg(all(test, feature = "fault-injection"))]
mod guards;
#[cfg(feature = "simulation")]
pub(crate) mod memory;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod migrations;
pub(crate) mod operators;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod row;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod statement;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod tokenizer;

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::query_builder::{QueryFragment, QueryId};
use diesel_async::AsyncConnectionCore;
use uuid::Uuid;

use crate::definition::Isolation;
use crate::error::DbError;
use crate::key::{IdempotencyKey, Scope};
use crate::phase::{StagedJob, Statements};
use crate::setting::SettingError;

use self::audit::AuditEntry;
pub(crate) use self::by_text::ByText;
pub(crate) use self::due::{
    Abandoned, Created, DueJob, DueKey, ExpiryPlace, JobAt, JobPlace, JobRow, KeyPlace, Page,
    StagedJobRow,
};
pub(crate) use self::row::{millis, whole_millis};

/// A database that keeps the rows of idempotency keys.
///
/// Implemented by [`Postgres`](crate::Postgres) and [`Sqlite`](crate::Sqlite). Its methods are the
/// engine's; an application only names the type, in `Tx<'_, Store>`. A request that is to run on several
/// stores does its statements by [a trait of its own](macro@crate::atomic_phases#several-stores) over this one.
pub trait Store: Clone + Send + Sync + 'static {
    /// What diesel calls the connection; lent to local phases.
    type Connection: AsyncConnectionCore + Send;

    /// An open transaction. Dropped without [`commit`](Transaction::commit), it is undone, and its
    /// locks are gone within a second, whatever became of the future that held it (G13).
    #[doc(hidden)]
    type Transaction: Transaction<Self>;

    /// A statement that a phase hands over, to run with its commit.
    #[doc(hidden)]
    type Statement: Send;

    /// See [`Batch::add`](crate::Batch::add).
    #[doc(hidden)]
    fn statement<Q>(query: Q) -> Self::Statement
    where
        Q: QueryFragment<<Self::Connection as AsyncConnectionCore>::Backend>
            + QueryId
            + Send
            + 'static;

    /// Whether to keep a statement of a [`Tx`](crate::Tx) prepared that diesel would prepare anew each
    /// time.
    #[doc(hidden)]
    fn keeps(
        &self,
        query: &impl QueryFragment<<Self::Connection as AsyncConnectionCore>::Backend>,
    ) -> bool {
        let _ = query;
        false
    }

    /// Applies the migrations that are missing. Safe to call from several processes at once, and while nodes
    /// of the build before serve requests: they work on the new schema too, and wait no longer than the
    /// store says for a lock of a migration.
    ///
    /// # Errors
    /// [`StoreError::Migration`], where one failed or could not get its locks in time. Those before it are
    /// applied, and nothing of it is: call it again.
    fn migrate(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The names of the migrations that are not applied.
    #[doc(hidden)]
    fn missing_migrations(&self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Undoes all migrations: the tables of this crate are dropped, with all that is in them.
    ///
    /// # Errors
    /// [`StoreError::Migration`], as there.
    fn revert_migrations(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What a call has to see of the key's row, if there is one: one statement, no lock, no write. A
    /// replay is this and nothing else, so it is as narrow as can be.
    #[doc(hidden)]
    fn look(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<Glance>, StoreError>> + Send;

    /// The key's row, if there is one: one statement, no lock, no write.
    #[doc(hidden)]
    fn read(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<KeyRow>, StoreError>> + Send;

    /// Begins a transaction and, in one statement, creates the row in it or tells the row that the
    /// key has. Waits at most the bound of `row.lock_wait` for another transaction that is about to
    /// create it.
    #[doc(hidden)]
    fn reserve(
        &self,
        row: &NewRow<'_>,
    ) -> impl Future<Output = Result<Reserved<Self::Transaction>, StoreError>> + Send;

    /// A whole transaction in one round trip: creates the row as `change` leaves it, unless the key
    /// has one ([`Commit::Fenced`]), runs the statements, stages the jobs and commits. Waits at most the
    /// bound of `row.lock_wait` for another transaction that is about to create it
    /// ([`StoreError::Locked`]).
    #[doc(hidden)]
    fn create(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> impl Future<Output = Commit<RowTimes>> + Send;

    /// A whole transaction in one round trip: writes `change`, guarded, runs the statements, stages
    /// the jobs and commits.
    #[doc(hidden)]
    fn advance(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> impl Future<Output = Commit> + Send;

    /// The database's clock.
    #[doc(hidden)]
    fn now(&self) -> impl Future<Output = Result<DateTime<Utc>, StoreError>> + Send;

    /// Begins the transaction of a phase whose row is guarded by `guard`. One that keeps what it saw at
    /// its beginning locks the row there, which is a lease by itself until it ends. `None` where the row
    /// was found to be somebody else's.
    #[doc(hidden)]
    fn begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> impl Future<Output = Result<Option<Self::Transaction>, StoreError>> + Send;

    /// Whether the transaction is open at the server, asked on another connection than its own.
    #[doc(hidden)]
    fn is_open(
        &self,
        transaction: &TransactionId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = transaction;
        std::future::ready(Ok(true))
    }

    /// Acquires the lease of an existing row: one guarded statement, which raises the fencing token
    /// by one. `None` where somebody else was faster.
    #[doc(hidden)]
    fn take_over(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> impl Future<Output = Result<Option<KeyRow>, StoreError>> + Send;

    /// Writes `change` in a transaction of its own: one guarded statement.
    #[doc(hidden)]
    fn write(&self, guard: &Guard<'_>, change: &Change<'_>) -> impl Future<Output = Commit> + Send;

    /// Extends the lease. `false` where it is not ours any more.
    #[doc(hidden)]
    fn renew(
        &self,
        guard: &Guard<'_>,
        hold: Hold,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The stored outputs, of a finished row too.
    #[doc(hidden)]
    fn outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// The stored parameters of this life of the key, of a finished one too.
    #[doc(hidden)]
    fn params(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// How many keys of the scope, but for those of requests that had none, are not past their retention,
    /// counted up to `cap`.
    #[doc(hidden)]
    fn count_keys(
        &self,
        scope: &Scope,
        cap: u32,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Up to `limit` rows that are due, behind this place, the longest due first: of every status that
    /// a worker looks for. One search for all of them is bounded by its limit, whatever the rows are.
    #[doc(hidden)]
    fn due(
        &self,
        after: &KeyPlace,
        grace: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<Page<DueKey, KeyPlace>, StoreError>> + Send;

    /// Rows in progress whose lease has run out, by `grace` at least, and that the index of due rows
    /// does not have: up to `limit` behind this place, the oldest first. Of the whole table, or of what
    /// was `created` lately.
    #[doc(hidden)]
    fn abandoned(
        &self,
        created: Option<Created>,
        after: &ExpiryPlace,
        grace: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<Page<Abandoned, ExpiryPlace>, StoreError>> + Send;

    /// Enters an abandoned row in the index of due rows: one guarded statement. `false` where that
    /// was done by another node, or somebody has its lease.
    #[doc(hidden)]
    fn enrol(&self, abandoned: &Abandoned)
    -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Deletes completed rows past their expiry, `limit` at most, and says how many (G15). Waits for no
    /// row that another transaction has locked: it passes over it.
    #[doc(hidden)]
    fn reap(&self, limit: u32) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Up to `limit` staged jobs that are due, behind this place, the longest due first.
    #[doc(hidden)]
    fn jobs_due(
        &self,
        after: &JobPlace,
        limit: u32,
    ) -> impl Future<Output = Result<Page<DueJob, JobPlace>, StoreError>> + Send;

    /// Acquires the right to deliver a job for the length of `lease`: one guarded statement. `None`
    /// where somebody else was faster, or where an earlier job of the request is still to be
    /// delivered.
    #[doc(hidden)]
    fn claim_job(
        &self,
        at: &JobAt,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<JobRow>, StoreError>> + Send;

    /// The job was delivered: its row goes, and the next of its request is due. `false` where somebody
    /// else has it by now, or it is gone.
    #[doc(hidden)]
    fn job_delivered(&self, at: &JobAt) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The job was not delivered, for this reason. Behind a dead one the next of its request is due; the
    /// others wait until it is out of the way, and no search finds them meanwhile.
    #[doc(hidden)]
    fn job_failed(
        &self,
        at: &JobAt,
        becomes: Undelivered,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Takes what users gave out of a settled row of the scope, or out of `limit` of them at most,
    /// and deletes its dead jobs: one guarded statement. Says how many rows there were: none that
    /// are unfinished, or that have jobs to be delivered.
    #[doc(hidden)]
    fn erase(&self, erase: &Erase<'_>) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// How many rows of the scope are not erased.
    #[doc(hidden)]
    fn count_unerased(&self, scope: &Scope)
    -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Deletes up to `limit` dead jobs of the scope, or of one of its keys, whose key has no row but an
    /// erased one, and says how many.
    #[doc(hidden)]
    fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        limit: u32,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// How many requests of the scope, or of one of its keys, have no row and jobs that are still to be
    /// delivered.
    #[doc(hidden)]
    fn count_orphans(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// How many jobs are dead letters.
    #[doc(hidden)]
    fn dead_jobs(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Up to `limit` jobs that are dead letters, by scope and id, behind this one.
    #[doc(hidden)]
    fn list_dead_jobs(
        &self,
        after: Option<(&Scope, Uuid)>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StagedJobRow>, StoreError>> + Send;

    /// Up to `limit` jobs that have been due for `overdue` and are still to be delivered, the longest
    /// due first.
    #[doc(hidden)]
    fn list_overdue_jobs(
        &self,
        overdue: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StagedJobRow>, StoreError>> + Send;

    /// Lets all jobs that are dead letters try again, and says how many.
    #[doc(hidden)]
    fn revive_jobs(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Lets one job that is a dead letter try again. `false` where there is none of this id.
    #[doc(hidden)]
    fn revive_job(
        &self,
        scope: &Scope,
        id: Uuid,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Deletes one job that is a dead letter. `false` where there is none of this id.
    #[doc(hidden)]
    fn discard_job(
        &self,
        scope: &Scope,
        id: Uuid,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Whether others can work with the database while a transaction is open.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    const CONCURRENT: bool;

    /// Moves the database's clock, as far as this row is concerned: its lease and its back-off are over.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    fn pass_time(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Cuts the connection of an open transaction, at the server.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    fn cut(&self, tx: &mut Self::Transaction) -> impl Future<Output = ()> + Send;

    /// Unfinished rows by the partial indexes, and the youngest by the index on expiry: `limit` of each
    /// at most. A row may come twice. Where there may be more that were created within `youth`, the
    /// [oldest](FoundBy::OldestOfYouth) of the youngest says so.
    #[doc(hidden)]
    fn survey(
        &self,
        limit: u32,
        youth: Duration,
    ) -> impl Future<Output = Result<Vec<SurveyedRow>, StoreError>> + Send;
}

/// An open transaction of a [`Store`].
#[doc(hidden)]
pub trait Transaction<S: Store>: Send {
    /// The connection, for the phase's own statements.
    fn connection(&mut self) -> Result<&mut S::Connection, StoreError>;

    /// How the server knows it. `None` where it cannot end without the phase hearing of it: there is no
    /// network in between.
    fn id(&self) -> Option<TransactionId> {
        None
    }

    /// Inserts the staged jobs, writes `change` guarded and last, and commits.
    fn commit(
        self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        jobs: &[StagedJob],
    ) -> impl Future<Output = Commit> + Send;

    /// Commits what was written so far, and nothing of the engine's: for a mutant.
    #[cfg(feature = "fault-injection")]
    fn commit_unguarded(self) -> impl Future<Output = Commit> + Send;

    /// Undoes everything and gives the connection back.
    fn rollback(self) -> impl Future<Output = ()> + Send;
}

/// How the server knows an open transaction.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct TransactionId(pub(crate) String);

/// Where a row stands. `expired` is no status: it is judged at reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Accepted, to be run in the background.
    Pending,
    /// Somebody runs it, or died running it: the lease tells.
    InProgress,
    /// Released after a passing failure; safe to resume.
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
pub struct Glance {
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
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) expired: bool,
    pub(crate) response: Option<StoredResponse>,
}

impl Glance {
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
    /// Since the last recovery point was committed.
    pub(crate) since_advance: Duration,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) expired: bool,
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
    pub(crate) birth: Birth,
    pub(crate) retention: Duration,
    pub(crate) lock_wait: Duration,
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
    fn status(self) -> Status {
        match self {
            Self::Held(_) => Status::InProgress,
            Self::Pending => Status::Pending,
        }
    }

    /// Acquisitions of the lease so far, which is also the first fencing token.
    fn attempts(self) -> i32 {
        (self != Self::Pending).into()
    }

    fn lease(self) -> Option<Duration> {
        match self {
            Self::Held(lease) => Some(lease),
            Self::Pending => None,
        }
    }

    fn due(self) -> Option<Duration> {
        (self == Self::Pending).then_some(Duration::ZERO)
    }
}

/// What became of a reservation.
pub enum Reserved<T> {
    /// The row is in this open transaction.
    Fresh { tx: T, created_at: DateTime<Utc>, expires_at: DateTime<Utc> },
    /// The key has this row. `None`: it was created while the statement ran, too late for it to see
    /// (H20): ask again.
    Exists(Option<Glance>),
    /// Another transaction is about to create it, and took longer than the bound.
    Busy,
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
    fn outcome(self) -> bool {
        self != Self::Nothing
    }

    fn window(self) -> bool {
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
    /// back-off lasts (any other status, whose lease is gone).
    pub(crate) hold: Duration,
    /// A word about an unknown outcome, and what it settles.
    pub(crate) resolution: Option<&'a str>,
    pub(crate) settles: Settles,
    /// Why an attempt ended before the request did. `None` leaves the last reason where it is.
    pub(crate) reason: Option<&'a str>,
    /// How many attempts are taken off the count against the cap.
    pub(crate) forgiven_attempts: u32,
    pub(crate) response: Option<&'a StoredResponse>,
    /// Of an operator's word: the audit row, written with it. What a phase commits has none.
    pub(crate) audit: Option<&'a AuditEntry>,
}

impl Change<'_> {
    /// Whether the row is left to a reconcile function or an operator.
    fn waits(&self) -> bool {
        matches!(self.status, Status::Unknown | Status::DeadLetter)
    }

    fn lease(&self) -> Option<Duration> {
        (self.status == Status::InProgress).then_some(self.hold)
    }

    /// When a worker has to look at the row; never, where nothing is left for it to do.
    fn due(&self) -> Option<Duration> {
        (!matches!(self.status, Status::Completed | Status::DeadLetter)).then_some(self.hold)
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
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn is_nested(status: &diesel::connection::TransactionManagerStatus) -> bool {
    // In an error, or in no transaction at all, the rule is another one, and found by the database.
    matches!(status.transaction_depth(), Ok(Some(depth)) if depth.get() > 1)
}

/// An unfinished row, as [`Store::survey`] sees it.
pub struct SurveyedRow {
    pub(crate) found_by: FoundBy,
    pub(crate) scope: String,
    pub(crate) key: String,
    /// Of this row alone.
    pub(crate) standing: Standing,
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

/// Unfinished rows that stand at one place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Standing {
    /// Name of their definition.
    pub definition: String,
    /// Version of their definition.
    pub version: u32,
    /// The phases that they were written under, as they are stored.
    pub phases: String,
    /// Their recovery point.
    pub recovery_point: String,
    /// Their status.
    pub status: Status,
    /// The phase whose call may have been made and has no outcome yet.
    pub open_intent: Option<String>,
    /// Why their last attempt ended before the request did.
    pub reason: Option<String>,
    /// How many of them were found.
    pub rows: u64,
}

/// Why a store could not do what was asked. Holds no value of a row (G19).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No connection within the pool's time limit, or none could be opened.
    #[error("no database connection: {0}")]
    NoConnection(String),
    /// The database answered with an error, or not at all.
    #[error("the database could not {doing}")]
    Database {
        /// What was asked, in words.
        doing: &'static str,
        /// What it answered.
        #[source]
        error: DbError,
    },
    /// Another transaction holds the lock of the key's row: its holder in its own commit, or in a
    /// phase that keeps the row locked.
    #[error("the key's row is locked by another transaction")]
    Locked,
    /// A stored value that this version of the crate does not understand.
    #[error(
        "column {column} of a stored row is not readable; was it written by a newer version, or by hand?"
    )]
    Unreadable {
        /// The column's name.
        column: &'static str,
    },
    /// A migration failed.
    #[error("migration: {0}")]
    Migration(String),
    /// The store's configuration cannot work.
    #[error("{0}")]
    Configuration(String),
}

impl From<SettingError> for StoreError {
    fn from(error: SettingError) -> Self {
        Self::Configuration(error.to_string())
    }
}

impl StoreError {
    pub(crate) fn database(doing: &'static str, error: impl Into<DbError>) -> Self {
        Self::Database { doing, error: error.into() }
    }

    /// Whether no answer came in the time that there was for it.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Database { error, .. } if error.is_unanswered())
    }

    /// Whether the connection is gone or good for nothing, and another one may do better.
    pub(crate) fn is_of_the_connection(&self) -> bool {
        matches!(
            self,
            Self::Database { error, .. } if error.is_connection_lost() || error.is_of_a_pooler()
        )
    }

    /// Whether the server may have said that the statement waited too long for a lock.
    pub(crate) fn may_be_of_a_lock(&self) -> bool {
        matches!(self, Self::Database { error, .. } if error.has_no_kind())
    }

    /// What happened, in words without values.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::NoConnection(_) => "no connection",
            Self::Locked => "the row is locked",
            Self::Database { error, .. } => error.kind(),
            Self::Unreadable { .. } => "a stored value is not readable",
            Self::Migration(_) => "a migration failed",
            Self::Configuration(_) => "the configuration cannot work",
        }
    }

    /// What it was about: names of the schema.
    pub(crate) fn about(&self) -> Option<String> {
        match self {
            Self::Database { error, .. } => error.about(),
            _ => None,
        }
    }

    /// Whether the database itself said no, so that it is certain that nothing was written.
    pub(crate) fn is_from_server(&self) -> bool {
        matches!(self, Self::Database { error, .. } if !error.is_connection_lost())
    }

    pub(crate) fn is_worth_a_rerun(&self) -> bool {
        match self {
            Self::Database { error, .. } => error.is_worth_a_rerun(),
            Self::NoConnection(_) | Self::Locked => true,
            _ => false,
        }
    }
}
