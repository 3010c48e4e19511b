//! The basis of the integration tests: throwaway servers, the stores behind one trait, a provider whose ledger is
//! outside of the engine, and a proxy that cuts connections.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

pub mod assets;
pub mod bouncer;
pub mod by_hand;
pub mod citus;
pub mod cluster;
pub mod db;
pub mod faketime;
pub mod gate;
mod listed;
pub mod load;
pub mod look;
#[cfg(feature = "mysql")]
pub mod mariadb;
#[cfg(feature = "simulation")]
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql_proxy;
pub mod network;
pub mod process;
pub mod provider;
pub mod proxy;
#[cfg(feature = "redis")]
pub mod redis_server;
pub mod replay_cache;
pub mod requests;
pub mod rides;
pub mod scratch;
pub mod script;
pub mod work;

pub use db::{
    TestDb, dump, is_distributed, is_memory, is_mysql, is_on_a_server, is_postgres, numbers,
};
use std::time::Duration;

pub use provider::Provider;
pub use requests::*;

/// Panics with a value that panics once more where it is dropped.
pub fn panics_twice() -> ! {
    struct PanicsTwice;
    impl Drop for PanicsTwice {
        fn drop(&mut self) {
            panic!("once more");
        }
    }
    std::panic::panic_any(PanicsTwice)
}

/// Waits for a fact, half a minute at most.
#[track_caller]
pub fn until(fact: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    until_within(Duration::from_secs(30), fact)
}

/// Waits for a fact, for as long as this at most: a guard against a test that hangs.
#[track_caller]
pub fn until_within(
    bound: Duration,
    mut fact: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        // tokio's clock, which a simulation moves.
        let began = tokio::time::Instant::now();
        while !fact().await {
            assert!(began.elapsed() < bound, "it did not come true within {bound:?}: {place}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Waits for an answer, for as long as this at most. Says what there is instead if it does not come.
#[track_caller]
pub fn answer_within<T, W: std::fmt::Debug>(
    bound: Duration,
    mut ask: impl AsyncFnMut() -> Result<T, W>,
) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move {
        let began = tokio::time::Instant::now();
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(instead) => {
                    assert!(began.elapsed() < bound, "within {bound:?} only {instead:?}: {place}");
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Runs each named test, a generic `async fn(S: TestDb)`, on SQLite and PostgreSQL; with the feature
/// `simulation`, on the in-memory store too.
macro_rules! on_both_stores {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = <atomic_phases::store::Sqlite as crate::support::TestDb>::fresh().await;
                super::$name(db).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = <atomic_phases::store::Postgres as crate::support::TestDb>::fresh().await;
                super::$name(db).await;
            })*
        }
        #[cfg(feature = "simulation")]
        mod on_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                type Memory = atomic_phases::simulation::Memory;
                let db = <Memory as crate::support::TestDb>::fresh().await;
                super::$name(db).await;
            })*
        }
    };
}
pub(crate) use on_both_stores;

/// The same, and on MariaDB.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        crate::support::on_both_stores! { $($name),* }
        crate::support::on_mariadb! { $($name),* }
    };
}
pub(crate) use on_every_store;

macro_rules! on_mariadb {
    ($($name:ident),* $(,)?) => {
        #[cfg(feature = "mysql")]
        mod on_mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = <atomic_phases::store::Mysql as crate::support::TestDb>::fresh().await;
                super::$name(db).await;
            })*
        }
    };
}
pub(crate) use on_mariadb;
