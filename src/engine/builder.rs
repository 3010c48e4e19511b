//! [`EngineBuilder`]: an engine's parts and settings, checked before anything runs.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::encoding::is_header_name;
use super::lease::{Heartbeats, Running};
use super::pauses::Pauses;
use super::quota::{Creating, RateLimits};
use super::registry::Registry;
use super::replays::Replays;
use super::traced::Traces;
use super::waiting::WAITING_JOB;
use super::{Core, Engine, Wakeups};
use crate::codec::{Codec, PlainCodec};
use crate::config::{Limits, NEVER_STORED, OnDuplicate, Quota, Settings};
use crate::definition::{Definition, EffectClass, PhaseKind};
use crate::derived_key::DerivedKeys;
use crate::observe::{self, Scopes};
use crate::replay_cache::CachedReplays;
use crate::request::RequestDefinition;
use crate::setting::{SettingError, duration, refused};
use crate::store::Store;
use crate::traces::TraceContext;

/// Builds an [`Engine`]. Durations are real time; see each method for its default.
///
/// `D` says whether a definition is registered. Definitions are registered for one type of state, so
/// [`app`](Self::app) is available only before the first [`register`](Self::register):
///
/// ```compile_fail,E0599
/// # use atomic_phases::Engine;
/// # use atomic_phases::request::RequestDefinition;
/// # use atomic_phases::store::Sqlite;
/// # fn build<R: RequestDefinition<Sqlite, ()>>(store: Sqlite) {
/// Engine::builder(store).register::<R>().app("state"); // no method named `app`
/// # }
/// ```
#[must_use = "call build()"]
pub struct EngineBuilder<S: Store, A = (), D = Registered> {
    parts: Parts<S>,
    app: Arc<A>,
    registry: Registry<S>,
    twice: Option<(&'static str, u32)>,
    definitions: PhantomData<fn() -> D>,
}

/// The settings that do not depend on the type of the application's state.
struct Parts<S> {
    store: S,
    settings: Settings,
    /// If it was set: then it has to fit the windows of the definitions.
    window_margin: Option<Duration>,
    codec: Arc<dyn Codec>,
    derived_keys: DerivedKeys,
    cached_replays: Option<CachedReplays>,
    traces: Traces,
    /// The names of the jobs that the definitions stage, as far as they are known.
    jobs: BTreeSet<&'static str>,
}

/// State of an [`EngineBuilder`]: no definition is registered yet.
#[derive(Debug)]
pub enum Unregistered {}

/// State of an [`EngineBuilder`]: at least one definition is registered.
#[derive(Debug)]
pub enum Registered {}

/// Why an engine cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Two request types share a name and a version.
    #[error(
        "two definitions are called {name} version {version}: rename one, or raise its version"
    )]
    Twice {
        /// Their name.
        name: &'static str,
        /// Their version.
        version: u32,
    },
    /// A setting that cannot work.
    #[error(transparent)]
    Setting(#[from] SettingError),
}

impl<S: Store> Engine<S, ()> {
    /// A builder of an engine without shared state; [`app`](EngineBuilder::app) sets it.
    pub fn builder(store: S) -> EngineBuilder<S, (), Unregistered> {
        let parts = Parts {
            store,
            settings: Settings::default(),
            window_margin: None,
            codec: Arc::new(PlainCodec),
            derived_keys: DerivedKeys::plain(),
            cached_replays: None,
            traces: None,
            jobs: BTreeSet::new(),
        };
        EngineBuilder::new(parts, Arc::new(()))
    }
}

impl<S: Store> EngineBuilder<S, (), Unregistered> {
    /// The application's shared state, which phases ask for as `&App`. Call it before
    /// [`register`](Self::register), because its type determines which definitions can be registered.
    pub fn app<A: Send + Sync + 'static>(self, app: A) -> EngineBuilder<S, A, Unregistered> {
        EngineBuilder::new(self.parts, Arc::new(app))
    }
}

impl<S: Store, A> EngineBuilder<S, A, Unregistered> {
    fn new(parts: Parts<S>, app: Arc<A>) -> Self {
        let (registry, definitions) = (Registry::new(), PhantomData);
        Self { parts, app, registry, twice: None, definitions }
    }
}

impl<S: Store, A: Send + Sync + 'static, D> EngineBuilder<S, A, D> {
    /// Adds a request definition.
    pub fn register<R: RequestDefinition<S, A>>(self) -> EngineBuilder<S, A> {
        let mut builder = self.registered();
        if !builder.registry.add::<R, A>(&builder.app) {
            let definition = R::DEFINITION;
            builder.twice = Some((definition.name, definition.version));
        }
        builder.stages(R::jobs().iter().copied())
    }

    /// Its definitions stage jobs of these names.
    pub(crate) fn stages(mut self, jobs: impl IntoIterator<Item = &'static str>) -> Self {
        self.parts.jobs.extend(jobs);
        self
    }

    pub(crate) fn registered(self) -> EngineBuilder<S, A> {
        let Self { parts, app, registry, twice, definitions: _ } = self;
        EngineBuilder { parts, app, registry, twice, definitions: PhantomData }
    }

    /// How long a holder keeps its row without a heartbeat; default 30 s. It renews the lease after each third of it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.parts.settings.lease = lease;
        self
    }

    /// How long a finished key replays its answer, at least; default 24 h, and never less than the lease. The engine counts it
    /// from the request's beginning. If the request takes longer than a third of its lease, each renewal of the lease and
    /// its end start the count again. If the last phase is a [`Batch`](crate::Batch), the time that the database takes for it
    /// counts, too.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.parts.settings.retention = retention;
        self
    }

    /// How long a call waits for another call that is about to commit the row of its key; default 1 s. It waits in memory
    /// for a call of its own process, and in the database for one of another. After that, the answer is *in progress*.
    pub fn creation_wait(mut self, creation_wait: Duration) -> Self {
        self.parts.settings.creation_wait = creation_wait;
        self
    }

    /// How to answer a duplicate of a running request; by default, immediately.
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.parts.settings.on_duplicate = on_duplicate;
        self
    }

    /// How often a request's lease is acquired before it is a dead letter; default 20.
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.parts.settings.max_attempts = max_attempts;
        self
    }

    /// Back-off after the first failed attempt (default 1 s), and the longest (default 5 min). It doubles with each attempt.
    /// The first is at least a millisecond, unless the longest is shorter. Each back-off is shortened at random, by up to a
    /// quarter, so that requests that failed together are not tried again together.
    pub fn back_off(mut self, first: Duration, longest: Duration) -> Self {
        self.parts.settings.back_off = first;
        self.parts.settings.max_back_off = longest;
        self
    }

    /// How long an unknown outcome rests before it is reconciled; default 30 s, and never less than the time limit
    /// of the phase whose outcome it is. While the outcome stays unknown, the interval doubles, from at least a second up to
    /// an hour, or up to `reconcile_after` if that is longer. Each interval is shortened at random, by up to a quarter.
    pub fn reconcile_after(mut self, reconcile_after: Duration) -> Self {
        self.parts.settings.reconcile_after = reconcile_after;
        self
    }

    /// How often an unknown outcome is reconciled, with a back-off that doubles up to an hour,
    /// before the request is a dead letter; default 20.
    pub fn max_reconciles(mut self, max_reconciles: u32) -> Self {
        self.parts.settings.max_reconciles = max_reconciles;
        self
    }

    /// The margin before the end of a provider's window within which the engine no longer repeats a call (G11); default
    /// 5 min, or a tenth of the window if that is shorter. [`build`](Self::build) refuses more than a tenth of the
    /// shortest window that is registered.
    pub fn window_margin(mut self, margin: Duration) -> Self {
        self.parts.window_margin = Some(margin);
        self
    }

    /// How often the engine reads which foreign phases operators have [paused](crate::ops::Ops::pause); default 5 s.
    /// It begins with the first foreign phase that the process runs, and reads in the background. Until a read has succeeded,
    /// no foreign phase is begun.
    pub fn pauses_every(mut self, every: Duration) -> Self {
        self.parts.settings.pauses_every = every;
        self
    }

    /// Caps on the sizes of stored values.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.parts.settings.limits = limits;
        self
    }

    /// Stores and replays this header of a reply as well. The defaults are `location`, `content-location`,
    /// `etag`, `last-modified`, `link`, `content-type`, `content-encoding` and `content-language`; other lines
    /// reach the first caller only, which is right for a cookie, a date or a request id. [`build`](Self::build) refuses what is
    /// not the name of a header, and what belongs to a single answer or connection or is set by the HTTP boundary:
    /// `set-cookie`, `date`, `vary`, `retry-after`, `stripe-should-retry`, `content-length`, `transfer-encoding` and the other
    /// hop-by-hop headers, `idempotency-key`, `idempotency-expires` and `idempotent-replayed`.
    pub fn store_header(mut self, name: impl AsRef<str>) -> Self {
        self.parts.settings.stored_headers.push(name.as_ref().to_ascii_lowercase());
        self
    }

    /// Stages a job called [`WAITING_JOB`](crate::engine::WAITING_JOB) in the commit that leaves a request
    /// waiting for a reconcile function or an operator; off by default. The notice exists exactly if the
    /// request waits. Its arguments are a [`Waiting`](crate::engine::Waiting).
    ///
    /// Your sink must handle `WAITING_JOB`: by a function of [`Handlers`](crate::worker::Handlers), or by a `worker::Webhook`.
    /// A notice that no node's sink handles is never delivered, and stays staged. Workers whose sink does not handle it log
    /// a warning when they start.
    pub fn notify_waiting(mut self) -> Self {
        self.parts.settings.notifies_waiting = true;
        self
    }

    /// Counts the calls of up to `most` scopes separately (a thousand at most), to see whose clients send
    /// duplicates; none by default. Needs the cargo feature `metrics`.
    ///
    /// The label of a scope is the first eight digits of its hash, as in the logs. A scope gets its own
    /// series at its hundredth duplicate, if fewer than `most` scopes have one; all others are counted as
    /// `other`. So there are at most `4 * (most + 1)` series, whatever clients send. Each process has its own
    /// `most`.
    pub fn scopes_in_metrics(mut self, most: usize) -> Self {
        self.parts.settings.scopes_in_metrics = Some(most);
        self
    }

    /// What one scope may create; unlimited by default (G16).
    pub fn quota(mut self, quota: Quota) -> Self {
        self.parts.settings.quota = quota;
        self
    }

    /// How stored values are encoded at rest; plain by default.
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.parts.codec = Arc::new(codec);
        self
    }

    /// How the keys for foreign systems are derived. To rotate a secret, see
    /// [`DerivedKeys`](DerivedKeys#to-replace-a-secret).
    pub fn derived_keys(mut self, derived_keys: DerivedKeys) -> Self {
        self.parts.derived_keys = derived_keys;
        self
    }

    /// Reads replays through a cache; none by default. It keeps the replays of the first minutes from the database, and
    /// costs each finished request a write: measure first. See [`CachedReplays`].
    pub fn cached_replays(mut self, cached_replays: CachedReplays) -> Self {
        self.parts.cached_replays = Some(cached_replays);
        self
    }

    /// Emits spans for tracing and links those of a request's attempts, through a [`TraceContext`]; none by default. The
    /// crate `atomic-phases-otel` has one for OpenTelemetry. It costs each new row 26 bytes and no statement.
    pub fn traces(mut self, traces: impl TraceContext) -> Self {
        self.parts.traces = Some(Arc::new(traces));
        self
    }

    /// Checks everything and builds the engine.
    ///
    /// # Errors
    /// [`BuildError`] names the setting that cannot work.
    pub fn build(self) -> Result<Engine<S, A>, BuildError> {
        if let Some((name, version)) = self.twice {
            return Err(BuildError::Twice { name, version });
        }
        let Parts {
            store,
            mut settings,
            window_margin,
            codec,
            derived_keys,
            cached_replays,
            traces,
            mut jobs,
        } = self.parts;
        settings.window_margin = window_margin.unwrap_or(settings.window_margin);
        settings.check()?;
        check_stored_headers(&settings.stored_headers)?;
        if let Some(margin) = window_margin {
            check_margin(margin, &self.registry)?;
        }
        if settings.notifies_waiting {
            jobs.insert(WAITING_JOB);
        }
        cached_replays.as_ref().map_or(Ok(()), CachedReplays::check)?;
        let registry = self.registry.under(derived_keys.current());
        faults! {
            let definitions: Vec<_> = registry.entries().map(|entry| entry.definition).collect();
            crate::fault::verify_env(&definitions, S::CONCURRENT);
        }
        let scopes = settings.scopes_in_metrics.map(Scopes::new);
        let replays = cached_replays.map(|cached| Replays::new(cached, settings.retention).into());
        let core = Core {
            store,
            settings,
            codec,
            derived_keys,
            registry,
            running: Running::default(),
            wakeups: Wakeups::default(),
            rate_limits: RateLimits::default(),
            creating: Creating::default(),
            clock: Clock::default(),
            heartbeats: Heartbeats::default(),
            pauses: Pauses::default(),
            replays,
            traces,
            scopes,
            jobs,
        };
        observe::described();
        Ok(Engine { core: Arc::new(core), app: self.app })
    }
}

/// No reply has a line of another name, so it would never be stored. One of [`NEVER_STORED`] would be, and a replay would set an
/// old cookie, or describe a message or a connection that is not its own.
fn check_stored_headers(names: &[String]) -> Result<(), SettingError> {
    const NAME: &str = "the name of a header (RFC 9110, 5.1)";
    const OF_THE_RESULT: &str = "a header that describes the result: this one belongs to a single answer or connection, or the \
        HTTP boundary sets it";
    for name in names {
        if !is_header_name(name) {
            return Err(refused("store_header", name, NAME));
        }
        if NEVER_STORED.contains(&name.as_str()) {
            return Err(refused("store_header", name, OF_THE_RESULT));
        }
    }
    Ok(())
}

/// A margin that was set holds for each window.
fn check_margin<S: Store>(margin: Duration, registry: &Registry<S>) -> Result<(), SettingError> {
    let windows = registry.entries().flat_map(|entry| {
        let Definition { name, phases, .. } = entry.definition;
        phases.iter().filter_map(move |phase| match phase.kind {
            PhaseKind::Foreign(EffectClass::Idempotent { window }) => {
                Some((window?, phase.name, name))
            }
            _ => None,
        })
    });
    let Some((shortest, phase, name)) = windows.min() else { return Ok(()) };
    duration("window_margin", margin, Duration::ZERO, shortest / 10).map_err(|error| {
        let bound = format!("{}, a tenth of the window of `{phase}` in `{name}`", error.bound);
        SettingError { bound, ..error }
    })
}

impl<S: Store, A, D> std::fmt::Debug for EngineBuilder<S, A, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineBuilder").field("definitions", &self.registry).finish_non_exhaustive()
    }
}
