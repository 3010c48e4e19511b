//! [`RedisStream`]: a sink that appends to a Redis stream.

use std::num::NonZeroUsize;

use redis::streams::StreamMaxlen;
use redis::{RedisError, pipe};

use super::job::{DeliveryError, Job, JobSink};
use crate::redis_connection::{NotDone, RedisConnection};
use crate::setting::{SettingError, number};

/// Appends each job to a Redis stream (`XADD`), for consumer groups to read.
///
/// An entry has the fields `id` (the job's, a UUID), `name`, `scope`, `args` (JSON) and `attempt`, and
/// `traceparent` if the job has one ([`Job::traceparent`]). A job is delivered at least once. A consumer that
/// must process it only once remembers the field `id`, because the id of the entry differs each time. The
/// jobs of one request are appended in order.
///
/// While Redis is unavailable, jobs wait in the database. The sink reconnects by itself, also if Redis no longer answers. If
/// the server refuses writes because it is no longer the primary, the sink connects to the server that `url` leads to now.
/// Only [`WorkerConfig::delivery`](super::WorkerConfig::delivery) limits how long Redis may take. If the connection is lost
/// before the answer to an `XADD`, or that time is over, Redis may have taken the job or not: it is appended once more.
#[derive(Clone)]
pub struct RedisStream {
    connection: RedisConnection,
    stream: String,
    max_length: Option<usize>,
}

impl RedisStream {
    /// Connects to `url` (`redis://host:port/database`) and appends to `stream`.
    ///
    /// # Errors
    /// [`RedisError`] if the URL is invalid, or no server answers.
    pub async fn connect(url: &str, stream: impl Into<String>) -> Result<Self, RedisError> {
        let connection = RedisConnection::new(url)?;
        connection.connect().await?;
        Ok(Self { connection, stream: stream.into(), max_length: None })
    }

    /// Limits the stream to about this many entries (`MAXLEN ~`), at least one: Redis drops the oldest. Without it, the
    /// stream grows until it is trimmed.
    ///
    /// # Errors
    /// [`SettingError`] for a number that Redis refuses, and for zero: each job would be dropped when it is appended.
    pub fn max_length(mut self, entries: usize) -> Result<Self, SettingError> {
        number("RedisStream::max_length", entries, 1, i64::MAX as u64)?;
        self.max_length = Some(entries);
        Ok(self)
    }
}

impl JobSink for RedisStream {
    async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
        let fields = [
            ("id", job.id.to_string().into_bytes()),
            ("name", job.name.clone().into_bytes()),
            ("scope", job.scope.as_str().as_bytes().to_vec()),
            ("args", job.args.clone()),
            ("attempt", job.attempt.to_string().into_bytes()),
        ];
        let trace = job.traceparent().map(|trace| ("traceparent", trace.to_string().into_bytes()));
        let fields: Vec<_> = fields.into_iter().chain(trace).collect();
        let mut add = pipe();
        match self.max_length {
            None => add.xadd(&self.stream, "*", &fields),
            Some(length) => {
                let length = StreamMaxlen::Approx(length);
                add.xadd_maxlen(&self.stream, length, "*", &fields)
            }
        };
        add.ignore();
        let added: Result<(), NotDone> = self.connection.send(&add).await;
        added.map_err(|not_done| DeliveryError::retry(reason(not_done)))
    }

    /// They share a connection, which sends what is there and waits for no answer before the next: as in a
    /// pipeline.
    fn concurrency(&self, _: &str) -> Option<NonZeroUsize> {
        Some(NonZeroUsize::MAX)
    }
}

fn reason(not_done: NotDone) -> &'static str {
    match not_done {
        NotDone::NotConnected => "Redis cannot be reached",
        NotDone::NotThePrimary => "the Redis that answered does not take writes now, as a replica",
        NotDone::Refused => "Redis refused the job",
        NotDone::Lost => "the connection to Redis was lost: it may have taken the job or not",
    }
}

impl std::fmt::Debug for RedisStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}
