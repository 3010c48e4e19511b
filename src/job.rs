//! [`StagedJob`]: a job that a phase stages, which is delivered after its commit.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::traces::Traceparent;

/// The stable identity of a staged job, for de-duplication where it is delivered (G18).
pub type JobId = Uuid;

/// A job that is inserted with the phase's commit.
pub struct StagedJob {
    pub(crate) id: JobId,
    pub(crate) name: String,
    /// Order of delivery within the request.
    pub(crate) position: i64,
    /// Encoded by the engine's codec when the phase ends.
    pub(crate) args: Vec<u8>,
    /// Of its phase, as it is stored.
    pub(crate) trace: Option<[u8; Traceparent::BYTES]>,
}

/// Without its arguments (G19).
impl std::fmt::Debug for StagedJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, name, position, args, .. } = self;
        write!(f, "StagedJob({id}, {name}, {position}, {} bytes)", args.len())
    }
}

/// The first position of a notice. It is behind those of all jobs of phases, and a notice waits for none of them, nor
/// for another notice: a notice is sent whatever the request's jobs wait for. The statements of the stores
/// say it, too.
pub(crate) const FIRST_NOTICE: i64 = 1 << 62;

impl StagedJob {
    pub(crate) fn trace(&self) -> Option<&[u8]> {
        self.trace.as_ref().map(<[u8; _]>::as_slice)
    }

    /// Whether its phase staged another one before it, which is delivered first.
    pub(crate) fn is_behind_another(&self) -> bool {
        self.position < FIRST_NOTICE && self.position & i64::from(u32::MAX) != 0
    }

    /// One of the library's own, about a request that a holder of this token leaves: it leaves it once.
    pub(crate) fn notice(request_id: Uuid, token: i64, name: &str, args: Vec<u8>) -> Self {
        let position = FIRST_NOTICE | (token & (FIRST_NOTICE - 1));
        let (id, name) = (job_id(request_id, position), name.to_owned());
        Self { id, name, position, args, trace: None }
    }
}

pub(crate) fn job_id(request_id: Uuid, position: i64) -> JobId {
    let mut hash = Sha256::new();
    hash.update(b"staged job");
    hash.update(request_id.as_bytes());
    hash.update(position.to_be_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    Uuid::new_v8(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g19_a_staged_job_shows_no_arguments() {
        let job = StagedJob::notice(Uuid::nil(), 1, "receipt", b"canary".to_vec());
        let shown = format!("{job:?}");
        assert!(shown.contains("receipt") && shown.contains("6 bytes"), "{shown}");
        assert!(!shown.contains("99, 97, 110") && !shown.contains("canary"), "{shown}");
    }
}
