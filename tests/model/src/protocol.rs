//! What the engine does, as pure functions: what a look at the row comes to, which write is next,
//! what it is guarded by, and what becomes of it. No function here knows of faults.

use crate::config::{
    Config, DerivedKey, Horizon, Intent, Kind, List, Phase, Provider, Resolve, Role,
};
use crate::state::{Call, Hold, Pc, Purpose, Row, State, Status, Tx};

/// What a look at the key's row comes to. The statement that follows it in the engine is guarded by
/// what was read, so look and statement are one step here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Insert it, in place of an expired one if there is one.
    Create,
    /// Acquire it.
    TakeOver,
    /// Tell the stored reply.
    Replay,
    /// Acquire it to ask what became of its call.
    Reconcile,
}

/// What became of a commit without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It holds; the row's token is this by now.
    Applied(u8),
    /// It does not, and never will.
    NotApplied(u8),
    /// The row is somebody else's.
    Lost,
}

impl Config {
    /// What an idle process may do about its key.
    #[must_use]
    pub fn look(&self, state: &State, n: usize) -> Option<Look> {
        let node = &self.nodes[n];
        let Pc::Idle { created } = state.nodes[n] else { return None };
        let row = state.row(node.key);
        // An insert waits for another insert of the same key, a take-over for the row's lock.
        let free_to_write = !state.is_locked(node.key);
        match (node.role, row) {
            (Role::Client, None) => free_to_write.then_some(Look::Create),
            (Role::Client, Some(row)) if row.status == Status::Completed => match row.expired {
                true => free_to_write.then_some(Look::Create),
                false => {
                    let known = state.told[node.key as usize] == Some((row.life, row.reply));
                    (!known).then_some(Look::Replay)
                }
            },
            (Role::Client | Role::Completer, Some(row)) => {
                let recovers =
                    row.status == Status::InProgress && created == Some(row.life) && row.token == 1;
                let may = (recovers || is_free(row)) && self.knows(node.list, row.done);
                (may && free_to_write).then_some(Look::TakeOver)
            }
            (Role::Reconciler, Some(row)) => {
                let may = row.status == Status::Unknown && state.left.reconciles > 0;
                (may && free_to_write).then_some(Look::Reconcile)
            }
            (Role::Completer | Role::Reconciler, None) => None,
        }
    }

    /// Whether a process with this phase list can continue a row (G14).
    #[must_use]
    pub fn knows(&self, list: List, done: List) -> bool {
        let has_a_next = done.len() < list.len();
        has_a_next && (!self.rules.place_by_name || list.starts_with(done))
    }

    /// Where a new holder of `row` goes on.
    #[must_use]
    pub fn plan(&self, list: List, row: &Row, hold: Hold) -> Pc {
        let window = self.world.provider == Provider::Forgets
            && self.rules.horizon != Horizon::Unchecked
            && list[row.done.len()].kind() == Kind::Idempotent;
        let intent = row.intent && self.rules.intent != Intent::Overlooked;
        if intent || (window && row.aged) { Pc::Leaving(hold) } else { Pc::Ready(hold) }
    }

    /// Whether a write changes the row.
    #[must_use]
    pub fn guard_holds(&self, tx: &Tx, row: Option<&Row>) -> bool {
        let Some(row) = row else { return false };
        if tx.purpose == Purpose::Reconcile && !self.rules.reconciler_is_fenced {
            return true;
        }
        let fence = self.rules.fence;
        (!fence.request || row.life == tx.hold.life)
            && (!fence.token || row.token == tx.hold.token)
            && (!fence.point || row.done == tx.hold.done)
            && (!fence.status || row.status == Status::InProgress)
    }

    /// What the holder of `tx` finds, and raises, when it got no answer.
    #[must_use]
    pub fn resolve(&self, tx: &Tx, row: Option<&Row>) -> Resolved {
        if self.rules.resolve == Resolve::AssumeFailed {
            return Resolved::NotApplied(tx.hold.token);
        }
        let Some(row) = row else { return Resolved::Lost };
        if row.life != tx.hold.life || row.token != tx.hold.token {
            return Resolved::Lost;
        }
        if row.status != Status::InProgress {
            let ours = row.status == tx.status;
            return if ours { Resolved::Applied(row.token) } else { Resolved::Lost };
        }
        let raised = self.rules.resolve == Resolve::TakeOver;
        let token = row.token + u8::from(raised);
        let applied =
            tx.status == Status::InProgress && row.done == tx.done && row.intent == tx.intent;
        if applied { Resolved::Applied(token) } else { Resolved::NotApplied(token) }
    }

    /// Whether the provider takes a call for one that it has had already.
    #[must_use]
    pub fn is_known_to_provider(&self, state: &State, call: &Call) -> bool {
        let honours =
            self.world.provider != Provider::Ignores && call.phase.kind() == Kind::Idempotent;
        honours
            && state.effects.iter().filter(|effect| effect.remembered).any(|effect| {
                let by = &effect.by;
                match self.rules.derived_key {
                    DerivedKey::KeyAndPhase => by.key == call.key && by.phase == call.phase,
                    DerivedKey::Salted => by == call,
                    DerivedKey::PerAttempt => false,
                    DerivedKey::PhaseOnly => by.phase == call.phase,
                }
            })
    }
}

/// Whether anybody may acquire it.
#[must_use]
pub fn is_free(row: &Row) -> bool {
    row.status == Status::Released || (row.status == Status::InProgress && !row.leased)
}

/// The row's first transaction: its insert, with the first phase where that is local.
#[must_use]
pub fn create(list: List, hold: Hold) -> Tx {
    let first = list[0];
    let is_local = first.kind() == Kind::Local;
    let done = if is_local { &list[..1] } else { &[] };
    Tx { writes: is_local.then_some(first), ..moved(Purpose::Create, hold, list, done) }
}

/// The write that a process is about to send, if it is about to send one.
#[must_use]
pub fn next_write(list: List, pc: &Pc) -> Option<Tx> {
    match *pc {
        Pc::Ready(hold) => {
            let at = hold.done.len();
            match list[at].kind() {
                Kind::Idempotent => None,
                Kind::AtMostOnce => Some(intend(hold)),
                Kind::Local => Some(Tx {
                    writes: Some(list[at]),
                    ..moved(Purpose::Advance, hold, list, &list[..=at])
                }),
            }
        }
        Pc::Answered(hold) => {
            let at = hold.done.len();
            let local_behind = list.get(at + 1).copied().filter(|p| p.kind() == Kind::Local);
            // A result that may be asked for again rides in the commit of the next local phase.
            let rides = local_behind.filter(|_| list[at].kind() == Kind::Idempotent);
            let done = if rides.is_some() { &list[..=at + 1] } else { &list[..=at] };
            let advance = moved(Purpose::Advance, hold, list, done);
            Some(Tx { writes: rides, answered: true, ..advance })
        }
        Pc::Leaving(hold) => Some(Tx {
            status: Status::Unknown,
            intent: true,
            ..moved(Purpose::Leave, hold, list, hold.done)
        }),
        _ => None,
    }
}

/// The intent to make a call.
#[must_use]
pub fn intend(hold: Hold) -> Tx {
    Tx {
        purpose: Purpose::Intend,
        hold,
        status: Status::InProgress,
        done: hold.done,
        intent: true,
        writes: None,
        answered: false,
    }
}

/// The release of a row, with a result that is not committed yet. A result of an at-most-once call
/// never waits: it is written at once.
#[must_use]
pub fn stop(list: List, pc: &Pc) -> Option<Tx> {
    let (hold, answered) = match *pc {
        Pc::Ready(hold) => (hold, false),
        Pc::Answered(hold) if list[hold.done.len()].kind() == Kind::Idempotent => (hold, true),
        _ => return None,
    };
    let done = &list[..hold.done.len() + usize::from(answered)];
    // The last phase's result is the reply: there is nothing to come back for.
    (done.len() < list.len()).then(|| Tx {
        status: Status::Released,
        answered,
        ..moved(Purpose::Stop, hold, list, done)
    })
}

/// What the reconciler heard: the request goes on behind the call, or makes it.
#[must_use]
pub fn reconciled(list: List, hold: Hold, executed: bool) -> Tx {
    let done = &list[..hold.done.len() + usize::from(executed)];
    let heard = moved(Purpose::Reconcile, hold, list, done);
    match heard.status {
        Status::Completed => heard,
        _ => Tx { status: Status::Released, ..heard },
    }
}

fn moved(purpose: Purpose, hold: Hold, list: List, done: List) -> Tx {
    let finished = done.len() == list.len();
    let status = if finished { Status::Completed } else { Status::InProgress };
    Tx { purpose, hold, status, done, intent: false, writes: None, answered: false }
}

/// Where the sender of a durable `tx` goes on. Where it finished, it tells and rests.
#[must_use]
pub fn arrive(tx: &Tx, token: u8) -> Option<Pc> {
    let hold = Hold { token, done: tx.done, ..tx.hold };
    match (tx.purpose, tx.status) {
        (Purpose::Intend, _) => Some(Pc::Intended(hold)),
        (_, Status::InProgress) => Some(Pc::Ready(hold)),
        _ => None,
    }
}

/// Where the sender of a `tx` that was not applied goes on: it writes again.
#[must_use]
pub fn again(tx: &Tx, token: u8) -> Pc {
    let hold = Hold { token, ..tx.hold };
    match tx.purpose {
        Purpose::Leave => Pc::Leaving(hold),
        Purpose::Reconcile => Pc::Asking(hold),
        _ if tx.answered => Pc::Answered(hold),
        _ => Pc::Ready(hold),
    }
}

/// Whether a process is about to make a call of `phase`, or waits for its answer.
#[must_use]
pub fn is_before_call(list: List, pc: &Pc, phase: Phase) -> Option<Hold> {
    match *pc {
        Pc::Ready(hold) | Pc::Intended(hold) if list.get(hold.done.len()) == Some(&phase) => {
            Some(hold)
        }
        _ => None,
    }
}
