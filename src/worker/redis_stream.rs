//! [`RedisStream`]: a sink that appends to a Redis stream.

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::streams::StreamMaxlen;
use redis::{AsyncCommands, RedisError};

use super::job::{DeliveryError, Job, JobSink};

/// Appends each job to a Redis stream (`XADD`), for consumer groups to read.
///
/// An entry has the fields `id` (the job's, a UUID), `name`, `scope`, `args` (JSON) and `attempt`, and
/// `traceparent` if the job has one ([`Job::traceparent`]). A job is delivered at least once. A consumer that
/// must process it only once remembers the field `id`, because the id of the entry differs each time. The
/// jobs of one request are appended in order.
///
/// The sink reconnects by itself. While Redis is unavailable, jobs wait in the database.
#[derive(Clone)]
pub struct RedisStream {
    connection: ConnectionManager,
    stream: String,
    max_length: Option<usize>,
}

impl RedisStream {
    /// Connects to `url` (`redis://host:port/database`) and appends to `stream`.
    ///
    /// # Errors
    /// [`RedisError`] if the URL is invalid, or no server answers.
    pub async fn connect(url: &str, stream: impl Into<String>) -> Result<Self, RedisError> {
        // The enqueuer has its own back-off; here, one more try for a connection that went stale.
        let config = ConnectionManagerConfig::new().set_number_of_retries(1);
        let client = redis::Client::open(url)?;
        let connection = ConnectionManager::new_with_config(client, config).await?;
        Ok(Self { connection, stream: stream.into(), max_length: None })
    }

    /// Limits the stream to about this many entries (`MAXLEN ~`): Redis drops the oldest. Without it, the
    /// stream grows until it is trimmed.
    #[must_use]
    pub fn max_length(mut self, entries: usize) -> Self {
        self.max_length = Some(entries);
        self
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
        let mut connection = self.connection.clone();
        let added: Result<String, RedisError> = match self.max_length {
            None => connection.xadd(&self.stream, "*", &fields).await,
            Some(length) => {
                let length = StreamMaxlen::Approx(length);
                connection.xadd_maxlen(&self.stream, length, "*", &fields).await
            }
        };
        added.map(drop).map_err(|_| DeliveryError::retry("Redis did not take the job"))
    }

    /// They share a connection, which sends what is there and waits for no answer before the next: as in a
    /// pipeline.
    fn concurrency(&self, _: &str) -> Option<usize> {
        Some(usize::MAX)
    }
}

impl std::fmt::Debug for RedisStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}
