//! The acquisition of a row: which row, by what right, for how long; and an operator's erasure of one.

use std::time::Duration;

use uuid::Uuid;

use super::audit::AuditEntry;
use super::{Guard, KeyRow, Status};
use crate::key::{IdempotencyKey, Scope};

/// Which row to take over, and by what right.
pub struct Claim<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) request_id: Uuid,
    /// Token and status that were read: who changed them since then was faster.
    pub(crate) lease_token: i64,
    pub(crate) status: Status,
    /// The recovery point that was read; `None`, for a row of our own: wherever it stands.
    pub(crate) recovery_point: Option<&'a str>,
    /// The phases that it is run under from now on; `None` leaves those that it was written under.
    pub(crate) phases: Option<&'a str>,
    pub(crate) right: Right,
    /// Nothing was called that a provider could have forgotten: its window begins with this attempt (G11).
    pub(crate) opens_window: bool,
    /// A [line](super::events::line) of what was found.
    pub(crate) event: Option<&'a str>,
    /// A [`StoredTrace`](crate::traces::StoredTrace), as it is stored; `None` leaves the one that the row has.
    pub(crate) trace: Option<&'a [u8]>,
}

impl<'a> Claim<'a> {
    /// The row as it was read. Besides its lease, nothing of it is changed.
    pub(crate) fn of_row(
        scope: &'a Scope,
        key: &'a IdempotencyKey,
        row: &'a KeyRow,
        right: Right,
    ) -> Self {
        Self {
            scope,
            key,
            request_id: row.request_id,
            lease_token: row.lease_token,
            status: row.status,
            recovery_point: Some(&row.recovery_point),
            phases: None,
            right,
            opens_window: false,
            event: None,
            trace: None,
        }
    }

    /// What a write behind the takeover is guarded by. Of a claim that says no recovery point, nothing fits it.
    pub(super) fn behind(&self) -> Guard<'a> {
        Guard {
            scope: self.scope,
            key: self.key,
            request_id: self.request_id,
            // A token of no engine may be any number.
            lease_token: self.lease_token.saturating_add(1),
            recovery_point: self.recovery_point.unwrap_or_default(),
        }
    }
}

/// For how long: the lease, and, whatever becomes of the request, the key at least. A request that is
/// resumed on its third day replays its answer for as long as any other.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
}

/// What to erase.
pub struct Erase<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a IdempotencyKey,
    /// A dead letter is closed by it, and its key kept for so long from now: it may be past its
    /// expiry already, and must not be free for a late retry.
    pub(crate) retention: Duration,
    /// The row as an operator saw it, and the audit row of the act.
    pub(crate) act: Option<EraseAct<'a>>,
}

/// A settled row that is to be erased, and what a log line says of it.
pub struct SettledKey {
    /// As the database has it.
    pub(crate) key: String,
    pub(crate) request_id: Uuid,
    pub(crate) definition: String,
}

/// An operator's erasure of a row.
#[derive(Clone, Copy)]
pub(crate) struct EraseAct<'a> {
    pub(crate) seen: &'a Seen,
    pub(crate) audit: &'a AuditEntry,
}

/// A row as it was seen: a takeover, a resolution or a transition changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) request_id: Uuid,
    pub(crate) lease_token: i64,
    pub(crate) status: Status,
    pub(crate) recovery_point: String,
}

impl Seen {
    pub(crate) fn of(row: &KeyRow) -> Self {
        Self {
            request_id: row.request_id,
            lease_token: row.lease_token,
            status: row.status,
            recovery_point: row.recovery_point.clone(),
        }
    }

    /// A state that no row has: the row has changed since it was seen.
    pub(crate) fn gone(row: &KeyRow) -> Self {
        Self { lease_token: -1, ..Self::of(row) }
    }

    pub(crate) fn is(&self, row: &KeyRow) -> bool {
        *self == Self::of(row)
    }
}

/// By what right a lease is acquired.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// The row is accepted or released, or its lease has run out: another attempt begins.
    Free,
    /// The lease is ours, and a commit of ours got no answer: the guarded update waits for that
    /// commit and fences it off (H4, H5), then tells which recovery point holds.
    Own,
    /// The outcome is unknown, and a reconcile function is about to be called.
    Reconcile,
    /// A webhook or an operator knows the outcome.
    Resolve,
}
