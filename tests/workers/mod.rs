//! The background workers: completer, reconciler, enqueuer, reaper.

mod asked_later;
mod background;
mod bulk_jobs;
mod claimed_ahead;
mod dead_jobs;
mod fair_workers;
mod groups;
mod jobs;
mod no_connection;
mod notices;
mod partitions;
mod redis_stream;
mod refused_rows;
mod single_polls;
mod young_requests;
