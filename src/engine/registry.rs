//! [`Registry`]: the definitions that this process can run, by name and version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::progress::{OpenCall, StrandedBecause};
use crate::definition::{Definition, PhaseList, Phases, RequestDefinition};
use crate::derived_key::Derivation;
use crate::store::Store;

/// From stored parameters to a request that can run.
pub(super) type Decode<S, A> = fn(&[u8]) -> Result<Box<dyn Phases<S, A>>, serde_json::Error>;

/// How to bring a stored request of one definition back to life.
pub(crate) struct Entry<S: Store, A> {
    pub(crate) definition: Definition,
    /// As it is stored with each row.
    pub(crate) phases: Arc<str>,
    pub(crate) decode: Decode<S, A>,
    /// How many requests were created, in a build with debug assertions.
    created: AtomicU32,
}

impl<S: Store, A> Entry<S, A> {
    /// How often to read the parameters of a new request. A set has another order each time that it is
    /// read, or the same by chance: in a debug build the first requests leave next to nothing to chance.
    pub(super) fn readings(&self) -> u32 {
        const REQUESTS: u32 = 64;
        const READINGS: u32 = 32;
        let is_early =
            cfg!(debug_assertions) && self.created.fetch_add(1, Ordering::Relaxed) < REQUESTS;
        if is_early { READINGS } else { 1 }
    }

    /// The text for a row that is run here from now on. What a later build has to know of a call that another
    /// build may have begun stays in it, until the call is over.
    pub(super) fn phases_of(&self, call: Option<&OpenCall>) -> Arc<str> {
        let Some(call) = call else { return self.phases.clone() };
        let mut list = PhaseList::of(&self.definition);
        list.keys = call.derivation.mark();
        if let Some(phase) = list.phases.get_mut(call.index) {
            phase.time_limit = phase.time_limit.max(call.time_limit);
        }
        list.to_string().into()
    }
}

/// Stands in the place of a definition that is not registered.
pub(super) const UNREGISTERED: Definition = Definition { name: "", version: 0, phases: &[] };

pub(crate) struct Registry<S: Store, A>(BTreeMap<(&'static str, u32), Entry<S, A>>);

impl<S: Store, A> Registry<S, A> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds `R`; `false` where its name and version are taken.
    pub(crate) fn add<R: RequestDefinition<S, A>>(&mut self) -> bool {
        let definition = R::DEFINITION;
        let entry = Entry {
            definition,
            phases: PhaseList::of(&definition).to_string().into(),
            created: AtomicU32::new(0),
            decode: |json| {
                serde_json::from_slice::<R>(json).map(|r| Box::new(r) as Box<dyn Phases<S, A>>)
            },
        };
        self.0.insert((definition.name, definition.version), entry).is_none()
    }

    /// Calls are made under this derivation: with each row is stored that they are.
    pub(super) fn under(mut self, derivation: &Derivation) -> Self {
        for entry in self.0.values_mut() {
            let list = PhaseList::of(&entry.definition);
            entry.phases = PhaseList { keys: derivation.mark(), ..list }.to_string().into();
        }
        self
    }

    pub(crate) fn get(&self, name: &str, version: u32) -> Option<&Entry<S, A>> {
        self.0.iter().find(|((n, v), _)| *n == name && *v == version).map(|(_, entry)| entry)
    }

    /// The entry of a stored row.
    pub(super) fn find(&self, name: &str, version: u32) -> Result<&Entry<S, A>, StrandedBecause> {
        self.get(name, version).ok_or_else(|| {
            match self.entries().any(|entry| entry.definition.name == name) {
                true => StrandedBecause::UnknownVersion,
                false => StrandedBecause::UnknownDefinition,
            }
        })
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry<S, A>> {
        self.0.values()
    }
}

impl<S: Store, A> std::fmt::Debug for Registry<S, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
