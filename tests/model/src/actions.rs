//! [`Action`]: everything that may happen next, by an engine, by the world, or by bad luck.

use crate::config::{Config, Horizon, Intent, Kind, Phase, Provider, Resolve};
use crate::protocol::{is_before_call, next_write, stop};
use crate::state::{Hold, IDLE, Pc, Stage, State, Status};

/// The sender of a transaction or call: a process that waits for the answer, or none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    /// Of this process.
    Node(usize),
    /// The transaction or call at this index, whose sender is gone.
    Stray(usize),
}

/// One step of any participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A process reads the row and decides.
    Look(usize),
    /// It sends its next guarded write.
    Send(usize),
    /// It sends its call.
    Call(usize),
    /// It gives up for now and releases the row.
    Stop(usize),
    /// It resolves its commit.
    Resolve(usize),
    /// It calls the reconcile function, and sends the result.
    Ask(usize),
    /// The server evaluates a write's guard.
    Execute(Of),
    /// The server commits.
    Commit(Of),
    /// The server never sees it, or rolls it back.
    Undo(usize),
    /// The provider gets a call.
    Deliver(Of),
    /// The provider never gets it.
    LoseCall(usize),
    /// The connection is lost while an answer is awaited.
    CutOff(usize),
    /// No answer of the provider comes.
    TimeOut(usize),
    /// A process dies and restarts without memory.
    Crash(usize),
    /// A lease ends.
    Expire(u8),
    /// The provider's window, less the margin, passes.
    Age(u8),
    /// The provider forgets what it did.
    Forget(usize),
    /// A row's retention passes.
    Retire(u8),
    /// The reaper deletes a row.
    Reap(u8),
    /// The replica catches up.
    Replicate,
    /// The primary is lost, and with it everything that the replica lacks.
    FailOver,
}

impl Config {
    /// What may happen in `state`.
    pub fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        for n in 0..self.nodes.len() {
            self.of_node(state, n, actions);
        }
        for (i, (tx, stage)) in state.stray_txs.iter().enumerate() {
            actions.extend(of_tx(state, Of::Stray(i), tx.hold.key, *stage));
            actions.push(Action::Undo(i));
        }
        for i in 0..state.stray_calls.len() {
            actions.extend([Action::Deliver(Of::Stray(i)), Action::LoseCall(i)]);
        }
        for key in 0..state.keys.len() {
            self.of_time(state, u8::try_from(key).unwrap_or_default(), actions);
        }
        for i in 0..state.effects.len() {
            if self.may_forget(state, i) {
                actions.push(Action::Forget(i));
            }
        }
        if state.replica.as_ref().is_some_and(|replica| *replica != state.keys) {
            actions.extend([Action::Replicate, Action::FailOver]);
        }
    }

    fn of_node(&self, state: &State, n: usize, actions: &mut Vec<Action>) {
        let (node, pc) = (&self.nodes[n], &state.nodes[n]);
        if let Pc::Waiting(tx, stage) = pc {
            actions.extend(of_tx(state, Of::Node(n), tx.hold.key, *stage));
        }
        let mut may = |action, it: bool| {
            if it {
                actions.push(action);
            }
        };
        // If the process does not wait for the intent, intent and call leave together.
        let next = |hold: &Hold| node.list[hold.done.len()].kind();
        let calls = match pc {
            Pc::Intended(_) => true,
            Pc::Ready(hold) => match next(hold) {
                Kind::Local => false,
                Kind::Idempotent => true,
                Kind::AtMostOnce => self.rules.intent == Intent::NotAwaited,
            },
            _ => false,
        };
        let waits_for_lock = matches!(self.rules.resolve, Resolve::TakeOver | Resolve::LockingRead)
            && state.is_locked(node.key);
        let left = &state.left;
        may(Action::Look(n), self.look(state, n).is_some());
        may(Action::Send(n), !calls && next_write(node.list, pc).is_some());
        may(Action::Call(n), calls);
        may(Action::Stop(n), left.stops > 0 && stop(node.list, pc).is_some());
        let resolves = matches!(pc, Pc::Unsure(_)) && !waits_for_lock;
        may(Action::Resolve(n), resolves);
        let unanswered =
            matches!(pc, Pc::Waiting(..)) || (resolves && self.rules.resolve == Resolve::TakeOver);
        may(Action::Ask(n), matches!(pc, Pc::Asking(_)) && self.may_answer(state, n));
        may(Action::Deliver(Of::Node(n)), matches!(pc, Pc::Calling(_)));
        may(Action::CutOff(n), left.losses > 0 && unanswered);
        may(Action::TimeOut(n), left.losses > 0 && matches!(pc, Pc::Calling(_)));
        may(Action::Crash(n), left.crashes > 0 && *pc != IDLE);
    }

    fn of_time(&self, state: &State, key: u8, actions: &mut Vec<Action>) {
        let Some(row) = state.row(key) else { return };
        let locked = state.is_locked(key);
        if row.status == Status::InProgress && row.leased && self.rules.leases_end {
            // A dead holder's lease ends by itself; a living one's only if the holder stalls.
            if state.left.zombies > 0 || !state.has_holder(key, row) {
                actions.push(Action::Expire(key));
            }
        }
        let open = row.status != Status::Completed;
        if self.world.provider == Provider::Forgets && open && !row.aged {
            actions.push(Action::Age(key));
        }
        let in_doubt = state
            .nodes
            .iter()
            .any(|pc| matches!(pc, Pc::Idle { created: Some(life), .. } if *life == row.life));
        let may_retire = (!open || self.world.outlives_retention)
            && (!in_doubt || self.world.stalls_past_retention);
        if state.left.retentions > 0 && !row.expired && may_retire {
            actions.push(Action::Retire(key));
        }
        if row.expired && !locked && (!open || !self.rules.reaps_finished_only) {
            actions.push(Action::Reap(key));
        }
    }

    /// The provider forgets calls that are older than its window: calls of a phase that is long committed, or calls
    /// after which nothing was committed until the horizon passed.
    fn may_forget(&self, state: &State, i: usize) -> bool {
        let effect = &state.effects[i];
        if self.world.provider != Provider::Forgets || !effect.remembered {
            return false;
        }
        let by = effect.by;
        let old = state
            .row(by.key)
            .is_none_or(|row| row.aged || row.done.contains(&by.phase) || row.life != by.life);
        old && !self.is_call_to_come(state, by.key, by.phase, self.world.stalls_past_margin)
    }

    /// The reconcile function's *not executed* is final if the function is called late enough.
    fn may_answer(&self, state: &State, n: usize) -> bool {
        let Pc::Asking(hold) = state.nodes[n] else { return false };
        let phase = self.nodes[n].list[hold.done.len()];
        self.world.calls_after_answer || !self.is_call_to_come(state, hold.key, phase, false)
    }

    /// Whether a call that a process has decided to make may still reach the provider.
    fn is_call_to_come(&self, state: &State, key: u8, phase: Phase, stalls: bool) -> bool {
        let under_way = state.stray_calls.iter().any(|call| call.key == key && call.phase == phase);
        let of_node = self.nodes.iter().zip(&state.nodes).any(|(node, pc)| {
            let decided = is_before_call(node.list, pc, phase).filter(|_| !stalls);
            let calling = match *pc {
                Pc::Calling(hold) if node.list[hold.done.len()] == phase => Some(hold),
                _ => None,
            };
            decided.or(calling).is_some_and(|hold| hold.key == key)
        });
        under_way || of_node
    }

    /// Whether the lease and the window are checked once more right before a call.
    #[must_use]
    pub fn checks_before_call(&self, kind: Kind) -> bool {
        kind == Kind::Idempotent && self.rules.horizon == Horizon::BeforeCall
    }
}

impl State {
    /// Whether a step is bad luck, which the protocol must not rely on. It may rely on two things: a dead holder's
    /// lease ends, and a server gives up a client that has disconnected.
    #[must_use]
    pub fn is_bad_luck(&self, action: Action) -> bool {
        match action {
            Action::Stop(_)
            | Action::CutOff(_)
            | Action::TimeOut(_)
            | Action::Crash(_)
            | Action::Age(_)
            | Action::Forget(_)
            | Action::Retire(_)
            | Action::Replicate
            | Action::FailOver => true,
            Action::Expire(key) => self.row(key).is_some_and(|row| self.has_holder(key, row)),
            _ => false,
        }
    }
}

fn of_tx(state: &State, of: Of, key: u8, stage: Stage) -> Option<Action> {
    match stage {
        Stage::Locked => Some(Action::Commit(of)),
        Stage::Sent => (!state.is_locked(key)).then_some(Action::Execute(of)),
    }
}
