//! How a statement of the engine's is sent outside of a phase's transaction.

use std::time::Duration;

use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::QueryFragment;
use tokio::time::timeout;

use super::ANSWER_WITHIN;
use super::error::{Failure, failure_of};
use super::literal::BoundStatement;
use crate::store::StoreError;

/// The server's answer to a statement of the engine's, if one comes in time.
pub(super) async fn await_answer<R>(
    doing: &'static str,
    answer: impl Future<Output = QueryResult<R>>,
) -> Result<R, StoreError> {
    answered_within(ANSWER_WITHIN, doing, answer).await
}

/// The same with another time limit.
pub(super) async fn answered_within<R>(
    bound: Duration,
    doing: &'static str,
    answer: impl Future<Output = QueryResult<R>>,
) -> Result<R, StoreError> {
    let error = match timeout(bound, answer).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
        Err(_) => return Err(StoreError::database(doing, Failure::Unanswered)),
    };
    match failure_of(&error) {
        Some(failure) if failure.is_of_a_lock() => Err(StoreError::Locked),
        _ => Err(StoreError::database(doing, error)),
    }
}

/// Sends one statement, `ask!(pool, "do this", |conn| query)`: again, without a connection in between, while another
/// transaction, a backup or an `ALTER TABLE` has locked what it needs. Nothing is left of one that was answered so.
macro_rules! ask {
    ($pool:expr, $doing:expr, |$conn:ident| $query:expr) => {
        $crate::store::mysql::waits::patiently(|| async {
            let mut connection = $crate::store::mysql::pool::ConnectionGuard::of(&$pool).await?;
            let $conn: &mut $crate::store::mysql::MysqlConn = &mut connection;
            $crate::store::mysql::ask::await_answer($doing, $query).await
        })
        .await
    };
}
pub(super) use ask;

/// As `ask!` for a statement that is safe to send twice: after a restart of the server each idle
/// connection of the pool is dead, and the first to use one finds out.
macro_rules! ask_again {
    ($store:expr, $doing:literal, |$conn:ident| $query:expr) => {
        $store
            .on_another(|| async {
                $crate::store::mysql::ask::ask!($store.pool, $doing, |$conn| $query)
            })
            .await
    };
}
pub(super) use ask_again;

/// Reads what the statement before has written, on its connection: again while a backup or an `ALTER TABLE` has locked the
/// table since then, because the one before is not to be sent again.
macro_rules! read_back {
    ($doing:expr, $query:expr) => {{
        let mut patience =
            $crate::store::patience::Patience::new($crate::store::mysql::waits::LOCKED_WAIT);
        loop {
            match $crate::store::mysql::ask::await_answer($doing, $query).await {
                Err($crate::store::StoreError::Locked) if patience.pause().await => {}
                answer => break answer,
            }
        }
    }};
}
pub(super) use read_back;

pub(super) fn bound(
    doing: &'static str,
    query: &impl QueryFragment<Db>,
) -> Result<BoundStatement, StoreError> {
    BoundStatement::of(query).map_err(|error| StoreError::database(doing, error))
}
