//! [`Memory`]: a store in memory, for simulations and tests.
//!
//! It has two ends, as a real one has. [`Database`] is the server: versions of rows, locks, a clock
//! (`database`, `state`, `transaction`), which executes the engine's statements (`statements`, `jobs`, `tables`,
//! `erasure`) for sessions (`session`). `Memory` is a client: a pool of connections (`link`), on which statements
//! travel as the [`Network`] says (`attempts`, `round_trips`). `store`, `workers`, `ops` and `admin` are what a store is asked
//! for. Between client and server all is as with PostgreSQL: a statement that was sent is executed although its client is
//! gone, a transaction whose client is gone is undone, and the outcome of a commit whose answer is lost is unknown.
//!
//! It keeps everything for as long as it lives, in no other place, and executes no SQL.

mod admin;
mod attempts;
mod backend;
mod census;
mod connection;
mod database;
opaque! {
    [] Statement;
    [] KeyState<'_>;
}

#[cfg(test)]
mod differential;
mod dump;
mod erasure;
mod error;
mod fault;
mod jobs;
mod key_state;
mod link;
mod network;
mod next_state;
mod open_transaction;
mod ops;
mod ops_bulk;
mod ops_pauses;
mod ops_rows;
mod record;
mod round_trips;
mod session;
mod state;
mod statements;
mod store;
mod tables;
mod transaction;
mod workers;
mod write;

use std::sync::Arc;
use std::time::Duration;

use diesel::QueryResult;
use futures_util::future::BoxFuture;

pub use self::backend::MemoryBackend;
pub use self::connection::MemoryConnection;
pub use self::database::Database;
pub use self::key_state::{KeyChange, KeyState};
use self::link::{ConnectionGuard, Pool};
pub use self::network::{Cut, Network, Passage, Perfect};
use self::record::Place;
use self::session::Session;
pub use self::write::Write;
use super::StoreError;
use crate::error::is_lost;
use crate::key::{IdempotencyKey, Scope};

/// How long a statement waits for a key's row while it holds a connection, as in the other store; the rest
/// of the time is waited for without one.
const ROW_LOCK_WAIT: Duration = Duration::from_millis(20);

/// A client of a [`Database`] in memory: a store with the semantics of PostgreSQL.
#[derive(Clone)]
pub struct Memory {
    pool: Arc<Pool>,
}

impl Memory {
    /// A client of `database`, with 16 connections that never fail.
    #[must_use]
    pub fn connect(database: &Database) -> Self {
        Self::connect_through(database, Perfect, 16)
    }

    /// A client of `database` with up to `connections`, whose statements travel as `network` says.
    #[must_use]
    pub fn connect_through(database: &Database, network: impl Network, connections: usize) -> Self {
        Self { pool: Arc::new(Pool::new(database.clone(), Arc::new(network), connections)) }
    }

    /// The server.
    #[must_use]
    pub fn database(&self) -> &Database {
        self.pool.database()
    }

    /// How many of the pool's connections the running task has: while a foreign call runs, none.
    #[must_use]
    pub fn connections_of_this_task(&self) -> usize {
        self.pool.held_here()
    }

    /// One statement, or several that travel together, on a connection of their own.
    async fn ask<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, QueryResult<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let connection = self.pool.get().await?;
        settle(connection, doing, work).await
    }

    /// As `ask`, for what is safe to send twice: after a restart of the server, each idle connection of
    /// the pool is dead, and the first to use one finds out.
    async fn ask_again<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, QueryResult<T>>
        + Clone
        + Send
        + 'static,
    ) -> Result<T, StoreError> {
        match self.ask(doing, work.clone()).await {
            Err(error) if error.is_of_the_connection() => {
                self.pool.forget_idle();
                self.ask(doing, work).await
            }
            answer => answer,
        }
    }
}

/// A connection's answer to a statement of its own; it is given back, unless it is gone.
async fn settle<T: Send + 'static>(
    connection: ConnectionGuard,
    doing: &'static str,
    work: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, QueryResult<T>> + Send + 'static,
) -> Result<T, StoreError> {
    let answer = connection.ask(doing, work).await;
    if !matches!(&answer, Err(error) if is_lost(error)) {
        connection.give_back();
    }
    answer.map_err(|error| StoreError::database(doing, error))
}

fn place_of(scope: &Scope, key: &IdempotencyKey) -> Place {
    Place::Key(scope.as_str().to_owned(), key.as_str().to_owned())
}

/// What a phase hands over.
#[doc(hidden)]
pub struct Statement(QueryResult<Write>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}
