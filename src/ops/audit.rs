//! [`AuditRecord`]: what an operator did, or was refused.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::key::ShortHash;
use crate::store::audit::Audited;

/// A row of the audit: what an operator did, or was refused. Contains no key, scope or value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditRecord {
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// Its id.
    pub id: Uuid,
    /// Who.
    pub actor: String,
    /// What: `resolve.executed`, `resolve.not_executed`, `resolve.finish`, `retry`, `erase`, `job.retry`,
    /// `job.discard`, `pause`,
    /// `unpause`, `bulk.start`, `bulk.stop`, or `reveal.` and what was revealed.
    pub act: String,
    /// `applied`; `already`, if it had been done before; or `refused`.
    pub outcome: String,
    /// Why it was refused.
    pub refused_because: Option<String>,
    /// The operator's own reason.
    pub reason: String,
    /// The first eight hex digits of the scope's SHA-256, as in logs.
    pub scope_hash: Option<String>,
    /// Which request.
    pub request_id: Option<Uuid>,
    /// Which job.
    pub job_id: Option<Uuid>,
    /// The bulk act that it is part of.
    pub bulk_id: Option<Uuid>,
    /// Name and version of the request's definition.
    pub definition: Option<(String, u32)>,
    /// Definition and phase of a pause, which is of every version.
    pub phase: Option<(String, String)>,
    /// The request's status before.
    pub before: Option<String>,
    /// The request's status after.
    pub after: Option<String>,
}

impl From<Audited> for AuditRecord {
    fn from(row: Audited) -> Self {
        Self {
            at: row.at,
            id: row.id,
            actor: row.actor,
            act: row.act,
            outcome: row.outcome,
            refused_because: row.refused_because,
            reason: row.reason,
            scope_hash: row.scope.map(|scope| ShortHash(&scope).to_string()),
            request_id: row.request_id,
            job_id: row.job_id,
            bulk_id: row.bulk_id,
            definition: row.definition.clone().zip(row.version),
            phase: row.definition.zip(row.phase),
            before: row.before,
            after: row.after,
        }
    }
}
