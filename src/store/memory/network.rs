//! [`Network`]: how each statement travels to the database, and its answer back.

use std::time::Duration;

/// Decides how statements travel. What a simulation puts between an engine and its database.
pub trait Network: Send + Sync + 'static {
    /// How this statement travels; `what` names it, and is the same for each of its kind.
    fn passage(&self, what: &'static str) -> Passage;

    /// Whose statements these are, for who watches the database.
    fn client(&self) -> &str {
        ""
    }
}

/// How one round trip goes. The default: immediately, and complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    /// From the client to the server. A statement that is on its way arrives and is executed, whatever
    /// becomes of its client.
    pub there: Duration,
    /// From the last statement of a transaction to the instant at which it is committed; its locks
    /// are held meanwhile.
    pub commit: Duration,
    /// From the server to the client.
    pub back: Duration,
    /// Where the connection ends.
    pub cut: Option<Cut>,
}

/// Where a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The statement does not arrive.
    Before,
    /// Behind this many statements of those that travel together.
    Inside {
        /// How many are executed.
        statements: u32,
    },
    /// The statement is executed, and the answer does not arrive.
    After,
    /// The statement does not arrive, and neither side hears that the connection is gone.
    SilentBefore,
    /// The answer does not arrive, and neither side hears that the connection is gone.
    SilentAfter,
}

/// Everything travels immediately, and complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct Perfect;

impl Network for Perfect {
    fn passage(&self, _: &'static str) -> Passage {
        Passage::default()
    }
}
