//! What the replay cache answers.

use std::time::Duration;

use super::{ONE_MINUTE, REPEATS, metrics};
use crate::key::{IdempotencyKey, Scope, ShortHash};

/// The replay cache had the answer.
pub(crate) fn replay_cache_hit(definition: &'static str) {
    metrics::REPLAY_CACHE.add(1, [definition, "hit"]);
}

/// It said that the request is in progress.
pub(crate) fn replay_cache_hinted(definition: &'static str) {
    metrics::REPLAY_CACHE.add(1, [definition, "in_progress"]);
}

pub(crate) fn replay_cache_missed(definition: &'static str) {
    metrics::REPLAY_CACHE.add(1, [definition, "miss"]);
}

/// What it had is another request's, of another secret, made up, or past its time.
pub(crate) fn replay_cache_unusable(definition: &'static str) {
    metrics::REPLAY_CACHE.add(1, [definition, "unusable"]);
}

/// It gave no answer; where that continues, it is left alone.
pub(crate) fn replay_cache_failed() {
    metrics::REPLAY_CACHE.add(1, ["", "failed"]);
}

/// It answered that it would not. Counted, and said once a minute.
pub(crate) fn replay_cache_refused() {
    metrics::REPLAY_CACHE.add(1, ["", "refused"]);
    if let Some(suppressed) = REPEATS.admits("replay cache refused", ONE_MINUTE) {
        warn!(
            suppressed,
            "the replay cache refused a command: it may be full, or this user may lack the permission"
        );
    }
}

/// It was not asked, or not written to, because it gave no answer lately or too much is on its way to it.
pub(crate) fn replay_cache_unasked() {
    metrics::REPLAY_CACHE.add(1, ["", "unasked"]);
}

pub(crate) fn replay_cache_left_alone(rest: Duration) {
    warn!(
        ?rest,
        "the replay cache gives no answer; replays are read from the database until it does"
    );
}

pub(crate) fn replay_cache_is_back() {
    info!("the replay cache answers again");
}

/// The row is erased, and what the cache may have of it is not known to be gone.
pub(crate) fn replay_cache_not_buried(
    scope: &Scope,
    key: Option<&IdempotencyKey>,
    served_for: Duration,
) {
    let (scope, key) = (ShortHash(scope.as_str()), key.map(|key| ShortHash(key.as_str())));
    let key = key.as_ref().map(tracing::field::display);
    warn!(%scope, key, ?served_for, "the replay cache did not confirm an erasure; the engine asks again, and the cache may return the erased answer for `served_for` at most");
}
