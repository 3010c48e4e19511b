//! What runs behind the requests: completer, reconciler, enqueuer, reaper.

#[path = "../support/mod.rs"]
mod support;

mod fair_workers;
mod jobs;
mod partitions;
mod redis_stream;
mod workers;
