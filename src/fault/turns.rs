//! Two workers on one key, in turns: one goes from point to point while the other stands still.

use std::iter::Peekable;
use std::slice::Iter;
use std::time::Duration;

use tokio::sync::oneshot;

use super::case::{Driver, Stop, Turn};
use super::case_runner::{Begun, CaseRunner, Who};
use super::plan::{Orders, Signal};
use super::points::{Point, listed};
use super::verdict::{Ended, TAKEN, Wrong};
use crate::request::RequestDefinition;
use crate::store::{Status, Store};

/// For how long a worker may make no step before it counts as waiting for the other: for the lock of
/// a row, say. If it is too short, both run for a while, which does no harm.
const STEP: Duration = Duration::from_millis(250);

/// After how many rounds without a step they are taken to wait for each other for good.
const MAX_WAITS: u32 = 80;

/// One of the two.
struct Worker {
    begun: Begun,
    /// Answered, it continues; `None` while it runs.
    stands: Option<oneshot::Sender<()>>,
    /// The fencing token when it stood still.
    token: Option<i64>,
    /// Where it stood last.
    last: Option<Point>,
}

enum Step {
    Stands(Point, u32),
    Ended(Ended),
    /// For the other, as it seems.
    Waits,
}

impl Worker {
    fn new(begun: Begun) -> Self {
        Self { begun, stands: None, token: None, last: None }
    }

    /// Up to its next point.
    async fn step(&mut self) -> Step {
        if let Some(go_on) = self.stands.take() {
            let _ = go_on.send(());
        }
        tokio::select! {
            biased;
            Some(signal) = self.begun.signals.recv() => match signal {
                Signal::Stands(point, visit, go_on) => {
                    self.stands = Some(go_on);
                    self.last = Some(point.clone());
                    Step::Stands(point, visit)
                }
                // Nothing else is ordered.
                _ => Step::Waits,
            },
            ended = &mut self.begun.task => Step::Ended(ended.unwrap_or(Ended::Crashed)),
            () = tokio::time::sleep(STEP) => Step::Waits,
        }
    }
}

/// Both, and who of them holds the lease.
#[derive(Default)]
struct Pair {
    workers: [Option<Worker>; 2],
    ended: [bool; 2],
    held: Option<SeenLease>,
}

/// The turns that are left.
struct Schedule<'t> {
    turns: Peekable<Iter<'t, Turn>>,
    /// Where more would have been possible after the last one that was taken.
    stops: Vec<Stop>,
}

struct SeenLease {
    by: usize,
    token: i64,
    alive: bool,
}

impl<S, A, R, W> CaseRunner<'_, S, A, R, W>
where
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A>,
{
    /// Runs both to their ends, with these turns. Returns where more turns would have been possible
    /// after the last.
    pub(super) async fn take_turns(
        &mut self,
        turns: &[Turn],
        second: Driver,
    ) -> Result<Vec<Stop>, Wrong> {
        let mut pair = Pair::default();
        let stops = self.both(&mut pair, turns, second).await;
        for worker in pair.workers.into_iter().flatten() {
            worker.begun.drop_it().await;
        }
        stops
    }

    async fn both(
        &mut self,
        pair: &mut Pair,
        turns: &[Turn],
        second: Driver,
    ) -> Result<Vec<Stop>, Wrong> {
        let mut schedule = Schedule { turns: turns.iter().peekable(), stops: Vec::new() };
        let (mut at, mut waits, mut waited) = (0, 0, false);
        while !pair.ended[at] {
            let worker = match &mut pair.workers[at] {
                Some(worker) => worker,
                none => none.insert(self.worker(at, second).await?),
            };
            let step = worker.step().await;
            waits = if matches!(step, Step::Waits) { waits + 1 } else { 0 };
            match step {
                Step::Waits => {
                    waited = true;
                    if waits > MAX_WAITS {
                        return Err(format!("both workers wait, {}", where_they_are(pair)));
                    }
                    // Where one transaction at a time is open, it can only be this worker's: then
                    // it is slow, and does not wait for the other.
                    let patience = if S::CONCURRENT { 1 } else { 20 };
                    if !pair.ended[1 - at] && waits % patience == 0 {
                        at = 1 - at;
                    }
                }
                Step::Ended(ended) => {
                    pair.ended[at] = true;
                    self.observed.note(ended)?;
                    self.look(pair, at).await?;
                    self.expected.check_attempt(&self.world).await?;
                    at = 1 - at;
                    self.resume(pair, at).await?;
                }
                Step::Stands(point, visit) => {
                    if self.is_others_turn(pair, at, (point, visit), &mut schedule).await? {
                        at = 1 - at;
                        self.resume(pair, at).await?;
                    }
                }
            }
        }
        match schedule.turns.next() {
            // Where one waited for the other, the order is not ours alone.
            Some(turn) if !waited => {
                Err(format!("{turn} did not happen, {}", where_they_are(pair)))
            }
            _ => Ok(schedule.stops),
        }
    }

    /// Whether the other one goes on while this one stands at a point. If that is a turn, the turn is taken.
    async fn is_others_turn(
        &self,
        pair: &mut Pair,
        at: usize,
        (point, visit): (Point, u32),
        schedule: &mut Schedule<'_>,
    ) -> Result<bool, Wrong> {
        let in_transaction = R::DEFINITION.is_in_transaction(&point);
        if pair.ended[1 - at] || (in_transaction && !S::CONCURRENT) {
            return Ok(false);
        }
        let status = self.look(pair, at).await?;
        let is_over = matches!(status, None | Some(Status::Completed | Status::DeadLetter));
        let may_expire = !is_over && !self.is_row_locked(pair);
        let due = |turn: &&Turn| turn.point == point && turn.visit == visit;
        let Some(turn) = schedule.turns.next_if(due) else {
            schedule.stops.push(Stop { point, visit, may_expire });
            return Ok(false);
        };
        schedule.stops.clear();
        self.expected.check_attempt(&self.world).await?;
        if turn.expires {
            self.expire(pair).await?;
        }
        Ok(true)
    }

    async fn worker(&self, index: usize, second: Driver) -> Result<Worker, Wrong> {
        let (who, driver) = match index {
            0 => (Who::First, Driver::Retry),
            _ => (Who::Another, second),
        };
        let orders = Orders { step_by_step: true, ..self.orders(who) };
        Ok(Worker::new(self.begin(orders, driver).await?))
    }

    /// Looks at the row after a step: no other task may take a live lease (G10).
    async fn look(&self, pair: &mut Pair, stepped: usize) -> Result<Option<Status>, Wrong> {
        let row = self.row().await?;
        let status = row.as_ref().map(|row| row.status);
        let token = row.as_ref().map(|row| row.lease_token);
        let now = row.filter(|row| row.status == Status::InProgress);
        let other = pair.workers[1 - stepped].as_ref();
        let other_stood = other.is_some_and(|other| other.stands.is_some());
        let kept = pair.held.as_ref().map(|held| (held.by, held.token));
        if let Some(held) = &pair.held
            && (held.by != stepped && held.alive && other_stood)
            && now.as_ref().map(|row| row.lease_token) != Some(held.token)
        {
            return Err(TAKEN.to_owned());
        }
        pair.held = now.map(|row| SeenLease {
            by: kept.filter(|kept| kept.1 == row.lease_token).map_or(stepped, |kept| kept.0),
            token: row.lease_token,
            alive: !row.lease_left.is_zero(),
        });
        if let Some(worker) = &mut pair.workers[stepped] {
            worker.token = token;
        }
        Ok(status)
    }

    /// Whether one of them has locked the row: none can make its lease run out.
    fn is_row_locked(&self, pair: &Pair) -> bool {
        let running = pair.workers.iter().zip(pair.ended).filter(|(_, ended)| !ended);
        let mut stood = running.filter_map(|(worker, _)| worker.as_ref()?.last.as_ref());
        stood.any(|point| R::DEFINITION.is_row_locked_at(point))
    }

    /// Each lease is over, and the clock has moved for both of them.
    async fn expire(&self, pair: &mut Pair) -> Result<(), Wrong> {
        self.pass_time().await?;
        pair.workers.iter().flatten().for_each(|worker| worker.begun.plan.mark_late());
        if let Some(held) = &mut pair.held {
            held.alive = false;
        }
        Ok(())
    }

    /// Before a worker that stood still continues: was it overtaken?
    async fn resume(&self, pair: &Pair, index: usize) -> Result<(), Wrong> {
        if let Some(worker) = &pair.workers[index]
            && worker.token.is_some()
            && worker.token != self.row().await?.map(|row| row.lease_token)
        {
            worker.begun.plan.mark_overtaken();
        }
        Ok(())
    }
}

/// For the developer who looks for the cause.
fn where_they_are(pair: &Pair) -> String {
    let passed = pair.workers.iter().flatten().map(|worker| listed(&worker.begun.plan.passed()));
    let passed =
        passed.enumerate().map(|(index, list)| format!("worker {} passed {list}", index + 1));
    passed.collect::<Vec<_>>().join("; ")
}
