//! A row that is created: as it is reserved, and as its first phase leaves it. Columns and values stand here once; what a
//! database does where the key has a row is its own.

use chrono::{DateTime, Utc};
use diesel::sql_types;

use super::InMillis;
use crate::store::row::millis;
use crate::store::statement::statement;
use crate::store::{Change, NewRow};

statement! {
    /// Reserves the key (G10).
    Insert in D: InMillis, rows sql_types::Untyped,
    {
        scope: String, key: String, request_id: Vec<u8>, definition: String, version: i32,
        phases: String, fingerprint: String, status: String, first: i32,
        lease_ms: Option<i64>, due_ms: Option<i64>, retention_ms: i64, params: Vec<u8>,
        context: Option<Vec<u8>>, trace: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
     locked_until, run_after, advanced_at, created_at, expires_at, params, context, trace) ",
    (D::VALUES[0]), scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases, ", ", fingerprint, ", ", status, ", 'started', ", first, ", ", first, ", ", (D::VALUES[1]), " + ", lease_ms,
    ", ", (D::VALUES[1]), " + ", due_ms, ", ", (D::VALUES[1]), ", ", (D::VALUES[1]), ", ", (D::VALUES[1]), " + ", retention_ms,
    ", ", params, ", ", context, ", ", trace, (D::VALUES[2])
}

impl Insert {
    pub(in crate::store) fn new(row: &NewRow<'_>) -> Self {
        Self {
            scope: row.scope.as_str().to_owned(),
            key: row.key.as_str().to_owned(),
            request_id: row.request_id.as_bytes().to_vec(),
            definition: row.definition.to_owned(),
            version: row.version.cast_signed(),
            phases: row.phases.to_owned(),
            fingerprint: row.fingerprint.to_owned(),
            status: row.birth.status().as_str().to_owned(),
            first: row.birth.attempts(),
            lease_ms: row.birth.lease().map(millis),
            due_ms: row.birth.due().map(millis),
            retention_ms: millis(row.retention),
            params: row.params.to_vec(),
            context: row.context.map(<[u8]>::to_vec),
            trace: row.trace.map(<[u8]>::to_vec),
        }
    }
}

statement! {
    /// Creates the row as its first phase leaves it.
    Create in D: InMillis, rows sql_types::Untyped,
    {
        scope: String, key: String, request_id: Vec<u8>, definition: String, version: i32,
        phases: String, fingerprint: String, status: String, to: String, first: i32,
        lease_ms: Option<i64>, due_ms: Option<i64>, created_at: i64, retention_ms: i64, params: Vec<u8>,
        context: Option<Vec<u8>>, trace: Option<Vec<u8>>, outputs: Option<Vec<u8>>, response_status: Option<i16>,
        response_headers: Option<Vec<u8>>, response_body: Option<Vec<u8>>,
    },
    "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
     definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
     locked_until, run_after, advanced_at, created_at, expires_at, params, context, trace, outputs, \
     response_status, response_headers, response_body) ",
    (D::VALUES[0]), scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ",
    phases, ", ", fingerprint, ", ", status, ", ", to, ", ", first, ", ", first, ", ", (D::VALUES[1]), " + ", lease_ms,
    ", ", (D::VALUES[1]), " + ", due_ms, ", ", (D::VALUES[1]), ", ", created_at, ", ", (D::VALUES[1]), " + ", retention_ms,
    ", ", params, ", ", context, ", ", trace, ", ", outputs, ", ", response_status, ", ", response_headers, ", ", response_body,
    (D::VALUES[2])
}

impl Create {
    pub(in crate::store) fn new(
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
    ) -> Self {
        Self {
            scope: row.scope.as_str().to_owned(),
            key: row.key.as_str().to_owned(),
            request_id: row.request_id.as_bytes().to_vec(),
            definition: row.definition.to_owned(),
            version: row.version.cast_signed(),
            phases: row.phases.to_owned(),
            fingerprint: row.fingerprint.to_owned(),
            status: change.status.as_str().to_owned(),
            to: change.recovery_point.to_owned(),
            first: row.birth.attempts(),
            lease_ms: change.lease().map(millis),
            due_ms: row.birth.due().map(millis),
            created_at: created_at.timestamp_millis(),
            retention_ms: millis(row.retention),
            params: row.params.to_vec(),
            context: row.context.map(<[u8]>::to_vec),
            trace: row.trace.map(<[u8]>::to_vec),
            outputs: change.outputs.map(<[u8]>::to_vec),
            response_status: change.response.map(|response| response.status.cast_signed()),
            response_headers: change.response.map(|response| response.headers.clone()),
            response_body: change.response.and_then(|response| response.body.clone()),
        }
    }
}
