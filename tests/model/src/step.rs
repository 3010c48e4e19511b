//! What each [`Action`] changes: here the server, the provider and time; in `node` the processes.

use crate::actions::{Action, Of};
use crate::config::Config;
use crate::node::without_answer;
use crate::protocol::{next_write, stop};
use crate::state::{Effect, IDLE, Key, Pc, Purpose, Row, Stage, State, Status, Tx};

impl Config {
    /// The state after `action`; `None` where there is nothing to do.
    #[must_use]
    pub fn after(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let s = &mut state;
        match action {
            Action::Look(n) => self.look_and_act(s, n)?,
            Action::Send(n) => {
                let tx = next_write(self.nodes[n].list, &s.nodes[n])?;
                self.send(s, n, tx);
            }
            Action::Stop(n) => {
                s.left.stops -= 1;
                let tx = stop(self.nodes[n].list, &s.nodes[n])?;
                self.send(s, n, tx);
            }
            Action::Call(n) => self.call(s, n)?,
            Action::Ask(n) => self.ask(s, n)?,
            Action::Resolve(n) => self.resolve_commit(s, n)?,
            Action::Execute(of) => self.execute(s, of)?,
            Action::Commit(of) => self.commit(s, of)?,
            Action::Undo(i) => drop(s.stray_txs.remove(i)),
            Action::Deliver(of) => self.deliver(s, of)?,
            Action::LoseCall(i) => drop(s.stray_calls.remove(i)),
            Action::CutOff(n) => {
                s.left.losses -= 1;
                self.cut_off(s, n)?;
            }
            Action::TimeOut(n) => {
                s.left.losses -= 1;
                self.time_out(s, n)?;
            }
            Action::Crash(n) => {
                s.left.crashes -= 1;
                self.leave_behind(s, n);
                s.nodes[n] = IDLE;
            }
            Action::Expire(key) => {
                let row = s.row(key).copied()?;
                s.left.zombies -= u8::from(s.has_holder(key, &row));
                row_mut(s, key)?.leased = false;
            }
            Action::Age(key) => row_mut(s, key)?.aged = true,
            Action::Forget(i) => s.effects[i].remembered = false,
            Action::Retire(key) => {
                s.left.retentions -= 1;
                row_mut(s, key)?.expired = true;
                for (node, pc) in self.nodes.iter().zip(&mut s.nodes) {
                    if let Pc::Idle { created: Some(_), late } = pc
                        && node.key == key
                    {
                        *late = true;
                    }
                }
            }
            Action::Reap(key) => {
                let row = *s.row(key)?;
                s.wrong.reaped_open |= row.status != Status::Completed;
                s.wrong.forgot_reply |= row.never_replayed;
                s.keys[key as usize] = Key::default();
            }
            Action::Replicate => s.replica = Some(s.keys.clone()),
            Action::FailOver => fail_over(s)?,
        }
        s.stray_txs.sort_unstable();
        s.stray_calls.sort_unstable();
        s.effects.sort_unstable();
        Some(state)
    }

    fn deliver(&self, s: &mut State, of: Of) -> Option<()> {
        let call = match of {
            Of::Stray(i) => s.stray_calls.remove(i),
            Of::Node(n) => {
                let Pc::Calling(hold) = s.nodes[n] else { return None };
                s.nodes[n] = Pc::Answered(hold);
                self.call_of(n, &hold)
            }
        };
        if !self.is_known_to_provider(s, &call) {
            match s.effects.iter_mut().find(|effect| effect.by == call) {
                Some(effect) => {
                    effect.times += 1;
                    effect.remembered = true;
                }
                None => s.effects.push(Effect { by: call, times: 1, remembered: true }),
            }
        }
        Some(())
    }

    fn execute(&self, s: &mut State, of: Of) -> Option<()> {
        let tx = sent(s, of)?;
        if !self.rules.one_commit {
            self.write(s, &tx);
        }
        let holds = self.guard_holds(&tx, s.row(tx.hold.key));
        match (of, holds) {
            (Of::Node(n), true) => s.nodes[n] = Pc::Waiting(tx, Stage::Locked),
            (Of::Stray(i), true) => s.stray_txs[i].1 = Stage::Locked,
            (Of::Node(n), false) => s.nodes[n] = IDLE,
            (Of::Stray(i), false) => drop(s.stray_txs.remove(i)),
        }
        Some(())
    }

    fn commit(&self, s: &mut State, of: Of) -> Option<()> {
        let tx = sent(s, of)?;
        let hold = tx.hold;
        let key = &mut s.keys[hold.key as usize];
        let held = tx.status == Status::InProgress;
        let reply = if tx.status == Status::Completed { hold.token } else { 0 };
        if tx.purpose == Purpose::Create {
            s.wrong.forgot_reply |= key.row.is_some_and(|replaced| replaced.never_replayed);
            *key = Key::default();
            key.row = Some(Row {
                life: hold.life,
                status: tx.status,
                done: tx.done,
                intent: false,
                token: hold.token,
                leased: held,
                aged: false,
                expired: false,
                never_replayed: false,
                reply,
            });
        } else {
            let row = key.row.as_mut()?;
            let stale = row.life != hold.life || row.token != hold.token;
            s.wrong.stale_commit |= stale;
            row.aged &= row.done == tx.done;
            row.status = tx.status;
            row.done = tx.done;
            row.intent = tx.intent;
            row.leased = held;
            row.reply = reply;
            if tx.status == Status::Completed {
                row.expired &= !self.rules.retention_from_finish;
                row.never_replayed = row.expired;
            }
        }
        if self.rules.one_commit || tx.purpose == Purpose::Create {
            self.write(s, &tx);
        }
        match of {
            Of::Stray(i) => drop(s.stray_txs.remove(i)),
            Of::Node(n) => self.go_on(s, n, &tx, hold.token),
        }
        Some(())
    }

    fn write(&self, s: &mut State, tx: &Tx) {
        if let Some(phase) = tx.writes {
            s.keys[tx.hold.key as usize].writes[phase as usize] += 1;
        }
    }
}

pub(crate) fn row_mut(s: &mut State, key: u8) -> Option<&mut Row> {
    s.keys[key as usize].row.as_mut()
}

fn sent(s: &State, of: Of) -> Option<Tx> {
    match of {
        Of::Stray(i) => s.stray_txs.get(i).map(|(tx, _)| *tx),
        Of::Node(n) => match s.nodes[n] {
            Pc::Waiting(tx, _) => Some(tx),
            _ => None,
        },
    }
}

/// For the database, everything that the replica lacks never happened; all other participants remember it.
fn fail_over(s: &mut State) -> Option<()> {
    s.left.failovers -= 1;
    s.keys = s.replica.take()?;
    s.stray_txs.clear();
    for pc in &mut s.nodes {
        if let Pc::Waiting(tx, _) = *pc {
            *pc = without_answer(tx);
        }
    }
    Some(())
}
