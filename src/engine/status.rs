//! [`Engine::status`]: the state of a request, for a status page, an operator or a test.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::outcome::CallError;
use super::{Core, Engine};
use crate::key::{IdempotencyKey, Scope};
use crate::phase::Reply;
use crate::store::{Status, Store};

/// The state of a request, judged by the database's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestStatus {
    /// Its id; the next request under the same key has another.
    pub request_id: Uuid,
    /// The status of its row.
    pub status: Status,
    /// The last committed phase; `started` before the first, `finished` after the last.
    pub recovery_point: String,
    /// Name and version of its definition.
    pub definition: (String, u32),
    /// How often its lease was acquired.
    pub attempt: u32,
    /// The phase whose call has an unknown outcome.
    pub unknown_phase: Option<String>,
    /// The phase whose intent to call is stored, and no outcome: an `at_most_once` phase whose call may be under way, or any
    /// whose outcome is unknown. An idempotent phase stores no intent before its call, so `None` does not mean that none was
    /// made: its call is repeated under the same derived key.
    pub open_intent: Option<String>,
    /// Why the last attempt ended without finishing the request, in the words of the library or of the phase;
    /// `None` if no attempt has failed so far, and once the request is completed.
    pub reason: Option<String>,
    /// When it began to wait for a reconcile function or an operator.
    pub waiting_since: Option<DateTime<Utc>>,
    /// When something happens next: the end of the lease or of the back-off.
    pub retry_after: Duration,
    /// When it was accepted.
    pub created_at: DateTime<Utc>,
    /// When a finished request stops replaying its answer.
    pub expires_at: DateTime<Utc>,
    /// Its reply, once it is completed and if it was retained.
    pub reply: Option<Reply>,
    /// Whether its data was [erased](Engine::erase).
    pub erased: bool,
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// The state of the request under this key; `None` if there is none. Reads one row, locks
    /// nothing. The result includes the request's answer: authorize the caller first.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] or [`CallError::Unreadable`].
    pub async fn status(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<RequestStatus>, CallError> {
        self.core.status(scope, key).await
    }
}

impl<S: Store> Core<S> {
    async fn status(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<RequestStatus>, CallError> {
        let Some(mut row) = self.store.read_key(scope, key).await? else { return Ok(None) };
        if row.status == Status::Completed && row.expired {
            return Ok(None);
        }
        let reply = match row.status {
            Status::Completed => self.decode_reply(scope, key, row.response.take())?.ok(),
            _ => None,
        };
        let waits = matches!(row.status, Status::Unknown | Status::DeadLetter);
        Ok(Some(RequestStatus {
            request_id: row.request_id,
            erased: row.status == Status::Completed && row.is_erased(),
            status: row.status,
            recovery_point: row.recovery_point,
            definition: (row.definition, row.version),
            attempt: row.attempts,
            unknown_phase: row.open_intent.clone().filter(|_| waits),
            open_intent: row.open_intent,
            reason: row.reason.filter(|_| row.status != Status::Completed),
            waiting_since: row.waiting_since.filter(|_| waits),
            retry_after: match row.status {
                Status::InProgress => self.settings.ask_again_after(row.lease_left),
                Status::Unknown if !row.for_workers => self.settings.reconcile_after,
                _ => row.back_off_left,
            },
            created_at: row.created_at,
            expires_at: row.expires_at,
            reply,
        }))
    }
}
