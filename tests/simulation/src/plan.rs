//! [`Plan`]: everything that happens in one run, drawn from a seed before it begins (`draw`). A regression test
//! keeps the plan and not the seed, so that it stays valid when the drawing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use atomic_phases::simulation::{Cut, Passage};
use serde::{Deserialize, Serialize};

use super::judge::{key_name, scope_name};

/// No fault begins after this time.
pub const HEALED: Duration = Duration::from_secs(90);

/// How long a commit takes at most.
const LONGEST_COMMIT: Duration = Duration::from_secs(60);

/// A retention that is longer than any run, in milliseconds.
pub const DAY: u64 = 24 * 3600 * 1000;

/// The scope that floods the workers.
pub const HOSTILE: u8 = 9;

/// The scope that has a crowd of accepted requests.
pub const CROWDED: u8 = 5;

/// The scope that asks for more keys than its quota has.
pub const LIMITED: u8 = 6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    /// Milliseconds.
    pub lease: u64,
    /// The workers' poll interval, in milliseconds.
    pub poll: u64,
    pub max_attempts: u32,
    /// How often a reconcile function is asked about one outcome.
    pub max_reconciles: u32,
    /// By default, no scope has one.
    pub quota: Option<Limits>,
    /// How long a finished key replays, in milliseconds.
    pub retention: u64,
    /// Whether the at-most-once provider can be queried about a call.
    pub searchable: bool,
    /// Whether the providers take seconds for a call, instead of a fraction of one.
    pub slow_provider: bool,
    /// The build that each node runs at first; by default, the first build.
    pub builds: Vec<Build>,
    pub calls: Vec<Call>,
    pub events: Vec<Event>,
    /// By the number of the statement.
    pub statements: BTreeMap<u64, Fault>,
    /// By what the statement does, and its number among those.
    pub aimed: BTreeMap<String, BTreeMap<u64, Fault>>,
    /// By the number of the call at the provider.
    pub provider: BTreeMap<u64, Trouble>,
    /// By the number of the call at the provider: after how many milliseconds a webhook reports it, counted from
    /// its effect or from the moment when it had none, whether the call was answered by then or not.
    pub webhooks: BTreeMap<u64, u64>,
    /// For some of those: after how many microseconds its first handler is dropped, because the provider
    /// disconnects.
    pub hung_up: BTreeMap<u64, u64>,
    /// By what the codec does (`encode outputs`): which of these fail.
    pub codec: BTreeMap<String, BTreeSet<u64>>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 0,
            nodes: 1,
            lease: 10_000,
            poll: 1_000,
            max_attempts: 1_000,
            max_reconciles: 1_000,
            quota: None,
            retention: DAY,
            searchable: true,
            slow_provider: false,
            builds: Vec::new(),
            calls: Vec::new(),
            events: Vec::new(),
            statements: BTreeMap::new(),
            aimed: BTreeMap::new(),
            provider: BTreeMap::new(),
            webhooks: BTreeMap::new(),
            hung_up: BTreeMap::new(),
            codec: BTreeMap::new(),
        }
    }
}

/// The quota of each scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub keys: u32,
    /// How many keys each node creates within this many milliseconds.
    pub rate: (u32, u64),
}

/// The definitions that a node knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Build {
    /// Rides in version 1, without a reconcile function for the charge.
    #[default]
    First,
    /// The same with one more phase, and a reconcile function, like all later builds.
    Longer,
    /// Rides in version 2, and no other.
    Second,
    /// `Longer` and version 2: the build that all nodes run in the end.
    Both,
}

/// A client's request, with its retries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Call {
    /// Milliseconds from the beginning.
    pub at: u64,
    pub node: usize,
    pub scope: u8,
    pub key: u8,
    pub kind: Kind,
    /// Another amount is another request.
    pub amount: i64,
    /// How long the client waits before it disconnects, in milliseconds.
    pub patience: u64,
    pub tries: u8,
    pub pause: u64,
    pub manner: Manner,
}

impl Default for Call {
    fn default() -> Self {
        Self {
            at: 0,
            node: 0,
            scope: 0,
            key: 0,
            kind: Kind::Ride,
            amount: 20,
            patience: 60_000,
            tries: 1,
            pause: 1_000,
            manner: Manner::Plain,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Transaction, idempotent call, transaction with a job.
    #[default]
    Ride,
    /// As a ride, at a provider that forgets its key within seconds.
    Fare,
    /// Transaction, at-most-once call, transaction.
    Note,
    /// The same as a ride, with `Batch` phases.
    Parcel,
    /// Two serializable transactions.
    Transfer,
    /// As a note that ends with its call: the provider's answer is the reply.
    Alert,
    /// As a note; at its first attempt it leaves its call behind in a task.
    Stray,
    /// An idempotent call that hangs, or a job whose delivery takes long.
    Flood,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    #[default]
    Plain,
    /// Leaves it to the workers.
    Accept,
    /// Waits for the holder.
    Wait,
    /// Claims that the key is new, rightly or wrongly.
    ExpectNew,
    /// Uses the library's own client half, from the HTTP answer to the decision.
    Decide,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds from the beginning.
    pub at: u64,
    /// How long it lasts.
    #[serde(default)]
    pub lasts: u64,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    Freeze(usize),
    Kill(usize),
    Drain(usize),
    /// Drained, and started with another build.
    Deploy(usize, Build),
    DatabaseAway,
    /// To a standby that lacks the last commits: only G1 is promised.
    FailOver {
        losing: usize,
    },
    /// The database's clock is set forward, by milliseconds.
    ClockJump(u64),
    /// The same, back.
    ClockBack(u64),
    /// An operator pauses the call of fares, through a node.
    Pause(usize),
    /// An operator erases a request, through a node.
    Erase {
        node: usize,
        scope: u8,
        key: u8,
    },
}

impl What {
    pub fn node(&mut self) -> Option<&mut usize> {
        match self {
            Self::Freeze(node)
            | Self::Kill(node)
            | Self::Drain(node)
            | Self::Deploy(node, _)
            | Self::Pause(node)
            | Self::Erase { node, .. } => Some(node),
            Self::DatabaseAway
            | Self::FailOver { .. }
            | Self::ClockJump(_)
            | Self::ClockBack(_) => None,
        }
    }
}

/// The fate of a statement; delays in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fault {
    pub there: u64,
    pub commit: u64,
    pub back: u64,
    pub cut: Option<Where>,
    /// The fate of the node that sent it.
    pub stop: Option<Stop>,
    /// How many milliseconds the database is unavailable after the statement was sent.
    pub away: u64,
}

/// A node freezes, or dies; in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stop {
    pub after: u64,
    pub lasts: u64,
    pub kill: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Where {
    Before,
    Inside(u32),
    After,
    SilentBefore,
    SilentAfter,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let does = if self.kill { "dies" } else { "stands still" };
        let [after, lasts] = [self.after, self.lasts].map(Duration::from_millis);
        write!(f, "the node {does} after {after:?}, for {lasts:?}")
    }
}

/// As a story tells it.
impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let delay = |what: &str, micros: u64| {
            (micros > 0).then(|| format!("{what} takes {:?}", Duration::from_micros(micros)))
        };
        let parts = [
            delay("the way there", self.there),
            delay("the commit", self.commit),
            delay("the way back", self.back),
            self.cut.map(|cut| format!("the connection is cut: {cut:?}")),
            self.stop.map(|stop| stop.to_string()),
            (self.away > 0).then(|| {
                format!("the database is away for {:?}", Duration::from_millis(self.away))
            }),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

impl Fault {
    pub fn passage(&self) -> Passage {
        Passage {
            there: Duration::from_micros(self.there),
            commit: Duration::from_micros(self.commit),
            back: Duration::from_micros(self.back),
            cut: self.cut.map(|at| match at {
                Where::Before => Cut::Before,
                Where::Inside(statements) => Cut::Inside { statements },
                Where::After => Cut::After,
                Where::SilentBefore => Cut::SilentBefore,
                Where::SilentAfter => Cut::SilentAfter,
            }),
        }
    }
}

/// The fate of a call at the provider; delays in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trouble {
    pub before: u64,
    pub after: u64,
    pub end: End,
    /// The fate of the node that called.
    pub stop: Option<Stop>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    #[default]
    Answered,
    /// The provider answers that it did nothing.
    Refused,
    /// The provider declines: the refusal is stored and replayed.
    Declined,
    /// The effect is made, and the connection is reset.
    Reset,
    /// The effect is made, and no answer comes.
    Hangs,
    /// The request is lost on its way, and no answer comes.
    Lost,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [before, after] = [self.before, self.after].map(Duration::from_millis);
        write!(f, "{:?}, {before:?} there and {after:?} back", self.end)?;
        self.stop.map_or(Ok(()), |stop| write!(f, "; {stop}"))
    }
}

impl Plan {
    pub fn is_calm(&self) -> bool {
        let nothing = self.events.is_empty() && self.statements.is_empty();
        let nothing = nothing && self.aimed.is_empty() && self.provider.is_empty();
        let nothing = nothing && self.webhooks.is_empty() && self.codec.is_empty();
        nothing && !self.has_other_builds() && !self.has_many_lives()
    }

    /// Whether each statement and each answer arrives.
    pub fn is_well_connected(&self) -> bool {
        let nothing = self.events.is_empty() && self.statements.is_empty();
        nothing && self.aimed.is_empty() && !self.has_many_lives()
    }

    /// Whether besides, no node stops, and nothing but the provider's calls fails.
    pub fn is_undisturbed(&self) -> bool {
        let stops = self.provider.values().any(|trouble| trouble.stop.is_some());
        let others = !self.webhooks.is_empty() || !self.codec.is_empty() || self.has_other_builds();
        self.is_well_connected() && !stops && !others
    }

    /// Whether each process lives and hears what its provider answers, except for answers that the provider itself loses.
    pub fn hears_all(&self) -> bool {
        let is_pause = |event: &Event| matches!(event.what, What::Pause(_));
        let nothing = self.statements.is_empty() && self.aimed.is_empty() && self.codec.is_empty();
        let nothing = nothing && self.provider.values().all(|trouble| trouble.stop.is_none());
        let nothing = nothing && !self.has_other_builds() && !self.has_many_lives();
        nothing && self.events.iter().all(is_pause)
    }

    /// Whether something happens under which no promise holds, except for that of idempotent calls (G1).
    pub fn is_beyond_promises(&self) -> bool {
        let is_beyond = |event: &Event| {
            matches!(event.what, What::FailOver { .. } | What::ClockJump(_) | What::ClockBack(_))
        };
        self.events.iter().any(is_beyond)
    }

    pub fn loses_commits(&self) -> bool {
        self.events.iter().any(|event| matches!(event.what, What::FailOver { .. }))
    }

    /// By how much the database's clock is set back, by all events.
    pub fn set_back(&self) -> Duration {
        self.set_back_within(Duration::ZERO..=Duration::MAX)
    }

    /// The same, by events during which a statement may have been under way that commits at `now`.
    pub fn set_back_lately(&self, now: Duration) -> Duration {
        self.set_back_within(now.saturating_sub(LONGEST_COMMIT)..=now)
    }

    fn set_back_within(&self, times: RangeInclusive<Duration>) -> Duration {
        let by = |event: &Event| match event.what {
            What::ClockBack(by) if times.contains(&Duration::from_millis(event.at)) => {
                Duration::from_millis(by)
            }
            _ => Duration::ZERO,
        };
        self.events.iter().map(by).sum()
    }

    /// Whether finished keys expire within the run, and are used again.
    pub fn has_many_lives(&self) -> bool {
        self.retention < DAY
    }

    /// Whether another call with its key has a different body.
    pub fn has_another_body(&self, call: &Call) -> bool {
        let is_other = |other: &Call| {
            (other.scope, other.key) == (call.scope, call.key) && other.amount != call.amount
        };
        self.calls.iter().any(is_other)
    }

    /// Whether an operator erases this key.
    pub fn erases(&self, scope: u8, key: u8) -> bool {
        let is_it = |event: &Event| matches!(event.what, What::Erase { scope: of, key: this, .. } if (of, this) == (scope, key));
        self.events.iter().any(is_it)
    }

    /// The same, by its names.
    pub fn erases_row(&self, (scope, key): &(String, String)) -> bool {
        let is_it = |event: &Event| matches!(event.what, What::Erase { scope: of, key: this, .. } if (scope_name(of), key_name(this)) == (scope.clone(), key.clone()));
        self.events.iter().any(is_it)
    }

    /// Whether one scope floods the workers, and there is no other fault.
    pub fn is_flooded(&self) -> bool {
        self.is_calm() && self.calls.iter().any(|call| call.scope == HOSTILE)
    }

    pub fn has_other_builds(&self) -> bool {
        let other = |build: &Build| *build != Build::First;
        self.builds.iter().any(other)
            || self.events.iter().any(|event| matches!(event.what, What::Deploy(..)))
    }

    pub fn build_of(&self, node: usize) -> Build {
        self.builds.get(node).copied().unwrap_or_default()
    }

    /// The same plan with every node number replaced by an existing one.
    pub fn on_its_nodes(mut self) -> Self {
        self.nodes = self.nodes.max(1);
        let nodes = self.nodes;
        self.calls.iter_mut().for_each(|call| call.node %= nodes);
        for event in &mut self.events {
            if let Some(node) = event.what.node() {
                *node %= nodes;
            }
        }
        self
    }
}
