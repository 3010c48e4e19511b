//! [`Definitions`]: the request definitions of an application, as one list for its engine and its tests.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use super::{
    Code, Effect, Lock, Locked, LockedJob, Locks, Output, RequestSample, Shape, State, Stored,
};
use crate::definition::{Definition, EffectClass, Phase, PhaseKind};
use crate::derived_key::DerivedKeys;
use crate::engine::EngineBuilder;
use crate::fingerprint::{RequestOrigin, fingerprint};
use crate::key::{IdempotencyKey, Scope};
use crate::probe::{Catalogue, ValueType, probe};
use crate::request::RequestDefinition;
use crate::store::Store;

/// The request definitions of an application. Its engine registers them and its lock files record them, so
/// with one list for both none is forgotten.
///
/// ```
/// # #[cfg(feature = "sqlite")] mod doc {
/// # use atomic_phases::store::Sqlite;
/// # use atomic_phases::{Engine, PhaseResult, Reply, Tx, atomic_phases, phase};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct CreateOrder { cents: u32 }
/// # #[atomic_phases(name = "orders.create", version = 1)]
/// # impl CreateOrder {
/// #     #[phase]
/// #     async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> { let _ = tx; Ok(Reply::new(200)) }
/// # }
/// use atomic_phases::compat::Definitions;
///
/// fn definitions() -> Definitions<Sqlite> {
///     Definitions::new().with::<CreateOrder>()
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # pub async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = Sqlite::connect(":memory:").await?;
/// let engine = Engine::builder(store).definitions(definitions()).build()?;
/// # let _ = engine; Ok(()) }
/// # } #[cfg(feature = "sqlite")] fn main() { doc::main().unwrap() }
/// # #[cfg(not(feature = "sqlite"))] fn main() {}
/// ```
pub struct Definitions<S: Store, A = ()>(Vec<Listed<S, A>>);

struct Listed<S: Store, A> {
    definition: Definition,
    request: ValueType,
    /// One for each phase that has an output; none where the definition was written by hand.
    outputs: Vec<ValueType>,
    /// Of each output, the phases that ask for it.
    asked: Option<&'static [&'static [usize]]>,
    /// The names of its jobs, and the types that are known of them.
    jobs: BTreeMap<&'static str, Option<ValueType>>,
    fingerprint: fn(&str) -> Option<String>,
    register: fn(EngineBuilder<S, A>) -> EngineBuilder<S, A>,
    /// Samples of the application, by phase; `None` for the parameters.
    samples: Vec<(Option<&'static str>, String)>,
}

impl<S: Store, A: Send + Sync + 'static, D> EngineBuilder<S, A, D> {
    /// Adds all definitions of a list, which [`locked!`](crate::locked) checks in a test.
    pub fn definitions(self, definitions: Definitions<S, A>) -> EngineBuilder<S, A> {
        definitions.register(self.registered())
    }
}

impl<S: Store, A: Send + Sync + 'static> Definitions<S, A> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a definition, if it is not there yet.
    #[must_use]
    pub fn with<R: RequestDefinition<S, A>>(mut self) -> Self {
        self.listed::<R>();
        self
    }

    fn listing<R: RequestDefinition<S, A>>() -> Listed<S, A> {
        Listed {
            definition: R::DEFINITION,
            request: ValueType::of::<R>(),
            outputs: R::outputs(),
            asked: R::asked(),
            jobs: R::jobs().iter().map(|name| (*name, None)).collect(),
            fingerprint: |json| {
                let parameters: R = serde_json::from_str(json).ok()?;
                let taken = fingerprint(&RequestOrigin::default(), &parameters).ok()?;
                Some(taken.as_str().to_owned())
            },
            register: EngineBuilder::<S, A>::register::<R>,
            samples: Vec::new(),
        }
    }

    /// Adds a sample of the parameters, for a type that is `opaque` in part in its lock file: the note
    /// `not_probed` names such parts.
    #[must_use]
    pub fn sample<R: RequestDefinition<S, A>>(self, parameters: &R) -> Self {
        self.with_sample::<R>(None, parameters)
    }

    /// As [`sample`](Self::sample), for the output of a phase.
    #[must_use]
    pub fn output_sample<R: RequestDefinition<S, A>>(
        self,
        phase: &'static str,
        output: &impl Serialize,
    ) -> Self {
        self.with_sample::<R>(Some(phase), output)
    }

    /// Declares the type of the arguments of a job that `R` stages, so that its lock file records their form:
    /// the type that is staged and that the job's handler takes. Names of jobs in the block of `R`, as in
    /// `stage_job("name", ..)`, are recorded anyway; use this also for jobs that other functions stage. Workers whose sink
    /// does not handle one of these names log a warning when they start.
    #[must_use]
    pub fn job<R, T>(mut self, name: &'static str) -> Self
    where
        R: RequestDefinition<S, A>,
        T: Serialize + DeserializeOwned,
    {
        self.listed::<R>().jobs.insert(name, Some(ValueType::of::<T>()));
        self
    }

    /// In the order in which they were first named.
    fn listed<R: RequestDefinition<S, A>>(&mut self) -> &mut Listed<S, A> {
        let (name, version) = (R::DEFINITION.name, R::DEFINITION.version);
        let is_it = |listed: &Listed<S, A>| {
            listed.definition.name == name && listed.definition.version == version
        };
        let index = self.0.iter().position(is_it).unwrap_or_else(|| {
            self.0.push(Self::listing::<R>());
            self.0.len() - 1
        });
        &mut self.0[index]
    }

    fn with_sample<R: RequestDefinition<S, A>>(
        mut self,
        phase: Option<&'static str>,
        value: &impl Serialize,
    ) -> Self {
        // By their names: a map has its members in another order each time, and the same code has the same bytes.
        let json = serde_json::to_value(value).map(|value| ordered(&value).to_string());
        if let Ok(json) = json.or_else(|_| serde_json::to_string(value)) {
            self.listed::<R>().samples.push((phase, json));
        }
        self
    }

    pub(crate) fn register(self, builder: EngineBuilder<S, A>) -> EngineBuilder<S, A> {
        self.0.into_iter().fold(builder, |builder, listed| {
            (listed.register)(builder).stages(listed.jobs.into_keys())
        })
    }

    /// The lock files of these definitions: what stored rows and providers can see of them. The highest
    /// version of each definition is the current one; the others are draining.
    #[must_use]
    pub fn locks(&self) -> Locks {
        self.0.iter().map(|listed| self.lock(listed)).collect()
    }

    fn lock(&self, listed: &Listed<S, A>) -> Lock {
        let definition = listed.definition;
        let mut catalogue = Catalogue::default();
        let request = probe(listed.request, &mut catalogue, &listed.samples_of(None));
        let request_samples: Vec<_> = request
            .samples
            .into_iter()
            .filter_map(|json| {
                let fingerprint = (listed.fingerprint)(&json)?;
                Some(RequestSample { json, fingerprint })
            })
            .collect();
        let phases = definition.phases.iter().enumerate();
        let phases: Vec<Locked> =
            phases.map(|(index, phase)| listed.lock_phase(index, phase, &mut catalogue)).collect();
        let jobs = listed.jobs.iter();
        let jobs: Vec<LockedJob> =
            jobs.map(|(name, args)| lock_job(name, *args, &mut catalogue)).collect();
        let outputs = phases.iter().filter_map(|phase| match &phase.output {
            Output::Value { shape, .. } => Some(shape),
            Output::Reply => None,
        });
        let args = jobs.iter().map(|job| &job.args);
        let types = catalogue.types_of(outputs.chain([&request.shape]).chain(args));
        let latest = self.0.iter().map(|other| other.definition);
        let latest = latest.filter(|other| other.name == definition.name).map(|d| d.version).max();
        let state = match latest > Some(definition.version) {
            true => State::Draining,
            false => State::Current,
        };
        Lock {
            definition: definition.name.to_owned(),
            version: definition.version,
            state,
            request: request.shape,
            request_samples,
            phases,
            jobs,
            types,
        }
    }

    /// The fingerprint of locked parameters, as this build decodes them.
    pub(super) fn fingerprint(&self, locked: &Lock, json: &str) -> Option<String> {
        (self.find(&locked.definition, locked.version)?.fingerprint)(json)
    }

    fn find(&self, name: &str, version: u32) -> Option<&Listed<S, A>> {
        let is_it = |listed: &&Listed<S, A>| {
            listed.definition.name == name && listed.definition.version == version
        };
        self.0.iter().find(is_it)
    }
}

impl<S: Store, A: Send + Sync + 'static> Code for Definitions<S, A> {
    fn reads(
        &self,
        definition: &str,
        version: u32,
        stored: Stored<'_>,
        json: &str,
    ) -> Option<bool> {
        let listed = self.find(definition, version)?;
        let value_type = match stored {
            Stored::Parameters => &listed.request,
            Stored::Output(name) => {
                let mut phases = listed.definition.phases.iter();
                listed.outputs.get(phases.position(|phase| phase.is_called(name))?)?
            }
            Stored::Job(name) => listed.jobs.get(name)?.as_ref()?,
        };
        Some(value_type.reads(json))
    }
}

impl<S: Store, A> Listed<S, A> {
    /// The application's samples of the phase's output; of the parameters, if it is `None`.
    fn samples_of(&self, phase: Option<&str>) -> Vec<String> {
        let of_phase = self.samples.iter().filter(|(of, _)| *of == phase);
        of_phase.map(|(_, json)| json.clone()).collect()
    }

    fn lock_phase(&self, index: usize, phase: &Phase, catalogue: &mut Catalogue) -> Locked {
        let samples = || self.samples_of(Some(phase.name));
        let output = match self.outputs.get(index) {
            None if index + 1 == self.definition.phases.len() => Output::Reply,
            None => Output::Value { shape: Shape::Opaque, samples: samples() },
            Some(output) => {
                let probed = probe(*output, catalogue, &samples());
                Output::Value { shape: probed.shape, samples: probed.samples }
            }
        };
        Locked {
            name: phase.name.to_owned(),
            was: phase.was.iter().map(|name| (*name).to_owned()).collect(),
            effect: effect(phase),
            reconciles: phase.reconciles,
            derived: derived(&self.definition, phase),
            asked_by: self.asked_by(index, &output),
            output,
        }
    }

    fn asked_by(&self, index: usize, output: &Output) -> Option<Vec<String>> {
        let by = self.asked?.get(index).filter(|_| *output != Output::Reply)?;
        let phases = by.iter().filter_map(|index| self.definition.phases.get(*index));
        Some(phases.map(|phase| phase.name.to_owned()).collect())
    }
}

/// `args`: the type of its arguments, if it is known.
fn lock_job(name: &str, args: Option<ValueType>, catalogue: &mut Catalogue) -> LockedJob {
    let (args, samples) = match args {
        None => (Shape::Opaque, Vec::new()),
        Some(args) => {
            let probed = probe(args, catalogue, &[]);
            (probed.shape, probed.samples)
        }
    };
    LockedJob { name: name.to_owned(), args, samples }
}

/// The same value with its members in the order of their names.
fn ordered(value: &Value) -> Value {
    match value {
        Value::Array(elements) => elements.iter().map(ordered).collect(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), ordered(value)));
            let members: BTreeMap<String, Value> = members.collect();
            members.into_iter().collect::<serde_json::Map<_, _>>().into()
        }
        value => value.clone(),
    }
}

fn effect(phase: &Phase) -> Effect {
    match phase.kind {
        PhaseKind::Local(_) | PhaseKind::Batch(_) => Effect::Local,
        PhaseKind::Foreign(EffectClass::Idempotent { window }) => Effect::Idempotent { window },
        PhaseKind::Foreign(EffectClass::AtMostOnce) => Effect::AtMostOnce,
    }
}

/// The key that a provider would get, of a fixed scope, key and fingerprint: so it changes where what makes
/// keys has changed, and not where the parameters have.
fn derived(definition: &Definition, phase: &Phase) -> Option<String> {
    if !effect(phase).is_foreign() {
        return None;
    }
    let (scope, key) = (Scope::new("scope").ok()?, IdempotencyKey::new("key").ok()?);
    let (name, phase) = (definition.name, phase.key_name());
    let keys = DerivedKeys::plain();
    let derived = keys.current().derive(&scope, &key, name, phase, "v1:", Uuid::nil());
    Some(derived.as_str().to_owned())
}

impl<S: Store, A: Send + Sync + 'static> Default for Definitions<S, A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Store, A> fmt::Debug for Definitions<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|listed| (listed.definition.name, listed.definition.version));
        f.debug_set().entries(names).finish()
    }
}
