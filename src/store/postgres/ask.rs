//! How a statement of the engine's is sent outside of a phase's transaction.

use std::time::Duration;

use super::Pool;
use crate::store::StoreError;

/// Asks what is safe to ask twice, once more where the connection was dead: after a restart of the server, each idle
/// connection of the pool is, and the first to use one finds out.
pub(super) async fn on_another<P: Pool, R, F>(
    pool: &P,
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

/// Sends one statement in a transaction that waits so long for each lock: `ask_within!(BOUND, store, ..)`.
macro_rules! ask_within {
    ($bound:expr, $store:expr, $doing:literal, |$conn:ident| $query:expr) => {{
        let connection = $crate::store::postgres::connection::ConnectionGuard::of(&$store.pool)
            .await?
            .in_transaction()?;
        let conn = connection.shared()?;
        let answer = $crate::store::postgres::time_limit::answered(async {
            let mut $conn = &*conn;
            let (begun, set, answer, committed) = ::futures_util::future::join4(
                $crate::store::postgres::statements::Begin(
                    $crate::definition::Isolation::ReadCommitted,
                )
                .execute(&mut &*conn),
                $crate::store::postgres::session::Settings::new(Some($bound)).execute(&mut &*conn),
                $query,
                $crate::store::postgres::statements::CommitTx {}.execute(&mut &*conn),
            )
            .await;
            begun.and(set)?;
            let answer = answer?;
            committed.map(|_| answer)
        });
        let answer = answer.await;
        connection.settle($doing, answer).await
    }};
}

pub(super) use ask_within;

/// How long a statement about many rows waits for the lock of one: the others wait with it.
pub(super) const MANY_WAIT: Duration = Duration::from_millis(100);

/// Sends one statement about many rows in a transaction of its own, which waits for none of them for long, and
/// finds each by the primary key: a plan that was made while the table was empty is used when it is not.
macro_rules! ask_for_many {
    ($store:expr, $doing:literal, |$conn:ident| $query:expr) => {{
        let connection = $crate::store::postgres::connection::ConnectionGuard::of(&$store.pool)
            .await?
            .in_transaction()?;
        let conn = connection.shared()?;
        let answer = $crate::store::postgres::time_limit::answered(async {
            let mut $conn = &*conn;
            let (begun, set, by_key, answer, committed) = ::futures_util::future::join5(
                $crate::store::postgres::statements::Begin(
                    $crate::definition::Isolation::ReadCommitted,
                )
                .execute(&mut &*conn),
                $crate::store::postgres::session::Settings::new(Some(
                    $crate::store::postgres::ask::MANY_WAIT,
                ))
                .execute(&mut &*conn),
                $crate::store::postgres::statements::ByKey {}.execute(&mut &*conn),
                $query,
                $crate::store::postgres::statements::CommitTx {}.execute(&mut &*conn),
            )
            .await;
            begun.and(set).and(by_key)?;
            let answer = answer?;
            committed.map(|_| answer)
        });
        let answer = answer.await;
        connection.settle($doing, answer).await
    }};
}

pub(super) use ask_for_many;
