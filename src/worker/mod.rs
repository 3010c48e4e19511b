//! The background workers, which finish requests without a client's retry.
//!
//! * [`Completer`] runs accepted requests and resumes abandoned ones;
//! * [`Reconciler`] reconciles unknown outcomes;
//! * [`Enqueuer`] delivers staged jobs to a [`JobSink`];
//! * [`Reaper`] deletes finished keys past their expiry;
//! * [`BulkRunner`] runs operators' bulk acts;
//! * [`Census`] counts waiting requests and jobs, for the gauges;
//! * [`Announcer`] registers this process for operators to see.
//!
//! Each searches for candidates without a lock and claims each by a guarded update of one row, so any
//! number of nodes may run all of them. None of them decides what a row means: `engine` does.

mod announcer;
mod backlog;
mod bulk_runner;
mod census;
mod claims;
#[doc(hidden)]
pub mod compiled;
mod completer;
mod config;
mod delivery;
mod dispatcher;
mod enqueuer;
mod enroller;
mod gates;
mod gauges;
mod handlers;
mod job;
mod pace;
mod pass;
mod reaper;
mod reconciler;
#[cfg(feature = "redis")]
mod redis_stream;
mod requests;
mod rests;
mod settlements;
mod slots;
mod source;
mod supervisor;
mod sweep;
mod unasked;
mod watched;
#[cfg(feature = "reqwest")]
mod webhook;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::watch;

pub use self::announcer::Announcer;
pub use self::bulk_runner::BulkRunner;
pub use self::census::Census;
pub use self::completer::Completer;
pub use self::config::WorkerConfig;
pub use self::enqueuer::{Delivered, Enqueuer};
pub use self::handlers::Handlers;
pub use self::job::{DeliveryError, Job, JobSink};
pub use self::reaper::Reaper;
pub use self::reconciler::Reconciler;
#[cfg(feature = "redis")]
pub use self::redis_stream::RedisStream;
pub use self::supervisor::{StillWorking, Workers};
pub use self::sweep::Sweep;
#[cfg(feature = "reqwest")]
pub use self::webhook::{Webhook, WebhookError};

use crate::chance;
use crate::observe;
use crate::store::StoreError;

/// Whether a worker should search again immediately.
enum More {
    Likely,
    No,
}

/// A worker that polls from time to time, and does in one poll all that it does.
trait Worker: Send {
    const NAME: &'static str;

    /// How long to rest between two polls, on average.
    fn pace(&self) -> Duration;

    /// One poll, which begins nothing new once it is to `stop`.
    fn poll_once(&mut self, stop: &Stop) -> impl Future<Output = Result<More, StoreError>> + Send;
}

/// Works until `shutdown` is ready, and then on until what was begun has ended.
async fn until_shutdown<T>(
    stop: &Stop,
    work: impl Future<Output = T>,
    shutdown: impl Future<Output = ()>,
) {
    let (work, shutdown) = (pin!(work), pin!(shutdown));
    if let Either::Right(((), work)) = select(work, shutdown).await {
        stop.0.send_replace(true);
        work.await;
    }
}

/// Searches, and rests for a random time around the worker's pace; longer while the store is unavailable. It
/// searches again immediately only if a whole batch was done, and more is likely.
async fn poll_until_stopped<W: Worker>(worker: &mut W, stop: &Stop) {
    // Whatever the worker's pace: no loop is without a pause (G17).
    const SHORTEST_REST: Duration = Duration::from_millis(1);
    let mut failures = 0;
    while !stop.is_set() {
        let polled = worker.poll_once(stop).await;
        if polled.is_ok() {
            observe::worker_polled(W::NAME);
            failures = 0;
        }
        let rest = match polled {
            Ok(More::Likely) => continue,
            Ok(More::No) => worker.pace(),
            Err(error) => {
                observe::worker_failed(W::NAME, error.kind());
                failures += 1;
                pace::rest_after_failures(worker.pace(), failures)
            }
        };
        stop.rest(by_chance(rest).max(SHORTEST_REST)).await;
    }
}

/// The sign to begin nothing new.
struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stop {
    fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Rests for so long, or until it is set.
    async fn rest(&self, rest: Duration) {
        let _ = tokio::time::timeout(rest, self.set()).await;
    }

    async fn set(&self) {
        // The sender lives in self, so this ends only when it is set.
        let _ = self.0.subscribe().wait_for(|set| *set).await;
    }
}

/// Half to one and a half of it, so that nodes that started together do not stay together.
fn by_chance(pace: Duration) -> Duration {
    pace / 2 + pace.mul_f64(chance::fraction())
}

/// In an order of its own on each node (H19), so that they do not all race for the same rows.
fn shuffle<T>(items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, (chance::fraction() * last as f64) as usize);
    }
}
