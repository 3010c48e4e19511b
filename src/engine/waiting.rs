//! [`Waiting`]: the notice about a request that begins to wait for a reconcile function or an operator.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::store::Status;

/// The name of the jobs that report waiting requests.
pub const WAITING_JOB: &str = "atomic_phases.waiting";

/// A request has begun to wait for a reconcile function or an operator: its outcome is unknown, or it is a dead letter.
///
/// With [`notify_waiting`](crate::engine::EngineBuilder::notify_waiting), the commit that leaves the
/// request waiting stages a job called [`WAITING_JOB`] with this as its arguments. So the notice is exactly
/// as durable as the state: a process that dies in between leaves both or neither. It is delivered at least
/// once, like every job, to the same [sink](crate::worker::JobSink); [`Job::id`](crate::worker::Job::id) is
/// the same in each delivery of one notice. Unlike other jobs, it does not wait for other jobs of its
/// request, and none waits for it. The request may have continued by the time the notice arrives.
///
/// A request gets one notice when its outcome becomes unknown, and one when it becomes a dead letter, but
/// none each time its reconcile function returns *still unknown*. If it continues and waits again, it gets
/// another notice.
///
/// It contains no key, no scope and no user data (G19).
///
/// ```
/// use atomic_phases::engine::{WAITING_JOB, Waiting};
/// use atomic_phases::worker::{DeliveryError, Handlers, Job};
///
/// let jobs = Handlers::new().on(WAITING_JOB, async |waiting: Waiting, job: Job| {
///     println!("{}: {} waits: {:?}", job.id, waiting.request_id, waiting.reason);
///     Ok::<_, DeliveryError>(())
/// });
/// # let _ = jobs;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Waiting {
    /// The id by which [`Ops::show`](crate::ops::Ops::show) finds the request.
    #[serde(with = "as_text")]
    pub request_id: Uuid,
    /// Name of its definition.
    pub definition: String,
    /// Version of its definition.
    pub version: u32,
    /// The phase whose call is unknown, or at which the request gave up.
    pub phase: Option<String>,
    /// The number of the attempt that ended this way.
    pub attempt: u32,
    /// [`Status::Unknown`] or [`Status::DeadLetter`].
    #[serde(with = "status")]
    pub status: Status,
    /// Whether the phase's reconcile function will be called; otherwise only an operator can settle the
    /// request.
    #[serde(default)]
    pub is_asked: bool,
    /// The reason, set by the library or the phase.
    pub reason: Option<String>,
    /// When the wait began, by the database's clock, to within about a second.
    pub since: DateTime<Utc>,
}

mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(id: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

mod status {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::store::Status;

    pub(super) fn serialize<S: Serializer>(status: &Status, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(status.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Status, D::Error> {
        let text = String::deserialize(from)?;
        Status::parse(&text).ok_or_else(|| D::Error::custom("no status of a request"))
    }
}
