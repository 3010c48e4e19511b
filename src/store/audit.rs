//! [`AuditEntry`]: what an operator did or was refused, as a row of the audit table. It holds no key and no
//! value of a request (G19).

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The SHA-256 of a value that an operator gave, and its length in bytes. They prove which value it was; the audit does not
/// hold the value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueDigest {
    pub(crate) sha256: [u8; 32],
    pub(crate) bytes: u64,
}

impl ValueDigest {
    pub(crate) fn of(value: &[u8]) -> Self {
        Self { sha256: Sha256::digest(value).into(), bytes: value.len() as u64 }
    }

    /// As the columns have it.
    pub(super) fn stored(sha256: Option<Vec<u8>>, bytes: Option<i64>) -> Option<Self> {
        Some(Self { sha256: sha256?.try_into().ok()?, bytes: bytes?.cast_unsigned() })
    }
}

/// A row of the audit table, to be written in the transaction of the act that it tells of, or, for a
/// refusal, in one of its own. The database says when.
#[derive(Clone, PartialEq, Eq)]
pub struct AuditEntry {
    pub(crate) id: Uuid,
    pub(crate) actor: String,
    pub(crate) act: &'static str,
    pub(crate) outcome: &'static str,
    pub(crate) refused_because: Option<String>,
    pub(crate) reason: String,
    pub(crate) scope: Option<String>,
    pub(crate) request_id: Option<Uuid>,
    pub(crate) job_id: Option<Uuid>,
    /// As part of which bulk act.
    pub(crate) bulk_id: Option<Uuid>,
    pub(crate) definition: Option<String>,
    pub(crate) version: Option<u32>,
    pub(crate) phase: Option<String>,
    /// Whose call had no effect, as the operator said.
    pub(crate) attempt: Option<u32>,
    /// Of the output or the reply that the operator gave.
    pub(crate) value: Option<ValueDigest>,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

/// Which audit rows to read.
#[derive(Clone, Default)]
pub struct AuditSearch {
    /// Of one request.
    pub(crate) request_id: Option<Uuid>,
    /// Of the operator of this name.
    pub(crate) actor: Option<String>,
    /// Of these acts.
    pub(crate) acts: Option<Vec<String>>,
}

impl AuditSearch {
    pub(crate) fn of_request(request_id: Option<Uuid>) -> Self {
        Self { request_id, ..Self::default() }
    }
}

/// The columns of an audit row, in the order in which each store selects them.
pub(super) type AuditRow = (
    (DateTime<Utc>, Uuid, String, String),
    (String, Option<String>, String),
    (Option<String>, Option<Uuid>, Option<Uuid>, Option<Uuid>),
    (
        Option<String>,
        Option<i32>,
        Option<String>,
        Option<String>,
        Option<String>,
        Option<i32>,
        Option<Vec<u8>>,
        Option<i64>,
    ),
);

/// An audit row that was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Audited {
    pub(crate) at: DateTime<Utc>,
    pub(crate) id: Uuid,
    pub(crate) actor: String,
    pub(crate) act: String,
    pub(crate) outcome: String,
    pub(crate) refused_because: Option<String>,
    pub(crate) reason: String,
    pub(crate) scope: Option<String>,
    pub(crate) request_id: Option<Uuid>,
    pub(crate) job_id: Option<Uuid>,
    pub(crate) bulk_id: Option<Uuid>,
    pub(crate) definition: Option<String>,
    pub(crate) version: Option<u32>,
    pub(crate) phase: Option<String>,
    pub(crate) attempt: Option<u32>,
    pub(crate) value: Option<ValueDigest>,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

pub(super) fn audited(row: AuditRow) -> Audited {
    let ((at, id, actor, act), said, about, what) = row;
    let (outcome, refused_because, reason) = said;
    let (scope, request_id, job_id, bulk_id) = about;
    let (definition, version, phase, before, after, attempt, value_sha256, value_bytes) = what;
    Audited {
        at,
        id,
        actor,
        act,
        outcome,
        refused_because,
        reason,
        scope,
        request_id,
        job_id,
        bulk_id,
        definition,
        version: version.map(i32::cast_unsigned),
        phase,
        attempt: attempt.map(i32::cast_unsigned),
        value: ValueDigest::stored(value_sha256, value_bytes),
        before,
        after,
    }
}
