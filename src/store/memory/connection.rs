//! [`MemoryConnection`]: the connection as a phase sees it.

use diesel::QueryResult;
use diesel::query_builder::{AsQuery, QueryFragment, QueryId};
use diesel_async::{AsyncConnectionCore, SimpleAsyncConnection};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Ready, ready};
use futures_util::stream::Empty;
use serde_json::Value;

use super::backend::{MemoryBackend, NoRow};
use super::link::ConnectionGuard;
use super::session::RowLock;
use super::write::{Write, no_sql};

/// The connection of a phase's transaction: executes [`Write`]s, and reads rows of the application's
/// tables.
pub struct MemoryConnection(pub(super) ConnectionGuard);

impl MemoryConnection {
    /// The value of a row, if there is one: a `SELECT`.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn get(&mut self, table: &str, id: &str) -> QueryResult<Option<Value>> {
        self.select(table, id, RowLock::None).await
    }

    /// As [`get`](Self::get), and locks the row until the transaction ends: a `SELECT … FOR UPDATE`.
    ///
    /// # Errors
    /// As there; a deadlock, or under a snapshot a serialization failure.
    pub async fn get_for_update(&mut self, table: &str, id: &str) -> QueryResult<Option<Value>> {
        self.select(table, id, RowLock::ForUpdate).await
    }

    /// All rows of a table, by id.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn get_all(&mut self, table: &str) -> QueryResult<Vec<(String, Value)>> {
        let table = table.to_owned();
        self.0.ask("select", move |session| ready(session.select_all(&table)).boxed()).await
    }

    async fn select(&mut self, table: &str, id: &str, lock: RowLock) -> QueryResult<Option<Value>> {
        let (table, id) = (table.to_owned(), id.to_owned());
        self.0.ask("select", move |session| session.select(table, id, lock).boxed()).await
    }
}

impl SimpleAsyncConnection for MemoryConnection {
    async fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        let query = query.to_owned();
        self.0.ask("sql", |session| async move { session.sql(&query).await }.boxed()).await
    }
}

impl AsyncConnectionCore for MemoryConnection {
    type ExecuteFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<usize>>;
    type LoadFuture<'conn, 'query> = Ready<QueryResult<Self::Stream<'conn, 'query>>>;
    type Stream<'conn, 'query> = Empty<QueryResult<NoRow>>;
    type Row<'conn, 'query> = NoRow;
    type Backend = MemoryBackend;

    fn load<'conn, 'query, T>(&'conn mut self, _: T) -> Self::LoadFuture<'conn, 'query>
    where
        T: AsQuery + 'query,
        T::Query: QueryFragment<Self::Backend> + QueryId + 'query,
    {
        ready(Err(no_sql()))
    }

    fn execute_returning_count<'conn, 'query, T>(
        &'conn mut self,
        source: T,
    ) -> Self::ExecuteFuture<'conn, 'query>
    where
        T: QueryFragment<Self::Backend> + QueryId + 'query,
    {
        let write = Write::from_query(&source);
        async move {
            let write = write?;
            self.0.ask("execute", |session| session.write(write).boxed()).await
        }
        .boxed()
    }
}

impl std::fmt::Debug for MemoryConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryConnection").finish_non_exhaustive()
    }
}
