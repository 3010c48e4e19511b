//! [`Waiting`]: what the notice says of a request that begins to wait for a reconcile function or an operator.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::store::Status;

/// The name of the jobs that tell of waiting requests.
pub const WAITING_JOB: &str = "atomic_phases.waiting";

/// A request has begun to wait for a reconcile function or an operator: its outcome is unknown, or it is a dead letter.
///
/// With [`tell_of_waiting`](crate::engine::EngineBuilder::tell_of_waiting), the commit that leaves it so stages a job
/// called [`WAITING_JOB`] with this as its arguments. So the notice is exactly as durable as the state: a process that
/// dies in between leaves both or neither. It is delivered as every job is, at least once, to the same
/// [sink](crate::worker::JobSink), with [`Job::id`](crate::worker::Job::id) to tell the deliveries of one notice from
/// another notice; but it waits for no other job of its request, and none waits for it. By the time that it comes, the
/// request may have gone on.
///
/// A request is told of once when its outcome becomes unknown, and once when it becomes a dead letter; not each time
/// that its reconcile function did not know. One that goes on and waits again is told of again.
///
/// It holds no key, no scope, and nothing that users gave (G19).
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
    /// By which [`Ops::show`](crate::ops::Ops::show) finds it.
    #[serde(with = "as_text")]
    pub request_id: Uuid,
    /// Name of its definition.
    pub definition: String,
    /// Version of its definition.
    pub version: u32,
    /// The phase whose call it is about, or that it did not come past.
    pub phase: Option<String>,
    /// The attempt that ended so.
    pub attempt: u32,
    /// [`Status::Unknown`] or [`Status::DeadLetter`].
    #[serde(with = "status")]
    pub status: Status,
    /// Whether the phase's reconcile function is asked about it; otherwise it waits for an operator alone.
    #[serde(default)]
    pub is_asked: bool,
    /// Why, in words of the library or of the phase.
    pub reason: Option<String>,
    /// Since when, by the database's clock to within a second or so.
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
