//! Quotas (G16): what one scope may create, so that it cannot exhaust what others need. Off by default.
//!
//! Only the creation of a key is counted. A replay, a retry and a resume are always answered.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::Core;
use super::outcome::ExecuteError;
use crate::config::Quota;
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::store::Store;

/// How many more keys each scope may create at the moment.
#[derive(Default)]
pub(crate) struct Buckets(Mutex<HashMap<Scope, Bucket>>);

struct Bucket {
    left: f64,
    filled: Moment,
}

/// How many scopes are remembered. Beyond it those go whose bucket is full again, which is what a
/// scope that is not remembered has.
const REMEMBERED: usize = 100_000;

impl Buckets {
    /// Takes one out; or says when there will be one.
    fn take(&self, scope: &Scope, (burst, period): (u32, Duration)) -> Result<(), Duration> {
        let (burst, now) = (f64::from(burst), Moment::now());
        let refill = period.as_secs_f64() / burst;
        let level = |bucket: &Bucket| {
            let gained = now.since(bucket.filled).as_secs_f64() / refill;
            (bucket.left + gained).min(burst)
        };
        let mut buckets = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if buckets.len() >= REMEMBERED && !buckets.contains_key(scope) {
            buckets.retain(|_, bucket| level(bucket) < burst);
        }
        let left = buckets.get(scope).map_or(burst, level);
        if left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - left) * refill));
        }
        buckets.insert(scope.clone(), Bucket { left: left - 1.0, filled: now });
        Ok(())
    }
}

impl<S: Store, A> Core<S, A> {
    /// Whether the scope may create another key.
    pub(super) async fn admit(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<(), ExecuteError> {
        let Quota { keys, rate } = self.settings.quota;
        if let Some(rate) = rate
            && let Err(retry_after) = self.buckets.take(scope, rate)
        {
            return Err(ExecuteError::RateExceeded { limit: rate.0, period: rate.1, retry_after });
        }
        if let Some(limit) = keys.filter(|_| !key.is_keyless())
            && self.store.count_keys(scope, limit).await? >= limit
        {
            return Err(ExecuteError::TooManyKeys { limit });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g16_a_scope_that_is_out_of_tokens_takes_none_from_another() {
        let buckets = Buckets::default();
        let (one, other) = (Scope::new("one").unwrap(), Scope::new("other").unwrap());
        let rate = (3, Duration::from_secs(3600));
        for _ in 0..3 {
            assert_eq!(buckets.take(&one, rate), Ok(()));
        }
        let wait = buckets.take(&one, rate).unwrap_err();
        assert!(wait > Duration::from_secs(1190) && wait <= Duration::from_secs(1200), "{wait:?}");
        assert_eq!(buckets.take(&other, rate), Ok(()));
    }
}
