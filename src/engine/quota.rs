//! Quotas (G16): what one scope may create, so that it cannot exhaust what others need. Off by default.
//!
//! Only the creation of a key is counted. A replay, a retry and a resume are always answered.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::Core;
use super::creation::Creation;
use super::outcome::CallError;
use crate::caller::Caller;
use crate::config::Quota;
use crate::key::{IdempotencyKey, Scope};
use crate::lock::lock;
use crate::moment::Moment;
use crate::store::{Store, StoreError};

/// How many more keys each scope may create at the moment.
#[derive(Clone, Default)]
pub(crate) struct RateLimits(Arc<Mutex<HashMap<Scope, Bucket>>>);

struct Bucket {
    left: f64,
    filled: Moment,
}

/// How many scopes are remembered. Beyond it those go whose bucket is full again, which is what a
/// scope that is not remembered has.
const REMEMBERED: usize = 100_000;

/// How many keys a process creates at a time for one scope: this part of what its limit leaves, but so many at least.
const PARTS_OF_THE_REST: u64 = 16;
const LEAST_AT_A_TIME: u64 = 2;

impl RateLimits {
    /// Takes one out; or says when there will be one.
    fn take(&self, scope: &Scope, (burst, period): (u32, Duration)) -> Result<(), Duration> {
        let (burst, now) = (f64::from(burst), Moment::now());
        let refill = period.as_secs_f64() / burst;
        let level = |bucket: &Bucket| {
            let gained = now.since(bucket.filled).as_secs_f64() / refill;
            (bucket.left + gained).min(burst)
        };
        let mut rate_limits = lock(&self.0);
        if rate_limits.len() >= REMEMBERED && !rate_limits.contains_key(scope) {
            rate_limits.retain(|_, bucket| level(bucket) < burst);
        }
        let left = rate_limits.get(scope).map_or(burst, level);
        if left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - left) * refill));
        }
        rate_limits.insert(scope.clone(), Bucket { left: left - 1.0, filled: now });
        Ok(())
    }

    /// Puts one back.
    fn give_back(&self, scope: &Scope) {
        let mut rate_limits = lock(&self.0);
        if let Some(bucket) = rate_limits.get_mut(scope) {
            bucket.left += 1.0;
        }
    }
}

/// A token that was taken of a scope's rate for a key. Given back when it is dropped, unless the key was created by then,
/// or a commit that may have created it got no answer.
struct RateToken {
    rate_limits: RateLimits,
    scope: Scope,
    creation: Arc<Creation>,
}

impl Drop for RateToken {
    fn drop(&mut self) {
        let is_spent = self.creation.is_committed() || self.creation.is_unknown();
        let is_spent = match is_spent {
            true => !mutated!(RateGivenBack),
            false => mutated!(RateKeptOfFailed),
        };
        if !is_spent {
            self.rate_limits.give_back(&self.scope);
        }
    }
}

/// How long a call waits for others of its process that are creating keys in front of it.
const WAIT: Duration = Duration::from_secs(5);

/// The keys that this process is creating, by scope: a count in the database may see them or not.
#[derive(Clone, Default)]
pub(crate) struct Creating(Arc<Mutex<HashMap<Scope, Creations>>>);

#[derive(Default)]
struct Creations {
    begun: u64,
    ended: u64,
    /// How many counts have begun.
    counts: u64,
    /// Whether one is under way.
    is_counting: bool,
    /// One call at a time counts, and waits for others to end. Those behind it go by its count, if they can: however many
    /// wait for room, the database counts for one of them (G16).
    turn: Arc<tokio::sync::Mutex<Counted>>,
    /// Rung when one ends.
    ended_one: Arc<Notify>,
    /// How many calls look at this.
    users: usize,
    /// The keys, and how many calls are about to create each.
    keys: HashMap<IdempotencyKey, usize>,
}

/// What the last count came to.
#[derive(Clone, Copy, Default)]
struct Counted {
    /// Which of the counts it was, from 1.
    number: u64,
    /// How many creations had ended when it began.
    ended: u64,
    /// How many keys the limit leaves.
    left: u64,
}

impl Counted {
    /// How many keys this process creates at a time.
    fn most(self) -> u64 {
        (self.left / PARTS_OF_THE_REST).max(LEAST_AT_A_TIME).min(self.left)
    }
}

/// What a call does that has its turn.
enum Next {
    Create,
    Refuse,
    /// As the count of this number, when so many had ended.
    Count {
        number: u64,
        ended: u64,
    },
    WaitFor(OwnedNotified),
}

impl Creations {
    /// What a call does that came when `came` counts had begun. It goes by a later one: what these saw may have expired.
    fn next(&mut self, counted: Counted, came: u64) -> Next {
        let is_later = counted.number > came;
        if is_later && counted.left == 0 {
            return Next::Refuse;
        }
        // Those that had not ended may not be among what it saw.
        let uncounted = self.begun - counted.ended;
        if is_later && (uncounted < counted.most() || mutated!(CountCommittedOnly)) {
            self.begun += 1;
            return Next::Create;
        }
        if is_later && counted.ended == self.ended {
            // Listens from here on: who ends later is heard.
            return Next::WaitFor(self.ended_one.clone().notified_owned());
        }
        self.counts += 1;
        Next::Count { number: self.counts, ended: self.ended }
    }
}

/// Whether a key counts against a number of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Yes,
    No,
}

/// A key that is being created: until it is committed, or is not. Ends by itself when it is dropped.
pub(super) struct Admission {
    creating: Creating,
    scope: Scope,
    key: IdempotencyKey,
    counts: Counts,
    ended: AtomicBool,
    _token: Option<RateToken>,
}

impl Admission {
    /// The key has its row.
    pub(super) fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.creating.change(&self.scope, |creations| {
                creations.ended += u64::from(self.counts == Counts::Yes);
                creations.ended_one.notify_waiters();
                creations.users -= 1;
                if let Some(calls) = creations.keys.get_mut(&self.key) {
                    *calls -= 1;
                    if *calls == 0 {
                        creations.keys.remove(&self.key);
                    }
                }
            });
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.end();
    }
}

/// A scope's creations, which are remembered while a call of this scope is under way.
struct Looking<'a>(&'a Creating, &'a Scope);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |creations| creations.users -= 1);
    }
}

/// A count of a scope's keys that is under way.
struct IsCounting<'a>(&'a Creating, &'a Scope);

impl<'a> IsCounting<'a> {
    fn begin(creating: &'a Creating, scope: &'a Scope) -> Self {
        creating.change(scope, |creations| creations.is_counting = true);
        Self(creating, scope)
    }
}

impl Drop for IsCounting<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |creations| creations.is_counting = false);
    }
}

impl Creating {
    fn change<R>(&self, scope: &Scope, change: impl FnOnce(&mut Creations) -> R) -> R {
        let mut scopes = lock(&self.0);
        let creations = scopes.entry(scope.clone()).or_default();
        let changed = change(creations);
        if creations.users == 0 {
            scopes.remove(scope);
        }
        changed
    }

    /// Whether a call of this process is about to create the key.
    fn has(&self, scope: &Scope, key: &IdempotencyKey) -> bool {
        let scopes = lock(&self.0);
        scopes.get(scope).is_some_and(|creations| creations.keys.contains_key(key))
    }

    fn begin(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        counts: Counts,
        token: Option<RateToken>,
    ) -> Admission {
        self.change(scope, |creations| {
            creations.users += 1;
            *creations.keys.entry(key.clone()).or_default() += 1;
        });
        let (creating, scope, key) = (self.clone(), scope.clone(), key.clone());
        Admission { creating, scope, key, counts, ended: AtomicBool::new(false), _token: token }
    }

    /// Admits one more key, if with it there are `limit` at most, by `count` and by what it may not have
    /// seen.
    ///
    /// Other processes count for themselves. So that they cannot exceed the limit by much, each of them
    /// creates no more than a [part](PARTS_OF_THE_REST) of what is left at a time.
    async fn admit<F>(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        limit: u32,
        caller: &Caller,
        token: Option<RateToken>,
        count: impl Fn() -> F,
    ) -> Result<Admission, CallError>
    where
        F: Future<Output = Result<u32, StoreError>>,
    {
        let until = tokio::time::Instant::now() + WAIT;
        let (came, turn) = self.change(scope, |creations| {
            creations.users += 1;
            (creations.counts, creations.turn.clone())
        });
        let _looking = Looking(self, scope);
        // Not the quota, but the store, has kept those waiting that had no turn because of a count.
        let waited_in_vain = || match self.change(scope, |creations| creations.is_counting) {
            true => CallError::Unavailable(StoreError::TimeLimit),
            false => CallError::CreatingOthers { limit, retry_after: WAIT },
        };
        let its_turn = tokio::time::timeout_at(until, turn.lock());
        let Some(Ok(mut counted)) = caller.unless_gone(its_turn).await else {
            return Err(waited_in_vain());
        };
        loop {
            match self.change(scope, |creations| creations.next(*counted, came)) {
                Next::Create => return Ok(self.begin(scope, key, Counts::Yes, token)),
                Next::Refuse => return Err(CallError::TooManyKeys { limit }),
                Next::Count { number, ended } if tokio::time::Instant::now() < until => {
                    let counting = IsCounting::begin(self, scope);
                    let left = u64::from(limit.saturating_sub(count().await?));
                    drop(counting);
                    *counted = Counted { number, ended, left };
                }
                Next::Count { .. } => return Err(waited_in_vain()),
                Next::WaitFor(ended_one) => {
                    let ended_one = tokio::time::timeout_at(until, ended_one);
                    let Some(Ok(())) = caller.unless_gone(ended_one).await else {
                        return Err(waited_in_vain());
                    };
                }
            }
        }
    }
}

impl<S: Store> Core<S> {
    /// Whether the scope may create another key. The admission is to be held until that key has its row, or turns out
    /// to get none by this call.
    pub(super) async fn admit(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        caller: &Caller,
        creation: &Arc<Creation>,
    ) -> Result<Option<Arc<Admission>>, CallError> {
        let Quota { keys, rate } = self.settings.quota;
        let token = rate.map(|rate| self.take(scope, rate, creation)).transpose()?;
        let admission = match keys.filter(|_| !key.is_keyless()) {
            None if token.is_none() => return Ok(None),
            None => self.creating.begin(scope, key, Counts::No, token),
            Some(limit) => {
                let count =
                    || async move { reading!("count_keys", self.store.count_keys(scope, limit)) };
                self.creating.admit(scope, key, limit, caller, token, count).await?
            }
        };
        Ok(Some(Arc::new(admission)))
    }

    fn take(
        &self,
        scope: &Scope,
        rate @ (limit, period): (u32, Duration),
        creation: &Arc<Creation>,
    ) -> Result<RateToken, CallError> {
        let (scope, creation) = (scope.clone(), creation.clone());
        match self.rate_limits.take(&scope, rate) {
            Ok(()) => Ok(RateToken { rate_limits: self.rate_limits.clone(), scope, creation }),
            Err(retry_after) => Err(CallError::RateExceeded { limit, period, retry_after }),
        }
    }

    /// Whether a call of this process is about to create the key: a duplicate of it is not a new key.
    pub(super) fn is_creating(&self, scope: &Scope, key: &IdempotencyKey) -> bool {
        self.creating.has(scope, key)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use futures_util::future::{join, join_all, join4};
    use tokio::time::{sleep, timeout};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    async fn admit<F>(
        creating: &Creating,
        name: &str,
        limit: u32,
        caller: &Caller,
        count: impl Fn() -> F,
    ) -> Result<Admission, CallError>
    where
        F: Future<Output = Result<u32, StoreError>>,
    {
        let (scope, key) = (Scope::single_tenant(), IdempotencyKey::new(name).unwrap());
        creating.admit(&scope, &key, limit, caller, None, count).await
    }

    /// A hundred calls that find room for two at a time, and whose first phases fail: each end makes room for one.
    #[tokio::test(start_paused = true)]
    async fn g16_calls_that_wait_for_room_do_not_all_count_again_when_one_ends() {
        let (creating, counts) = (&Creating::default(), &AtomicU32::new(0));
        let count = || async move {
            counts.fetch_add(1, Ordering::Relaxed);
            sleep(5 * MS).await;
            Ok::<u32, StoreError>(198)
        };
        let calls = (0..100).map(|number: u32| async move {
            let name = number.to_string();
            let admission = admit(creating, &name, 200, &Caller::here(), count).await;
            sleep(20 * MS).await;
            admission.map(drop)
        });
        let admitted = join_all(calls).await;
        assert!(admitted.iter().all(Result::is_ok), "each of them in its time");
        let counts = counts.load(Ordering::Relaxed);
        assert!(counts <= 2 * 100, "{counts} counts for 100 calls");
    }

    #[tokio::test(start_paused = true)]
    async fn g16_calls_that_come_during_a_count_go_by_the_next_one_together() {
        let (creating, counts) = (&Creating::default(), &AtomicU32::new(0));
        let count = || async move {
            counts.fetch_add(1, Ordering::Relaxed);
            sleep(5 * MS).await;
            Ok::<u32, StoreError>(0)
        };
        let calls = (0..100).map(|number: u32| async move {
            admit(creating, &number.to_string(), 10_000, &Caller::here(), count).await
        });
        assert!(join_all(calls).await.iter().all(Result::is_ok));
        assert_eq!(counts.load(Ordering::Relaxed), 2, "the first call's, and the others'");
    }

    /// That is not told as the quota's doing.
    #[tokio::test(start_paused = true)]
    async fn g12_a_call_behind_a_count_that_takes_long_hears_of_the_store() {
        let creating = &Creating::default();
        let count = || async move {
            sleep(2 * WAIT).await;
            Ok::<u32, StoreError>(0)
        };
        let here = Caller::here();
        let (one, other) = join(
            admit(creating, "one", 10, &here, count),
            admit(creating, "other", 10, &here, count),
        )
        .await;
        assert!(one.is_ok());
        assert!(matches!(other, Err(CallError::Unavailable(StoreError::TimeLimit))));
    }

    /// What a count saw that began before may have expired since.
    #[tokio::test(start_paused = true)]
    async fn g16_a_call_is_refused_by_a_count_that_began_after_it_came() {
        let (creating, stored) = (&Creating::default(), &AtomicU32::new(1));
        let count = || async move {
            let seen = stored.swap(0, Ordering::Relaxed);
            sleep(5 * MS).await;
            Ok::<u32, StoreError>(seen)
        };
        let here = Caller::here();
        let first = admit(creating, "first", 1, &here, count);
        let second = async {
            sleep(MS).await;
            admit(creating, "second", 1, &here, count).await
        };
        let (first, second) = join(first, second).await;
        assert!(matches!(first, Err(CallError::TooManyKeys { limit: 1 })));
        assert!(second.is_ok());
    }

    /// One gives up while it counts, one while it waits for room, and the caller of one is gone.
    #[tokio::test(start_paused = true)]
    async fn g16_g17_a_call_that_gives_up_leaves_its_turn_to_the_next() {
        let creating = &Creating::default();
        let count = || async move {
            sleep(5 * MS).await;
            Ok::<u32, StoreError>(0)
        };
        let here = Caller::here();
        let held = admit(creating, "held", 1, &here, count).await.unwrap();
        let counts = timeout(2 * MS, admit(creating, "counts", 1, &here, count));
        let waits = timeout(100 * MS, admit(creating, "waits", 1, &here, count));
        let (present, caller) = Caller::elsewhere();
        let leaves = admit(creating, "leaves", 1, &caller, count);
        let stays = async {
            // Behind the others.
            sleep(MS).await;
            admit(creating, "stays", 1, &here, count).await
        };
        let ends = async {
            sleep(200 * MS).await;
            drop(present);
            sleep(100 * MS).await;
            drop(held);
        };
        let (gave_up, left, stayed, ()) = join4(join(counts, waits), leaves, stays, ends).await;
        assert!(gave_up.0.is_err() && gave_up.1.is_err());
        assert!(matches!(left, Err(CallError::CreatingOthers { limit: 1, .. })));
        assert!(stayed.is_ok());
        drop(stayed);
        assert!(lock(&creating.0).is_empty(), "the scope is forgotten");
    }

    #[test]
    fn g16_a_scope_that_is_out_of_tokens_takes_none_from_another() {
        let rate_limits = RateLimits::default();
        let (one, other) = (Scope::new("one").unwrap(), Scope::new("other").unwrap());
        let rate = (3, Duration::from_secs(3600));
        for _ in 0..3 {
            assert_eq!(rate_limits.take(&one, rate), Ok(()));
        }
        let wait = rate_limits.take(&one, rate).unwrap_err();
        assert!(wait > Duration::from_secs(1190) && wait <= Duration::from_secs(1200), "{wait:?}");
        assert_eq!(rate_limits.take(&other, rate), Ok(()));
    }

    #[test]
    fn g16_what_creates_no_key_takes_nothing_of_the_rate() {
        fn is_given_back(end: impl FnOnce(&Creation)) -> bool {
            let (rate_limits, creation) = (RateLimits::default(), Arc::<Creation>::default());
            let (scope, rate) = (Scope::single_tenant(), (1, Duration::from_secs(3600)));
            assert_eq!(rate_limits.take(&scope, rate), Ok(()));
            let token =
                RateToken { rate_limits: rate_limits.clone(), scope: scope.clone(), creation };
            end(&token.creation);
            drop(token);
            rate_limits.take(&scope, rate).is_ok()
        }
        assert!(is_given_back(|_| {}), "its first phase has failed, or its key had a row");
        assert!(!is_given_back(|creation| {
            creation.committed("pay");
        }));
        assert!(!is_given_back(Creation::unanswered), "it may have been created");
    }
}
