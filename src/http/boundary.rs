//! [`Idempotency`]: an engine, a policy and a rule for scopes; and [`Keyed`], a request whose head has passed
//! the checks. Plain `http` types, for any server.

use std::sync::Arc;

use http::request::Parts;

use super::header::{KeyHeaderError, key_of};
use super::policy::{KeyRule, Policy};
use super::respond::Answer;
use crate::engine::{Call, CallError, Engine, Outcome};
use crate::fingerprint::RequestOrigin;
use crate::key::{IdempotencyKey, Scope};
use crate::request::RequestDefinition;
use crate::setting::SettingError;
use crate::store::Store;

type ScopeOf = dyn Fn(&Parts) -> Option<Scope> + Send + Sync;

/// The HTTP boundary of an engine. Cheap to clone; the state of axum routes that take keys.
///
/// The path of a request: [`admit`](Self::admit) checks its head, [`Policy::parameters`] reads its
/// body, [`Keyed::answer`] runs it. Nothing is reserved before the last step.
///
#[doc = include_str!("idempotency.md")]
pub struct Idempotency<S: Store, A = ()> {
    engine: Engine<S, A>,
    pub(super) policy: Arc<Policy>,
    scope_of: Arc<ScopeOf>,
}

/// The scope rule of an application that has no tenants: an explicit choice, because with it all
/// callers share one namespace of keys.
pub fn single_tenant() -> impl Fn(&Parts) -> Option<Scope> + Clone + Send + Sync + 'static {
    |_: &Parts| Some(Scope::single_tenant())
}

impl<S: Store, A: Send + Sync + 'static> Idempotency<S, A> {
    /// A boundary with the default [`Policy`].
    ///
    /// `scope_of` returns the scope of a request's key, from what the authentication in front of it left in the
    /// extensions or headers; `None` is a 401. Never derive it from values that a client may choose freely.
    /// There is no default:
    ///
    /// ```compile_fail
    /// # use atomic_phases::http::Idempotency;
    /// # use atomic_phases::{Engine, Store};
    /// # fn boundary<S: Store>(engine: Engine<S, ()>) -> Idempotency<S, ()> {
    /// Idempotency::new(engine)
    /// # }
    /// ```
    ///
    /// ```
    /// # use atomic_phases::http::{Idempotency, single_tenant};
    /// # use atomic_phases::{Engine, Scope, Store};
    /// # #[derive(Clone)] struct Tenant { id: u64 }
    /// # fn boundary<S: Store>(engine: Engine<S, ()>) -> Idempotency<S, ()> {
    /// Idempotency::new(engine, |request| {
    ///     let tenant = request.extensions.get::<Tenant>()?;
    ///     Scope::new(format!("tenant-{}", tenant.id)).ok()
    /// })
    /// # }
    /// # fn other<S: Store>(engine: Engine<S, ()>) -> Idempotency<S, ()> {
    /// // Or, for an application without tenants:
    /// Idempotency::new(engine, single_tenant())
    /// # }
    /// ```
    pub fn new(
        engine: Engine<S, A>,
        scope_of: impl Fn(&Parts) -> Option<Scope> + Send + Sync + 'static,
    ) -> Self {
        // The default fits each engine: `EngineBuilder::build` refuses one that stores its marker.
        Self { engine, policy: Arc::default(), scope_of: Arc::new(scope_of) }
    }

    /// Sets the policy.
    ///
    /// # Errors
    /// [`SettingError`] names what of it cannot work.
    pub fn with_policy(mut self, policy: Policy) -> Result<Self, SettingError> {
        policy.check(&self.engine.settings().stored_headers)?;
        self.policy = Arc::new(policy);
        Ok(self)
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine<S, A> {
        &self.engine
    }

    pub(super) fn scope(&self, head: &Parts) -> Option<Scope> {
        (self.scope_of)(head)
    }

    /// Checks a request's head: its method, scope and key. `None` if the method takes no
    /// key (all but POST and PATCH): the request passes through, whatever header it has.
    ///
    /// # Errors
    /// The answer for the client: 401 or 400. Nothing was reserved.
    pub fn admit(&self, head: &Parts) -> Result<Option<Keyed<S, A>>, Answer> {
        if !Policy::guards(&head.method) {
            return Ok(None);
        }
        let scope = self.scope(head).ok_or_else(|| self.policy.unauthenticated())?;
        let (key, sent) = match key_of(&head.headers, self.policy.syntax) {
            // Reserved, so that no client evades a quota by it.
            Ok(key) if key.is_keyless() => {
                let error = KeyHeaderError::Malformed("keys that begin like this are the server's");
                return Err(self.policy.refuse(&error.into()));
            }
            Ok(key) => (key, true),
            Err(KeyHeaderError::Missing) if self.policy.key == KeyRule::Optional => {
                (IdempotencyKey::keyless(), false)
            }
            Err(error) => return Err(self.policy.refuse(&error.into())),
        };
        let origin = RequestOrigin::new(head.method.as_str(), head.uri.path(), head.uri.query());
        let (engine, policy) = (self.engine.clone(), self.policy.clone());
        Ok(Some(Keyed { engine, policy, scope, key, sent, origin }))
    }
}

/// A request with known scope and key, to be [answered](Self::answer).
///
/// In axum it is an extractor; put it before the extractors of path, query and
/// [`Params`](super::Params), so that the checks run in order.
pub struct Keyed<S: Store, A = ()> {
    engine: Engine<S, A>,
    policy: Arc<Policy>,
    scope: Scope,
    key: IdempotencyKey,
    /// Whether the client sent the key.
    sent: bool,
    pub(crate) origin: RequestOrigin,
}

impl<S: Store, A: Send + Sync + 'static> Keyed<S, A> {
    /// The scope of the key.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The key: the client's, or one generated by the server if the client sent none and
    /// [`KeyRule::Optional`] allows it. The engine takes a generated one from [`call`](Self::call) only.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// The policy that admitted it.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Runs `request` under the key and answers, or answers with the outcome of an earlier call.
    ///
    /// The work is detached: a client that hangs up cancels nothing.
    pub async fn answer<R: RequestDefinition<S, A>>(self, request: R) -> Answer {
        let outcome = self.call(request).await;
        self.respond(outcome)
    }

    /// Stores `request` durably under the key and answers 202 with the body `{"status":"pending"}`; a worker runs it
    /// ([`Call::accept`]). If the key already has a row, answers like [`answer`](Self::answer), but does not run the
    /// request: if no process runs it, the answer is the same 202.
    ///
    /// The client asks for the result at the `location` of the answer, if the policy has
    /// [`accept_duplicates`](Policy::accept_duplicates) and the application serves
    #[cfg_attr(feature = "axum", doc = "[`Idempotency::status_resource`] there.")]
    #[cfg_attr(not(feature = "axum"), doc = "[`Idempotency::status`] there.")]
    pub async fn accept<R: RequestDefinition<S, A>>(self, request: R) -> Answer {
        let outcome = self.call(request).accept().await;
        self.respond(outcome)
    }

    /// The engine's call, to set further options, such as its
    /// [`context`](Call::context). Await it and [`respond`](Self::respond) with the outcome.
    pub fn call<R: RequestDefinition<S, A>>(&self, request: R) -> Call<S, A, R> {
        self.engine
            .call(&self.scope, &self.key, request)
            .admitted()
            .origin(self.origin.clone())
            .on_duplicate(self.policy.on_duplicate_or_default())
    }

    /// The answer for an outcome.
    #[must_use]
    pub fn respond(&self, outcome: Result<Outcome, CallError>) -> Answer {
        self.policy.answer(self.sent.then_some(&self.key), outcome)
    }
}

impl<S: Store, A> Clone for Idempotency<S, A> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            policy: self.policy.clone(),
            scope_of: self.scope_of.clone(),
        }
    }
}

impl<S: Store, A> std::fmt::Debug for Idempotency<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotency").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<S: Store, A> std::fmt::Debug for Keyed<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { scope, key, .. } = self;
        f.debug_struct("Keyed").field("scope", scope).field("key", key).finish_non_exhaustive()
    }
}
