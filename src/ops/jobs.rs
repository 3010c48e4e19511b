//! [`JobView`]: a staged job as an operator sees it, without its arguments.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::OpsError;
use super::filter::time_of;
use crate::key::ShortHash;
use crate::store::operators::OperatedJob;

/// A staged job, without its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobView {
    /// Its id.
    pub id: Uuid,
    /// The request that staged it. Its key may have been reaped.
    pub request_id: Uuid,
    /// The first eight hex digits of the scope's SHA-256, as in logs.
    pub scope_hash: String,
    /// The name it was staged under.
    pub name: String,
    /// How often it was claimed for a delivery. To be passed to an act on this job.
    pub attempts: u32,
    /// Why the last delivery failed, or why a node has returned the job, in the words of the handler or the library. `None`
    /// if neither has happened, so also if no node has taken the job.
    pub reason: Option<String>,
    /// When its phase committed.
    pub staged_at: DateTime<Utc>,
    /// When it is next due. `None`: it is a dead letter, and waits for an operator.
    pub next_at: Option<DateTime<Utc>>,
}

impl From<OperatedJob> for JobView {
    fn from(job: OperatedJob) -> Self {
        Self {
            id: job.id,
            request_id: job.request_id,
            scope_hash: ShortHash(&job.scope).to_string(),
            name: job.name,
            attempts: job.attempts,
            reason: job.reason,
            staged_at: job.staged_at,
            next_at: job.run_after,
        }
    }
}

/// Where the next page of a list of jobs, or of the audit, begins: an opaque text that is safe in a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) time: DateTime<Utc>,
    pub(super) id: Uuid,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.time.timestamp_micros().to_be_bytes().to_vec();
        bytes.extend(self.id.as_bytes());
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Place {
    type Err = OpsError;

    fn from_str(text: &str) -> Result<Self, OpsError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| OpsError::BadCursor)?;
        let (micros, id) = bytes.split_first_chunk::<8>().ok_or(OpsError::BadCursor)?;
        let time = time_of(i64::from_be_bytes(*micros))?;
        let id = Uuid::from_slice(id).map_err(|_| OpsError::BadCursor)?;
        Ok(Self { time, id })
    }
}
