//! [`Registry`]: the definitions that this process can run, by name and version.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::progress::StrandedBecause;
use crate::definition::{Definition, PhaseList, Phases, RequestDefinition};
use crate::store::Store;

/// From stored parameters to a request that can run.
pub(super) type Decode<S, A> = fn(&[u8]) -> Result<Box<dyn Phases<S, A>>, serde_json::Error>;

/// How to bring a stored request of one definition back to life.
pub(crate) struct Entry<S: Store, A> {
    pub(crate) definition: Definition,
    /// As it is stored with each row.
    pub(crate) phases: Arc<str>,
    pub(crate) decode: Decode<S, A>,
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
            decode: |json| {
                serde_json::from_slice::<R>(json).map(|r| Box::new(r) as Box<dyn Phases<S, A>>)
            },
        };
        self.0.insert((definition.name, definition.version), entry).is_none()
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
