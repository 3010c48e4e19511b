//! How long a statement waits for what another transaction, a backup or an `ALTER TABLE` has locked: at the server, by the
//! two settings of its session, and in memory, without a connection ([`patiently`]).
//!
//! | what waits | for a row (`innodb_lock_wait_timeout`) | for a table, or the whole server (`lock_wait_timeout`) |
//! |---|---|---|
//! | the engine, outside of transactions | not at all; on MySQL a second | the same |
//! | a search | the same | as the server says |
//! | the engine, at the begin of a transaction | the same | a second |
//! | a phase, and the application | as the server says | as the server says |
//! | the engine, at the end of a phase's transaction | a second | a second |
//! | `COMMIT` | | as the server says |
//! | a probe, a migration | | a second |
//!
//! By default a server waits for a row for 50 seconds, and for a table for a day, or a year.

use std::time::Duration;

use super::server::Product;
use crate::store::StoreError;
use crate::store::patience::patiently_for;

/// How long the engine's own statements wait in memory for what is locked. A migration that waits for a table's lock keeps
/// each statement about the table behind it, for a second: they outlive that, so that no request fails for it.
pub(super) const LOCKED_WAIT: Duration = Duration::from_millis(1500);

/// Asks until what it asks for is not locked any more, for [`LOCKED_WAIT`] at most.
pub(super) async fn patiently<R, F>(ask: impl Fn() -> F) -> Result<R, StoreError>
where
    F: Future<Output = Result<R, StoreError>>,
{
    patiently_for(LOCKED_WAIT, ask).await
}

/// The shortest wait for a table that the server has. A statement that waits for a table keeps each later one behind it.
pub(super) const WAIT_A_SECOND_FOR_TABLES: &str = "SET SESSION lock_wait_timeout = 1";

/// The server's own setting, which sessions of searches have at rest. Sent in front of each `COMMIT`, too, which a backup may
/// hold back: the outcome of a `COMMIT` that gave up the wait would count as unknown.
pub(super) const WAIT_FOR_TABLES_AS_SERVER_SAYS: &str = "SET SESSION lock_wait_timeout = DEFAULT";

/// For the end of a transaction, which already holds locks and a connection: another transaction may hold the lock of the row
/// that is written last, for a moment (one that renews its lease).
pub(super) const WAIT_A_SECOND: &str =
    "SET SESSION innodb_lock_wait_timeout = 1, SESSION lock_wait_timeout = 1";

/// Whose statements come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockWait {
    /// The engine's, outside of transactions: what is locked is waited for in memory (G16).
    AtRest,
    /// A search's: it waits for a table as long as a search may take, on a connection that no request needs.
    Search,
    /// The engine's, in a transaction: a row that is locked is waited for in memory. A transaction has its place among
    /// phases, so a migration that waits for a table's lock keeps it for a second at most.
    Engine,
    /// The phase's, or the application's: they wait as long as the server says.
    Phase,
}

impl LockWait {
    /// Of the begin of a transaction, behind which the engine pins the row, or the phase begins.
    pub(super) fn of_a_begin<P>(pin: Option<&P>) -> Self {
        if pin.is_some() { Self::Engine } else { Self::Phase }
    }
}

/// For how many seconds the sessions of a server wait for a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowWaits {
    /// For the engine: on MariaDB not at all, because the rest is waited for in memory (G16); on MySQL the least that it
    /// knows.
    engine: u32,
    /// For a phase: as the server has it.
    phase: u32,
}

impl RowWaits {
    /// `of_the_server`: the server's own setting.
    pub(super) fn new(product: Product, of_the_server: u32) -> Self {
        let engine = match product {
            Product::Mariadb => 0,
            Product::Mysql => 1,
        };
        Self { engine, phase: of_the_server }
    }

    /// Both settings, as a part of a `SET`.
    pub(super) fn settings(self, of: LockWait) -> String {
        let Self { engine, phase } = self;
        let (rows, tables) = match of {
            LockWait::AtRest => (engine, engine.to_string()),
            LockWait::Search => (engine, DEFAULT.to_owned()),
            LockWait::Engine => (engine, "1".to_owned()),
            LockWait::Phase => (phase, DEFAULT.to_owned()),
        };
        format!("SESSION innodb_lock_wait_timeout = {rows}, SESSION lock_wait_timeout = {tables}")
    }
}

/// As the server says.
const DEFAULT: &str = "DEFAULT";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g16_the_engine_waits_in_memory_and_a_phase_as_the_server_says() {
        let both = |rows: &str, tables: &str| {
            format!(
                "SESSION innodb_lock_wait_timeout = {rows}, SESSION lock_wait_timeout = {tables}"
            )
        };
        let (mariadb, mysql) =
            (RowWaits::new(Product::Mariadb, 50), RowWaits::new(Product::Mysql, 50));
        for (of, on_mariadb, on_mysql) in [
            (LockWait::AtRest, both("0", "0"), both("1", "1")),
            (LockWait::Search, both("0", DEFAULT), both("1", DEFAULT)),
            (LockWait::Engine, both("0", "1"), both("1", "1")),
            (LockWait::Phase, both("50", DEFAULT), both("50", DEFAULT)),
        ] {
            assert_eq!((mariadb.settings(of), mysql.settings(of)), (on_mariadb, on_mysql));
        }
    }
}
