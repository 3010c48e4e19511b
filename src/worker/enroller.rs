//! [`Enroller`]: finds requests whose holder died young, and enters them in the index of due rows.
//!
//! A request that runs its usual way is never in that index, and so one whose holder dies in its first
//! seconds is not either. The index of expiry has every row, in the order of creation as long as nodes
//! agree on the retention. Two walks read it:
//!
//! * the *young* walk follows the rows as they are created, a few seconds behind, and reads each once;
//! * the *full* walk reads all of them, at the start and then every
//!   [`full_sweep`](WorkerConfig::full_sweep): rows of another retention, and of a clock that was set back.
//!
//! A row that is still held when it is read is watched until its own lease ends. So a lease may be longer
//! on another node, and the database's clock may be set forward, behind which the lease ends sooner than it
//! was watched for: it is found all the same, within the lease that it has and a look (G17).

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::watched::Watched;
use super::{More, Stop, Worker, WorkerConfig};
use crate::engine::Engine;
use crate::moment::Moment;
use crate::setting::CENTURY;
use crate::store::{ExpiryPlace, HeldKey, KeySummary, Page, Status, Store, StoreError};

/// How old a request is at most when it first shows in the index of due rows: see `run_after` in the
/// guarded update. Plus what a commit may take.
const ENROLLED_BY: Duration = Duration::from_secs(10);

/// How far back the young walk begins. What died before that is found by the full walk.
const BEFORE_THE_START: Duration = Duration::from_secs(600);

/// How many rows of the index a search reads: some ten milliseconds.
const PAGE: u32 = 10_000;

/// How many times as long as a page of the full walk took the worker rests behind it, and how long at
/// most: a walk over any number of rows takes a fifth of one connection's time.
const REST_RATIO: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(5);

/// A part of the completer.
pub(super) struct Enroller<S: Store> {
    engine: Engine<S>,
    batch: u32,
    grace: Duration,
    poll: Duration,
    full_sweep: Duration,
    /// Up to which expiry the young walk has read what was visible late enough, and when it asked.
    read: Option<(DateTime<Utc>, Moment)>,
    young: Option<Walk>,
    full: Option<Walk>,
    /// When the last full walk began.
    swept: Option<Moment>,
    watched: Watched,
}

/// A read of a part of the index of expiry, a page at a time.
struct Walk {
    expiry: (DateTime<Utc>, DateTime<Utc>),
    place: ExpiryPlace,
    /// What has been read when it is over.
    reads: (DateTime<Utc>, Moment),
}

impl<S: Store> Enroller<S> {
    pub(super) fn new(engine: &Engine<S>, config: &WorkerConfig) -> Self {
        Self {
            engine: engine.clone(),
            batch: config.batch,
            grace: config.grace,
            poll: config.poll,
            full_sweep: config.full_sweep,
            read: None,
            young: None,
            full: None,
            swept: None,
            watched: Watched::default(),
        }
    }

    /// For a worker that looks once: the young walk to its end, and then the full one, until rows were
    /// entered.
    pub(super) async fn enrol_some(&mut self) -> Result<(), StoreError> {
        let mut entered = self.enter_watched(&Stop::default()).await?;
        entered += self.walk_young().await?;
        while self.young.is_some() && self.watched.has_room() {
            entered += self.walk_young().await?;
        }
        self.begin_full();
        while entered == 0 && self.full.is_some() && self.watched.has_room() {
            entered += self.walk_full().await?;
        }
        Ok(())
    }

    /// Enters rows whose lease has ended since they were read, a batch at most.
    async fn enter_watched(&mut self, stop: &Stop) -> Result<u32, StoreError> {
        let mut entered = 0;
        for _ in 0..self.batch {
            if stop.is_set() {
                break;
            }
            let Some(row) = self.watched.take_ended() else { break };
            entered += match self.held_for(&row).await {
                Ok(Some(Duration::ZERO)) => self.enter(row).await?,
                Ok(Some(left)) => self.watch(row, left),
                // Settled, or another holder's.
                Ok(None) | Err(StoreError::Unreadable { .. }) => 0,
                Err(error) => {
                    self.watched.insert(row, Moment::now());
                    return Err(error);
                }
            };
        }
        self.announce(entered);
        Ok(entered)
    }

    /// How long its holder still has the row, if it is that holder's.
    async fn held_for(&self, row: &HeldKey) -> Result<Option<Duration>, StoreError> {
        let found = self.engine.store().look(&row.scope, &row.key).await?;
        let is_the_same = |found: &KeySummary| {
            found.request_id == row.request_id
                && found.lease_token == row.lease_token
                && found.status == Status::InProgress
        };
        Ok(found.filter(is_the_same).map(|found| found.lease_left))
    }

    /// A page of the young walk, which begins where the last one ended.
    async fn walk_young(&mut self) -> Result<u32, StoreError> {
        let walk = match self.young.take() {
            Some(walk) => walk,
            None => self.young_walk().await?,
        };
        let (next, entered) = self.page(&walk).await?;
        match next {
            Some(place) => self.young = Some(Walk { place, ..walk }),
            None => self.read = Some(walk.reads),
        }
        Ok(entered)
    }

    async fn young_walk(&self) -> Result<Walk, StoreError> {
        let asked = Moment::now();
        let now = self.engine.store().database_time().await?;
        let settings = self.engine.settings();
        let born = |ago: Duration| now + settings.retention - ago;
        let (from, reads) = match self.read {
            // From where the last walk ended; by the clock of now where it was set back since.
            Some((read, then)) => {
                (read.min(born(ENROLLED_BY + asked.since(then))), born(ENROLLED_BY))
            }
            None => (born(BEFORE_THE_START.max(settings.lease) + ENROLLED_BY), born(ENROLLED_BY)),
        };
        // What is younger than that is read again. It is read now only where leases are that short.
        let to = born(settings.lease.min(ENROLLED_BY));
        Ok(Walk { expiry: (from, to), place: ExpiryPlace::default(), reads: (reads, asked) })
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

    async fn walk_full(&mut self) -> Result<u32, StoreError> {
        let Some(walk) = self.full.take() else { return Ok(0) };
        let read = self.page(&walk).await;
        match read {
            Ok((next, entered)) => {
                self.full = next.map(|place| Walk { place, ..walk });
                Ok(entered)
            }
            Err(error) => {
                self.full = Some(walk);
                Err(error)
            }
        }
    }

    /// Reads a page: enters rows whose lease has ended, and watches the others. Each is entered by a
    /// statement of its own, so that one that is locked keeps no other from it; behind one that fails the
    /// others are watched, and the page is read again.
    async fn page(&mut self, walk: &Walk) -> Result<(Option<ExpiryPlace>, u32), StoreError> {
        let found = self.engine.store().held(walk.expiry, &walk.place, PAGE).await?;
        let Page { rows, next } = found;
        let mut entered = 0;
        let mut failed = None;
        for row in rows {
            let left = row.lease_left;
            if left.is_zero() && failed.is_none() {
                match self.enter(row).await {
                    Ok(new) => entered += new,
                    Err(error) => failed = Some(error),
                }
            } else {
                self.watch(row, left);
            }
        }
        self.announce(entered);
        match failed {
            None => Ok((next, entered)),
            Some(error) => Err(error),
        }
    }

    /// Enters a row, or watches it on where another transaction holds it.
    async fn enter(&mut self, row: HeldKey) -> Result<u32, StoreError> {
        match self.engine.store().enrol(&row).await {
            Ok(is_ours) => Ok(is_ours.into()),
            Err(error) => {
                let is_locked = matches!(error, StoreError::Locked) || error.is_from_server();
                self.watched.insert(row, Moment::now());
                if is_locked { Ok(0) } else { Err(error) }
            }
        }
    }

    /// A holder may renew its lease, and then the row enters the index of due ones by itself. What comes
    /// first is the grace of its client.
    fn watch(&mut self, row: HeldKey, left: Duration) -> u32 {
        self.watched.insert(row, Moment::now().after(left + self.grace));
        0
    }

    fn announce(&self, entered: u32) {
        if entered > 0 {
            self.engine.wakeups().accepted.notify_one();
        }
    }
}

impl<S: Store> Worker for Enroller<S> {
    const NAME: &'static str = "completer";

    fn pace(&self) -> Duration {
        self.poll
    }

    async fn look(&mut self, stop: &Stop) -> Result<More, StoreError> {
        self.enter_watched(stop).await?;
        if stop.is_set() || !self.watched.has_room() {
            return Ok(More::No);
        }
        self.walk_young().await?;
        if !self.begin_full() {
            return Ok(if self.young.is_some() { More::Likely } else { More::No });
        }
        let began = tokio::time::Instant::now();
        self.walk_full().await?;
        let rest = (began.elapsed() * REST_RATIO).min(LONGEST_REST);
        tokio::select! {
            biased;
            () = stop.set() => {}
            () = tokio::time::sleep(rest) => {}
        }
        Ok(if self.young.is_some() || self.full.is_some() { More::Likely } else { More::No })
    }
}
