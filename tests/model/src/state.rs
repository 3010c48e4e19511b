//! [`State`]: the database, the processes, and what is under way between them.

use crate::config::{Budget, Config, List, Phase};

/// A request's id. Each creation of a row has a new one.
pub type Life = u8;

/// The status of a row. `failed_retryable` and `pending` are one here: free to be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// A holder runs it, or has died.
    InProgress,
    /// Released.
    Released,
    /// Finished, with a reply.
    Completed,
    /// A call may or may not have been made.
    Unknown,
}

/// The row of an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// The request that it belongs to.
    pub life: Life,
    /// Its status.
    pub status: Status,
    /// The phases that are committed; the last one is the recovery point.
    pub done: List,
    /// The next phase's call may have been made.
    pub intent: bool,
    /// Raised by each acquisition.
    pub token: u8,
    /// `locked_until` has not passed.
    pub leased: bool,
    /// Its recovery point is older than the provider's window less the margin.
    pub aged: bool,
    /// `expires_at` has passed.
    pub expired: bool,
    /// `expires_at` had passed when the row was finished, so that the reply was never replayed.
    pub never_replayed: bool,
    /// Which run computed the reply.
    pub reply: u8,
}

/// What the database holds of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its row.
    pub row: Option<Row>,
    /// How often each local phase of this request wrote.
    pub writes: [u8; Phase::ALL.len()],
}

/// The right to run a row, as its holder believes to have it; the guard of its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hold {
    /// Of which key.
    pub key: u8,
    /// Of which request.
    pub life: Life,
    /// Under which token.
    pub token: u8,
    /// At which recovery point.
    pub done: List,
}

/// Why a transaction was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// To create the row; with the first phase in it where that is local.
    Create,
    /// To store the intent of a call.
    Intend,
    /// To commit a phase, or a call's result.
    Advance,
    /// To release the row.
    Stop,
    /// To leave the row to the reconciler.
    Leave,
    /// To store the reconciler's result.
    Reconcile,
}

/// A guarded write, the last statement of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tx {
    /// Why.
    pub purpose: Purpose,
    /// Guarded by what.
    pub hold: Hold,
    /// The next status.
    pub status: Status,
    /// The next recovery point.
    pub done: List,
    /// The next intent.
    pub intent: bool,
    /// The local phase whose writes are in it.
    pub writes: Option<Phase>,
    /// It contains a foreign result that its holder has.
    pub answered: bool,
}

/// How far the server is with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// On its way: its guard is not evaluated yet.
    Sent,
    /// Its guard held, and it has the row's lock until it ends.
    Locked,
}

/// A call on its way to the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Call {
    /// Of which key.
    pub key: u8,
    /// Of which request.
    pub life: Life,
    /// Of which phase.
    pub phase: Phase,
}

/// What really happened at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Effect {
    /// By which call.
    pub by: Call,
    /// How often.
    pub times: u8,
    /// The provider still remembers the derived key.
    pub remembered: bool,
}

/// What a process does next, or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pc {
    /// Nothing: a client may call, a worker may search.
    Idle {
        /// The id with which it sent a creation that got no answer.
        created: Option<Life>,
        /// A retention has passed since.
        late: bool,
    },
    /// To run the next phase.
    Ready(Hold),
    /// To make the call whose intent is durable.
    Intended(Hold),
    /// For the call's answer.
    Calling(Hold),
    /// To commit the call's result.
    Answered(Hold),
    /// To leave the row as unknown.
    Leaving(Hold),
    /// To ask the reconcile function.
    Asking(Hold),
    /// For the answer to a transaction.
    Waiting(Tx, Stage),
    /// To resolve a commit that got no answer.
    Unsure(Tx),
}

/// At rest.
pub const IDLE: Pc = Pc::Idle { created: None, late: false };

/// What went wrong once. Only a property looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrong {
    /// A commit by a holder whose lease was taken over.
    pub stale_commit: bool,
    /// A reply was sent before it was durable.
    pub told_early: bool,
    /// Two different replies were sent for one request.
    pub told_twice: bool,
    /// A key was used again, or reaped, although its reply was never replayed.
    pub forgot_reply: bool,
    /// A row was reaped that was not finished.
    pub reaped_open: bool,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The primary database.
    pub keys: Vec<Key>,
    /// A replica that may lag; only where there is a failover to come.
    pub replica: Option<Vec<Key>>,
    /// The state of each process.
    pub nodes: Vec<Pc>,
    /// Transactions whose sender is gone. Sorted, because they have no order.
    pub stray_txs: Vec<(Tx, Stage)>,
    /// Calls whose caller is gone.
    pub stray_calls: Vec<Call>,
    /// What happened at the provider.
    pub effects: Vec<Effect>,
    /// How many requests' ids each key has seen.
    pub lives: Vec<Life>,
    /// The last reply that a client of each key received, and its request.
    pub told: Vec<Option<(Life, u8)>>,
    /// The rest of the budget of faults.
    pub left: Budget,
    /// What went wrong.
    pub wrong: Wrong,
}

impl State {
    /// Nothing has happened yet.
    #[must_use]
    pub fn initial(config: &Config) -> Self {
        let keys = 1 + config.nodes.iter().map(|node| node.key as usize).max().unwrap_or(0);
        let empty = vec![Key::default(); keys];
        Self {
            replica: (config.budget.failovers > 0).then(|| empty.clone()),
            keys: empty,
            nodes: vec![IDLE; config.nodes.len()],
            stray_txs: Vec::new(),
            stray_calls: Vec::new(),
            effects: Vec::new(),
            lives: vec![0; keys],
            told: vec![None; keys],
            left: config.budget,
            wrong: Wrong::default(),
        }
    }

    /// A key's row.
    #[must_use]
    pub fn row(&self, key: u8) -> Option<&Row> {
        self.keys[key as usize].row.as_ref()
    }

    /// Whether a transaction has the lock of the key's row.
    #[must_use]
    pub fn is_locked(&self, key: u8) -> bool {
        let waiting = self.nodes.iter().filter_map(|pc| match pc {
            Pc::Waiting(tx, stage) => Some((tx, stage)),
            _ => None,
        });
        let strays = self.stray_txs.iter().map(|(tx, stage)| (tx, stage));
        waiting.chain(strays).any(|(tx, stage)| tx.hold.key == key && *stage == Stage::Locked)
    }

    /// Whether a live process believes that it holds the row.
    #[must_use]
    pub fn has_holder(&self, key: u8, row: &Row) -> bool {
        self.nodes
            .iter()
            .filter_map(Pc::hold)
            .any(|hold| hold.key == key && hold.life == row.life && hold.token == row.token)
    }
}

impl Pc {
    /// The row that it believes to hold.
    #[must_use]
    pub fn hold(&self) -> Option<&Hold> {
        match self {
            Self::Idle { .. } => None,
            Self::Ready(hold)
            | Self::Intended(hold)
            | Self::Calling(hold)
            | Self::Answered(hold)
            | Self::Leaving(hold)
            | Self::Asking(hold) => Some(hold),
            Self::Waiting(tx, _) | Self::Unsure(tx) => Some(&tx.hold),
        }
    }
}
