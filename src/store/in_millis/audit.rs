//! The statements of the audit: those of `store::postgres::ops_statements`, with owned values.

use chrono::DateTime;
use diesel::QueryResult;
use diesel::query_builder::AstPass;
use diesel::sql_types::{self, BigInt, Binary, Nullable, Text};
use uuid::Uuid;

use super::InMillis;
use crate::store::audit::{AuditEntry, AuditRow, AuditSearch};
use crate::store::operators::ScopeLimits;
use crate::store::statement::{Part, statement};

statement! {
    /// An audit row.
    InsertAudit in D: InMillis, rows sql_types::Untyped,
    {
        id: Vec<u8>, actor: String, act: String, outcome: String, refused_because: Option<String>,
        reason: String, scope: Option<String>, request_id: Option<Vec<u8>>,
        job_id: Option<Vec<u8>>, bulk_id: Option<Vec<u8>>, definition: Option<String>,
        version: Option<i64>,
        phase: Option<String>, before: Option<String>, after: Option<String>,
        attempt: Option<i64>, value_sha256: Option<Vec<u8>>, value_bytes: Option<i64>,
    },
    "INSERT INTO atomic_phases_audit (at, id, actor, act, outcome, refused_because, reason, scope, \
     request_id, job_id, bulk_id, definition, definition_version, phase, status_before, status_after, attempt, \
     value_sha256, value_bytes) VALUES (", (D::NOW), ", ", id,
    ", ", actor, ", ", act, ", ", outcome, ", ", refused_because, ", ", reason, ", ", scope, ", ",
    request_id, ", ", job_id, ", ", bulk_id, ", ", definition, ", ", version, ", ", phase, ", ", before, ", ",
    after, ", ", attempt, ", ", value_sha256, ", ", value_bytes, ")"
}

impl InsertAudit {
    pub(in crate::store) fn of(entry: &AuditEntry) -> Self {
        let bytes = |id: Option<Uuid>| id.map(|id| id.as_bytes().to_vec());
        Self {
            id: entry.id.as_bytes().to_vec(),
            actor: entry.actor.clone(),
            act: entry.act.to_owned(),
            outcome: entry.outcome.to_owned(),
            refused_because: entry.refused_because.clone(),
            reason: entry.reason.clone(),
            scope: entry.scope.clone(),
            request_id: bytes(entry.request_id),
            job_id: bytes(entry.job_id),
            bulk_id: bytes(entry.bulk_id),
            definition: entry.definition.clone(),
            version: entry.version.map(|version| version.cast_signed().into()),
            phase: entry.phase.clone(),
            before: entry.before.clone(),
            after: entry.after.clone(),
            attempt: entry.attempt.map(|attempt| attempt.cast_signed().into()),
            value_sha256: entry.value.map(|value| value.sha256.to_vec()),
            value_bytes: entry.value.map(|value| value.bytes.cast_signed()),
        }
    }
}

type AuditSql = (
    (BigInt, Binary, Text, Text),
    (Text, Nullable<Text>, Text),
    (Nullable<Text>, Nullable<Binary>, Nullable<Binary>, Nullable<Binary>),
    (
        Nullable<Text>,
        Nullable<BigInt>,
        Nullable<Text>,
        Nullable<Text>,
        Nullable<Text>,
        Nullable<BigInt>,
        Nullable<Binary>,
        Nullable<BigInt>,
    ),
);

pub(in crate::store) type StoredAudit = (
    (i64, Vec<u8>, String, String),
    (String, Option<String>, String),
    (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>, Option<Vec<u8>>),
    (
        Option<String>,
        Option<i64>,
        Option<String>,
        Option<String>,
        Option<String>,
        Option<i64>,
        Option<Vec<u8>>,
        Option<i64>,
    ),
);

pub(in crate::store) fn audit(row: StoredAudit) -> Option<AuditRow> {
    let ((at, id, actor, act), said, (scope, request_id, job_id, bulk_id), what) = row;
    let uuid = |id: Option<Vec<u8>>| id.and_then(|id| Uuid::from_slice(&id).ok());
    let integer = |number: Option<i64>| number.and_then(|number| i32::try_from(number).ok());
    let (definition, version, phase, before, after, attempt, value_sha256, value_bytes) = what;
    Some((
        (DateTime::from_timestamp_millis(at)?, Uuid::from_slice(&id).ok()?, actor, act),
        said,
        (scope, uuid(request_id), uuid(job_id), uuid(bulk_id)),
        (
            definition,
            integer(version),
            phase,
            before,
            after,
            integer(attempt),
            value_sha256,
            value_bytes,
        ),
    ))
}

/// The audit rows from one place on, of one request or of all.
#[derive(Clone)]
pub(in crate::store) struct AuditFrom {
    request_id: Option<Vec<u8>>,
    at: i64,
    id: Vec<u8>,
}

impl AuditFrom {
    fn new(search: &AuditSearch, (at, id): (i64, Vec<u8>)) -> Self {
        Self { request_id: search.request_id.map(|id| id.as_bytes().to_vec()), at, id }
    }
}

impl<D: InMillis> Part<D> for AuditFrom
where
    i64: Part<D>,
    Vec<u8>: Part<D>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, D>) -> QueryResult<()> {
        out.push_sql(" FROM atomic_phases_audit WHERE ");
        if let Some(request_id) = &self.request_id {
            out.push_sql("request_id = ");
            request_id.push(out)?;
            out.push_sql(" AND ");
        }
        out.push_sql("(at, id) < (");
        self.at.push(out)?;
        out.push_sql(", ");
        self.id.push(out)?;
        out.push_sql(") AND at <= ");
        self.at.push(out)?;
        out.push_sql(" ORDER BY at DESC, id DESC");
        Ok(())
    }
}

statement! {
    /// What was done, the newest first. What has no scope is for those who may see all.
    Audit in D: InMillis as varying, rows AuditSql,
    {
        from: AuditFrom, only: Option<String>, prefix: String, actor: Option<String>,
        acts: Option<String>, limit: i64,
    },
    "SELECT at, id, actor, act, outcome, refused_because, reason, scope, request_id, job_id, bulk_id, \
     definition, definition_version, phase, status_before, status_after, attempt, value_sha256, value_bytes \
     FROM (SELECT *", from,
    " LIMIT 10000) AS looked WHERE (", only,
    " IS NULL OR ", (D::AMONG[0]), "coalesce(scope, '')", (D::AMONG[1]), only, (D::AMONG[2]),
    ") AND substr(coalesce(scope, ''), 1, length(", prefix, ")) = ", prefix,
    " AND (", actor, " IS NULL OR actor = ", actor, ") AND (", acts, " IS NULL OR ", (D::AMONG[0]), "act",
    (D::AMONG[1]), acts, (D::AMONG[2]), ") ORDER BY at DESC, id DESC LIMIT ", limit
}

impl Audit {
    pub(in crate::store) fn new<D: InMillis>(
        search: &AuditSearch,
        place: (i64, Vec<u8>),
        limits: &ScopeLimits,
        limit: u32,
    ) -> Self {
        Self {
            from: AuditFrom::new(search, place),
            only: limits.only.as_deref().map(D::list),
            prefix: limits.prefix.clone(),
            actor: search.actor.clone(),
            acts: search.acts.as_deref().map(D::list),
            limit: limit.into(),
        }
    }
}

statement! {
    /// How far it looked.
    EndOfAudit in D: InMillis as varying, rows (BigInt, Binary), { from: AuditFrom },
    "SELECT at, id", from, " LIMIT 1 OFFSET 9999"
}

impl EndOfAudit {
    pub(in crate::store) fn new(search: &AuditSearch, place: (i64, Vec<u8>)) -> Self {
        Self { from: AuditFrom::new(search, place) }
    }
}
