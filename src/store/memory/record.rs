//! The rows of the tables, and where they are.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::store::audit::AuditEntry;
use crate::store::pauses::PausedPhase;
use crate::store::row::{KeySummaryRow, Row, millis};
use crate::store::{Status, StoredResponse};

/// In place of a time that the database sets.
pub(super) const UNSET: DateTime<Utc> = DateTime::UNIX_EPOCH;

pub(super) fn after(time: DateTime<Utc>, length: Duration) -> Time {
    Time(time + chrono::Duration::milliseconds(millis(length)))
}

/// The primary key of a row, of whichever table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Key(String, String),
    Job(String, Uuid, i64),
    Row(String, String),
    Audit(DateTime<Utc>, Uuid),
    /// Definition and phase.
    Pause(String, String),
    Bulk(Uuid),
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // Most records are keys, and each is behind a pointer.
pub(super) enum Record {
    Key(KeyRecord),
    Job(JobRecord),
    Row(Value),
    Audit(AuditRecord),
    Pause(PauseRecord),
    Bulk(BulkRecord),
}

/// A row of the key table, as the migrations of the other stores have it.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KeyRecord {
    pub(super) scope: String,
    pub(super) idempotency_key: String,
    pub(super) request_id: Bytes,
    pub(super) definition: String,
    pub(super) definition_version: i32,
    pub(super) phases: String,
    pub(super) fingerprint: String,
    /// As text: tests and operators write what this version of the crate does not know.
    pub(super) status: String,
    pub(super) recovery_point: String,
    pub(super) open_intent: Option<String>,
    pub(super) lease_token: i64,
    pub(super) locked_until: Option<Time>,
    pub(super) run_after: Option<Time>,
    pub(super) attempts: i32,
    pub(super) forgiven_attempts: i32,
    pub(super) reconciles: i32,
    pub(super) resolution: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) waiting_since: Option<Time>,
    pub(super) events: Option<String>,
    pub(super) events_written: Option<i32>,
    #[serde(default)]
    pub(super) trace: Option<Bytes>,
    pub(super) advanced_at: Time,
    pub(super) created_at: Time,
    pub(super) expires_at: Time,
    pub(super) params: Bytes,
    pub(super) context: Option<Bytes>,
    pub(super) outputs: Option<Bytes>,
    pub(super) response_status: Option<i16>,
    pub(super) response_headers: Option<Bytes>,
    pub(super) response_body: Option<Bytes>,
}

/// A row of the table of staged jobs.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JobRecord {
    pub(super) scope: String,
    pub(super) request_id: Bytes,
    pub(super) position: i64,
    pub(super) job_id: Bytes,
    pub(super) idempotency_key: String,
    pub(super) name: String,
    pub(super) args: Bytes,
    pub(super) staged_at: Time,
    pub(super) attempts: i32,
    pub(super) forgiven_attempts: i32,
    pub(super) reason: Option<String>,
    pub(super) run_after: Option<Time>,
    #[serde(default)]
    pub(super) trace: Option<Bytes>,
}

/// A row of the audit table.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AuditRecord {
    pub(super) at: Time,
    pub(super) id: Bytes,
    pub(super) actor: String,
    pub(super) act: String,
    pub(super) outcome: String,
    pub(super) refused_because: Option<String>,
    pub(super) reason: String,
    pub(super) scope: Option<String>,
    pub(super) request_id: Option<Bytes>,
    pub(super) job_id: Option<Bytes>,
    #[serde(default)]
    pub(super) bulk_id: Option<Bytes>,
    pub(super) definition: Option<String>,
    pub(super) definition_version: Option<i32>,
    #[serde(default)]
    pub(super) phase: Option<String>,
    pub(super) status_before: Option<String>,
    pub(super) status_after: Option<String>,
    #[serde(default)]
    pub(super) attempt: Option<i32>,
    #[serde(default)]
    pub(super) value_sha256: Option<Bytes>,
    #[serde(default)]
    pub(super) value_bytes: Option<i64>,
}

/// A row of the table of pauses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PauseRecord {
    pub(super) definition: String,
    pub(super) phase: String,
    pub(super) reason: String,
    pub(super) paused_by: String,
    pub(super) paused_at: Time,
    pub(super) ends_at: Option<Time>,
}

/// A row of the table of bulk acts, with those of its requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BulkRecord {
    pub(super) id: Bytes,
    pub(super) act: String,
    pub(super) actor: String,
    pub(super) reason: String,
    pub(super) limits: String,
    pub(super) started_at: Time,
    pub(super) ended_at: Option<Time>,
    pub(super) stopped_by: Option<String>,
    pub(super) lease_token: i64,
    pub(super) locked_until: Option<Time>,
    pub(super) items: Vec<ItemRecord>,
}

/// A request of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ItemRecord {
    pub(super) request_id: Bytes,
    pub(super) seen: String,
    pub(super) outcome: Option<String>,
    pub(super) because: Option<String>,
}

/// A time of the database's clock. Written out in milliseconds, as SQLite keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time(pub(super) DateTime<Utc>);

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.timestamp_millis().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let millis = i64::deserialize(from)?;
        DateTime::from_timestamp_millis(millis)
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("no time"))
    }
}

/// Bytes. Written out in hex, under a name of their own, so that a reader can tell them from text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Uuid> for Bytes {
    fn from(id: Uuid) -> Self {
        Self(id.as_bytes().to_vec())
    }
}

impl Bytes {
    pub(super) fn uuid(&self) -> Uuid {
        Uuid::from_slice(&self.0).unwrap_or_default()
    }
}

#[derive(Serialize, Deserialize)]
struct Hex {
    hex: String,
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let hex = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        Hex { hex }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Hex { hex } = Hex::deserialize(from)?;
        let byte = |at: usize| hex.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("not hex"))
    }
}

impl KeyRecord {
    pub(super) fn place(&self) -> Place {
        Place::Key(self.scope.clone(), self.idempotency_key.clone())
    }

    pub(super) fn is(&self, status: Status) -> bool {
        self.status == status.as_str()
    }

    /// As every store selects it. What a run needs stays behind where the row is completed.
    pub(super) fn row(self, now: DateTime<Utc>) -> Row {
        let needed = !self.is(Status::Completed);
        let time = |time: Option<Time>| time.map(|time| time.0);
        let bytes = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
        (
            (self.request_id.uuid(), self.definition, self.definition_version, self.fingerprint),
            (self.status, self.recovery_point, self.open_intent, self.lease_token, self.attempts),
            (self.forgiven_attempts, self.reconciles, self.resolution, self.phases, self.reason),
            (now, time(self.locked_until), time(self.run_after), time(self.waiting_since)),
            (self.advanced_at.0, self.created_at.0, self.expires_at.0),
            (
                needed.then_some(self.params.0),
                bytes(self.context.filter(|_| needed)),
                bytes(self.outputs.filter(|_| needed)),
                bytes(self.trace),
            ),
            (self.response_status, bytes(self.response_headers), bytes(self.response_body)),
        )
    }

    pub(super) fn key_summary(self, now: DateTime<Utc>) -> KeySummaryRow {
        let bytes = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
        (
            (self.request_id.uuid(), self.definition, self.definition_version, self.fingerprint),
            (
                self.status,
                self.lease_token,
                now,
                self.locked_until.map(|time| time.0),
                self.run_after.map(|time| time.0),
                self.expires_at.0,
            ),
            (
                bytes(self.trace),
                self.response_status,
                bytes(self.response_headers),
                bytes(self.response_body),
            ),
        )
    }

    pub(super) fn respond(&mut self, response: &StoredResponse) {
        self.response_status = Some(response.status.cast_signed());
        self.response_headers = Some(Bytes(response.headers.clone()));
        self.response_body = response.body.clone().map(Bytes);
    }
}

impl JobRecord {
    pub(super) fn place(&self) -> Place {
        Place::Job(self.scope.clone(), self.request_id.uuid(), self.position)
    }
}

impl AuditRecord {
    /// To be written at a time that the database says.
    pub(super) fn of(entry: &AuditEntry) -> Self {
        Self {
            at: Time(DateTime::UNIX_EPOCH),
            id: entry.id.into(),
            actor: entry.actor.clone(),
            act: entry.act.to_owned(),
            outcome: entry.outcome.to_owned(),
            refused_because: entry.refused_because.clone(),
            reason: entry.reason.clone(),
            scope: entry.scope.clone(),
            request_id: entry.request_id.map(Bytes::from),
            job_id: entry.job_id.map(Bytes::from),
            bulk_id: entry.bulk_id.map(Bytes::from),
            definition: entry.definition.clone(),
            definition_version: entry.version.map(u32::cast_signed),
            phase: entry.phase.clone(),
            status_before: entry.before.clone(),
            status_after: entry.after.clone(),
            attempt: entry.attempt.map(u32::cast_signed),
            value_sha256: entry.value.map(|value| Bytes::from(&value.sha256[..])),
            value_bytes: entry.value.map(|value| value.bytes.cast_signed()),
        }
    }

    pub(super) fn place(&self) -> Place {
        Place::Audit(self.at.0, self.id.uuid())
    }
}

impl PauseRecord {
    pub(super) fn of(pause: &PausedPhase) -> Self {
        Self {
            definition: pause.definition.clone(),
            phase: pause.phase.clone(),
            reason: pause.reason.clone(),
            paused_by: pause.paused_by.clone(),
            paused_at: Time(pause.paused_at),
            ends_at: pause.ends_at.map(Time),
        }
    }

    pub(super) fn lasts_at(&self, now: DateTime<Utc>) -> bool {
        self.ends_at.is_none_or(|ends| ends.0 > now)
    }

    pub(super) fn place(&self) -> Place {
        Place::Pause(self.definition.clone(), self.phase.clone())
    }
}

impl BulkRecord {
    pub(super) fn place(&self) -> Place {
        Place::Bulk(self.id.uuid())
    }
}

impl Record {
    pub(super) fn bulk(&self) -> Option<&BulkRecord> {
        match self {
            Self::Bulk(bulk) => Some(bulk),
            _ => None,
        }
    }

    pub(super) fn pause(&self) -> Option<&PauseRecord> {
        match self {
            Self::Pause(pause) => Some(pause),
            _ => None,
        }
    }

    pub(super) fn audit(&self) -> Option<&AuditRecord> {
        match self {
            Self::Audit(audit) => Some(audit),
            _ => None,
        }
    }

    pub(super) fn key(&self) -> Option<&KeyRecord> {
        match self {
            Self::Key(key) => Some(key),
            _ => None,
        }
    }

    pub(super) fn job(&self) -> Option<&JobRecord> {
        match self {
            Self::Job(job) => Some(job),
            _ => None,
        }
    }
}
