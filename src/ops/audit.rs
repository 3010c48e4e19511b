//! [`AuditRecord`]: what an operator did, or was refused. [`AuditFilter`]: which of them to read.

use std::fmt;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::actor::is_name;
use super::{OpsError, Permissions};
use crate::key::{ShortHash, hex};
use crate::store::audit::{AuditSearch, Audited};

/// Each act that has a row in the audit.
pub(crate) const ACTS: [&str; 17] = [
    "resolve.executed",
    "resolve.not_executed",
    "resolve.finish",
    "retry",
    "erase",
    "job.retry",
    "job.discard",
    "pause",
    "unpause",
    "bulk.start",
    "bulk.stop",
    "reveal.key",
    "reveal.parameters",
    "reveal.context",
    "reveal.outputs",
    "reveal.reply",
    "reveal.derived_key",
];

const NO_SUCH_ACT: OpsError = OpsError::BadFilter(
    "an act is one of resolve.executed, resolve.not_executed, resolve.finish, retry, erase, job.retry, \
     job.discard, pause, unpause, bulk.start, bulk.stop, reveal.key, reveal.parameters, reveal.context, \
     reveal.outputs, reveal.reply and reveal.derived_key, or what stands before the dot",
);

/// Which records of the audit to read: all, unless it says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    request_id: Option<Uuid>,
    actor: Option<String>,
    act: Option<String>,
}

impl AuditFilter {
    /// Every record.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only records of this request.
    #[must_use]
    pub fn request(self, id: Uuid) -> Self {
        Self { request_id: Some(id), ..self }
    }

    /// Only what the operator of this name did, or was refused.
    #[must_use]
    pub fn actor(self, name: impl Into<String>) -> Self {
        Self { actor: Some(name.into()), ..self }
    }

    /// Only this act, by its name as in [`AuditRecord::act`], or every act whose name begins with it and a dot: `erase`,
    /// `reveal.key`, or `reveal`.
    #[must_use]
    pub fn act(self, name: impl Into<String>) -> Self {
        Self { act: Some(name.into()), ..self }
    }

    /// Refuses a name that no record can have: nothing would be found, as if nothing had been done.
    pub(super) fn search(self) -> Result<AuditSearch, OpsError> {
        let Self { request_id, actor, act } = self;
        if actor.as_ref().is_some_and(|name| !is_name(name)) {
            return Err(OpsError::BadFilter(
                "an operator's name is 1 to 200 characters, and none of them a control character",
            ));
        }
        let is_of = |known: &str, name: &str| {
            known.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let acts = act.map(|name| {
            let acts: Vec<String> =
                ACTS.into_iter().filter(|known| is_of(known, &name)).map(str::to_owned).collect();
            (!acts.is_empty()).then_some(acts).ok_or(NO_SUCH_ACT)
        });
        Ok(AuditSearch { request_id, actor, acts: acts.transpose()? })
    }
}

/// The records of this request, or all.
impl From<Option<Uuid>> for AuditFilter {
    fn from(request_id: Option<Uuid>) -> Self {
        Self { request_id, ..Self::default() }
    }
}

/// A row of the audit: what an operator did, or was refused. Contains no key, scope or value.
#[derive(Clone, PartialEq, Eq)]
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
    /// Definition and phase: of a pause, which is of every version; or of the call that a `resolve.executed` or
    /// `resolve.not_executed` is about.
    pub phase: Option<(String, String)>,
    /// The attempt whose call had no effect: what a `resolve.not_executed` named.
    pub attempt: Option<u32>,
    /// The SHA-256, in hex, of the value that the operator gave: of the output of a `resolve.executed`, as the JSON that was
    /// given, or of the body of the reply of a `resolve.finish`. A short value can be guessed from it: for actors with
    /// [`Permissions::REVEAL`].
    pub value_sha256: Option<String>,
    /// The length of that value, in bytes.
    pub value_bytes: Option<u64>,
    /// The request's status before. Of a phase that is paused or whose pause ends: `runs`, `paused`, or `paused until` and
    /// a time (RFC 3339).
    pub before: Option<String>,
    /// The same after the act.
    pub after: Option<String>,
}

/// Without the hash, which logs are not to have, and the reason.
impl fmt::Debug for AuditRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditRecord")
            .field("at", &self.at)
            .field("id", &self.id)
            .field("actor", &self.actor)
            .field("act", &self.act)
            .field("outcome", &self.outcome)
            .field("refused_because", &self.refused_because)
            .field("request_id", &self.request_id)
            .field("job_id", &self.job_id)
            .field("bulk_id", &self.bulk_id)
            .finish_non_exhaustive()
    }
}

impl AuditRecord {
    /// As an actor with these permissions sees it.
    pub(super) fn seen_with(permissions: Permissions, row: Audited) -> Self {
        let hashed = row.value.filter(|_| permissions.contain(Permissions::REVEAL));
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
            attempt: row.attempt,
            value_sha256: hashed.map(|value| hex(&value.sha256)),
            value_bytes: row.value.map(|value| value.bytes),
            before: row.before,
            after: row.after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_is_asked_for_by_its_name_or_by_what_stands_before_its_dot() {
        let acts = |name: &str| AuditFilter::new().act(name).search().map(|search| search.acts);
        for known in ACTS {
            assert_eq!(acts(known).unwrap().unwrap(), [known]);
        }
        assert_eq!(acts("reveal").unwrap().unwrap().len(), 6);
        assert_eq!(acts("retry").unwrap().unwrap(), ["retry"], "and not that of a job");
        let Err(OpsError::BadFilter(text)) = acts("revea") else {
            panic!("it is not the name of an act")
        };
        for known in ACTS {
            assert!(text.contains(known), "{known}");
        }
        for bad in ["", ".", "reveal.", "reveal.key.", "RETRY", "retry "] {
            assert!(acts(bad).is_err(), "{bad:?}");
        }
    }
}
