//! A row that is to be created, and the outcome of its reservation.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Guard, KeySummary, Status};
use crate::caller::Caller;
use crate::key::{IdempotencyKey, Scope};

/// A row to be created, at its first recovery point.
pub struct NewRow<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) definition: &'a str,
    pub(crate) version: u32,
    /// The phases of the definition, as text (`definition::PhaseList`).
    pub(crate) phases: &'a str,
    pub(crate) fingerprint: &'a str,
    pub(crate) params: &'a [u8],
    pub(crate) context: Option<&'a [u8]>,
    /// A [`StoredTrace`](crate::traces::StoredTrace), as it is stored.
    pub(crate) trace: Option<&'a [u8]>,
    pub(crate) birth: Birth,
    pub(crate) retention: Duration,
    /// How long to wait for another transaction that is about to create the row.
    pub(crate) creation_wait: Duration,
    /// Who asked for it. Nothing waits for the row's lock any more once they are gone.
    pub(crate) caller: &'a Caller,
    /// A finished, expired life of the same key, which this row replaces.
    pub(crate) replaces: Option<Uuid>,
}

impl<'a> NewRow<'a> {
    /// What the first phase's writes are guarded by: nothing but that the row is new.
    pub(crate) fn guard(&self) -> Guard<'a> {
        Guard {
            scope: self.scope,
            key: self.key,
            request_id: self.request_id,
            lease_token: 1,
            recovery_point: "",
        }
    }
}

/// How a row begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Birth {
    /// In progress: its creator runs it, and holds it for so long.
    Held(Duration),
    /// Accepted: a worker is to run it immediately.
    Pending,
}

impl Birth {
    pub(super) fn status(self) -> Status {
        match self {
            Self::Held(_) => Status::InProgress,
            Self::Pending => Status::Pending,
        }
    }

    /// Acquisitions of the lease so far, which is also the first fencing token.
    pub(super) fn attempts(self) -> i32 {
        (self != Self::Pending).into()
    }

    pub(super) fn lease(self) -> Option<Duration> {
        match self {
            Self::Held(lease) => Some(lease),
            Self::Pending => None,
        }
    }

    pub(super) fn due(self) -> Option<Duration> {
        (self == Self::Pending).then_some(Duration::ZERO)
    }
}

/// The outcome of a reservation.
pub enum Reserved<T> {
    /// The row is in this open transaction.
    Fresh { tx: T, created_at: DateTime<Utc>, expires_at: DateTime<Utc> },
    /// The key has this row. `None`: it was created while the statement ran, too late for it to see
    /// (H20): ask again.
    Exists(Option<KeySummary>),
    /// Another transaction is about to create it, and took longer than the bound.
    Busy,
}

/// When a row that was just created was written, and until when it is kept, by the database's clock.
#[derive(Clone, Copy, Debug)]
pub struct RowTimes {
    pub(crate) written_at: DateTime<Utc>,
    pub(crate) expires_at: DateTime<Utc>,
}
