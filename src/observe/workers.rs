//! What workers do besides requests and jobs: their searches, their panics, and what they delete.

use super::{LEFT_ALONE, ONE_MINUTE, REPEATS, Subject, metrics, seconds};
use crate::key::ShortHash;

pub(crate) fn worker_failed(worker: &'static str, kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    warn!(worker, kind, "a worker could not search the store");
}

/// What operators have paused could not be read: counted, and said once a minute.
pub(crate) fn pauses_unread(kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    if let Some(suppressed) = REPEATS.admits("pauses", ONE_MINUTE) {
        warn!(suppressed, kind, "the pauses could not be read");
    }
}

/// A lease could not be renewed, and may end before its holder does: counted, and said once a minute.
pub(crate) fn lease_not_renewed(kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    if let Some(suppressed) = REPEATS.admits("leases", ONE_MINUTE) {
        warn!(suppressed, kind, "a lease could not be renewed");
    }
}

/// From here on its panics are counted: a counter that begins at one has no rate.
pub(crate) fn worker_started(worker: &'static str) {
    metrics::WORKER_PANICS.add(0, [worker]);
}

/// A worker has searched for work.
pub(crate) fn worker_polled(worker: &'static str) {
    metrics::WORKER_POLL.set(seconds(chrono::Utc::now()), [worker]);
}

pub(crate) fn worker_panicked(worker: &'static str) {
    metrics::WORKER_PANICS.add(1, [worker]);
    warn!(worker, "a worker panicked and is started again");
}

pub(crate) fn reaped(keys: u32) {
    metrics::KEYS_REAPED.add::<&str>(keys.into(), []);
    debug!(keys, "reaped");
}

/// The server refused to delete so many expired keys of a batch; `kind` is its error for the last of them. Counted once.
pub(crate) fn not_reaped(keys: u32, kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    warn!(keys, kind, "the server refuses to delete expired keys; does a table refer to them?");
}

/// A batch of expired keys was not deleted in the time that an answer is waited for. So many are deleted at a time from now
/// on.
pub(crate) fn reaped_too_slowly(keys_at_a_time: u32) {
    warn!(
        keys_at_a_time,
        "the server takes too long to delete expired keys: fewer at a time are deleted; does a table refer to them that \
         has no index on its foreign key?"
    );
}

pub(crate) fn erased(keys: u32) {
    metrics::KEYS_ERASED.add::<&str>(keys.into(), []);
    debug!(keys, "erased");
}

/// The server refused to erase a settled request. Logged once a minute for each request (if there are very many, one each
/// second), and counted each time.
pub(crate) fn not_erased(subject: Subject<'_>, kind: &'static str) {
    metrics::STORE_ERRORS.add(1, [kind]);
    if let Some(suppressed) = LEFT_ALONE.admits((subject.request_id, "not erased"), ONE_MINUTE) {
        event!(warn, subject, { kind, suppressed, }, "the server refuses to erase a settled request");
    }
}

/// A worker met a row of a definition that is not registered here. Once for each definition.
pub(crate) fn not_registered(definition: &str, version: u32) {
    warn!(definition, version, "left alone: no such definition is registered in this process");
}
