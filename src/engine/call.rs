//! [`Call`]: one request under one key, with its options.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::attempt::{Attempt, Mode};
use super::given::{Asking, Given};
use super::outcome::{CallError, Outcome};
use super::{Core, observed};
use crate::caller::Caller;
use crate::config::{OnDuplicate, Quota};
use crate::definition::Definition;
use crate::fingerprint::{Fingerprint, FingerprintError, RequestOrigin, fingerprint};
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::observe;
use crate::request::RequestDefinition;
use crate::roundtrip;
use crate::store::Store;

/// One call of [`Engine::call`](super::Engine::call), to be awaited.
///
/// ```
/// # use atomic_phases::config::OnDuplicate;
/// # use atomic_phases::request::RequestDefinition;
/// # use atomic_phases::{Engine, IdempotencyKey, Scope, Store};
/// # async fn example<R: RequestDefinition<S, ()>, S: Store>(engine: Engine<S>, request: R) -> Result<(), Box<dyn std::error::Error>> {
/// let (scope, key) = (Scope::new("tenant-1")?, IdempotencyKey::new("8e03978e")?);
/// let outcome = engine.call(&scope, &key, request).on_duplicate(OnDuplicate::Answer).await?;
/// # Ok(()) }
/// ```
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<S: Store, A, R> {
    pub(super) parts: CallParts<S>,
    pub(super) app: Arc<A>,
    pub(super) request: R,
    pub(super) origin: RequestOrigin,
}

/// The parts of a call that do not depend on the type of its request: the code that uses them is compiled once for each
/// store, and not for each type.
pub(super) struct CallParts<S: Store> {
    pub(super) core: Arc<Core<S>>,
    pub(super) scope: Scope,
    pub(super) key: IdempotencyKey,
    pub(super) context: Result<Option<Box<RawValue>>, CallError>,
    pub(super) on_duplicate: OnDuplicate,
    pub(super) expects_new: bool,
    /// Whether the HTTP boundary has admitted the key: a reserved one is then its own.
    pub(super) is_admitted: bool,
}

impl<S: Store, A, R> Call<S, A, R> {
    /// Of a key that the HTTP boundary has made, or has admitted: it refuses reserved ones from clients itself.
    #[cfg(feature = "http")]
    pub(crate) fn admitted(mut self) -> Self {
        self.parts.is_admitted = true;
        self
    }

    /// Method, path and query of the request: part of its fingerprint.
    pub fn origin(mut self, origin: RequestOrigin) -> Self {
        self.origin = origin;
        self
    }

    /// What a resumed run needs to know about the caller (principal, address, chosen headers). Stored
    /// by the first call, not part of the fingerprint, and the same in each attempt: see
    /// [`RequestContext::context`](crate::RequestContext::context). If it has no JSON form, or contains a float that is
    /// NaN or infinite (JSON writes it as `null`), the call is [refused](CallError::NotStorable).
    pub fn context(mut self, context: &impl Serialize) -> Self {
        self.parts.context = roundtrip::raw_json(context)
            .map(Some)
            .ok_or(CallError::NotStorable { what: "context" });
        self
    }

    /// What to do if another holder is running the request. The wait may be longer than a day, which is the limit of
    /// [the engine's setting](crate::engine::EngineBuilder::on_duplicate): with
    /// [`Duration::MAX`](std::time::Duration::MAX), the call waits until the other holder has ended.
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.parts.on_duplicate = on_duplicate;
        self
    }

    /// Says that the key is most likely new, for example generated for this call. The engine then reserves it
    /// without reading it first: one round trip less.
    ///
    /// This is only a hint: if the key has a row, the call is answered as usual, after one more statement. If the first
    /// phase takes a [`Batch`](crate::Batch), it has then run in vain, and PostgreSQL's log has an error (without the
    /// key). With a [`Quota`](crate::config::Quota) the hint has no effect, because a replay must not count against the
    /// quota.
    pub fn expect_new(mut self) -> Self {
        self.parts.expects_new = true;
        self
    }
}

/// Runs the request, or returns the outcome of an earlier call.
impl<S: Store, A: Send + Sync + 'static, R: RequestDefinition<S, A>> IntoFuture for Call<S, A, R> {
    type Output = Result<Outcome, CallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        boxed!(async move { self.prepare(Mode::Run)?.detached().await })
    }
}

impl<S: Store, A: Send + Sync + 'static, R: RequestDefinition<S, A>> Call<S, A, R> {
    /// Stores the request durably as `pending` and returns [`Outcome::Accepted`] without running
    /// it; a completer runs it ([`Engine::spawn_workers`](super::Engine::spawn_workers)). If the key already has a
    /// row, the outcome is that of awaiting the call, but the request is not run.
    ///
    /// # Errors
    /// As [`Engine::call`](super::Engine::call).
    pub async fn accept(self) -> Result<Outcome, CallError> {
        self.prepare(Mode::Accept)?.detached().await
    }

    /// As awaiting it, on the caller's own task: dropping the future drops the
    /// work, which then looks as after a crash there (G13). For tests.
    #[doc(hidden)]
    pub async fn __call_in_place(self) -> Result<Outcome, CallError> {
        self.prepare(Mode::Run)?.in_place().await
    }

    /// As [`accept`](Self::accept), in the same way.
    #[doc(hidden)]
    pub async fn __accept_in_place(self) -> Result<Outcome, CallError> {
        self.prepare(Mode::Accept)?.in_place().await
    }

    fn prepare(self, mode: Mode) -> Result<Attempt<S>, CallError> {
        let Self { parts, app, request, origin } = self;
        let fingerprint = fingerprint(&origin, &request);
        let given = Box::new(Given { origin, request, app });
        parts.begin(R::DEFINITION, fingerprint, given, mode)
    }
}

impl<S: Store> CallParts<S> {
    /// Everything that can be refused before anything is stored.
    fn begin(
        self,
        definition: Definition,
        fingerprint: Result<Fingerprint, FingerprintError>,
        given: Box<dyn Asking<S>>,
        mode: Mode,
    ) -> Result<Attempt<S>, CallError> {
        let Self { core, scope, key, context, is_admitted, .. } = self;
        let checked = || {
            let entered = core.running.enter().ok_or(CallError::ShuttingDown)?;
            // Such keys do not count against a quota (G16).
            if key.is_keyless() && !is_admitted {
                return Err(CallError::ReservedKey);
            }
            let (name, version) = (definition.name, definition.version);
            let entry = core.registry.get(name, version).ok_or_else(|| {
                observe::not_registered_call(name, version);
                CallError::NotRegistered { name, version }
            })?;
            let (fingerprint, context) = (fingerprint?, context?);
            let limit = core.settings.limits.context;
            within("context", context.as_ref().map_or(0, |c| c.get().len()), limit)?;
            Ok((entered, entry.phases.clone(), fingerprint, context))
        };
        // A call that is refused here is answered, too, and counted as every answer is.
        let (entered, phases, fingerprint, context) = checked().inspect_err(|error| {
            observe::refused(definition.name, observed::refusal(error));
            if let Some(scopes) = &core.scopes {
                observe::refused_to(scopes, &scope);
            }
        })?;
        let has_quota = core.settings.quota != Quota::default();
        let began = Moment::now();
        Ok(Attempt {
            core,
            scope,
            key,
            definition,
            phases,
            fingerprint,
            given,
            compared: Mutex::default(),
            context,
            mode,
            reads_first: !self.expects_new || (has_quota && !mutated!(QuotaBeforeRow)),
            request_id: new_request_id(),
            creation: Arc::default(),
            patience: match self.on_duplicate {
                OnDuplicate::Answer => None,
                OnDuplicate::Wait(bound) => Some(began.after(bound)),
            },
            caller: Caller::here(),
            began,
            _entered: entered,
        })
    }
}

fn new_request_id() -> Uuid {
    faults! {
        if let Some(id) = crate::fault::request_id() {
            return id;
        }
    }
    crate::chance::uuid_by_time()
}

pub(super) fn within(what: &'static str, size: usize, limit: usize) -> Result<(), CallError> {
    if size > limit {
        return Err(CallError::TooLarge { what, size, limit });
    }
    Ok(())
}

impl<S: Store, A, R> std::fmt::Debug for Call<S, A, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("key", &self.parts.key).finish_non_exhaustive()
    }
}
