//! The inputs that are the same in every attempt of a phase (G5): the request's context and the outputs of
//! earlier phases. `Debug` shows no value of either (G19): phases print what they take.

use std::borrow::Cow;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::key::{IdempotencyKey, Scope};
use crate::phase::{DerivedKey, Output, PhaseError};

/// Facts about the request that are the same in each attempt, so that values that a phase derives from them,
/// above all the parameters of a foreign call, are the same too (G5). Only [`attempt`](Self::attempt) changes.
///
/// ```
/// # use atomic_phases::store::Sqlite;
/// # use serde::{Deserialize, Serialize};
/// use atomic_phases::prelude::*;
///
/// #[derive(Serialize, Deserialize)]
/// struct Invoice {
///     cents: i64,
/// }
///
/// #[atomic_phases(name = "invoices.create", version = 1, app = ())]
/// impl Invoice {
///     #[phase]
///     async fn written(
///         &self,
///         _: &mut Batch<'_, Sqlite>,
///         ctx: &RequestContext,
///     ) -> PhaseResult<Reply> {
///         // A retry tomorrow writes the same invoice with the same date: no random id, no clock.
///         let (id, date) = (ctx.uuid(0).to_string(), ctx.created_at().date_naive());
///         Ok(Reply::json(201, &(id, date, self.cents))?)
///     }
/// }
/// ```
pub struct RequestContext {
    pub(crate) scope: Scope,
    pub(crate) key: IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) attempt: u32,
    pub(crate) context: Option<Box<RawValue>>,
}

impl RequestContext {
    /// The scope of the key.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The client's key. With [`scope`](Self::scope) it identifies the request to a later webhook
    /// ([`Engine::resolve`](crate::Engine::resolve)). As an idempotency key, send a provider the
    /// [derived key](crate::phase::DerivedKey) instead.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// This request's id. After this request has ended and expired, the next request under the same key has another
    /// id. A webhook that may arrive that late uses it to identify its request
    /// ([`Resolution::of_request`](crate::engine::Resolution::of_request)). Do not use it in the parameters of a call to
    /// a provider that honors keys: see [`uuid`](Self::uuid).
    #[must_use]
    pub fn request_id(&self) -> Uuid {
        self.request_id
    }

    /// When the request was first accepted, by the database's clock. Use it instead of the current time, which differs in each
    /// attempt.
    ///
    /// Send a provider that honors keys a time of the request's parameters instead: this one is stored in the request's row. If
    /// the row is lost, for example in a failover that loses acknowledged commits, the client's retry has another, and the
    /// provider refuses the repeated key: see [`uuid`](Self::uuid), and
    /// [failover](https://github.com/atomic-phases/atomic-phases/blob/main/docs/failover.md).
    #[must_use]
    pub fn created_at(&self) -> DateTime<Utc> {
        self.created_at
    }

    /// The `n`-th UUID of this request: different for each `n` and each request, the same in each
    /// attempt and phase. A version 8 UUID of SHA-256 over the stored request id and `n`.
    ///
    /// Use it in your own tables, whose rows share the fate of the request's row. A failover that loses acknowledged
    /// commits may lose the row of a request whose call was made. The client's retry is then a request with another
    /// id under the same key, and so with the same [derived key](crate::phase::DerivedKey): a provider that honors
    /// keys and compares parameters refuses the call if it contains this UUID, and the request stays *unknown*. Send
    /// [`key_uuid`](Self::key_uuid) instead, or only the request's parameters. The explorer finds
    /// phases that violate this rule
    #[cfg_attr(
        feature = "fault-injection",
        doc = "([`Explorer::and_lost_rows`](crate::fault::Explorer::and_lost_rows))."
    )]
    #[cfg_attr(not(feature = "fault-injection"), doc = "(`Explorer::and_lost_rows`).")]
    #[must_use]
    pub fn uuid(&self, n: u64) -> Uuid {
        let mut hash = Sha256::new();
        hash.update(self.request_id.as_bytes());
        hash.update(n.to_be_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Uuid::new_v8(bytes)
    }

    /// The `n`-th UUID of this key: derived from scope, key and `n` alone, and so the same for each request under the
    /// key, even if the row of one was lost. Use it in parameters for a provider, and [`uuid`](Self::uuid) for the ids of
    /// your own rows. If a row of yours has it as its id, there can be only one such row per key, for ever: after the key
    /// has expired, a later request under it conflicts with that row. A program that knows scope and key can compute it, and
    /// it is the same in each environment, whatever the secret of the derived keys is.
    #[must_use]
    pub fn key_uuid(&self, n: u64) -> Uuid {
        let mut hash = Sha256::new();
        for part in [self.scope.as_str(), self.key.as_str()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        hash.update(n.to_be_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Uuid::new_v8(bytes)
    }

    /// How often the request's lease was acquired: 1 in the first attempt.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// What the caller passed with the request that is not one of its parameters: the principal, the
    /// client's address, chosen headers. `None` if nothing was passed or if it is not a `C`.
    #[must_use]
    pub fn context<C: DeserializeOwned>(&self) -> Option<C> {
        serde_json::from_str(self.context.as_deref()?.get()).ok()
    }
}

/// Without what the caller passed (G19).
impl fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestContext")
            .field("scope", &self.scope)
            .field("key", &self.key)
            .field("request_id", &self.request_id)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// All that a phase may ask for besides its transaction or call, and the application's state. Made by the engine, taken apart by
/// the code that `#[atomic_phases]` generates.
#[doc(hidden)]
#[derive(Debug)]
pub struct PhaseInputs<'a> {
    pub(crate) context: &'a RequestContext,
    pub(crate) outputs: &'a Outputs,
    pub(crate) derived_key: Option<&'a DerivedKey>,
}

impl<'a> PhaseInputs<'a> {
    /// The request's context.
    #[must_use]
    pub fn context(&self) -> &'a RequestContext {
        self.context
    }

    /// The output of phase `index`, decoded from its stored form, so that the first attempt sees
    /// exactly what a resumed one sees.
    ///
    /// # Errors
    /// A retryable failure if the stored output is missing or does not decode as a `T`.
    pub fn output<T: Output>(&self, index: usize) -> Result<T, PhaseError> {
        let raw = self
            .outputs
            .get(index)
            .ok_or(PhaseError::retryable("the output of an earlier phase is not stored"))?;
        serde_json::from_str(raw.get()).map_err(|_| {
            PhaseError::retryable("the stored output of an earlier phase has another type now")
        })
    }

    /// The derived key of the foreign phase at hand.
    ///
    /// # Errors
    /// A retryable failure in a local phase, which has none.
    pub fn derived_key(&self) -> Result<&'a DerivedKey, PhaseError> {
        self.derived_key.ok_or(PhaseError::retryable("only a foreign phase has a derived key"))
    }
}

/// The outputs of the phases that are done, in order, each with the name it was stored under.
#[derive(Clone, Default)]
pub(crate) struct Outputs(Vec<(Cow<'static, str>, Box<RawValue>)>);

impl Outputs {
    pub(crate) fn push(&mut self, phase: &'static str, output: Box<RawValue>) {
        self.0.push((phase.into(), output));
    }

    pub(crate) fn truncate(&mut self, phases: usize) {
        self.0.truncate(phases);
    }

    pub(crate) fn get(&self, index: usize) -> Option<&RawValue> {
        self.0.get(index).map(|(_, output)| &**output)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The names of the phases that are done, in order.
    pub(crate) fn phases(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|(phase, _)| &**phase)
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&self.0)
    }

    pub(crate) fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json).map(Self)
    }
}

/// The names of their phases.
impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.phases()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g19_what_a_phase_takes_shows_no_value() {
        let raw = || RawValue::from_string(r#""canary""#.to_owned()).unwrap();
        let context = RequestContext {
            scope: Scope::new("canary").unwrap(),
            key: IdempotencyKey::new("canary").unwrap(),
            request_id: Uuid::nil(),
            created_at: DateTime::UNIX_EPOCH,
            attempt: 3,
            context: Some(raw()),
        };
        let mut outputs = Outputs::default();
        outputs.push("booked", raw());
        let inputs = PhaseInputs { context: &context, outputs: &outputs, derived_key: None };
        let shown = format!("{inputs:?}");
        assert!(!shown.contains("canary"), "{shown}");
        assert!(shown.contains("booked") && shown.contains("attempt: 3"), "{shown}");
    }
}
