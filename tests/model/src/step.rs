//! What each [`Action`] changes.

use crate::actions::{Action, Of};
use crate::config::{Config, Intent, Kind, RequestId, Role};
use crate::protocol::{
    Look, Resolved, again, arrive, create, intend, next_write, reconciled, stop,
};
use crate::state::{
    Call, Effect, Hold, IDLE, Key, Life, Pc, Purpose, Row, Stage, State, Status, Tx,
};

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
            }
            Action::Reap(key) => {
                s.wrong.reaped_open |= s.row(key)?.status != Status::Completed;
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

    fn look_and_act(&self, s: &mut State, n: usize) -> Option<()> {
        let (node, key) = (&self.nodes[n], self.nodes[n].key);
        let Pc::Idle { created } = s.nodes[n] else { return None };
        match self.look(s, n)? {
            Look::Create => {
                let same = created.filter(|_| self.rules.request_id == RequestId::OfCall);
                let life = same.unwrap_or(s.lives[key as usize]);
                s.lives[key as usize] = s.lives[key as usize].max(life + 1);
                let tx = create(node.list, Hold { key, life, token: 1, done: &[] });
                // Its insert holds the key from the start; nobody can fence it.
                s.nodes[n] = Pc::Waiting(tx, Stage::Locked);
            }
            Look::TakeOver => {
                let row = row_mut(s, key)?;
                let hold = self.acquire(key, row);
                let row = *row;
                s.nodes[n] = self.plan(node.list, &row, hold);
            }
            Look::Reconcile => {
                s.left.reconciles -= 1;
                let fenced = self.rules.reconciler_is_fenced;
                let row = row_mut(s, key)?;
                let hold = if fenced { self.acquire(key, row) } else { as_read(key, row) };
                s.nodes[n] = Pc::Asking(hold);
            }
            Look::Replay => {
                let row = *s.row(key)?;
                tell(s, key, row.life, row.reply);
                s.nodes[n] = IDLE;
            }
        }
        Some(())
    }

    fn acquire(&self, key: u8, row: &mut Row) -> Hold {
        row.token += u8::from(self.rules.take_over_raises);
        row.status = Status::InProgress;
        row.leased = true;
        as_read(key, row)
    }

    fn send(&self, s: &mut State, n: usize, tx: Tx) {
        s.nodes[n] = Pc::Waiting(tx, Stage::Sent);
        if tx.status == Status::Completed && !self.rules.reply_after_commit {
            self.tell_as(s, n, &tx);
        }
    }

    fn call(&self, s: &mut State, n: usize) -> Option<()> {
        let hold = match s.nodes[n] {
            Pc::Intended(hold) => hold,
            Pc::Ready(hold) => {
                let kind = self.nodes[n].list[hold.done.len()].kind();
                if kind == Kind::AtMostOnce && self.rules.intent == Intent::NotAwaited {
                    s.stray_txs.push((intend(hold), Stage::Sent));
                }
                if self.checks_before_call(kind) {
                    let ours = s.row(hold.key).filter(|row| {
                        row.life == hold.life
                            && row.token == hold.token
                            && row.status == Status::InProgress
                    });
                    let Some(row) = ours else {
                        s.nodes[n] = IDLE;
                        return Some(());
                    };
                    if row.aged {
                        s.nodes[n] = Pc::Leaving(hold);
                        return Some(());
                    }
                }
                hold
            }
            _ => return None,
        };
        s.nodes[n] = Pc::Calling(hold);
        Some(())
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

    fn cut_off(&self, s: &mut State, n: usize) -> Option<()> {
        match s.nodes[n] {
            Pc::Waiting(tx, stage) => {
                s.stray_txs.push((tx, stage));
                s.nodes[n] = without_answer(tx);
            }
            // Its own take-over is done, and it does not know; it will ask under the old token.
            Pc::Unsure(tx) => match self.resolve(&tx, s.row(tx.hold.key)) {
                Resolved::Applied(token) | Resolved::NotApplied(token) => {
                    self.raise(s, &tx, token);
                }
                Resolved::Lost => return None,
            },
            _ => return None,
        }
        Some(())
    }

    fn time_out(&self, s: &mut State, n: usize) -> Option<()> {
        let Pc::Calling(hold) = s.nodes[n] else { return None };
        let list = self.nodes[n].list;
        s.stray_calls.push(self.call_of(n, &hold));
        match list[hold.done.len()].kind() {
            Kind::AtMostOnce => s.nodes[n] = Pc::Leaving(hold),
            _ => {
                let tx = stop(list, &Pc::Ready(hold))?;
                self.send(s, n, tx);
            }
        }
        Some(())
    }

    fn ask(&self, s: &mut State, n: usize) -> Option<()> {
        let Pc::Asking(hold) = s.nodes[n] else { return None };
        let call = self.call_of(n, &hold);
        let executed = s.effects.iter().any(|effect| effect.by == call);
        let tx = reconciled(self.nodes[n].list, hold, executed);
        self.send(s, n, tx);
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

    fn resolve_commit(&self, s: &mut State, n: usize) -> Option<()> {
        let Pc::Unsure(tx) = s.nodes[n] else { return None };
        match self.resolve(&tx, s.row(tx.hold.key)) {
            Resolved::Lost => s.nodes[n] = IDLE,
            Resolved::Applied(token) => {
                self.raise(s, &tx, token);
                self.go_on(s, n, &tx, token);
            }
            Resolved::NotApplied(token) => {
                self.raise(s, &tx, token);
                s.nodes[n] = again(&tx, token);
            }
        }
        Some(())
    }

    fn raise(&self, s: &mut State, tx: &Tx, token: u8) {
        if let Some(row) = row_mut(s, tx.hold.key).filter(|_| token != tx.hold.token) {
            row.token = token;
            row.leased = true;
        }
    }

    fn go_on(&self, s: &mut State, n: usize, tx: &Tx, token: u8) {
        s.nodes[n] = arrive(tx, token).unwrap_or(IDLE);
        if tx.status == Status::Completed {
            self.tell_as(s, n, tx);
        }
    }

    fn tell_as(&self, s: &mut State, n: usize, tx: &Tx) {
        if self.nodes[n].role == Role::Client {
            tell(s, tx.hold.key, tx.hold.life, tx.hold.token);
        }
    }

    /// What a process had under way goes on without it.
    fn leave_behind(&self, s: &mut State, n: usize) {
        match s.nodes[n] {
            Pc::Waiting(tx, stage) => s.stray_txs.push((tx, stage)),
            Pc::Calling(hold) => s.stray_calls.push(self.call_of(n, &hold)),
            _ => {}
        }
    }

    fn call_of(&self, n: usize, hold: &Hold) -> Call {
        Call { key: hold.key, life: hold.life, phase: self.nodes[n].list[hold.done.len()] }
    }
}

fn row_mut(s: &mut State, key: u8) -> Option<&mut Row> {
    s.keys[key as usize].row.as_mut()
}

fn as_read(key: u8, row: &Row) -> Hold {
    Hold { key, life: row.life, token: row.token, done: row.done }
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

fn without_answer(tx: Tx) -> Pc {
    match tx.purpose {
        // Nothing runs yet: it looks again, and knows its row by the request's id.
        Purpose::Create => Pc::Idle { created: Some(tx.hold.life) },
        _ => Pc::Unsure(tx),
    }
}

fn tell(s: &mut State, key: u8, life: Life, reply: u8) {
    let durable = s.row(key).is_some_and(|row| row.status == Status::Completed && row.life == life);
    let told = &mut s.told[key as usize];
    s.wrong.told_early |= !durable;
    s.wrong.told_twice |= told.is_some_and(|(of, other)| of == life && other != reply);
    *told = Some((life, reply));
}

/// What the replica does not have never happened, for the database; all else remembers it.
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
