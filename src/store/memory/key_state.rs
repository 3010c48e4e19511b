//! [`KeyState`]: what a test may see of a key's row, and [`KeyChange`]: a change of it.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::record::KeyRecord;

/// A change of a key's row, at its commit; for a test that watches.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct KeyChange<'a> {
    /// As it was; `None` where it is new.
    pub before: Option<KeyState<'a>>,
    /// As it is; `None` where it was deleted.
    pub after: Option<KeyState<'a>>,
    /// The database's clock.
    pub at: DateTime<Utc>,
    /// Whose transaction it is: see [`Network::client`](super::Network::client).
    pub by: &'a str,
    /// The task that sent the commit, if it was one.
    pub task: Option<tokio::task::Id>,
}

/// What a test may see of a key's row.
#[derive(Clone, Copy, PartialEq)]
pub struct KeyState<'a>(pub(super) &'a KeyRecord);

impl<'a> KeyState<'a> {
    /// Whose key it is.
    #[must_use]
    pub fn scope(&self) -> &'a str {
        &self.0.scope
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &'a str {
        &self.0.idempotency_key
    }

    /// Which life of the key it is.
    #[must_use]
    pub fn request_id(&self) -> Uuid {
        self.0.request_id.uuid()
    }

    /// Name of its definition.
    #[must_use]
    pub fn definition(&self) -> &'a str {
        &self.0.definition
    }

    /// The fingerprint of the request that it was made for.
    #[must_use]
    pub fn fingerprint(&self) -> &'a str {
        &self.0.fingerprint
    }

    /// Its status, as it is stored.
    #[must_use]
    pub fn status(&self) -> &'a str {
        &self.0.status
    }

    /// Its recovery point.
    #[must_use]
    pub fn recovery_point(&self) -> &'a str {
        &self.0.recovery_point
    }

    /// The at-most-once phase whose call may be under way.
    #[must_use]
    pub fn open_intent(&self) -> Option<&'a str> {
        self.0.open_intent.as_deref()
    }

    /// Its fencing token.
    #[must_use]
    pub fn lease_token(&self) -> i64 {
        self.0.lease_token
    }

    /// Until when its lease holds.
    #[must_use]
    pub fn locked_until(&self) -> Option<DateTime<Utc>> {
        self.0.locked_until.map(|time| time.0)
    }

    /// How often its lease was acquired.
    #[must_use]
    pub fn attempts(&self) -> i32 {
        self.0.attempts
    }

    /// How often its reconcile function was asked.
    #[must_use]
    pub fn reconciles(&self) -> i32 {
        self.0.reconciles
    }

    /// When a finished key stops to replay.
    #[must_use]
    pub fn expires_at(&self) -> DateTime<Utc> {
        self.0.expires_at.0
    }

    /// Status and body of the stored reply.
    #[must_use]
    pub fn response(&self) -> Option<(i16, Option<&'a [u8]>)> {
        let body = self.0.response_body.as_ref().map(|body| body.0.as_slice());
        self.0.response_status.map(|status| (status, body))
    }

    /// The headers of the stored reply, as they are stored: names and values, in JSON.
    #[must_use]
    pub fn response_headers(&self) -> Option<&'a [u8]> {
        self.0.response_headers.as_ref().map(|headers| headers.0.as_slice())
    }
}
