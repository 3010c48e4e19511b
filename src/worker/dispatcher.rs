//! [`Dispatcher`]: the loop of completer, reconciler and enqueuer. It searches, begins what it may, and
//! continues searching while work is under way.
//!
//! Its bounds and pauses:
//!
//! * a search reads at most `batch` rows of an index, from where the last one stopped; at the index's
//!   end a *pass* is over, and the next one begins at the front;
//! * a search that brought nothing to begin is followed by a rest of four times what it took (five
//!   seconds at most): behind any number of rows that it passes over, a worker spends a fifth of one
//!   connection's time. Where nothing continues, the next one reads [`PAGE`] rows, so that it is past them soon;
//! * what becomes due stands at the end of the index. Where a pass is of several pages, a search looks there for a
//!   wakeup and about every `poll`, so that no scope waits until a pass is through the rows of another (G16). Between two
//!   such looks it reads a page of the pass, however many wakeups come: only the pass finds what was passed over or
//!   has rested (G17);
//! * a bounded number of rows waits in the process ([`Backlog`]);
//! * a pass is followed by a rest of about `poll`. It ends early for a wakeup, or when work has ended
//!   behind which there may be more;
//! * a row that was left alone or failed is not looked at again for a while ([`Rests`]);
//! * after an error of the store the rest doubles each time, up to half a minute.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::backlog::{Backlog, Candidate, Pushed};
use super::pace::{PAGE, Pace, SearchEnd};
use super::pass::{PassBudget, Until};
use super::rests::Rests;
use super::settlements::GATHERS;
use super::slots::Slots;
use super::source::{Searching, Settled, Source};
use super::{WorkerConfig, shuffle};
use crate::observe;
use crate::setting::SettingError;
use crate::store::{Page, StoreError};

/// How many rows wait in the process at most, in batches, and how many may at least. What does not fit is found again.
const BATCHES_WAITING: usize = 10;
const WAITING: usize = 1000;

/// Which part of the index a search reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The next of the pass.
    Next,
    /// What has become due of late.
    End,
}

/// Whether a piece of work counts against the batch of a single pass. What came to nothing does not: a worker
/// that is started anew each time begins at the front, and must come past any number of such rows.
#[derive(PartialEq, Eq)]
enum Counts {
    Yes,
    No,
}

pub(super) struct Dispatcher<T: Source> {
    source: T,
    checked: Result<(), SettingError>,
    batch: u32,
    poll: Duration,
    slots: Slots<Id<T>, Ended<T>>,
    backlog: Backlog<T::Found>,
    rests: Rests,
    /// Where the pass continues. `None`: it begins at the front of the index.
    place: Option<T::Place>,
    /// Where a look at the end of the index begins, if a pass is of several pages. Behind it is what has become due of
    /// late, and what the source refuses because it is early.
    end: Option<T::Place>,
    /// Where the look at the end goes on, if it has left some behind that was early.
    look: Option<T::Place>,
}

type Id<T> = <<T as Source>::Found as Candidate>::Id;

/// A row as it was found.
type RowState<T> = (Id<T>, [i64; 2]);

/// A row, and its outcome.
type Ended<T> = (RowState<T>, <T as Source>::Ended);

impl<T: Source> Dispatcher<T> {
    pub(super) fn new(source: T, config: &WorkerConfig) -> Self {
        Self {
            source,
            checked: config.check(),
            batch: config.batch,
            poll: config.poll,
            slots: Slots::new(
                config.concurrency,
                if T::CLAIMS_AHEAD { config.batch as usize } else { 0 },
            ),
            // Two at least: jobs of a bounded name get half of a queue, and leave a place for others.
            backlog: Backlog::new(config.batch.max(2)),
            rests: Rests::new(),
            place: None,
            end: None,
            look: None,
        }
    }

    /// Whether the numbers can work.
    pub(super) fn check(&self) -> Result<(), SettingError> {
        self.checked.clone()
    }

    pub(super) fn source(&mut self) -> &mut T {
        &mut self.source
    }

    /// Works off what is due, from where the last pass stopped to the end of the index, up to a batch;
    /// ends what it began. Says how much of the batch is left.
    pub(super) async fn one_pass(&mut self) -> Result<u32, StoreError> {
        self.pass_of(self.batch).await
    }

    /// As [`one_pass`](Self::one_pass), up to this much.
    pub(super) async fn pass_of(&mut self, most: u32) -> Result<u32, StoreError> {
        self.backlog.clear();
        let mut until = Until::PassEnds(PassBudget::new(most));
        self.work(&mut until, std::future::pending()).await?;
        Ok(match until {
            Until::PassEnds(pass) => pass.left(),
            Until::Shutdown => 0,
        })
    }

    /// Works until `stop` is ready; what it has begun, it ends.
    pub(super) async fn forever(&mut self, stop: impl Future<Output = ()> + Send) {
        // It ends for `stop`, or does not begin: errors of the store are followed by a rest.
        if let Err(error) = self.work(&mut Until::Shutdown, stop).await {
            observe::worker_failed(self.source.name(), error.kind());
        }
    }

    async fn work(
        &mut self,
        until: &mut Until,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), StoreError> {
        self.check()?;
        let mut stop = pin!(stop);
        let mut pace = Pace::new();
        let mut searching: Option<Searching<T::Found, T::Place>> = None;
        let mut part = Part::Next;
        loop {
            let begun = self.fill();
            let (limit, stalls_at) = match &mut *until {
                Until::Shutdown => (pace.page(self.batch), None),
                Until::PassEnds(pass) => {
                    let limit = count(pass, begun, &mut self.backlog, &pace);
                    if limit == 0 && searching.is_none() && self.slots.is_empty() {
                        return pass.failed.take().map_or(Ok(()), Err);
                    }
                    (limit, pass.stalls_at(self.backlog.len()))
                }
            };
            let wants_more = limit > 0 && self.slots.is_free() && searching.is_none();
            if wants_more && pace.next() <= Instant::now() {
                let (next, from, limit) = self.next_search(until, part, &pace, limit);
                part = next;
                pace.begin_search();
                searching = Some(self.source.search(from, limit));
                continue;
            }
            let free_at = self.slots.free_at();
            tokio::select! {
                biased;
                () = &mut stop => break,
                (row, ended) = self.slots.ended(), if !self.slots.is_empty() => {
                    let came_to_nothing = self.settle_all(row, ended, &mut pace).await;
                    if let Until::PassEnds(pass) = &mut *until {
                        pass.came_to_nothing(came_to_nothing);
                    }
                }
                found = answer(&mut searching), if searching.is_some() => {
                    searching = None;
                    self.take_answer(found, part, until, &mut pace);
                }
                () = at(stalls_at) => {}
                () = sleep_until(pace.next()), if wants_more => {}
                () = at(free_at) => {}
                () = self.source.wakeup(), if wants_more && pace.failures == 0 => pace.wake(),
            }
        }
        // A search that is polled no more must not keep the connection that it was given.
        drop(searching);
        self.source.stop();
        while !self.slots.is_empty() {
            let (row, ended) = self.slots.ended().await;
            self.settle(row, ended, &mut pace);
        }
        Ok(())
    }

    /// Which part of the index to search next, from which place, and for how many rows: `limit`, if the pass goes on.
    fn next_search(
        &self,
        until: &Until,
        last: Part,
        pace: &Pace,
        limit: u32,
    ) -> (Part, T::Place, u32) {
        // Of two searches one goes on with the pass: wakeups could come faster than one search behind another.
        let may_look = matches!(until, Until::Shutdown) && last == Part::Next;
        let end = self.look.as_ref().or(self.end.as_ref());
        match end.filter(|_| may_look && pace.is_to_look_at_the_end()) {
            Some(end) => (Part::End, end.clone(), self.batch.max(PAGE)),
            None => (Part::Next, self.place.clone().unwrap_or_default(), limit),
        }
    }

    fn take_answer(
        &mut self,
        found: Result<Page<T::Found, T::Place>, StoreError>,
        part: Part,
        until: &mut Until,
        pace: &mut Pace,
    ) {
        match (found, until) {
            (Ok(page), until) => {
                observe::worker_polled(self.source.name());
                let most = match until {
                    Until::Shutdown => (self.batch as usize * BATCHES_WAITING).max(WAITING),
                    Until::PassEnds(pass) => pass.left() as usize,
                };
                self.take_page(page, part, most, pace);
            }
            // What was begun is ended first.
            (Err(error), Until::PassEnds(pass)) => {
                pace.in_pass = false;
                self.backlog.clear();
                pass.failed = Some(error);
            }
            (Err(error), Until::Shutdown) => {
                observe::worker_failed(self.source.name(), error.kind());
                pace.failed(self.poll);
            }
        }
    }

    /// Begins what may begin, and says how many.
    fn fill(&mut self) -> u32 {
        let (mut begun, mut together) = (0, 0);
        while self.backlog.len() > 0 && self.slots.is_free() {
            let room = self.slots.room();
            let may_begin = |found: &T::Found| {
                let is_its_turn = found.may_go_ahead() || room.has_slot_for(found.scope());
                is_its_turn && self.source.may_begin(found)
            };
            let next = self.backlog.take(|scope| room.held_by(scope), may_begin);
            let Some(found) = next else { break };
            let (id, scope, state) = (found.id(), found.scope().clone(), found.state());
            let may_go_ahead = found.may_go_ahead();
            let row = (id.clone(), state);
            let work = self.source.begin(found);
            self.slots.begin(id, scope, may_go_ahead, async move { (row, work.await) });
            begun += 1;
            together += 1;
            if together == self.batch {
                self.source.begun();
                together = 0;
            }
        }
        self.source.begun();
        begun
    }

    /// `most`: how many may wait.
    fn take_page(
        &mut self,
        page: Page<T::Found, T::Place>,
        part: Part,
        most: usize,
        pace: &mut Pace,
    ) {
        let Page { mut rows, next } = page;
        // In an order of its own on each node (H19), so that they do not all race for the same rows.
        shuffle(&mut rows);
        let (mut queued, mut has_early) = (false, false);
        let spins = mutated!(NoRest) && !rows.is_empty();
        let room = self.slots.room();
        for row in rows {
            has_early |= self.source.is_early(&row);
            let id = row.id();
            let is_known = self.slots.holds(&id) || self.backlog.holds(&id);
            let is_resting = self.rests.is_resting(&(&id, row.state()));
            if is_known || is_resting || !self.source.admits(&row) {
                continue;
            }
            // It keeps none of another kind out of the queue.
            let room_of_kind = self.source.room_of_kind(&row);
            if room_of_kind.is_some() && self.backlog.has_half(&row) {
                pace.passed_over = true;
                continue;
            }
            // Nor do those of any number of scopes, where they only wait for others of their kind.
            let is_blocked = room_of_kind.is_some_and(|room| {
                self.backlog.startable(&row) >= room || !self.source.may_begin(&row)
            });
            let is_startable = !is_blocked && room.has_share_left(row.scope());
            let pushed = match is_blocked {
                true => self.backlog.push_blocked(row, most),
                false => self.backlog.push(row, most),
            };
            match pushed {
                Pushed::Alone => queued |= is_startable,
                Pushed::InPlaceOfAnother => {
                    queued |= is_startable;
                    pace.passed_over = true;
                }
                Pushed::TurnedAway => pace.passed_over = true,
            }
        }
        // Behind a full page at the end there is more.
        let is_more = part == Part::End || next.is_some();
        pace.ended_search(SearchEnd { queued, is_more }, self.poll);
        match part {
            Part::Next => self.read(next),
            Part::End => self.read_the_end(has_early, next, pace),
        }
        if spins && !queued {
            (pace.earliest, pace.planned) = (Instant::now(), Instant::now());
        }
    }

    /// The pass goes on, or has ended.
    fn read(&mut self, next: Option<T::Place>) {
        let read_from = std::mem::replace(&mut self.place, next);
        if self.place.is_some() {
            return;
        }
        match read_from {
            // The pass was of one page.
            None => (self.end, self.look) = (None, None),
            // From then on the looks move it: the last page of a pass may be behind something early.
            Some(last) => {
                self.end.get_or_insert(last);
            }
        }
    }

    /// The pass goes on where it was, or begins. The next look begins behind the full pages before the first with something
    /// early.
    fn read_the_end(&mut self, has_early: bool, next: Option<T::Place>, pace: &mut Pace) {
        match next {
            Some(next) if has_early || self.look.is_some() => self.look = Some(next),
            Some(next) => self.end = Some(next),
            None => {
                self.look = None;
                pace.looked_at_the_end(self.poll);
            }
        }
    }

    /// With what ends in the next moment, where work waits ahead of its turn, so that more begins together again. Says
    /// how much of it came to nothing.
    async fn settle_all(&mut self, row: RowState<T>, ended: T::Ended, pace: &mut Pace) -> u32 {
        let mut came_to_nothing = u32::from(self.settle(row, ended, pace) == Counts::No);
        let began = Instant::now();
        while self.slots.is_ahead() {
            let gathers = if self.slots.is_well_ahead() { GATHERS * 4 } else { GATHERS };
            tokio::select! {
                biased;
                () = sleep_until(began + gathers) => break,
                (row, ended) = self.slots.ended(), if !self.slots.is_empty() => {
                    came_to_nothing += u32::from(self.settle(row, ended, pace) == Counts::No);
                }
            }
        }
        came_to_nothing
    }

    fn settle(&mut self, row: RowState<T>, ended: T::Ended, pace: &mut Pace) -> Counts {
        match self.source.settle(ended) {
            Settled::Progress => {
                pace.progressed();
                return Counts::Yes;
            }
            Settled::MoreBehind => {
                pace.progressed();
                pace.search_again();
                return Counts::Yes;
            }
            Settled::Lost => {}
            Settled::Left => self.rests.leave(&(&row.0, row.1)),
            Settled::Failed => self.rests.fail(&(&row.0, row.1)),
        }
        pace.fruitless(self.poll);
        Counts::No
    }
}

/// Counts what has begun in a single pass, and says how many rows its next search may find.
fn count<C: Candidate>(
    pass: &mut PassBudget,
    begun: u32,
    backlog: &mut Backlog<C>,
    pace: &Pace,
) -> u32 {
    pass.count(begun, backlog.len());
    if !pace.in_pass && pass.leaves_what_waits() {
        backlog.clear();
    }
    if pace.in_pass { pass.limit(backlog.len()) } else { 0 }
}

/// Ready at that moment, if there is one.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn answer<C, P>(searching: &mut Option<Searching<C, P>>) -> Result<Page<C, P>, StoreError> {
    match searching {
        Some(searching) => searching.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
