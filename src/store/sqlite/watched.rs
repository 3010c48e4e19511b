//! [`WatchedConnection`]: a SQLite connection on which a failed statement fails the phase.
//!
//! PostgreSQL refuses whatever follows a failed statement, until a savepoint is rolled back to, and does
//! not commit (H6). SQLite would go on, and after `INSERT OR ROLLBACK` even without a transaction, so
//! that each later statement commits by itself. The promise is one for both (G4), so this connection
//! does in a phase what PostgreSQL does (`store::swallowed`). It looks at the statements that pass through it and at
//! nothing that an application can replace.
//!
//! It is the connection of all scopes (G16), and what is set on it stays after a phase, also after one that failed. So a phase
//! may not execute such a statement.

use std::fmt;

use diesel::connection::{
    AnsiTransactionManager, CacheSize, Connection, ConnectionSealed, Instrumentation,
    LoadConnection, SimpleConnection, TransactionManager, WithMetadataLookup,
};
use diesel::expression::QueryMetadata;
use diesel::query_builder::{Query, QueryBuilder, QueryFragment, QueryId};
use diesel::result::{ConnectionResult, DatabaseErrorKind, Error};
use diesel::sql_types::TypeMetadata;
use diesel::sqlite::{Sqlite, SqliteQueryBuilder};
use diesel::{QueryResult, SqliteConnection};

use super::file::OpenFile;
use super::statement_registry::{Known, StatementRegistry};
use crate::error::CHANGES_CONNECTION;
use crate::store::ByText;
use crate::store::swallowed::{PhaseState, rolls_back_to_savepoint};
use crate::store::tokenizer::{Dialect, changes_connection};

/// diesel's `SqliteConnection`, with a watch on the statements of a phase.
///
/// Once a statement of a phase has failed, the connection refuses the others until the phase rolls back
/// to a savepoint, as PostgreSQL does. Outside of phases it is diesel's connection and nothing more.
pub struct WatchedConnection {
    inner: SqliteConnection,
    file: OpenFile,
    state: State,
    registry: StatementRegistry,
}

impl fmt::Debug for WatchedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedConnection").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No phase has the connection, and no transaction is open on it.
    Idle,
    /// No phase has the connection. An application had it, and may have left a transaction open: diesel's
    /// `transaction()` does, where its future is dropped.
    MayBeOpen,
    Phase(PhaseState),
}

impl WatchedConnection {
    pub(super) fn new(inner: SqliteConnection, file: OpenFile) -> Self {
        Self { inner, file, state: State::MayBeOpen, registry: StatementRegistry::default() }
    }

    /// An error if the file was replaced: nothing may be read from the former one, or committed there.
    pub(super) fn check_file(&self) -> QueryResult<()> {
        self.file.check()
    }

    /// diesel's own connection, for what is asked of that type only: to register a function or a
    /// collation, say. `None` inside of a phase, where nothing may pass the watch.
    pub fn sqlite(&mut self) -> Option<&mut SqliteConnection> {
        self.state.lend();
        (self.state == State::MayBeOpen).then_some(&mut self.inner)
    }

    /// For the engine's own statements in the transaction that it has begun.
    pub(super) fn unwatched(&mut self) -> &mut SqliteConnection {
        &mut self.inner
    }

    /// For the engine's own statements outside of any transaction: what an application left open is
    /// rolled back first. Else what the engine writes would be part of it, and would be undone with it
    /// after the engine relied on it (G2, G8). If the file was replaced, `work` does not begin.
    pub(super) fn outside<R>(
        &mut self,
        work: impl FnOnce(&mut SqliteConnection) -> QueryResult<R>,
    ) -> QueryResult<R> {
        self.check_file()?;
        self.end_what_was_left();
        // An error, or a panic, may leave a transaction open, too.
        self.state = State::MayBeOpen;
        let done = work(&mut self.inner);
        if done.is_ok() {
            self.state = State::Idle;
        }
        done
    }

    /// Rolls back what an application may have left open.
    pub(super) fn end_what_was_left(&mut self) {
        if self.state != State::Idle {
            end(&mut self.inner);
            self.state = State::Idle;
        }
    }

    /// A phase begins.
    pub(super) fn watch(&mut self) {
        self.state = State::Phase(PhaseState::Sound);
    }

    /// The phase has ended, and whatever transaction is open ends with it.
    pub(super) fn stop_watching(&mut self) {
        // A COMMIT that failed has left one; after one that succeeded there is nothing to undo.
        end(&mut self.inner);
        self.state = State::Idle;
    }

    /// Whether a statement of the phase failed and was not rolled back.
    pub(super) fn has_failed(&self) -> bool {
        self.state == State::Phase(PhaseState::Failed)
    }

    /// What is known of a phase's text, if it may be executed.
    fn known(&mut self, text: impl FnOnce() -> String) -> QueryResult<Option<Known>> {
        if self.state != State::Phase(PhaseState::Sound) {
            return Ok(None);
        }
        let known = self.registry.known(text());
        match known.refused {
            None => Ok(Some(known)),
            Some(message) => Err(self.refuse(message)),
        }
    }

    /// The phase fails as if the database had refused the text.
    fn refuse(&mut self, message: &str) -> Error {
        self.state = State::Phase(PhaseState::Failed);
        Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(message.to_owned()))
    }

    /// Runs what `text` is the SQL of, if the phase may.
    fn watched<R>(
        &mut self,
        text: impl FnOnce() -> String,
        run: impl FnOnce(&mut SqliteConnection) -> QueryResult<R>,
    ) -> QueryResult<R> {
        self.state.lend();
        self.state.admit(|| rolls_back_to_savepoint(&text(), Dialect::Sqlite))?;
        let done = run(&mut self.inner);
        match (&mut self.state, &done) {
            (State::Phase(phase), Ok(_)) => *phase = PhaseState::Sound,
            (state, done) => state.note(done),
        }
        done
    }
}

impl State {
    /// An application uses the connection, if no phase does.
    fn lend(&mut self) {
        if *self == Self::Idle {
            *self = Self::MayBeOpen;
        }
    }

    /// Whether a text may be sent: outside of a phase, each.
    fn admit(self, rolls_back: impl FnOnce() -> bool) -> QueryResult<()> {
        match self {
            Self::Idle | Self::MayBeOpen => Ok(()),
            Self::Phase(phase) => phase.admit(rolls_back),
        }
    }

    /// Notes what the database refused. An error of diesel's own, before or after the statement, is none.
    fn note<R>(&mut self, done: &QueryResult<R>) {
        if let (Self::Phase(phase), Err(Error::DatabaseError(..))) = (self, done) {
            *phase = PhaseState::Failed;
        }
    }
}

/// Ends whatever transaction is open, tells diesel so, and says whether there was one.
pub(super) fn end(conn: &mut SqliteConnection) -> bool {
    let was_open = conn.batch_execute("ROLLBACK").is_ok();
    *AnsiTransactionManager::transaction_manager_status_mut(conn) = Default::default();
    was_open
}

fn text_of<T: QueryFragment<Sqlite>>(query: &T) -> String {
    let mut text = SqliteQueryBuilder::new();
    // What has no text fails when it is run.
    let _ = query.to_sql(&mut text, &Sqlite);
    text.finish()
}

impl ConnectionSealed for WatchedConnection {}

impl SimpleConnection for WatchedConnection {
    fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        if matches!(self.state, State::Phase(_)) && changes_connection(query) {
            return Err(self.refuse(CHANGES_CONNECTION));
        }
        self.watched(|| query.to_owned(), |conn| conn.batch_execute(query))
    }
}

impl Connection for WatchedConnection {
    type Backend = Sqlite;
    type TransactionManager = AnsiTransactionManager;

    fn establish(database_url: &str) -> ConnectionResult<Self> {
        SqliteConnection::establish(database_url).map(|inner| Self::new(inner, OpenFile::default()))
    }

    fn execute_returning_count<T>(&mut self, source: &T) -> QueryResult<usize>
    where
        T: QueryFragment<Sqlite> + QueryId,
    {
        let is_kept = self.known(|| text_of(source))?.is_some_and(|known| known.is_kept);
        self.watched(
            || text_of(source),
            |conn| match is_kept {
                true => conn.execute_returning_count(&ByText { query: source, kept: true }),
                false => conn.execute_returning_count(source),
            },
        )
    }

    fn transaction_state(&mut self) -> &mut AnsiTransactionManager {
        self.state.lend();
        self.inner.transaction_state()
    }

    fn instrumentation(&mut self) -> &mut dyn Instrumentation {
        self.inner.instrumentation()
    }

    fn set_instrumentation(&mut self, instrumentation: impl Instrumentation) {
        self.inner.set_instrumentation(instrumentation);
    }

    fn set_prepared_statement_cache_size(&mut self, size: CacheSize) {
        self.inner.set_prepared_statement_cache_size(size);
    }
}

impl LoadConnection for WatchedConnection {
    type Cursor<'conn, 'query> = WatchedRows<'conn, 'query>;
    type Row<'conn, 'query> = <SqliteConnection as LoadConnection>::Row<'conn, 'query>;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> QueryResult<WatchedRows<'conn, 'query>>
    where
        T: Query + QueryFragment<Sqlite> + QueryId + 'query,
        Sqlite: QueryMetadata<T::SqlType>,
    {
        self.state.lend();
        // A query does not roll back.
        self.state.admit(|| false)?;
        self.known(|| text_of(&source))?;
        let Self { inner, state, .. } = self;
        match LoadConnection::load(inner, source) {
            Ok(rows) => Ok(WatchedRows { rows, state }),
            Err(error) => {
                let failed = Err(error);
                state.note(&failed);
                failed
            }
        }
    }
}

/// The rows of a query, which may fail at any of them.
pub struct WatchedRows<'conn, 'query> {
    rows: <SqliteConnection as LoadConnection>::Cursor<'conn, 'query>,
    state: &'conn mut State,
}

impl fmt::Debug for WatchedRows<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedRows").field("state", &self.state).finish_non_exhaustive()
    }
}

impl<'conn, 'query> Iterator for WatchedRows<'conn, 'query> {
    type Item = QueryResult<<SqliteConnection as LoadConnection>::Row<'conn, 'query>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next().inspect(|row| self.state.note(row))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl WithMetadataLookup for WatchedConnection {
    fn metadata_lookup(&mut self) -> &mut <Sqlite as TypeMetadata>::MetadataLookup {
        self.inner.metadata_lookup()
    }
}
