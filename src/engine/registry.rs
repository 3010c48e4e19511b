//! [`Registry`]: the definitions that this process can run, by name and version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::bound::{BoundRequest, WithApp};
use super::progress::OpenCall;
use super::stranded::StrandedBecause;
use crate::definition::{Definition, PhaseList};
use crate::derived_key::Derivation;
use crate::phase::Outputs;
use crate::request::RequestDefinition;
use crate::store::Store;

/// From stored parameters to a request that can run.
type Decode<S> =
    Box<dyn Fn(&[u8]) -> Result<Box<dyn BoundRequest<S>>, serde_json::Error> + Send + Sync>;

/// How to bring a stored request of one definition back to life.
pub(crate) struct Entry<S: Store> {
    pub(crate) definition: Definition,
    list: PhaseList,
    /// The list as it is stored with each row that is created here.
    pub(crate) phases: Arc<str>,
    pub(super) decode: Decode<S>,
    /// How many requests were created, in a build with debug assertions.
    created: AtomicU32,
}

impl<S: Store> Entry<S> {
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
    /// build may have begun stays in it, until the call is over; and committed phases keep the names that their
    /// outputs have, so that the row tells without its outputs which names a later build has to know (G14).
    pub(super) fn phases_of(&self, outputs: &Outputs, call: Option<&OpenCall>) -> Arc<str> {
        let mut named = self.definition.phases.iter().zip(outputs.phases());
        if call.is_none() && named.all(|(phase, stored)| phase.name == stored) {
            return self.phases.clone();
        }
        let mut list = self.list.clone();
        for (phase, stored) in list.phases.iter_mut().zip(outputs.phases()) {
            phase.name = stored.to_owned();
        }
        if let Some(call) = call {
            list.keys = call.derivation.mark();
            if let Some(phase) = list.phases.get_mut(call.index) {
                phase.time_limit = phase.time_limit.max(call.time_limit);
            }
        }
        list.to_string().into()
    }
}

/// Stands in the place of a definition that is not registered.
pub(super) const UNREGISTERED: Definition = Definition { name: "", version: 0, phases: &[] };

pub(crate) struct Registry<S: Store>(BTreeMap<(&'static str, u32), Entry<S>>);

impl<S: Store> Registry<S> {
    pub(crate) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds `R`; `false` where its name and version are taken.
    pub(crate) fn add<R, A>(&mut self, app: &Arc<A>) -> bool
    where
        R: RequestDefinition<S, A>,
        A: Send + Sync + 'static,
    {
        let definition = R::DEFINITION;
        let app = app.clone();
        let list = PhaseList::of(&definition);
        let entry = Entry {
            definition,
            phases: list.to_string().into(),
            list,
            created: AtomicU32::new(0),
            decode: Box::new(move |json| {
                let request: R = serde_json::from_slice(json)?;
                Ok(Box::new(WithApp { request, app: app.clone() }))
            }),
        };
        self.0.insert((definition.name, definition.version), entry).is_none()
    }

    /// Calls are made under this derivation: with each row is stored that they are.
    pub(super) fn under(mut self, derivation: &Derivation) -> Self {
        for entry in self.0.values_mut() {
            entry.list.keys = derivation.mark();
            entry.phases = entry.list.to_string().into();
        }
        self
    }

    pub(crate) fn get(&self, name: &str, version: u32) -> Option<&Entry<S>> {
        self.0.iter().find(|((n, v), _)| *n == name && *v == version).map(|(_, entry)| entry)
    }

    /// The entry of a stored row.
    pub(super) fn find(&self, name: &str, version: u32) -> Result<&Entry<S>, StrandedBecause> {
        self.get(name, version).ok_or_else(|| {
            match self.entries().any(|entry| entry.definition.name == name) {
                true => StrandedBecause::UnknownVersion,
                false => StrandedBecause::UnknownDefinition,
            }
        })
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry<S>> {
        self.0.values()
    }
}

impl<S: Store> std::fmt::Debug for Registry<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
