//! [`Enroller`]: finds requests whose holder died young, and enters them in the index of due rows.
//!
//! A request that runs its usual way is never in that index, and so one whose holder dies in its first
//! seconds is not either. The index of expiry has every row, in the order of creation as long as nodes
//! agree on the retention. These walks read it:
//!
//! * the *young* walk follows the rows as they are created, a few seconds behind, and reads each once;
//! * a second young walk follows so far behind that it also reads what a slow first [`Batch`](crate::Batch) has created: such
//!   a row has the time at which its batch began, and is visible when that has ended;
//! * the *full* walk reads all of them, at the start and then every
//!   [`full_sweep`](WorkerConfig::full_sweep): rows of another retention, and of a clock that was set back.
//!
//! A row is watched until its own lease ends, and then entered with the others whose lease has. So a lease may be longer
//! on another node, and the database's clock may be set forward, behind which the lease ends sooner than it
//! was watched for: it is found all the same, within the lease that it has and a poll (G17).

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::pace::rest_behind;
use super::watched::{WatchKey, Watched};
use super::{More, Stop, Worker, WorkerConfig};
use crate::config::Settings;
use crate::engine::Engine;
use crate::moment::Moment;
use crate::setting::CENTURY;
use crate::store::{Enrolled, ExpiryPlace, HeldKey, Store, StoreError};

/// How old a request is at most when it first shows in the index of due rows: see `run_after` in the
/// guarded update. Plus what a commit may take.
const ENROLLED_BY: Duration = Duration::from_secs(10);

/// The second young walk begins once in so many polls.
const POLLS_PER_LATE_WALK: u32 = 10;

/// How far back the young walks begin. What died before that is found by the full walk.
const BEFORE_THE_START: Duration = Duration::from_secs(600);

/// How many rows of the index a search reads: some ten milliseconds.
const PAGE: u32 = 10_000;

/// How many rows are entered by one statement at most: its locks, and what the completer has to run meanwhile.
const MAX_ROWS_PER_STATEMENT: usize = 500;

/// How many rows the server refuses in a row before the worker takes the reason for one that concerns all.
const MAX_REFUSED: u32 = 3;

/// What came of a batch of rows whose lease had ended.
#[derive(Default)]
struct Judged {
    entered: usize,
    /// Whether some were entered or had moved on: fewer are watched, and others may come next.
    more: bool,
}

impl Judged {
    fn add(&mut self, other: &Self) {
        self.entered += other.entered;
        self.more |= other.more;
    }
}

/// A part of the completer.
pub(super) struct Enroller<S: Store> {
    engine: Engine<S>,
    batch: u32,
    grace: Duration,
    poll: Duration,
    full_sweep: Duration,
    young: Vec<YoungWalk>,
    full: Option<Walk>,
    /// When the last full walk began.
    swept: Option<Moment>,
    watched: Watched,
}

/// Follows the rows as they are created, read by read.
struct YoungWalk {
    /// How old a row is when it is read first, and when it is read last.
    ages: (Duration, Duration),
    /// The shortest time between two reads.
    every: Duration,
    /// Up to which expiry it has read what was visible late enough, and when it asked.
    read: Option<(DateTime<Utc>, Moment)>,
    /// The read that is under way.
    walk: Option<Walk>,
}

impl YoungWalk {
    fn new(ages: (Duration, Duration), every: Duration) -> Self {
        Self { ages, every, read: None, walk: None }
    }

    fn is_due(&self) -> bool {
        self.read.is_none_or(|(_, asked)| asked.elapsed() >= self.every)
    }

    /// What it reads next, by a database's clock that said `now` after `asked`.
    fn next(&self, now: DateTime<Utc>, asked: Moment, settings: &Settings) -> Walk {
        let born = |ago: Duration| now + settings.retention - ago;
        let (first, last) = self.ages;
        let from = match self.read {
            // From where the last one ended; by the clock of now where it was set back since.
            Some((read, then)) => read.min(born(last + asked.since(then))),
            None => born(BEFORE_THE_START.max(settings.lease) + last),
        };
        let (expiry, reads) = ((from, born(first)), (born(last), asked));
        Walk { expiry, place: ExpiryPlace::default(), reads }
    }
}

/// A read of a part of the index of expiry, a page at a time.
#[derive(Clone)]
struct Walk {
    expiry: (DateTime<Utc>, DateTime<Utc>),
    place: ExpiryPlace,
    /// What has been read when it is over.
    reads: (DateTime<Utc>, Moment),
}

impl<S: Store> Enroller<S> {
    pub(super) fn new(engine: &Engine<S>, config: &WorkerConfig) -> Self {
        // What is younger than `ENROLLED_BY` is read again. It is read only where leases are that short.
        let first = engine.settings().lease.min(ENROLLED_BY);
        let mut young = vec![YoungWalk::new((first, ENROLLED_BY), Duration::ZERO)];
        young.extend(engine.longest_first_batch().map(|limit| {
            let late = ENROLLED_BY + limit;
            YoungWalk::new((late, late), config.poll.saturating_mul(POLLS_PER_LATE_WALK))
        }));
        Self {
            engine: engine.clone(),
            batch: config.batch,
            grace: config.grace,
            poll: config.poll,
            full_sweep: config.full_sweep,
            young,
            full: None,
            swept: None,
            watched: Watched::default(),
        }
    }

    /// For a worker that polls once: the young walks to their end, and then the full one, until rows were
    /// entered. No more than it takes to run: the rest waits for the next call. Says how many were entered.
    pub(super) async fn enrol_some(&mut self) -> Result<usize, StoreError> {
        let stop = Stop::default();
        let known = self.enter_until_some(&stop).await?;
        if known >= self.most() {
            return Ok(known);
        }
        self.walk_young().await?;
        while self.is_young_under_way() && self.watched.has_room() {
            self.walk_young().await?;
        }
        let mut entered = self.enter_until_some(&stop).await?;
        self.begin_full();
        while entered == 0 && self.full.is_some() && self.watched.has_room() {
            self.walk_full().await?;
            entered = self.enter_until_some(&stop).await?;
        }
        Ok(known + entered)
    }

    /// Batch after batch, past any number of rows that have moved on or are locked, until some are entered.
    async fn enter_until_some(&mut self, stop: &Stop) -> Result<usize, StoreError> {
        for _ in 0..self.watched.count_ended().div_ceil(self.most()) {
            let entered = self.enter_ended(stop).await?.entered;
            if entered > 0 {
                return Ok(entered);
            }
        }
        Ok(0)
    }

    /// How many rows one statement enters at most.
    fn most(&self) -> usize {
        MAX_ROWS_PER_STATEMENT.min(self.batch as usize)
    }

    /// Enters rows whose lease has ended since they were read, a batch at most: by one statement, and where that
    /// cannot be executed, each by one of its own, so that one that the server refuses blocks no other.
    async fn enter_ended(&mut self, stop: &Stop) -> Result<Judged, StoreError> {
        let (places, rows): (Vec<_>, Vec<_>) = self.watched.ended(self.most()).into_iter().unzip();
        if rows.is_empty() {
            return Ok(Judged::default());
        }
        match self.engine.store().enrol_keys(&rows).await {
            Ok(enrolled) => Ok(self.settle(&places, &enrolled)),
            Err(StoreError::Locked) => {
                self.watch_on(&places);
                Ok(Judged::default())
            }
            Err(error) if error.may_be_of_one() => self.enter_each(&places, &rows, stop).await,
            Err(error) => {
                self.watch_on(&places);
                Err(error)
            }
        }
    }

    /// Those that the server refuses are tried again behind the others. Where it refuses several and takes none, the
    /// reason is not one of theirs.
    async fn enter_each(
        &mut self,
        places: &[WatchKey],
        rows: &[HeldKey],
        stop: &Stop,
    ) -> Result<Judged, StoreError> {
        let (mut judged, mut refused) = (Judged::default(), 0);
        for (place, row) in places.chunks(1).zip(rows.chunks(1)) {
            if stop.is_set() {
                break;
            }
            match self.engine.store().enrol_keys(row).await {
                Ok(enrolled) => judged.add(&self.settle(place, &enrolled)),
                Err(error) => {
                    self.watch_on(place);
                    refused += 1;
                    let is_of_all = !judged.more && refused >= MAX_REFUSED;
                    if is_of_all || !error.may_be_of_one() {
                        return Err(error);
                    }
                }
            }
        }
        Ok(judged)
    }

    /// What came of each.
    fn settle(&mut self, places: &[WatchKey], enrolled: &[Enrolled]) -> Judged {
        let mut judged = Judged::default();
        for (place, enrolled) in places.iter().zip(enrolled) {
            match *enrolled {
                Enrolled::Entered => {
                    judged.entered += 1;
                    judged.more = true;
                    self.watched.forget(*place);
                }
                Enrolled::Gone => {
                    judged.more = true;
                    self.watched.forget(*place);
                }
                // Another transaction has locked it.
                Enrolled::Held(Duration::ZERO) => self.watched.watch_on(*place, Moment::now()),
                Enrolled::Held(left) => self.watched.watch_on(*place, self.until(left)),
            }
        }
        if judged.entered > 0 {
            self.engine.wakeups().accepted.notify_one();
        }
        judged
    }

    /// None of them was entered.
    fn watch_on(&mut self, places: &[WatchKey]) {
        places.iter().for_each(|place| self.watched.watch_on(*place, Moment::now()));
    }

    /// A page of each young walk that is under way; if none is, of each that is due.
    async fn walk_young(&mut self) -> Result<(), StoreError> {
        let is_under_way = self.is_young_under_way();
        for nth in 0..self.young.len() {
            let walk = match &self.young[nth].walk {
                Some(walk) => walk.clone(),
                None if is_under_way || !self.young[nth].is_due() => continue,
                None => {
                    let asked = Moment::now();
                    let now = self.engine.store().database_time().await?;
                    let walk = self.young[nth].next(now, asked, self.engine.settings());
                    // A call that is dropped, or that fails, leaves it to the next one.
                    self.young[nth].walk.insert(walk).clone()
                }
            };
            let next = self.page(&walk).await?;
            let young = &mut self.young[nth];
            if next.is_none() {
                young.read = Some(walk.reads);
            }
            young.walk = next.map(|place| Walk { place, ..walk });
        }
        Ok(())
    }

    fn is_young_under_way(&self) -> bool {
        self.young.iter().any(|young| young.walk.is_some())
    }

    /// Begins the full walk where it is time for one. Whether one is under way.
    fn begin_full(&mut self) -> bool {
        let now = Moment::now();
        let is_due = self.swept.is_none_or(|then| now.since(then) >= self.full_sweep);
        if self.full.is_none() && is_due {
            let ever = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + CENTURY * 5);
            let place = ExpiryPlace::default();
            self.full = Some(Walk { expiry: ever, place, reads: (ever.1, now) });
            self.swept = Some(now);
        }
        self.full.is_some()
    }

    async fn walk_full(&mut self) -> Result<(), StoreError> {
        let Some(walk) = self.full.clone() else { return Ok(()) };
        // Behind an error, and where this future is dropped meanwhile, the walk goes on with the same page.
        let next = self.page(&walk).await?;
        self.full = next.map(|place| Walk { place, ..walk });
        Ok(())
    }

    /// Reads a page. All of its rows are watched: those whose lease has ended are entered next.
    async fn page(&mut self, walk: &Walk) -> Result<Option<ExpiryPlace>, StoreError> {
        let found = self.engine.store().held_keys(walk.expiry, &walk.place, PAGE).await?;
        for row in found.rows {
            let until = match row.lease_left {
                Duration::ZERO => Moment::now(),
                left => self.until(left),
            };
            self.watched.insert(row, until);
        }
        Ok(found.next)
    }

    /// A holder may renew its lease, and then the row enters the index of due ones by itself. What comes
    /// first is the grace of its client.
    fn until(&self, lease_left: Duration) -> Moment {
        Moment::now().after(lease_left + self.grace)
    }
}

impl<S: Store> Worker for Enroller<S> {
    const NAME: &'static str = "completer";

    fn pace(&self) -> Duration {
        self.poll
    }

    async fn poll_once(&mut self, stop: &Stop) -> Result<More, StoreError> {
        // What is known is entered, whether the search can be executed or not.
        let walked = match self.watched.has_room() {
            true => self.walk_young().await,
            false => Ok(()),
        };
        let entered = self.enter_ended(stop).await?;
        walked?;
        if stop.is_set() {
            return Ok(More::No);
        }
        if entered.more && self.watched.count_ended() > 0 {
            return Ok(More::Likely);
        }
        if !self.watched.has_room() {
            return Ok(More::No);
        }
        if !self.begin_full() {
            return Ok(if self.is_young_under_way() { More::Likely } else { More::No });
        }
        let began = tokio::time::Instant::now();
        self.walk_full().await?;
        let rest = rest_behind(began.elapsed());
        if self.enter_ended(stop).await?.more && self.watched.count_ended() > 0 {
            return Ok(More::Likely);
        }
        stop.rest(rest).await;
        let is_more = self.is_young_under_way() || self.full.is_some();
        Ok(if is_more { More::Likely } else { More::No })
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::store::Sqlite;

    /// As by a scheduler that gives `run_once` a time limit.
    #[tokio::test]
    async fn g13_a_full_walk_that_is_given_up_goes_on_at_the_next_call() {
        let store = Sqlite::connect(":memory:").await.unwrap();
        store.migrate().await.unwrap();
        let engine = Engine::builder(store).registered().build().unwrap();
        let mut enroller = Enroller::new(&engine, &WorkerConfig::default());
        assert!(enroller.begin_full());
        assert!(enroller.walk_full().now_or_never().is_none(), "it waits for its page");
        assert!(enroller.begin_full(), "it is to be gone on with");
        enroller.walk_full().await.unwrap();
        assert!(!enroller.begin_full(), "it is over, and the next is an hour away");
    }
}
