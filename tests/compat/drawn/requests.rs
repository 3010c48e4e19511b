//! The request of a random definition, and its environment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atomic_phases::__private::{self as private, Definition, Phase};
use atomic_phases::compat::ValueType;
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::simulation::Memory;
use atomic_phases::{Batch, ForeignCall, PhaseError, Reply, Tx};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::lists::{List, MAX_PHASES, list, phase};
use super::types::{any_of, read_as, reads, type_of};

/// A request of the definition of that number. Its parameters are a value of its type, in JSON.
pub(super) struct Request<const N: usize>(pub(super) String);

impl<const N: usize> Request<N> {
    pub(super) const LIST: List = list(N);
    const ALL: [Phase; MAX_PHASES] = {
        let drawn = Self::LIST.phases;
        [phase(drawn[0]), phase(drawn[1]), phase(drawn[2]), phase(drawn[3]), phase(drawn[4])]
    };
    const PHASES: &'static [Phase] = Self::ALL.split_at(Self::LIST.len).0;
}

impl<const N: usize> Serialize for Request<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let value: serde_json::Value =
            serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        value.serialize(to)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Request<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        read_as(Self::LIST.request, from).map(Self)
    }
}

/// The environment of one row.
#[derive(Clone, Default)]
pub(super) struct World(pub(super) Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    /// The phase that fails, and whether before its call.
    pub(super) stop: Option<(usize, bool)>,
    /// What each phase of the old build returns, by its name.
    pub(super) outputs: BTreeMap<String, String>,
    /// The provider's ledger: the phase by its oldest name, and the key.
    effects: Vec<(String, String)>,
}

impl World {
    fn stops(&self, index: usize, before: bool) -> bool {
        self.0.lock().unwrap().stop == Some((index, before))
    }

    /// One effect for each key.
    fn called(&self, phase: &Phase, key: &DerivedKey) {
        let effect = (phase.key_name().to_owned(), key.as_str().to_owned());
        let effects = &mut self.0.lock().unwrap().effects;
        if !effects.contains(&effect) {
            effects.push(effect);
        }
    }

    pub(super) fn effects(&self) -> Vec<(String, String)> {
        self.0.lock().unwrap().effects.clone()
    }

    /// What the phase returns: its output, or the reply of the last.
    fn step(&self, list: &'static [Phase], index: usize, output: usize) -> private::Step {
        if index + 1 == list.len() {
            return private::Step::Reply(Reply::new(204));
        }
        let wanted = self.0.lock().unwrap().outputs.get(list[index].name).cloned();
        let json = wanted.unwrap_or_else(|| any_of(output));
        private::Step::Output(RawValue::from_string(json).unwrap())
    }
}

impl<const N: usize> private::Phases<Memory, World> for Request<N> {
    fn run_local<'a>(
        &'a self,
        index: usize,
        _: &'a mut Tx<'_, Memory>,
        world: &'a World,
        _: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, private::Step, PhaseError> {
        Box::pin(async move {
            match world.stops(index, true) {
                true => Err(PhaseError::retryable("asked for")),
                false => Ok(world.step(Self::PHASES, index, Self::LIST.phases[index].output)),
            }
        })
    }

    fn run_batch<'a>(
        &'a self,
        _: usize,
        _: &'a mut Batch<'_, Memory>,
        _: &'a World,
        _: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, private::Step, PhaseError> {
        private::no_such_phase()
    }

    fn run_foreign<'a>(
        &'a self,
        index: usize,
        call: ForeignCall,
        world: &'a World,
        _: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, private::Step, ForeignError> {
        Box::pin(async move {
            let phase = &Self::PHASES[index];
            if world.stops(index, true) {
                return Err(ForeignError::retryable("asked for"));
            }
            call.make(async |key| {
                world.called(phase, &key);
                Ok::<_, ForeignError>(())
            })
            .await?;
            match world.stops(index, false) {
                true => Err(ForeignError::retryable("asked for")),
                false => Ok(world.step(Self::PHASES, index, Self::LIST.phases[index].output)),
            }
        })
    }

    fn reconcile<'a>(
        &'a self,
        index: usize,
        world: &'a World,
        _: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, Reconciled<private::Step>, PhaseError> {
        Box::pin(async move {
            let output = Self::LIST.phases[index].output;
            Ok(Reconciled::Executed(world.step(Self::PHASES, index, output)))
        })
    }

    /// Each later phase asks for it.
    fn reads(&self, index: usize, output: &RawValue, from: usize) -> Result<(), serde_json::Error> {
        let is_read =
            from >= Self::PHASES.len() || reads(Self::LIST.phases[index].output, output.get());
        is_read.then_some(()).ok_or_else(|| serde::de::Error::custom("another type"))
    }
}

impl<const N: usize> RequestDefinition<Memory, World> for Request<N> {
    const DEFINITION: Definition = Definition { name: "drawn", version: 1, phases: Self::PHASES };

    fn outputs() -> Vec<ValueType> {
        let values = Self::LIST.len - 1;
        Self::LIST.phases[..values].iter().map(|phase| type_of(phase.output)).collect()
    }
}
