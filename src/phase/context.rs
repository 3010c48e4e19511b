//! What every attempt of a phase sees the same (G5): the request's context and the outputs of
//! earlier phases.

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::key::{IdempotencyKey, Scope};
use crate::phase::{DerivedKey, Output, PhaseError};

/// Facts about the request that are equal in each attempt, so that what a phase builds from them,
/// a foreign call's parameters above all, is equal too (G5). Only [`attempt`](Self::attempt) moves.
/// ```
/// # use atomic_phases::Sqlite;
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
///         // A retry tomorrow writes the same invoice with the same date: no `Uuid::new_v4()`, no `Utc::now()`.
///         let (id, date) = (ctx.uuid(0).to_string(), ctx.created_at().date_naive());
///         Ok(Reply::json(201, &(id, date, self.cents))?)
///     }
/// }
/// ```
#[derive(Debug)]
pub struct RequestContext {
    pub(crate) scope: Scope,
    pub(crate) key: IdempotencyKey,
    pub(crate) request_id: Uuid,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) attempt: u32,
    pub(crate) context: Option<Box<RawValue>>,
}

impl RequestContext {
    /// Whose key this is.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The client's key. With [`scope`](Self::scope) it names the request, for a webhook that comes
    /// later ([`Engine::resolve`](crate::Engine::resolve)); what a provider is to see is the
    /// [derived key](crate::phase::DerivedKey).
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// This request's id. The next request under the same key, once this one has ended and expired, has another:
    /// a webhook whose word may come that late says by it which of the two it is about
    /// ([`Resolution::of_request`](crate::engine::Resolution::of_request)). Not for the parameters of a call at a
    /// provider that honours keys: see [`uuid`](Self::uuid).
    #[must_use]
    pub fn request_id(&self) -> Uuid {
        self.request_id
    }

    /// When the request was first accepted, by the database's clock. Use it instead of the present
    /// time wherever a foreign call's parameters hold a time.
    ///
    /// It stands in the request's row. Where the row is lost, as by a failover that loses acknowledged commits,
    /// the client's retry has another, and a provider that honours keys refuses the repeated key: see
    /// [`uuid`](Self::uuid), and `docs/failover.md`.
    #[must_use]
    pub fn created_at(&self) -> DateTime<Utc> {
        self.created_at
    }

    /// The `n`-th UUID of this request: different for each `n` and each request, the same in each
    /// attempt and phase. A version 8 UUID of SHA-256 over the stored request id and `n`.
    ///
    /// It is for rows of yours, which are lost and kept with the request's own. A failover that loses acknowledged
    /// commits may lose the row of a request whose call was made. The client's retry is then a request with another
    /// id under the same key, which the [derived key](crate::phase::DerivedKey) is made of: a provider that honours
    /// it, and compares parameters, refuses what holds this UUID, and the request stays *unknown*. Send
    /// [`key_uuid`](Self::key_uuid) instead, or nothing that the request's parameters do not say. The explorer finds
    /// a phase that does not
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

    /// The `n`-th UUID of this key: made of scope, key and `n` alone, and so the same for each request that the key
    /// ever has, also where the row of one was lost. For what a provider is to be told. As the id of a row of yours
    /// it says that a key has one such row for ever: a request under the key, once it is used again, meets it.
    /// Whoever knows scope and key can compute it.
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

    /// What the caller gave along with the request that is no parameter of it: the principal, the
    /// origin's address, chosen headers. `None` where nothing was given or where it is no `C`.
    #[must_use]
    pub fn context<C: DeserializeOwned>(&self) -> Option<C> {
        serde_json::from_str(self.context.as_deref()?.get()).ok()
    }
}

/// All that a phase may ask for besides its transaction or call. Made by the engine, taken apart by
/// the code that `#[atomic_phases]` generates.
#[doc(hidden)]
#[derive(Debug)]
pub struct PhaseInputs<'a, A> {
    pub(crate) app: &'a A,
    pub(crate) context: &'a RequestContext,
    pub(crate) outputs: &'a Outputs,
    pub(crate) derived_key: Option<&'a DerivedKey>,
}

impl<'a, A> PhaseInputs<'a, A> {
    /// The application's shared state.
    #[must_use]
    pub fn app(&self) -> &'a A {
        self.app
    }

    /// The request's context.
    #[must_use]
    pub fn context(&self) -> &'a RequestContext {
        self.context
    }

    /// The output of phase `index`, decoded from its stored form, so that the first attempt sees
    /// exactly what a resumed one sees.
    ///
    /// # Errors
    /// A retryable failure where the stored output is missing or is no `T` any more.
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
#[derive(Clone, Debug, Default)]
pub(crate) struct Outputs(Vec<(String, Box<RawValue>)>);

impl Outputs {
    pub(crate) fn push(&mut self, phase: &str, output: Box<RawValue>) {
        self.0.push((phase.to_owned(), output));
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
        self.0.iter().map(|(phase, _)| phase.as_str())
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&self.0)
    }

    pub(crate) fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json).map(Self)
    }
}
