//! A path through the states as a readable script.

use std::fmt::Write;

use crate::actions::{Action, Of};
use crate::config::{Config, Kind, List, Role};
use crate::protocol::Look;
use crate::state::{Pc, Purpose, State, Status, Tx};

/// One line for each step.
#[must_use]
pub fn script(config: &Config, path: &[(State, Option<Action>)]) -> String {
    let mut text = String::new();
    for (number, pair) in path.windows(2).enumerate() {
        let (before, after) = (&pair[0].0, &pair[1].0);
        let Some(action) = pair[0].1 else { continue };
        let line = describe(config, before, action, after);
        let _ = writeln!(text, "  {:>2}. {line}", number + 1);
    }
    text
}

fn describe(config: &Config, before: &State, action: Action, after: &State) -> String {
    let name = |n: usize| name(config, n);
    match action {
        Action::Look(n) => format!("{} {}", name(n), looked(config, before, n, after)),
        Action::Send(n) | Action::Stop(n) => format!("{} sends: {}", name(n), sent(after, n)),
        Action::Ask(n) => format!("{} asks the provider and sends: {}", name(n), sent(after, n)),
        Action::Call(n) => match after.nodes[n] {
            Pc::Calling(hold) => {
                format!("{} calls: {:?}", name(n), config.nodes[n].list[hold.done.len()])
            }
            _ => format!("{} checks before its call, and makes none", name(n)),
        },
        Action::Resolve(n) => format!("{} {}", name(n), resolved(after, n)),
        Action::Execute(of) => {
            let tx = transaction(before, of);
            let fenced = !config.guard_holds(&tx, before.row(tx.hold.key));
            let what = if fenced { "is fenced" } else { "holds, and locks the row" };
            format!("the guard of {} {what}", whose(config, of, &tx))
        }
        Action::Commit(of) => {
            format!("{} commits", whose(config, of, &transaction(before, of)))
        }
        Action::Undo(i) => {
            format!("{} is lost", whose(config, Of::Stray(i), &transaction(before, Of::Stray(i))))
        }
        Action::Deliver(Of::Node(n)) => format!("{}'s call {}", name(n), heard(before, after)),
        Action::Deliver(Of::Stray(i)) => {
            format!("a late call of {:?} {}", before.stray_calls[i].phase, heard(before, after))
        }
        Action::LoseCall(i) => format!("a call of {:?} is lost", before.stray_calls[i].phase),
        Action::CutOff(n) => format!("{}'s connection is cut before the answer", name(n)),
        Action::TimeOut(n) => format!("{} gets no answer of the provider", name(n)),
        Action::Crash(n) => format!("{} crashes", name(n)),
        Action::Expire(key) => format!("the lease {}ends", of_key(config, key)),
        Action::Age(key) => format!("the window's margin {}is reached", of_key(config, key)),
        Action::Forget(i) => format!("the provider forgets {:?}", before.effects[i].by.phase),
        Action::Retire(key) => format!("the row's retention {}passes", of_key(config, key)),
        Action::Reap(key) => format!("the reaper deletes the row{}", of_key(config, key)),
        Action::Replicate => "the replica catches up".to_owned(),
        Action::FailOver => "the database fails over to the replica".to_owned(),
    }
}

fn name(config: &Config, n: usize) -> String {
    let role = match config.nodes[n].role {
        Role::Client => "node",
        Role::Completer => "completer",
        Role::Reconciler => "reconciler",
    };
    format!("{role} {n}")
}

fn of_key(config: &Config, key: u8) -> String {
    let several = config.nodes.iter().any(|node| node.key != 0);
    if several { format!("of key {key} ") } else { String::new() }
}

fn looked(config: &Config, before: &State, n: usize, after: &State) -> String {
    let token = after.nodes[n].hold().map_or(0, |hold| hold.token);
    match config.look(before, n) {
        Some(Look::Create) => {
            let life = after.nodes[n].hold().map_or(0, |hold| hold.life);
            format!("inserts request {life} and runs what shares its commit")
        }
        Some(Look::TakeOver) => format!("takes the row over, token {token}"),
        Some(Look::Reconcile) => format!("takes the unknown row up, token {token}"),
        Some(Look::Replay) => "tells the stored reply".to_owned(),
        None => "does nothing".to_owned(),
    }
}

fn sent(after: &State, n: usize) -> String {
    match after.nodes[n] {
        Pc::Waiting(tx, _) => purpose(&tx),
        _ => String::new(),
    }
}

fn purpose(tx: &Tx) -> String {
    let reached = |done: List| done.last().map_or("started".to_owned(), |p| format!("{p:?}"));
    let what = match (tx.purpose, tx.status) {
        (_, Status::Completed) => "finish".to_owned(),
        (Purpose::Create, _) => format!("create at {}", reached(tx.done)),
        (Purpose::Intend, _) => "intent".to_owned(),
        (Purpose::Advance, _) => format!("advance to {}", reached(tx.done)),
        (Purpose::Stop, _) => format!("release at {}", reached(tx.done)),
        (Purpose::Leave, _) => "leave as unknown".to_owned(),
        (Purpose::Reconcile, _) => format!("reconciled at {}", reached(tx.done)),
    };
    format!("{what} (request {}, token {})", tx.hold.life, tx.hold.token)
}

fn transaction(state: &State, of: Of) -> Tx {
    match of {
        Of::Stray(i) => state.stray_txs[i].0,
        Of::Node(n) => match state.nodes[n] {
            Pc::Waiting(tx, _) => tx,
            _ => unreachable!("only a waiting node has a transaction"),
        },
    }
}

fn whose(config: &Config, of: Of, tx: &Tx) -> String {
    match of {
        Of::Node(n) => format!("{}'s \"{}\"", name(config, n), purpose(tx)),
        Of::Stray(_) => format!("the stray \"{}\"", purpose(tx)),
    }
}

fn heard(before: &State, after: &State) -> &'static str {
    if before.effects == after.effects { "is known to the provider" } else { "has its EFFECT" }
}

fn resolved(after: &State, n: usize) -> &'static str {
    match after.nodes[n] {
        Pc::Idle { .. } => "resolves: finished, or not its own any more",
        Pc::Ready(_) | Pc::Answered(_) | Pc::Leaving(_) | Pc::Asking(_) | Pc::Intended(_) => {
            "resolves its commit, and goes on"
        }
        _ => "resolves",
    }
}

/// The phases of a list, with what they are.
#[must_use]
pub fn phases(list: List) -> String {
    let names: Vec<_> = list
        .iter()
        .map(|phase| match phase.kind() {
            Kind::Local => format!("{phase:?}"),
            Kind::Idempotent => format!("{phase:?} (idempotent)"),
            Kind::AtMostOnce => format!("{phase:?} (at most once)"),
        })
        .collect();
    names.join(", ")
}
