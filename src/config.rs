//! The settings of an engine, set through [`EngineBuilder`](crate::engine::EngineBuilder): every number, with its
//! reason.

use std::time::Duration;

use crate::chance::shortened;
pub use crate::derived_key::{DerivedKeys, SecretTooShort};
pub use crate::setting::SettingError;
use crate::setting::{CENTURY, DAY, HOUR, LEASE, MILLISECOND, duration, number};
use crate::store::Hold;

/// What happens to a call whose key another holder is running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDuplicate {
    /// Answer [`Outcome::InProgress`](crate::Outcome::InProgress) immediately.
    #[default]
    Answer,
    /// Wait at most this long for the other holder to finish, and answer with its replay. Also wait for an unknown
    /// outcome, if it is to be reconciled within that time.
    Wait(Duration),
}

/// The engine's numbers. Set by the methods of [`EngineBuilder`](crate::engine::EngineBuilder).
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// How long a holder keeps its row without a heartbeat. Renewed at a third of it while a request
    /// runs, so one or two lost renewals do not lose the lease. 30 s: how long a client waits for a
    /// request whose process died.
    pub(crate) lease: Duration,
    /// How long a finished key replays. 24 h, as the Stripe API.
    pub(crate) retention: Duration,
    /// How long a call waits for the first commit of another one of its key. 1 s: that commit takes
    /// milliseconds, unless something is wrong.
    pub(crate) creation_wait: Duration,
    pub(crate) on_duplicate: OnDuplicate,
    /// How often a lease of one request is acquired before it is a dead letter.
    pub(crate) max_attempts: u32,
    /// How often the engine re-runs a local phase after a serialization failure, a deadlock or a
    /// lost connection.
    pub(crate) max_reruns: u32,
    /// Back-off after the first attempt; doubles with each further one.
    pub(crate) back_off: Duration,
    /// Longest back-off.
    pub(crate) max_back_off: Duration,
    /// How long an unknown outcome rests before it is reconciled.
    pub(crate) reconcile_after: Duration,
    /// How often it is looked into before it is a dead letter. 20, with back-off: about half a day.
    pub(crate) max_reconciles: u32,
    /// The margin before the end of a provider's window within which no call is repeated: the call may
    /// take a while, and two clocks never agree exactly (G11).
    pub(crate) window_margin: Duration,
    /// How often the engine reads which phases operators have paused. 5 s: an operator waits for it.
    pub(crate) pauses_every: Duration,
    pub(crate) limits: Limits,
    /// Which header lines of a reply are stored and replayed, in lower case. The others (a cookie, a
    /// date, a request id) belong to the one answer that they were made for.
    pub(crate) stored_headers: Vec<String>,
    pub(crate) quota: Quota,
    /// Whether a job tells of each request that begins to wait for a reconcile function or an operator.
    pub(crate) notifies_waiting: bool,
    /// How many scopes have series of their own among the metrics.
    pub(crate) scopes_in_metrics: Option<usize>,
}

/// Caps on the sizes of stored values, in bytes.
///
/// ```
/// use atomic_phases::config::Limits;
///
/// let limits = Limits::default().params(64 << 10).reply_body(4 << 20);
/// # let _ = limits;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Limits {
    pub(crate) params: usize,
    pub(crate) context: usize,
    pub(crate) outputs: usize,
    pub(crate) reply_headers: usize,
    pub(crate) reply_body: usize,
    pub(crate) job_args: usize,
}

/// Headers that describe the result, not the exchange (`w74_*` in `tests/http`).
const STORED_HEADERS: [&str; 8] = [
    "location",
    "content-location",
    "etag",
    "last-modified",
    "link",
    "content-type",
    // The stored bytes are the encoded ones.
    "content-encoding",
    "content-language",
];

/// By which the HTTP boundary marks a replay, unless its policy names another header.
pub(crate) const REPLAY_MARKER: &str = "idempotent-replayed";

/// Headers that no replay takes from the stored reply: those of one exchange or one connection (RFC 9110, 7.6.1), and those
/// that the HTTP boundary or a layer in front of it sets on each answer.
pub(crate) const NEVER_STORED: [&str; 18] = [
    "connection",
    "content-length",
    "date",
    "idempotency-expires",
    "idempotency-key",
    REPLAY_MARKER,
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "retry-after",
    "set-cookie",
    "stripe-should-retry",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
];

/// Caps for each scope; see [`EngineBuilder::quota`](crate::engine::EngineBuilder::quota).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Quota {
    pub(crate) keys: Option<u32>,
    pub(crate) rate: Option<(u32, Duration)>,
}

impl Quota {
    /// Allows at most `keys` stored keys sent by the scope's clients and not past their
    /// retention: running, waiting, or finished and still replayed. They are counted in the database, by one more
    /// statement for each new key, or for several that arrive together: a process counts the keys of a scope once at a
    /// time. A count reads at most `keys` entries of an index, and 10,000 entries of expired keys that the reaper has not
    /// yet deleted.
    ///
    /// The limit is exact within a process: if the remaining quota is uncertain, calls wait for earlier calls that are
    /// creating keys, at most five seconds. Processes do not see each other's uncommitted keys. Each of them
    /// creates at most a sixteenth of the remaining quota concurrently, but at least two; each further process
    /// may exceed the limit by that many.
    pub fn keys(mut self, keys: u32) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Allows at most `requests` new keys in each `period`, as a token bucket that refills evenly, with `requests` as
    /// the largest burst. Each process counts separately: with four nodes, allow each a quarter.
    ///
    /// Only keys that are created count. A duplicate, a key that [`keys`](Self::keys) refuses, and a call whose first
    /// phase fails and leaves no row, give back what they took when they end. Each such call still costs the database a
    /// reservation and a rollback; to limit how often a scope's calls may fail, limit them in front of the engine. A
    /// commit that gets no answer counts.
    pub fn rate(mut self, requests: u32, period: Duration) -> Self {
        self.rate = Some((requests, period));
        self
    }
}

impl OnDuplicate {
    pub(crate) fn check(self) -> Result<(), SettingError> {
        match self {
            Self::Answer => Ok(()),
            Self::Wait(bound) => duration("on_duplicate (Wait)", bound, Duration::ZERO, DAY),
        }
    }
}

impl Limits {
    /// Serialized parameters; default 256 KiB.
    pub fn params(self, bytes: usize) -> Self {
        Self { params: bytes, ..self }
    }

    /// Serialized context; default 16 KiB.
    pub fn context(self, bytes: usize) -> Self {
        Self { context: bytes, ..self }
    }

    /// Serialized outputs of all phases of one request; default 1 MiB.
    pub fn outputs(self, bytes: usize) -> Self {
        Self { outputs: bytes, ..self }
    }

    /// Header lines of a reply; default 16 KiB.
    pub fn reply_headers(self, bytes: usize) -> Self {
        Self { reply_headers: bytes, ..self }
    }

    /// Body of a reply; default 1 MiB. A larger one reaches the first caller and is not retained.
    pub fn reply_body(self, bytes: usize) -> Self {
        Self { reply_body: bytes, ..self }
    }

    /// Serialized arguments of all jobs that one phase stages; default 1 MiB.
    pub fn job_args(self, bytes: usize) -> Self {
        Self { job_args: bytes, ..self }
    }

    fn check(&self) -> Result<(), SettingError> {
        // PostgreSQL holds less than 1 GB in a value, and a hex digit for each half byte of it in a message.
        const MAX_BYTES: u64 = 256 << 20;
        number("Limits::params", self.params, 4, MAX_BYTES)?;
        number("Limits::context", self.context, 0, MAX_BYTES)?;
        number("Limits::outputs", self.outputs, 2, MAX_BYTES)?;
        number("Limits::reply_headers", self.reply_headers, 2, MAX_BYTES)?;
        number("Limits::reply_body", self.reply_body, 0, MAX_BYTES)?;
        number("Limits::job_args", self.job_args, 0, MAX_BYTES)
    }
}

impl Quota {
    fn check(self) -> Result<(), SettingError> {
        if let Some(keys) = self.keys {
            number("Quota::keys", keys, 1, u32::MAX.into())?;
        }
        if let Some((requests, period)) = self.rate {
            number("Quota::rate (requests)", requests, 1, u32::MAX.into())?;
            duration("Quota::rate (period)", period, MILLISECOND, DAY * 366)?;
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            params: 256 << 10,
            context: 16 << 10,
            outputs: 1 << 20,
            reply_headers: 16 << 10,
            reply_body: 1 << 20,
            job_args: 1 << 20,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(24 * 3600),
            creation_wait: Duration::from_secs(1),
            on_duplicate: OnDuplicate::default(),
            max_attempts: 20,
            max_reruns: 5,
            back_off: Duration::from_secs(1),
            max_back_off: Duration::from_secs(300),
            reconcile_after: Duration::from_secs(30),
            max_reconciles: 20,
            window_margin: Duration::from_secs(300),
            pauses_every: Duration::from_secs(5),
            limits: Limits::default(),
            stored_headers: STORED_HEADERS.map(str::to_owned).to_vec(),
            quota: Quota::default(),
            notifies_waiting: false,
            scopes_in_metrics: None,
        }
    }
}

impl Settings {
    /// Whether all settings are valid.
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        let month = DAY * 30;
        // Counts are kept as 32-bit integers, by which databases count too.
        let most = i32::MAX as u64;
        duration("lease", self.lease, LEASE.0, LEASE.1)?;
        duration("retention", self.retention, self.lease, CENTURY)?;
        duration("creation_wait", self.creation_wait, MILLISECOND, HOUR)?;
        self.on_duplicate.check()?;
        number("max_attempts", self.max_attempts, 1, most)?;
        duration("back_off (the longest)", self.max_back_off, Duration::ZERO, month)?;
        // Zero doubled is zero: a request that fails would use up its attempts within moments.
        let least = MILLISECOND.min(self.max_back_off);
        duration("back_off (the first)", self.back_off, least, self.max_back_off)?;
        duration("reconcile_after", self.reconcile_after, Duration::ZERO, month)?;
        number("max_reconciles", self.max_reconciles, 1, most)?;
        duration("window_margin", self.window_margin, Duration::ZERO, CENTURY)?;
        duration("pauses_every", self.pauses_every, MILLISECOND * 10, DAY)?;
        if let Some(most) = self.scopes_in_metrics {
            number("scopes_in_metrics", most, 1, 1000)?;
        }
        self.limits.check()?;
        self.quota.check()
    }

    /// When to ask again about a row whose holder has `lease_left`. A holder that lives renews at a
    /// third of the lease, so with more than half of it left it gives signs, and may end at any moment.
    /// With less it is late or dead, and nothing happens before the lease ends.
    pub(crate) fn ask_again_after(&self, lease_left: Duration) -> Duration {
        const A_FEW_SECONDS: Duration = Duration::from_secs(2);
        match lease_left > self.lease / 2 {
            true => lease_left.min(A_FEW_SECONDS),
            false => lease_left,
        }
    }

    /// For how long a new holder has the lease, and the key is kept.
    pub(crate) fn hold(&self) -> Hold {
        Hold { lease: self.lease, retention: self.retention }
    }

    /// After `attempts` attempts: 1 s, 2 s, 4 s, …, each [shortened] at random.
    pub(crate) fn back_off(&self, attempts: u32) -> Duration {
        shortened(doubled(self.back_off, attempts.saturating_sub(1)).min(self.max_back_off))
    }

    /// The longest back-off that a phase may ask for, with a provider's `Retry-After` for example: an hour,
    /// or the longest of the engine's own. A larger number would keep the request from ever settling.
    pub(crate) fn longest_back_off_asked_for(&self) -> Duration {
        self.max_back_off.max(HOUR)
    }

    /// After looking into an unknown outcome `times` times: 60 s, 120 s, … up to an hour, each [shortened] at random. It
    /// doubles from at least a second, also if `reconcile_after` is zero.
    pub(crate) fn reconcile_back_off(&self, times: u32) -> Duration {
        let first = self.reconcile_after.max(Duration::from_secs(1));
        shortened(doubled(first, times).min(first.max(HOUR)))
    }
}

fn doubled(duration: Duration, times: u32) -> Duration {
    duration.saturating_mul(1 << times.min(31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g17_each_back_off_grows_and_no_two_are_the_same() {
        let settings = Settings::default();
        let (mut after_failures, mut after_checks) = (Duration::ZERO, Duration::ZERO);
        for times in 1..7 {
            let next = [settings.back_off(times), settings.reconcile_back_off(times)];
            let [failures, checks] = next;
            assert!(failures > after_failures && checks > after_checks, "{times}: {next:?}");
            (after_failures, after_checks) = (failures, checks);
        }
        let many: std::collections::HashSet<_> = (0..20).map(|_| settings.back_off(3)).collect();
        assert!(many.len() > 1);
        let bounds = Duration::from_secs(3)..=Duration::from_secs(4);
        assert!(many.iter().all(|one| bounds.contains(one)), "{many:?}");

        let settings = Settings { reconcile_after: Duration::ZERO, ..Settings::default() };
        assert_eq!(settings.check(), Ok(()));
        let all: Duration = (1..20).map(|times| settings.reconcile_back_off(times)).sum();
        assert!(all > HOUR, "{all:?}");
        let none = Settings { max_back_off: Duration::ZERO, ..Settings::default() };
        let none = Settings { back_off: Duration::ZERO, ..none };
        assert_eq!((none.check(), none.back_off(5)), (Ok(()), Duration::ZERO));
        let never_longer = Settings { back_off: Duration::ZERO, ..Settings::default() };
        assert_eq!(never_longer.check().unwrap_err().setting, "back_off (the first)");
    }
}
