//! Every span, event and metric of the crate, in one place. The labels of calls' outcomes are in
//! `engine/observed.rs`, and the gauges that a worker reads from the database in `worker/gauges.rs`. None of them
//! shows a key, a parameter, an output or a body (G19): a request is identified by a short hash of its key, and a metric
//! by its definition, never by its key.
//!
//! The metrics belong to the cargo feature `metrics`: [`metrics`] has their table.

/// Events as `tracing` has them, said by way of [`unharmed`], under one target.
macro_rules! debug {
    ($($event:tt)*) => {
        $crate::observe::unharmed::caught(|| tracing::debug!(target: $crate::observe::TARGET, $($event)*))
    };
}
macro_rules! info {
    ($($event:tt)*) => {
        $crate::observe::unharmed::caught(|| tracing::info!(target: $crate::observe::TARGET, $($event)*))
    };
}
macro_rules! warn {
    ($($event:tt)*) => {
        $crate::observe::unharmed::caught(|| tracing::warn!(target: $crate::observe::TARGET, $($event)*))
    };
}

/// An event about a request, with what an operator finds it by in the line itself.
macro_rules! event {
    ($level:ident, $subject:expr, { $($field:tt)* }, $text:literal) => {
        $level!(
            definition = $subject.definition,
            request_id = %$subject.request_id,
            scope = %ShortHash($subject.scope.as_str()),
            key = %ShortHash($subject.key.as_str()),
            $($field)*
            $text
        )
    };
}

mod job_names;
mod jobs;
pub(crate) mod metrics;
mod replay_cache;
mod requests;
mod scopes;
pub(crate) mod spans;
mod unharmed;
mod workers;

use std::time::{Duration, Instant};

pub(crate) use self::jobs::*;
pub(crate) use self::replay_cache::*;
pub(crate) use self::requests::*;
pub(crate) use self::scopes::Scopes;
pub(crate) use self::unharmed::Span;
pub(crate) use self::workers::*;
use crate::repeats::Repeats;

/// Of all events and spans.
const TARGET: &str = "atomic_phases::observe";

const ONE_SECOND: Duration = Duration::from_secs(1);
const ONE_MINUTE: Duration = Duration::from_secs(60);
const ONE_DAY: Duration = Duration::from_secs(24 * 3600);

/// The label of what is not distinguished.
pub(crate) const OTHER: &str = "other";

/// The call ran the request to its end.
pub(crate) const FINISHED: &str = "finished";

/// The call found the answer of an earlier one.
pub(crate) const REPLAYED: &str = "replayed";

/// The call found the request in progress.
pub(crate) const IN_PROGRESS: &str = "in_progress";

/// The key is another request's.
pub(crate) const MISMATCH: &str = "mismatch";

/// What was logged lately.
static REPEATS: Repeats = Repeats::new();

/// The same of single requests, of which there may be very many: they are not to crowd out the others.
static LEFT_ALONE: Repeats = Repeats::new();

/// How long it took to get a connection.
pub(crate) fn connected(began: Instant) {
    metrics::POOL_WAIT.record::<&str>(began.elapsed().as_secs_f64(), []);
}

/// An engine is ready: its metrics are described to their recorder.
pub(crate) fn described() {
    metrics::describe();
    metrics::BUILD_INFO.set(1.0, [env!("CARGO_PKG_VERSION")]);
}

/// Since 1970.
pub(crate) fn seconds(time: chrono::DateTime<chrono::Utc>) -> f64 {
    // Exact to the millisecond for ages.
    time.timestamp_millis() as f64 / 1000.0
}

/// An operator did something, or was refused.
pub(crate) fn operated(act: &'static str, outcome: &'static str) {
    metrics::OPERATOR_ACTS.add(1, [act, outcome]);
}

/// The application's adapter for traces panicked. Said once a minute.
pub(crate) fn trace_context_panicked() {
    if let Some(suppressed) = REPEATS.admits("trace context", ONE_MINUTE) {
        warn!(suppressed, "a TraceContext panicked; the request continues without its answer");
    }
}

/// Tells the application's recorder of metrics. That it panicked is said once a minute.
#[cfg(feature = "metrics")]
fn recorded(record: impl FnOnce()) {
    if crate::panics::catch(record).is_none()
        && let Some(suppressed) = REPEATS.admits("recorder", ONE_MINUTE)
    {
        warn!(suppressed, "a metrics recorder panicked; what it received is not counted");
    }
}

faults! {
    /// The engine is at a crash point. Its target tells it from what a request says.
    pub(crate) fn crash_point(phase: &str, place: &str) {
        unharmed::caught(|| tracing::trace!(target: "atomic_phases::fault", phase, place, "crash point"));
    }
}

/// What the engine cannot do because a pooler or a proxy is in front of the server, and what helps.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn sessions_are_proxied(advice: &str) {
    warn!("{advice}");
}

/// By a setting, the server may lose commits that it has acknowledged. Said once a day of each value at an address.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn commits_may_be_lost(
    address: impl std::hash::Hash,
    setting: &str,
    value: &str,
    needed: &str,
    loss: &str,
) {
    if REPEATS.admits((address, setting, value), ONE_DAY).is_some() {
        warn!(
            setting,
            value,
            needed,
            "the server may lose commits that it has acknowledged, and answers with them: {loss}"
        );
    }
}
