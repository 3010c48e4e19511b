//! [`RetryPolicy`]: how long, how often, and how patiently.

use std::time::Duration;

use crate::setting::{CENTURY, MILLISECOND, SettingError, duration, number};

/// How long a call may take in total, how many attempts it has, and how the waits grow.
///
/// ```
/// use std::time::Duration;
/// use atomic_phases::client::RetryPolicy;
///
/// let policy = RetryPolicy::new(Duration::from_secs(60))
///     .backoff(Duration::from_millis(100), Duration::from_secs(5))
///     .attempts(20);
/// // The third wait is from 200 to 400 ms; the random number says where.
/// assert_eq!(policy.backoff_after(3, 0), Duration::from_millis(200));
/// assert_eq!(policy.backoff_after(3, u32::MAX), Duration::from_millis(400));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    pub(super) deadline: Duration,
    pub(super) attempts: u32,
    pub(super) attempt_timeout: Duration,
    pub(super) repeat: Repeat,
    first: Duration,
    longest: Duration,
}

/// Which attempts may be repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeat {
    /// Any attempt with a transient failure: the server honors the key, so that a second attempt has no second
    /// effect.
    #[default]
    Keyed,
    /// Only an attempt that certainly had no effect of its own: it was not sent, or was answered
    /// with 409 (another one is running), 425 or 429. For a provider that honors no key; and for a caller that leaves
    /// further retries to another component, because then the last attempt's end is that of
    /// the whole call.
    WithoutEffect,
}

impl RetryPolicy {
    /// A call takes at most `deadline` in total, from the first attempt on. Defaults: waits of 0.2 to 10 seconds,
    /// 30 seconds for one attempt, any number of attempts.
    #[must_use]
    pub fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            attempts: u32::MAX,
            attempt_timeout: Duration::from_secs(30),
            repeat: Repeat::Keyed,
            first: Duration::from_millis(200),
            longest: Duration::from_secs(10),
        }
    }

    /// The first wait, doubled after each further attempt up to `longest`. The jitter subtracts up
    /// to half of each.
    #[must_use]
    pub fn backoff(self, first: Duration, longest: Duration) -> Self {
        Self { first, longest, ..self }
    }

    /// At most this many attempts.
    #[must_use]
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// How long one attempt may take, including connecting and reading; applied by the sender. Set it longer
    /// than the server's slowest regular answer, or each retry ends in a 409.
    #[must_use]
    pub fn attempt_timeout(self, attempt_timeout: Duration) -> Self {
        Self { attempt_timeout, ..self }
    }

    /// Which attempts may be repeated.
    #[must_use]
    pub fn repeat(self, repeat: Repeat) -> Self {
        Self { repeat, ..self }
    }

    /// Whether it can work. `Caller::send` asks before it sends anything; an application that calls
    /// [`decide`](super::decide) itself asks at its start.
    ///
    /// # Errors
    /// [`SettingError`] names the setting that cannot.
    pub fn check(&self) -> Result<(), SettingError> {
        duration("RetryPolicy::new", self.deadline, MILLISECOND, CENTURY)?;
        number("RetryPolicy::attempts", self.attempts, 1, u32::MAX.into())?;
        duration("RetryPolicy::attempt_timeout", self.attempt_timeout, MILLISECOND, CENTURY)?;
        // Without a pause, a client repeats a request as fast as the server refuses it.
        duration("RetryPolicy::backoff (the longest)", self.longest, MILLISECOND, CENTURY)?;
        duration("RetryPolicy::backoff (the first)", self.first, MILLISECOND, self.longest)
    }

    /// How long the attempt that begins `elapsed` after the first may take: the attempt timeout, or
    /// the time left until the deadline.
    #[must_use]
    pub fn time_for_attempt(&self, elapsed: Duration) -> Duration {
        self.attempt_timeout.min(self.deadline.saturating_sub(elapsed))
    }

    /// The wait after attempt `number` (from 1) if the server names none: `first · 2^(number-1)`,
    /// at most `longest`, less a random part of up to half of it. `random` is uniform over `u32`.
    ///
    /// Half of the wait is fixed, so that no client retries in a tight loop; the other half is random,
    /// so that clients which failed together do not retry together.
    #[must_use]
    pub fn backoff_after(&self, number: u32, random: u32) -> Duration {
        let doubled = 1_u32.checked_shl(number.saturating_sub(1)).unwrap_or(u32::MAX);
        let full = self.first.saturating_mul(doubled).min(self.longest);
        let half = full / 2;
        half + fraction(full - half, random)
    }
}

/// `random / u32::MAX` of `span`, in whole nanoseconds: integers, so that no rounding leaves the
/// bounds.
pub(super) fn fraction(span: Duration, random: u32) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let nanos = span.as_nanos() * u128::from(random) / u128::from(u32::MAX);
    // Both casts fit: the result is at most `span`.
    Duration::new((nanos / SECOND) as u64, (nanos % SECOND) as u32)
}
