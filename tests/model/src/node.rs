//! What a process does in a step, and the result.

use crate::config::{Config, Intent, Kind, RequestId, Role};
use crate::protocol::{Look, Resolved, again, arrive, create, intend, reconciled, stop};
use crate::state::{Call, Hold, IDLE, Life, Pc, Purpose, Row, Stage, State, Status, Tx};
use crate::step::row_mut;

impl Config {
    pub(crate) fn look_and_act(&self, s: &mut State, n: usize) -> Option<()> {
        let (node, key) = (&self.nodes[n], self.nodes[n].key);
        let Pc::Idle { created, late } = s.nodes[n] else { return None };
        match self.look(s, n)? {
            // The call fails. Its client may call again.
            Look::Create if late && self.rules.request_id == RequestId::OfCallInTime => {
                s.nodes[n] = IDLE;
            }
            Look::Create => {
                let same = created.filter(|_| self.rules.request_id != RequestId::OfCreation);
                let life = same.unwrap_or(s.lives[key as usize]);
                s.lives[key as usize] = s.lives[key as usize].max(life + 1);
                let tx = create(node.list, Hold { key, life, token: 1, done: &[] });
                // Its insert holds the key from the start, and cannot be fenced.
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

    pub(crate) fn send(&self, s: &mut State, n: usize, tx: Tx) {
        s.nodes[n] = Pc::Waiting(tx, Stage::Sent);
        if tx.status == Status::Completed && !self.rules.reply_after_commit {
            self.tell_as(s, n, &tx);
        }
    }

    pub(crate) fn call(&self, s: &mut State, n: usize) -> Option<()> {
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

    pub(crate) fn ask(&self, s: &mut State, n: usize) -> Option<()> {
        let Pc::Asking(hold) = s.nodes[n] else { return None };
        let call = self.call_of(n, &hold);
        let executed = s.effects.iter().any(|effect| effect.by == call);
        let tx = reconciled(self.nodes[n].list, hold, executed);
        self.send(s, n, tx);
        Some(())
    }

    pub(crate) fn resolve_commit(&self, s: &mut State, n: usize) -> Option<()> {
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

    pub(crate) fn go_on(&self, s: &mut State, n: usize, tx: &Tx, token: u8) {
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

    pub(crate) fn cut_off(&self, s: &mut State, n: usize) -> Option<()> {
        match s.nodes[n] {
            Pc::Waiting(tx, stage) => {
                s.stray_txs.push((tx, stage));
                s.nodes[n] = without_answer(tx);
            }
            // Its own take-over is committed, and it does not know; it will resolve with the old token.
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

    pub(crate) fn time_out(&self, s: &mut State, n: usize) -> Option<()> {
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

    /// Transactions and calls that a process had under way continue without it.
    pub(crate) fn leave_behind(&self, s: &mut State, n: usize) {
        match s.nodes[n] {
            Pc::Waiting(tx, stage) => s.stray_txs.push((tx, stage)),
            Pc::Calling(hold) => s.stray_calls.push(self.call_of(n, &hold)),
            _ => {}
        }
    }

    pub(crate) fn call_of(&self, n: usize, hold: &Hold) -> Call {
        Call { key: hold.key, life: hold.life, phase: self.nodes[n].list[hold.done.len()] }
    }
}

fn as_read(key: u8, row: &Row) -> Hold {
    Hold { key, life: row.life, token: row.token, done: row.done }
}

pub(crate) fn without_answer(tx: Tx) -> Pc {
    match tx.purpose {
        // Nothing runs yet: it reads again, and recognizes its row by the request's id.
        Purpose::Create => Pc::Idle { created: Some(tx.hold.life), late: false },
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
