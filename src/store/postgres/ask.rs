//! How a statement of the engine's is sent outside of a phase's transaction.

use std::time::Duration;

use diesel::QueryResult;
use futures_util::FutureExt;
use futures_util::future::join;

use super::Pool;
use super::pool::WritablePool;
use crate::store::StoreError;

/// Asks what is safe to ask twice, once more where the connection was dead: after a restart of the server, each idle
/// connection of the pool is, and the first to use one finds out.
pub(super) async fn on_another<P: Pool, R, F>(
    pool: &WritablePool<P>,
    ask: impl Fn() -> F,
) -> Result<R, StoreError>
where
    F: Future<Output = Result<R, StoreError>>,
{
    match ask().await {
        Err(error) if error.is_of_the_connection() => {
            pool.forget_idle();
            ask().await
        }
        answer => answer,
    }
}

/// Sends one statement in a transaction of its own: `ask!(store, "do this", |conn| query)`.
macro_rules! ask {
    ($store:expr, $doing:literal, |$conn:ident| $query:expr) => {{
        let connection =
            $crate::store::postgres::connection::ConnectionGuard::of(&$store.pool).await?;
        let mut $conn = connection.shared()?;
        let answer = $crate::store::postgres::time_limit::answered($query).await;
        connection.settle($doing, answer).await
    }};
}

pub(super) use ask;

/// As `ask!` for a statement that is safe to send twice.
macro_rules! ask_again {
    ($store:expr, $doing:literal, |$conn:ident| $query:expr) => {
        $crate::store::postgres::ask::on_another(&$store.pool, || async {
            $crate::store::postgres::ask::ask!($store, $doing, |$conn| $query)
        })
        .await
    };
}

pub(super) use ask_again;

/// Both are sent in this order; the first error counts.
pub(super) fn followed_by<A, B>(first: A, next: B) -> impl Future<Output = QueryResult<usize>>
where
    A: Future<Output = QueryResult<usize>>,
    B: Future<Output = QueryResult<usize>>,
{
    join(first, next).map(|(first, next)| first.and(next))
}

/// Sends one statement in a transaction that its connection is about to begin, in one round trip: `BEGIN` and what is
/// set for the transaction, the statement, `COMMIT`.
/// `ask_in_transaction!(connection, "do this", [begin, set], |conn| query)`.
macro_rules! ask_in_transaction {
    ($connection:expr, $doing:literal, [$begin:expr $(, $set:expr)* $(,)?], |$conn:ident| $query:expr) => {{
        let connection = $connection;
        let conn = connection.shared()?;
        let answer = $crate::store::postgres::time_limit::answered(async {
            let mut $conn = &*conn;
            let begun = $begin.execute(&mut &*conn);
            $(
                let set = $set.execute(&mut &*conn);
                let begun = $crate::store::postgres::ask::followed_by(begun, set);
            )*
            let (begun, answer, committed) = ::futures_util::future::join3(
                begun,
                $query,
                $crate::store::postgres::statements::CommitTx {}.execute(&mut &*conn),
            )
            .await;
            begun?;
            let answer = answer?;
            committed.map(|_| answer)
        });
        let answer = answer.await;
        connection.settle($doing, answer).await
    }};
}

pub(super) use ask_in_transaction;

/// Sends one statement in a transaction that waits so long for each lock: `ask_within!(BOUND, store, ..)`. Other
/// settings of the transaction stand in brackets.
macro_rules! ask_within {
    ($bound:expr, $store:expr, $doing:literal, $([$first:expr],)? |$conn:ident| $query:expr) => {
        $crate::store::postgres::ask::ask_in_transaction!(
            $crate::store::postgres::connection::ConnectionGuard::of(&$store.pool)
                .await?
                .in_transaction()?,
            $doing,
            [
                $crate::store::postgres::statements::Begin(
                    $crate::definition::Isolation::ReadCommitted
                ),
                $crate::store::postgres::session::Settings::new(Some($bound))
                $(, $first)?
            ],
            |$conn| $query
        )
    };
}

pub(super) use ask_within;

/// How long a statement about many rows waits for the lock of one: the others wait with it.
pub(super) const MANY_WAIT: Duration = Duration::from_millis(100);

/// Sends one statement about many rows in a transaction of its own, which waits for none of them for long, and
/// finds each by the primary key: a plan that was made while the table was empty is used when it is not.
macro_rules! ask_for_many {
    ($store:expr, $doing:literal, |$conn:ident| $query:expr) => {
        $crate::store::postgres::ask::ask_within!(
            $crate::store::postgres::ask::MANY_WAIT,
            $store,
            $doing,
            [$crate::store::postgres::statements::ByKey {}],
            |$conn| $query
        )
    };
}

pub(super) use ask_for_many;
