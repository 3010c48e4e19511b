//! Quotas (G16): what one scope may create, so that it cannot exhaust what others need. Off by default.
//!
//! Only the creation of a key is counted. A replay, a retry and a resume are always answered.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

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
    /// Rung when one ends.
    ended_one: Arc<Notify>,
    /// How many calls look at this.
    users: usize,
    /// The keys, and how many calls are about to create each.
    keys: HashMap<IdempotencyKey, usize>,
}

impl Creations {
    /// How many may not be among those that a count saw which began when `ended` had ended.
    fn uncounted(&self, ended: u64) -> u64 {
        self.begun - ended
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
        self.change(scope, |creations| creations.users += 1);
        let _looking = Looking(self, scope);
        loop {
            let ended = self.change(scope, |creations| creations.ended);
            let left = u64::from(limit.saturating_sub(count().await?));
            if left == 0 {
                return Err(CallError::TooManyKeys { limit });
            }
            let most = (left / PARTS_OF_THE_REST).max(LEAST_AT_A_TIME).min(left);
            let waiting = self.change(scope, |creations| {
                if creations.uncounted(ended) < most || mutated!(CountCommittedOnly) {
                    creations.begun += 1;
                    return None;
                }
                // Listens from here on: who ends later is heard.
                let is_counted = creations.begun == creations.ended;
                Some((!is_counted).then(|| creations.ended_one.clone().notified_owned()))
            });
            match waiting {
                None => return Ok(self.begin(scope, key, Counts::Yes, token)),
                // All of them ended while it counted.
                Some(None) if tokio::time::Instant::now() < until => continue,
                Some(None) => {}
                Some(Some(ended_one)) => {
                    let ended_one = tokio::time::timeout_at(until, ended_one);
                    if let Some(Ok(())) = caller.unless_gone(ended_one).await {
                        continue;
                    }
                }
            }
            return Err(CallError::CreatingOthers { limit, retry_after: WAIT });
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
    use super::*;

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
