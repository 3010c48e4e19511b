//! What the engine does, as pure functions: the decision after a read of the row, the next write, its guard, and
//! its result. No function here knows of faults.

use crate::config::{
    Config, DerivedKey, Horizon, Intent, Kind, List, Phase, Provider, Resolve, Role,
};
use crate::state::{Call, Hold, Pc, Purpose, Row, State, Status, Tx};

/// The decision after a read of the key's row. The statement that follows in the engine is guarded by what was
/// read, so read and statement are one step here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Insert it, in place of an expired one if there is one.
    Create,
    /// Acquire it.
    TakeOver,
    /// Return the stored reply.
    Replay,
    /// Acquire it to reconcile its call.
    Reconcile,
}

/// The resolution of a commit without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It took effect; this is the row's token by now.
    Applied(u8),
    /// It did not and never will take effect.
    NotApplied(u8),
    /// Another process has the row.
    Lost,
}

impl Config {
    /// What an idle process may do with its key.
    #[must_use]
    pub fn look(&self, state: &State, n: usize) -> Option<Look> {
        let node = &self.nodes[n];
        let Pc::Idle { created, .. } = state.nodes[n] else { return None };
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

    /// The point at which a new holder of `row` continues.
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

    /// What the holder of `tx` finds when it resolves it, and the token that it raises.
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

    /// Whether the provider recognizes a call as a repetition.
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

/// Whether it is free to be acquired.
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
            // The result of a repeatable call is stored by the commit of the next local phase.
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

/// The release of a row, with a result that is not committed yet. A result of an at-most-once call never waits: it
/// is written immediately.
#[must_use]
pub fn stop(list: List, pc: &Pc) -> Option<Tx> {
    let (hold, answered) = match *pc {
        Pc::Ready(hold) => (hold, false),
        Pc::Answered(hold) if list[hold.done.len()].kind() == Kind::Idempotent => (hold, true),
        _ => return None,
    };
    let done = &list[..hold.done.len() + usize::from(answered)];
    // The last phase's result is the reply: nothing is left to resume.
    (done.len() < list.len()).then(|| Tx {
        status: Status::Released,
        answered,
        ..moved(Purpose::Stop, hold, list, done)
    })
}

/// The result of the reconciler: the request continues after the call, or makes it.
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

/// The point at which the sender of a durable `tx` continues. If the request is finished, the sender answers and
/// rests.
#[must_use]
pub fn arrive(tx: &Tx, token: u8) -> Option<Pc> {
    let hold = Hold { token, done: tx.done, ..tx.hold };
    match (tx.purpose, tx.status) {
        (Purpose::Intend, _) => Some(Pc::Intended(hold)),
        (_, Status::InProgress) => Some(Pc::Ready(hold)),
        _ => None,
    }
}

/// The point at which the sender of a `tx` that was not applied continues: it writes again.
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
