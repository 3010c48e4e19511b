//! Staged jobs that are overdue. Those that gave up are listed, retried and discarded by [`Ops`](crate::ops::Ops).

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Engine;
use crate::key::Scope;
use crate::phase::JobId;
use crate::store::{StagedJobRow, Store, StoreError};

/// How many jobs a list shows at most.
const PAGE: u32 = 1000;

/// A staged job as an operator sees it: without its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedJob {
    /// Its id, unique within its scope; see [`Job::id`](crate::worker::Job::id).
    pub id: JobId,
    /// The name it was staged under.
    pub name: String,
    /// The scope of the request that staged it. Its `Debug` is a hash.
    pub scope: Scope,
    /// The key of the request that staged it, which may have been reaped.
    pub request_id: Uuid,
    /// How often it was claimed for a delivery: one more than the deliveries if the last claim found
    /// them used up.
    pub attempts: u32,
    /// Why the last delivery failed, in the words of the handler or the library. `None` if none has failed.
    pub reason: Option<String>,
    /// When its phase committed.
    pub staged_at: DateTime<Utc>,
}

impl From<StagedJobRow> for ListedJob {
    fn from(row: StagedJobRow) -> Self {
        let StagedJobRow { scope, request_id, id, name, attempts, reason, staged_at } = row;
        Self { id, name, scope, request_id, attempts, reason, staged_at }
    }
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// Staged jobs that have been due for longer than `overdue` and are not delivered, the longest
    /// waiting first: up to `limit` of them. A `limit` above 1000 is clamped to 1000. Either no enqueuer
    /// runs, all enqueuers are busy, no node's sink [handles](crate::worker::JobSink::handles) their name, or no node's
    /// codec can decode their arguments. A job that waits for another job of its request is not included.
    ///
    /// # Errors
    /// [`StoreError`] where the store cannot be read.
    pub async fn overdue_jobs(
        &self,
        overdue: Duration,
        limit: u32,
    ) -> Result<Vec<ListedJob>, StoreError> {
        let rows = self.core.store.list_overdue_jobs(overdue, limit.min(PAGE)).await?;
        Ok(rows.into_iter().map(ListedJob::from).collect())
    }
}
