//! [`Engine`]: runs requests, phase by phase.
//!
//! The path of a request: a [`Call`] computes the fingerprint and reads the key's
//! row from the store (`attempt`); `decide` says what the row means; `run` drives the phases from the last
//! recovery point on, and commits each transition of the row in one place (`run::commit`); the result is an
//! [`Outcome`]. All SQL is in the store, all decisions are made here.

mod answer;
mod attempt;
mod background;
mod bound;
mod builder;
mod call;
mod check;
mod clock;
mod compare;
pub(crate) mod compiled;
mod create;
mod creation;
mod decide;
mod encoding;
mod erase;
mod given;
mod jitter;
mod lease;
mod observed;
mod outcome;
mod pauses;
mod progress;
mod provider_keys;
mod quota;
mod registry;
mod replays;
mod resolution;
mod resolve;
mod resume;
mod revive;
mod run;
mod status;
mod stranded;
mod traced;
mod unasked;
mod verification;
mod waiting;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) use self::background::{Driven, subject};
pub use self::builder::{BuildError, EngineBuilder, Registered, Unregistered};
pub use self::call::Call;
pub use self::check::{CheckReport, Stranded};
pub(crate) use self::decide::left_of_window;
pub use self::erase::{EraseError, ErasedScope};
pub(crate) use self::outcome::PAUSED;
pub use self::outcome::{CallError, FailureCause, Finished, Outcome};
pub(crate) use self::progress::{Stands, are_one};
pub(crate) use self::resolution::{PlaceOfFinish, counted_alike, said};
pub(crate) use self::resolve::{Compares, OperatorAct};
pub use self::resolve::{Resolution, ResolveError, Resolved};
pub use self::status::RequestStatus;
pub use self::stranded::StrandedBecause;
pub use self::waiting::{WAITING_JOB, Waiting};

use self::call::CallParts;
use self::clock::Clock;
use self::lease::{Heartbeats, Running};
use self::pauses::Pauses;
use self::quota::{Creating, RateLimits};
use self::registry::Registry;
use self::replays::Replays;
use self::traced::Traces;
use crate::codec::Codec;
use crate::config::Settings;
use crate::derived_key::DerivedKeys;
use crate::fingerprint::RequestOrigin;
use crate::key::{IdempotencyKey, Scope};
use crate::observe::Scopes;
use crate::request::RequestDefinition;
use crate::store::Store;

/// Runs registered request definitions on a store. Cheap to clone; one for each process is enough.
///
/// `S` is the store, `A` the application's shared state that phases may ask for.
///
/// ```
/// use atomic_phases::store::Sqlite;
/// use atomic_phases::{
///     Batch, Engine, IdempotencyKey, Outcome, PhaseResult, Reply, Scope, Store, atomic_phases,
/// };
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Serialize, Deserialize)]
/// struct Greet {
///     name: String,
/// }
///
/// #[atomic_phases(name = "greetings.create", version = 1, app = ())]
/// impl Greet {
///     #[phase]
///     async fn greeted(&self, _: &mut Batch<'_, Sqlite>) -> PhaseResult<Reply> {
///         Ok(Reply::json(201, &format!("hello {}", self.name))?)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Sqlite::connect(":memory:").await?;
/// store.migrate().await?;
/// let engine = Engine::builder(store).register::<Greet>().build()?;
///
/// let (scope, key) = (Scope::new("tenant-1")?, IdempotencyKey::new("8e03978e")?);
/// let ada = Greet { name: "Ada".to_owned() };
/// for is_a_retry in [false, true] {
///     let outcome = engine.call(&scope, &key, ada.clone()).await?;
///     let Outcome::Finished(done) = outcome else { panic!("{outcome:?}") };
///     assert_eq!(done.reply.bytes(), br#""hello Ada""#);
///     assert_eq!(done.replayed, is_a_retry);
/// }
/// # Ok(()) }
/// ```
pub struct Engine<S: Store, A = ()> {
    pub(crate) core: Arc<Core<S>>,
    app: Arc<A>,
}

pub(crate) struct Core<S: Store> {
    pub(crate) store: S,
    pub(crate) settings: Settings,
    pub(crate) codec: Arc<dyn Codec>,
    pub(crate) derived_keys: DerivedKeys,
    pub(crate) registry: Registry<S>,
    pub(crate) running: Running,
    pub(crate) wakeups: Wakeups,
    pub(crate) rate_limits: RateLimits,
    pub(crate) creating: Creating,
    pub(crate) clock: Clock,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) pauses: Pauses,
    pub(crate) replays: Option<Arc<Replays>>,
    pub(crate) traces: Traces,
    /// Whose calls are counted by scope, where that is wanted.
    pub(crate) scopes: Option<Scopes>,
    /// The names of the jobs that its requests stage, as far as they are known.
    pub(crate) jobs: BTreeSet<&'static str>,
}

/// Rung for the workers of this process; those of other nodes poll by themselves.
#[derive(Default)]
pub(crate) struct Wakeups {
    pub(crate) accepted: Notify,
    pub(crate) staged: Notify,
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// Runs `request` under `key`, or returns the outcome of an earlier call (see [`Outcome`]):
    /// `engine.call(&scope, &key, request).await`. [`Call`] has further options.
    ///
    /// The work is detached from the returned future: a caller that stops waiting cancels nothing
    /// (G13), and a later call with the same key gets the result.
    ///
    /// # Errors
    /// [`CallError`], when awaited: nothing was started, or the call can safely be repeated.
    pub fn call<R: RequestDefinition<S, A>>(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request: R,
    ) -> Call<S, A, R> {
        let parts = CallParts {
            core: self.core.clone(),
            scope: scope.clone(),
            key: key.clone(),
            context: Ok(None),
            on_duplicate: self.core.settings.on_duplicate,
            expects_new: false,
            is_admitted: false,
        };
        Call { parts, app: self.app.clone(), request, origin: RequestOrigin::default() }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.core.store
    }

    /// Whether it accepts requests: until it is [shut down](Self::shutdown).
    #[cfg(feature = "http")]
    pub(crate) fn takes_requests(&self) -> bool {
        !self.core.running.is_closing()
    }

    /// The application's shared state.
    #[must_use]
    pub fn app(&self) -> &A {
        &self.app
    }

    /// The same engine, for code that needs no state of the application.
    pub(crate) fn without_app(&self) -> Engine<S> {
        Engine { core: self.core.clone(), app: Arc::new(()) }
    }

    /// How many calls wait for another holder at the moment. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn __waiting(&self) -> usize {
        self.core.running.waiting()
    }

    /// How many calls are under way, the waiting ones included. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn __requests(&self) -> usize {
        self.core.running.requests()
    }

    /// Drains the engine: accepts no new requests, lets each running one finish its current phase and
    /// releases its lease, so that another node resumes it immediately. Returns when none is left, or
    /// when `within` has passed.
    ///
    /// Choose `within` longer than the time limit of your foreign phases (30 s by default), and let your process
    /// manager wait longer than that before it kills the process. On shutdown, call this first, while the server
    /// still answers, so that each client receives its answer, or is asked to retry
    /// ([`Outcome::Failed`], 503); then the graceful shutdown of the server, with a time
    /// limit; then [`Workers::shutdown`](crate::worker::Workers::shutdown).
    ///
    /// # Errors
    /// [`StillRunning`]: some requests are in a phase that takes longer. If the process ends, they are left as after
    /// a crash: their leases expire, and another node resumes them.
    pub async fn shutdown(&self, within: Duration) -> Result<(), StillRunning> {
        let closing = self.core.running.close();
        tokio::time::timeout(within, closing)
            .await
            .map_err(|_| StillRunning { requests: self.core.running.requests(), within })
    }
}

/// Why [`Engine::shutdown`] returned before the engine was drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{requests} requests are still in a phase after {within:?}; another node resumes them when their leases have expired"
)]
#[non_exhaustive]
pub struct StillRunning {
    /// How many.
    pub requests: usize,
    /// How long the engine waited for them.
    pub within: Duration,
}

impl<S: Store, A> Clone for Engine<S, A> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), app: self.app.clone() }
    }
}

impl<S: Store, A> std::fmt::Debug for Engine<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("definitions", &self.core.registry).finish_non_exhaustive()
    }
}
