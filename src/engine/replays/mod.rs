//! [`Replays`]: finished answers, read through a cache that may lose, keep, swap and make up what it likes.
//!
//! What keeps each guarantee, whatever the cache does: a value opens only for the request that it was sealed for
//! (`seal`), so that another request, or a lie, is judged by the row (G9); it was sealed after its commit (G8); it
//! ends, by the database's clock, before its key expires and a short while after its commit (`time`), which
//! bounds what an erasure that the cache has lost can cost; and it can only answer: no call runs, waits or writes a
//! row because of it.
//!
//! A hint that a request is in progress has the place of its answer, under the same seal, while a foreign call is under
//! way. It ends with the lease that its holder knew of, or sooner, so that no cache can keep a retry from the row for
//! longer (G17).

mod breaker;
mod seal;
mod time;
mod tombstones;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;

use self::breaker::Breaker;
pub(super) use self::seal::Whose;
use self::seal::{Entry, MAX_BYTES, Opened, Seal};
use self::time::{DatabaseTime, Now};
use self::tombstones::{Tombstone, UnconfirmedTombstones};
use super::Core;
use crate::key::{IdempotencyKey, Scope};
use crate::lock::lock;
use crate::moment::Moment;
use crate::observe;
use crate::panics;
use crate::replay_cache::{CacheError, CachedReplays};
use crate::store::{Store, StoredResponse};
use crate::task;

/// How many entries are on their way into the cache at most. What comes on top of that is not written, or waits.
const MAX_WRITES: usize = 256;

/// A tombstone outlives the entries that it hides by so much: the cache's clock may be off, and an entry that
/// was committed just before the row was erased is younger than its tombstone.
const SLACK: Duration = Duration::from_secs(60);

/// How long an answer that is to be written waits to hear the database's time.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// How long an erasure waits for its tombstone.
const BURIAL_LIMIT: Duration = Duration::from_secs(1);

/// Before the cache is asked again for a tombstone that it has not confirmed.
const BURIAL_PAUSE: Duration = Duration::from_secs(1);

/// Before the end of its key an entry ends by so much, at most: what the engine knows of the database's clock is up to
/// a minute old.
const BEFORE_EXPIRY: Duration = Duration::from_secs(60);

pub(crate) struct Replays {
    cached: CachedReplays,
    seal: Seal,
    breaker: Breaker,
    time: Arc<DatabaseTime>,
    writes: Arc<Semaphore>,
    /// Of the erasures that the cache has not confirmed.
    unconfirmed: Mutex<UnconfirmedTombstones>,
    before_expiry: Duration,
}

/// What the cache says of a request.
pub(super) enum CacheAnswer {
    Answer(Entry),
    /// It is in progress, most likely for longer than this.
    InProgress(Duration),
}

/// What was written about the request so far, or is on its way. What is to stand in its place is written behind it.
#[derive(Clone)]
pub(super) struct Hint(Shared<BoxFuture<'static, ()>>);

/// What becomes of a write while as many as there may be are on their way, or the cache is left alone.
enum WhenBusy {
    /// It is left out.
    Skip,
    /// It waits for the others, within the time limit, and is sent: what the cache has in its place is wrong.
    Wait,
}

impl Replays {
    pub(super) fn new(cached: CachedReplays, retention: Duration) -> Self {
        Self {
            seal: Seal::new(&cached.secret),
            cached,
            breaker: Breaker::default(),
            time: Arc::default(),
            writes: Arc::new(Semaphore::new(MAX_WRITES)),
            unconfirmed: Mutex::default(),
            before_expiry: BEFORE_EXPIRY.min(retention / 10),
        }
    }

    /// What the cache has of this very request, if it counts still.
    pub(super) async fn ask(&self, store: &impl Store, whose: &Whose<'_>) -> Option<CacheAnswer> {
        if !self.breaker.admits() {
            observe::replay_cache_unasked();
            return None;
        }
        let name = self.seal.name(whose.scope, whose.key);
        let tombstones = [
            self.seal.tombstone(whose.scope, Some(whose.key)),
            self.seal.tombstone(whose.scope, None),
        ];
        let limit = self.cached.time_limit;
        let found = self.within(limit, async {
            // One byte more than is ever written: what is longer does not open.
            let tombstones = tombstones.each_ref().map(String::as_str);
            self.cached.cache.get(&name, tombstones, MAX_BYTES + 1).await
        });
        let Some(value) = found.await.ok()?.filter(|value| !value.is_empty()) else {
            observe::replay_cache_missed(whose.definition);
            return None;
        };
        let answer = match self.seal.open(whose, &value) {
            Some(opened) => self.still_counts(store, opened).await,
            None => None,
        };
        match &answer {
            Some(CacheAnswer::Answer(_)) => observe::replay_cache_hit(whose.definition),
            Some(CacheAnswer::InProgress(_)) => observe::replay_cache_hinted(whose.definition),
            None => observe::replay_cache_unusable(whose.definition),
        }
        answer
    }

    /// Judged by the latest time that the database's clock may show.
    async fn still_counts(&self, store: &impl Store, opened: Opened) -> Option<CacheAnswer> {
        let now = self.time.now(store, self.cached.time_limit).await?.at_the_latest;
        match opened {
            Opened::Answer(entry) => (now < entry.until).then_some(CacheAnswer::Answer(entry)),
            Opened::InProgress { until } => {
                let left = (until - now).to_std().ok().filter(|left| !left.is_zero());
                left.map(CacheAnswer::InProgress)
            }
        }
    }

    /// Waits for the writes that are on their way, within the time limit.
    async fn turn_to_write(&self) -> Option<OwnedSemaphorePermit> {
        let turn = self.writes.clone().acquire_owned();
        tokio::time::timeout(self.cached.time_limit, turn).await.ok()?.ok()
    }

    /// Within a time limit, and counted by the breaker.
    async fn within<T>(
        &self,
        limit: Duration,
        answering: impl Future<Output = Result<T, CacheError>>,
    ) -> Result<T, CacheError> {
        let caught = panics::catch_async(answering);
        let answer = match tokio::time::timeout(limit, caught).await {
            Ok(Some(answer)) => answer,
            Ok(None) | Err(_) => Err(CacheError::Unavailable),
        };
        match &answer {
            Ok(_) => self.breaker.answered(),
            Err(CacheError::Refused) => {
                observe::replay_cache_refused();
                self.breaker.answered();
            }
            Err(CacheError::Unavailable) => {
                observe::replay_cache_failed();
                self.breaker.failed();
            }
        }
        answer
    }

    fn tombstone(&self, scope: &Scope, key: Option<&IdempotencyKey>) -> Tombstone {
        Tombstone {
            name: self.seal.tombstone(scope, key),
            answer: key.map(|key| self.seal.name(scope, key)),
            of_scope: self.seal.tombstone(scope, None),
        }
    }

    /// Whether the cache has confirmed the tombstone. It is asked also where it has failed lately.
    async fn buries(&self, tombstone: &Tombstone) -> bool {
        let keep_for = self.cached.keep_for + SLACK;
        let buried = self.within(BURIAL_LIMIT, async {
            self.cached.cache.bury(&tombstone.name, tombstone.answer.as_deref(), keep_for).await
        });
        buried.await.is_ok()
    }

    /// Again and again, until the cache confirms it or no entry counts any more. One task does so for all erasures.
    fn keep_burying(self: &Arc<Self>, tombstone: Tombstone) {
        let mut unconfirmed = lock(&self.unconfirmed);
        unconfirmed.add(tombstone, Moment::now().after(self.cached.keep_for));
        if unconfirmed.task.as_ref().is_none_or(JoinHandle::is_finished) {
            let replays = self.clone();
            unconfirmed.task = Some(task::spawn(async move { replays.bury_one_by_one().await }));
        }
    }

    /// A cache that refuses one tombstone is asked for the next one after a pause, and one that confirms it immediately.
    async fn bury_one_by_one(&self) {
        tokio::time::sleep(BURIAL_PAUSE).await;
        loop {
            let Some((tombstone, until)) = lock(&self.unconfirmed).next(Moment::now()) else {
                return;
            };
            if !self.buries(&tombstone).await {
                lock(&self.unconfirmed).add(tombstone, until);
                tokio::time::sleep(BURIAL_PAUSE).await;
            }
        }
    }
}

/// What is to stand in the cache, and for how long.
type Value = (Vec<u8>, Duration);

impl<S: Store> Core<S> {
    /// Puts an answer that is durable into the cache, if there is one, behind the hint that it replaces. `sent`: a moment
    /// before its commit was sent.
    pub(super) fn remember(
        self: &Arc<Self>,
        whose: &Whose<'_>,
        response: StoredResponse,
        expires_at: DateTime<Utc>,
        sent: Moment,
        hint: Option<Hint>,
    ) {
        self.put_behind(hint, whose, WhenBusy::Skip, move |replays, whose, now| {
            // From the earliest time at which it may have been committed: whatever this process was kept from since then,
            // a tombstone that came after the commit is there for longer.
            let committed_at = now.at_the_earliest - sent.elapsed();
            let until =
                (committed_at + replays.cached.keep_for).min(expires_at - replays.before_expiry);
            let keep_for = (until - now.at_the_earliest).to_std().ok()?;
            Some((replays.seal.seal(whose, until, expires_at, &response)?, keep_for))
        });
    }

    /// Puts a hint into the cache, if it takes some, that the request is in progress: `lease_left` is for how long
    /// its holder knows. `before`: the last hint of this run.
    pub(super) fn hint(
        self: &Arc<Self>,
        before: Option<Hint>,
        whose: &Whose<'_>,
        lease_left: Duration,
    ) -> Option<Hint> {
        let hint_for = self.replays.as_ref()?.cached.hint_for?;
        let ends = Moment::now().after(hint_for.min(lease_left));
        self.put_behind(before, whose, WhenBusy::Skip, move |replays, whose, now| {
            let left = ends.since(Moment::now());
            let until = now.at_the_earliest + left;
            (!left.is_zero()).then(|| (replays.seal.seal_hint(whose, until), left))
        })
    }

    /// Takes a hint back: its call has ended.
    pub(super) fn withdraw(self: &Arc<Self>, whose: &Whose<'_>, hint: Hint) -> Option<Hint> {
        let nothing = (Vec::new(), Duration::from_millis(1));
        self.put_behind(Some(hint), whose, WhenBusy::Wait, |_, _, _| Some(nothing))
    }

    /// Waits until the cache was told that the request is not in progress any more, within the time limit: a caller that
    /// has received the answer receives no hint afterwards.
    pub(super) async fn withdrawn(&self, Hint(written): Hint) {
        if let Some(replays) = &self.replays {
            let _ = tokio::time::timeout(replays.cached.time_limit, written).await;
        }
    }

    /// Writes a value on a task of its own, behind the hint. Returns what a later write is to stand behind.
    fn put_behind(
        self: &Arc<Self>,
        hint: Option<Hint>,
        whose: &Whose<'_>,
        when_busy: WhenBusy,
        value: impl FnOnce(&Replays, &Whose<'_>, Now) -> Option<Value> + Send + 'static,
    ) -> Option<Hint> {
        let replays = self.replays.as_ref()?;
        // A key that no client knows is not asked for again.
        if whose.key.is_keyless() {
            return hint;
        }
        let write = match when_busy {
            WhenBusy::Skip => match replays.writes.clone().try_acquire_owned() {
                Ok(write) if replays.breaker.admits() => Some(write),
                _ => {
                    observe::replay_cache_unasked();
                    return hint;
                }
            },
            WhenBusy::Wait => None,
        };
        let (core, replays) = (self.clone(), replays.clone());
        let (scope, key) = (whose.scope.clone(), whose.key.clone());
        let (definition, fingerprint) = (whose.definition, whose.fingerprint.to_owned());
        let writing = task::spawn(async move {
            if let Some(Hint(written)) = hint {
                written.await;
            }
            let write = if write.is_some() { write } else { replays.turn_to_write().await };
            let Some(_write) = write else { return observe::replay_cache_unasked() };
            let Some(now) = replays.time.now(&core.store, WRITE_LIMIT).await else { return };
            let whose = Whose { scope: &scope, key: &key, definition, fingerprint: &fingerprint };
            let Some((value, keep_for)) = value(&replays, &whose, now) else { return };
            let name = replays.seal.name(&scope, &key);
            let put = async { replays.cached.cache.put(&name, value, keep_for).await };
            let _ = replays.within(replays.cached.time_limit, put).await;
        });
        Some(Hint(writing.map(drop).boxed().shared()))
    }
}

impl<S: Store> Core<S> {
    /// Erases under a tombstone. It is there before the row is erased, unless the cache is left alone, so that a crash
    /// between the two leaves nothing to be told; and afterwards for longer than any entry of an answer that was erased. A
    /// task of its own does it, because the caller of the erasure may go away in between.
    pub(super) async fn buried<T>(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        erasing: impl Future<Output = T>,
    ) -> T {
        let Some(replays) = &self.replays else { return erasing.await };
        let (asked, may_erase) = oneshot::channel();
        let (erased, has_erased) = oneshot::channel::<()>();
        let (replays, scope, key) = (replays.clone(), scope.clone(), key.cloned());
        let burial = task::spawn(async move {
            let tombstone = replays.tombstone(&scope, key.as_ref());
            let began = Moment::now();
            // A cache that is left alone would only be waited for.
            let is_buried = replays.breaker.admits() && replays.buries(&tombstone).await;
            let _ = asked.send(());
            // Or its caller is gone, and it may have been written or not.
            let _ = has_erased.await;
            // What finished while the erasure took its time may have entries that outlive the first tombstone.
            let is_buried = is_buried && began.elapsed() < SLACK / 2;
            if !is_buried && !replays.buries(&tombstone).await {
                observe::replay_cache_not_buried(&scope, key.as_ref(), replays.cached.keep_for);
                replays.keep_burying(tombstone);
            }
        });
        let _ = may_erase.await;
        let result = erasing.await;
        drop(erased);
        let _ = burial.await;
        result
    }
}
