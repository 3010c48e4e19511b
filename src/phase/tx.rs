//! [`Tx`]: the database transaction of a local phase, as diesel sees it.

use diesel::QueryResult;
use diesel::query_builder::{AsQuery, QueryFragment, QueryId};
use diesel_async::{AsyncConnectionCore, SimpleAsyncConnection};
use serde::Serialize;
use uuid::Uuid;

use crate::job::{JobId, StagedJob, job_id};
use crate::phase::PhaseError;
use crate::roundtrip;
use crate::store::{ByText, Store};

/// The transaction of a local phase: what you write in it, the phase's output and the next recovery
/// point commit together or not at all (G4).
///
/// A `Tx` is a diesel connection: pass it to `execute`, `load`, `get_result`. For a function that
/// takes the connection type itself, [`conn`](Self::conn) lends it. The engine commits; it detects a
/// `COMMIT` of your own or an SQL error that you swallow, and the phase fails. To survive an expected error,
/// use a savepoint (`tx.conn().transaction(..)`, or `SAVEPOINT` and `ROLLBACK TO`): without one, the
/// statements after a failed one are refused, on every store. A phase that reads no results
/// is faster with a [`Batch`](crate::Batch).
///
/// The engine writes last, with the phase's role and search path. A phase that changes them (`SET LOCAL ROLE`,
/// `SET LOCAL search_path`) must leave the engine's tables accessible, before any other tables of the same
/// names, or restore the settings before it returns; otherwise it is refused. Session settings that a phase changes
/// (`SET`, `RESET ALL`) stay on the connection, as usual in PostgreSQL, except the two limits that the engine
/// relies on, which it sets again before the next phase. A `LISTEN` and a temporary table without `ON COMMIT DROP` stay, too,
/// and a session's advisory lock (`pg_advisory_lock`) stays even if the phase fails: use `pg_advisory_xact_lock`, `SET LOCAL`
/// and `ON COMMIT DROP`, which end with the transaction. A phase with an `isolation` of its own keeps the key's row locked
/// until it ends.
///
/// On PostgreSQL, a statement [executed](AsyncConnectionCore::execute_returning_count) on a `Tx` is
/// prepared once for each connection, even an `UPDATE`, which diesel itself prepares anew each time (for the
/// first 256 different texts that an engine sees). On [`conn`](Self::conn), diesel's own rule applies.
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use atomic_phases::diesel_async::RunQueryDsl;
/// use atomic_phases::store::Sqlite;
/// use atomic_phases::{PhaseResult, Tx};
///
/// diesel::table! { rides (id) { id -> BigInt, user_id -> BigInt, } }
///
/// async fn book(tx: &mut Tx<'_, Sqlite>, user: i64) -> PhaseResult<()> {
///     diesel::insert_into(rides::table).values(rides::user_id.eq(user)).execute(tx).await?;
///     Ok(())
/// }
/// # use diesel::ExpressionMethods;
/// # }
/// ```
pub struct Tx<'c, S: Store> {
    store: &'c S,
    conn: &'c mut S::Connection,
    staging: &'c mut Staging,
}

/// Names of jobs that begin with it are the library's.
const RESERVED: &str = "atomic_phases.";

/// The jobs that a phase has staged so far.
#[derive(Debug)]
pub(crate) struct Staging {
    request_id: Uuid,
    phase: usize,
    jobs: Vec<StagedJob>,
}

/// Longest name of a staged job, in bytes.
const MAX_JOB_NAME: usize = 100;

impl Staging {
    pub(crate) fn new(request_id: Uuid, phase: usize) -> Self {
        Self { request_id, phase, jobs: Vec::new() }
    }

    pub(crate) fn into_jobs(self) -> Vec<StagedJob> {
        self.jobs
    }

    pub(crate) fn stage(
        &mut self,
        name: &str,
        given: &impl Serialize,
    ) -> Result<JobId, PhaseError> {
        if name.is_empty() || name.len() > MAX_JOB_NAME {
            return Err(PhaseError::retryable("a staged job's name must have 1 to 100 bytes"));
        }
        if name.contains(char::is_control) {
            return Err(PhaseError::retryable("a staged job's name has a control character"));
        }
        if name.starts_with(RESERVED) {
            return Err(PhaseError::retryable(
                "a staged job's name must not begin with `atomic_phases.`: such jobs are the library's",
            ));
        }
        let args = serde_json::to_vec(given).map_err(|_| {
            PhaseError::retryable("a staged job's arguments do not serialize to JSON")
        })?;
        if roundtrip::float_written_as_null(given, &args).is_some() {
            return Err(PhaseError::retryable(
                "a staged job's arguments hold a float that is NaN or infinite, which JSON writes as null: \
                 stage a finite number, or an Option",
            ));
        }
        let position = ((self.phase as i64) << 32) + self.jobs.len() as i64;
        let id = job_id(self.request_id, position);
        self.jobs.push(StagedJob { id, name: name.to_owned(), position, args, trace: None });
        Ok(id)
    }
}

impl<'c, S: Store> Tx<'c, S> {
    pub(crate) fn new(store: &'c S, conn: &'c mut S::Connection, staging: &'c mut Staging) -> Self {
        Self { store, conn, staging }
    }

    /// The connection itself, for code that is typed on it.
    ///
    /// If the future of a nested `transaction()` is dropped half-way (by a timeout or `select!`), the phase
    /// fails, and must not return an output. A **single statement** whose future is dropped cannot
    /// be distinguished from one that was executed: it may have been sent, and if it succeeds, it is committed
    /// with the phase. So if a time limit around a write expires, return an error; do not continue
    /// as if the statement had not been executed. The same holds for statements on the `Tx` itself.
    pub fn conn(&mut self) -> &mut S::Connection {
        self.conn
    }

    /// Stages a job: it exists exactly if this phase commits (G18), and is delivered afterwards, at
    /// least once, in the order of staging.
    ///
    /// Returns the job's id, the same in each attempt.
    ///
    /// # Errors
    /// A retryable failure if `args` has no JSON form or contains a float that is NaN or infinite (JSON
    /// writes it as `null`, which no handler reads as a float), or if `name` is empty, longer than 100 bytes,
    /// contains a control character (PostgreSQL's text cannot contain NUL, and names are logged), or begins with
    /// `atomic_phases.`, like the names of the library's own jobs. The phase fails in the same way if the arguments of
    /// its jobs together exceed [`Limits::job_args`](crate::config::Limits::job_args).
    pub fn stage_job(&mut self, name: &str, args: &impl Serialize) -> Result<JobId, PhaseError> {
        self.staging.stage(name, args)
    }
}

impl<S: Store> std::fmt::Debug for Tx<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl<S: Store> SimpleAsyncConnection for Tx<'_, S> {
    async fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        self.conn.batch_execute(query).await
    }
}

impl<S: Store> AsyncConnectionCore for Tx<'_, S> {
    type ExecuteFuture<'conn, 'query> =
        <S::Connection as AsyncConnectionCore>::ExecuteFuture<'conn, 'query>;
    type LoadFuture<'conn, 'query> =
        <S::Connection as AsyncConnectionCore>::LoadFuture<'conn, 'query>;
    type Stream<'conn, 'query> = <S::Connection as AsyncConnectionCore>::Stream<'conn, 'query>;
    type Row<'conn, 'query> = <S::Connection as AsyncConnectionCore>::Row<'conn, 'query>;
    type Backend = <S::Connection as AsyncConnectionCore>::Backend;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> Self::LoadFuture<'conn, 'query>
    where
        T: AsQuery + 'query,
        T::Query: QueryFragment<Self::Backend> + QueryId + 'query,
    {
        self.conn.load(source)
    }

    fn execute_returning_count<'conn, 'query, T>(
        &'conn mut self,
        source: T,
    ) -> Self::ExecuteFuture<'conn, 'query>
    where
        T: QueryFragment<Self::Backend> + QueryId + 'query,
    {
        match self.store.keeps_prepared(&source) {
            true => self.conn.execute_returning_count(ByText { query: source, kept: true }),
            false => self.conn.execute_returning_count(source),
        }
    }
}
