//! What must hold in every state (I1 to I9, L1), and what must be reached in some state, because a model in which
//! nothing happens proves nothing.

use stateright::{Model, Property};

use crate::actions::Action;
use crate::config::{Config, DerivedKey, Kind, Phase};
use crate::protocol::{Resolved, is_free};
use crate::state::{Pc, Stage, State, Status};

/// G1, G2.
pub const ONE_EFFECT: &str = "I1 at most one effect for each key and foreign phase";
/// G3.
pub const NO_STALE_COMMIT: &str = "I2 a process that lost the lease commits nothing";
/// G4.
pub const WRITES_ONCE: &str = "I3 a local phase writes at most once";
/// G4, G6.
pub const POINT_TELLS: &str = "I4 the recovery point tells exactly what was written";
/// A committed foreign phase had its effect.
pub const EFFECT_IS_REAL: &str = "I5 a committed foreign phase had its effect";
/// G8, first half.
pub const TOLD_WHEN_DURABLE: &str = "I6 a reply is told when it is durable";
/// G8, second half.
pub const ONE_REPLY: &str = "I7 one request is told one reply";
/// G15.
pub const REAPED_WHEN_FINISHED: &str = "I8 only what is finished is reaped";
/// `EngineBuilder::retention`: how long a finished key replays its answer.
pub const REPLAYED: &str = "I9 a finished request is replayed before its key is used anew";
/// G17. When only bad luck can still happen, each key is settled. No run is a cycle (a test shows it), so every run
/// gets there once its bad luck is used up. (stateright's own `eventually` may miss a violation where two paths
/// meet; this cannot.)
pub const SETTLES: &str = "L1 every key ends finished and told, or unknown";

/// A request is finished.
pub const FINISHED: &str = "finished";
/// A zombie's write is about to be fenced.
pub const FENCED: &str = "a zombie is fenced";
/// A commit without an answer took effect.
pub const FOUND_APPLIED: &str = "an unanswered commit is found applied";
/// A commit without an answer did not take effect.
pub const FOUND_NOT_APPLIED: &str = "an unanswered commit is found not applied";
/// A creation without an answer took effect.
pub const RECOVERED: &str = "a creation without an answer is recovered";
/// A transaction arrives after its sender's row was taken over.
pub const LATE_COMMIT: &str = "a transaction arrives when its row is another holder's";
/// The row waits for the reconciler.
pub const UNKNOWN: &str = "unknown";
/// A call arrives after its phase was left.
pub const LATE_CALL: &str = "a call arrives when its row has gone on";
/// The window passed.
pub const PAST_HORIZON: &str = "the window has passed and the call is not repeated";
/// The reconciler stored *executed*, or *not executed*.
pub const RECONCILED: &str = "the reconciler's answer is stored";
/// A reaped key is used again while its earlier request still runs.
pub const REUSED: &str = "a reaped key is used again beside a zombie";
/// A node leaves a row to another one.
pub const LEFT_ALONE: &str = "a row is left to a node that knows its phases";
/// A client received a reply that the database has lost.
pub const ROLLED_BACK: &str = "a failover lost a reply that was told";

impl Model for Config {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::initial(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.after(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_EFFECT, one_effect),
            Property::always(NO_STALE_COMMIT, |_: &Self, state: &State| !state.wrong.stale_commit),
            Property::always(WRITES_ONCE, |_: &Self, state: &State| {
                state.keys.iter().all(|key| key.writes.iter().all(|times| *times <= 1))
            }),
            Property::always(POINT_TELLS, |_: &Self, state: &State| point_tells(state)),
            Property::always(EFFECT_IS_REAL, |_: &Self, state: &State| effect_is_real(state)),
            Property::always(TOLD_WHEN_DURABLE, |_: &Self, state: &State| !state.wrong.told_early),
            Property::always(ONE_REPLY, |_: &Self, state: &State| !state.wrong.told_twice),
            Property::always(REAPED_WHEN_FINISHED, |_: &Self, state: &State| {
                !state.wrong.reaped_open
            }),
            Property::always(REPLAYED, |_: &Self, state: &State| !state.wrong.forgot_reply),
            Property::always(SETTLES, settles),
            Property::sometimes(FINISHED, |_: &Self, state: &State| {
                any_row(state, Status::Completed)
            }),
            Property::sometimes(FENCED, |config: &Self, state: &State| {
                is_about_to_be_fenced(config, state)
            }),
            Property::sometimes(FOUND_APPLIED, |config: &Self, state: &State| {
                finds(config, state, |found| matches!(found, Resolved::Applied(_)))
            }),
            Property::sometimes(FOUND_NOT_APPLIED, |config: &Self, state: &State| {
                finds(config, state, |found| matches!(found, Resolved::NotApplied(_)))
            }),
            Property::sometimes(RECOVERED, recovers),
            Property::sometimes(LATE_COMMIT, |config: &Self, state: &State| {
                state.stray_txs.iter().any(|(tx, stage)| {
                    *stage == Stage::Sent && !config.guard_holds(tx, state.row(tx.hold.key))
                })
            }),
            Property::sometimes(UNKNOWN, |_: &Self, state: &State| any_row(state, Status::Unknown)),
            Property::sometimes(LATE_CALL, |_: &Self, state: &State| {
                state.stray_calls.iter().any(|call| {
                    state.row(call.key).is_some_and(|row| row.done.contains(&call.phase))
                })
            }),
            Property::sometimes(PAST_HORIZON, |_: &Self, state: &State| {
                state
                    .keys
                    .iter()
                    .filter_map(|key| key.row.as_ref())
                    .any(|row| row.status == Status::Unknown && row.aged)
            }),
            Property::sometimes(RECONCILED, |config: &Self, state: &State| {
                config.budget.reconciles > state.left.reconciles
                    && any_row(state, Status::Completed)
            }),
            Property::sometimes(REUSED, |_: &Self, state: &State| {
                state
                    .nodes
                    .iter()
                    .filter_map(Pc::hold)
                    .any(|hold| state.row(hold.key).is_some_and(|row| row.life > hold.life))
            }),
            Property::sometimes(LEFT_ALONE, |config: &Self, state: &State| {
                config.nodes.iter().zip(&state.nodes).any(|(node, pc)| {
                    matches!(pc, Pc::Idle { .. })
                        && state
                            .row(node.key)
                            .is_some_and(|row| is_free(row) && !config.knows(node.list, row.done))
                })
            }),
            Property::sometimes(ROLLED_BACK, |config: &Self, state: &State| {
                config.budget.failovers > state.left.failovers
                    && state.told.iter().zip(&state.keys).any(|(told, key)| {
                        told.is_some() && key.row.is_none_or(|row| row.status != Status::Completed)
                    })
            }),
        ]
    }
}

fn one_effect(config: &Config, state: &State) -> bool {
    state.effects.iter().all(|effect| {
        let by = effect.by;
        // If the provider's key does not distinguish two requests with one key, both of them together have one
        // effect.
        let together =
            by.phase.kind() == Kind::Idempotent && config.rules.derived_key != DerivedKey::Salted;
        let times: u8 = state
            .effects
            .iter()
            .filter(|other| {
                let same = other.by.key == by.key && other.by.phase == by.phase;
                same && (together || other.by.life == by.life)
            })
            .map(|other| other.times)
            .sum();
        times <= 1
    })
}

fn point_tells(state: &State) -> bool {
    state.keys.iter().all(|key| {
        let done = key.row.map_or(&[][..], |row| row.done);
        Phase::ALL
            .into_iter()
            .filter(|phase| phase.kind() == Kind::Local)
            .all(|phase| key.writes[phase as usize] == u8::from(done.contains(&phase)))
    })
}

fn effect_is_real(state: &State) -> bool {
    (0..).zip(&state.keys).all(|(at, key): (u8, _)| {
        let done = key.row.map_or(&[][..], |row| row.done);
        done.iter().filter(|phase| phase.kind() != Kind::Local).all(|phase| {
            state.effects.iter().any(|effect| effect.by.key == at && effect.by.phase == *phase)
        })
    })
}

fn settles(config: &Config, state: &State) -> bool {
    let settled = state.keys.iter().zip(&state.told).all(|(key, told)| {
        key.row.as_ref().is_some_and(|row| match row.status {
            Status::Unknown => true,
            Status::Completed => *told == Some((row.life, row.reply)),
            Status::InProgress | Status::Released => false,
        })
    });
    if settled {
        return true;
    }
    let mut actions = Vec::new();
    config.possible(state, &mut actions);
    actions
        .into_iter()
        .any(|action| !state.is_bad_luck(action) && config.after(state, action).is_some())
}

fn any_row(state: &State, status: Status) -> bool {
    state.keys.iter().any(|key| key.row.as_ref().is_some_and(|row| row.status == status))
}

fn is_about_to_be_fenced(config: &Config, state: &State) -> bool {
    state.nodes.iter().any(|pc| match pc {
        Pc::Waiting(tx, Stage::Sent) => !config.guard_holds(tx, state.row(tx.hold.key)),
        _ => false,
    })
}

fn finds(config: &Config, state: &State, what: fn(&Resolved) -> bool) -> bool {
    state.nodes.iter().any(|pc| match pc {
        Pc::Unsure(tx) if !state.is_locked(tx.hold.key) => {
            what(&config.resolve(tx, state.row(tx.hold.key)))
        }
        _ => false,
    })
}

fn recovers(config: &Config, state: &State) -> bool {
    config.nodes.iter().zip(&state.nodes).any(|(node, pc)| match pc {
        Pc::Idle { created: Some(life), .. } => state.row(node.key).is_some_and(|row| {
            row.life == *life && row.token == 1 && row.status == Status::InProgress && row.leased
        }),
        _ => false,
    })
}
