//! From the stored values of a row to a request that can run, or to why it cannot.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Core;
use super::bound::{BoundRequest, Undecodable};
use super::outcome::{CallError, unreadable};
use super::progress::{OpenCall, Progress, Stands, progress};
use super::registry::{Entry, UNREGISTERED};
use super::stranded::StrandedBecause;
use crate::definition::{Definition, EffectClass, Phase, PhaseKind, PhaseList};
use crate::fingerprint::StoredFingerprint;
use crate::key::{IdempotencyKey, Scope};
use crate::panics;
use crate::phase::Outputs;
use crate::store::nodes::NodeDefinition;
use crate::store::{KeyRow, Store};

/// What this process can make of a row's stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revival {
    /// A request that can continue.
    Ready(Progress),
    /// They do not decode as the registered types: nothing of the request can run here.
    Undecodable(StrandedBecause),
}

/// The stored values of a row, decoded.
pub(super) struct Revived<S: Store> {
    pub(super) found: Revival,
    pub(super) request: Box<dyn BoundRequest<S>>,
    pub(super) context: Option<Box<RawValue>>,
    pub(super) outputs: Outputs,
    /// What it may have called already.
    pub(super) call: Option<OpenCall>,
    /// Whether it is known that no call can have had an effect behind the recovery point.
    pub(super) is_uncalled: bool,
}

/// A row that this process may continue.
pub(super) struct Judged<S: Store> {
    pub(super) definition: Definition,
    /// The definition's phases, as they are stored once it is run here.
    pub(super) phases: Arc<str>,
    pub(super) revived: Revived<S>,
}

impl<S: Store> Judged<S> {
    /// Whether it continues here, under this build's classes and provider keys.
    pub(super) fn is_run_here(&self) -> bool {
        self.revived.found == Revival::Ready(Progress::Continues)
    }

    /// Whether the call that is next has a window.
    pub(super) fn is_window_next(&self) -> bool {
        self.next_phase().is_some_and(|next| {
            matches!(next.kind, PhaseKind::Foreign(EffectClass::Idempotent { window: Some(_) }))
        })
    }

    /// Whether a worker is to ask for the row's outcome, and finds no function that does here.
    pub(super) fn is_unasked(&self, row: &KeyRow) -> bool {
        matches!(self.revived.found, Revival::Ready(_))
            && Stands::from(row).is_unasked(self.next_phase())
    }

    /// The phase behind the outputs that are stored.
    fn next_phase(&self) -> Option<&Phase> {
        self.definition.phases.get(self.revived.outputs.len())
    }
}

impl<S: Store> Revived<S> {
    /// Of a row whose values are of no matter.
    pub(super) fn nothing() -> Self {
        Self::undecodable(StrandedBecause::ParametersUndecodable)
    }

    /// Whether the later phases can read this as the output of the next one, and what its type says if they cannot. What a
    /// type's `Deserialize` does with it is the application's; one that panics has not read it.
    pub(super) fn reads(&self, index: usize, output: &RawValue) -> Result<(), Option<String>> {
        match panics::catch(|| self.request.reads(index, output, index + 1)) {
            Some(read) => read.map_err(|error| of_the_type(&error.to_string())),
            None => Err(None),
        }
    }

    fn undecodable(because: StrandedBecause) -> Self {
        Self {
            found: Revival::Undecodable(because),
            request: Box::new(Undecodable),
            context: None,
            outputs: Outputs::default(),
            call: None,
            is_uncalled: false,
        }
    }
}

impl<S: Store> Core<S> {
    /// Whether this process may continue the row, and with what. Touches nothing.
    ///
    /// # Errors
    /// [`CallError::Unreadable`] where the codec cannot open a value, which a node with another
    /// secret can.
    pub(super) fn judge(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
    ) -> Result<Result<Judged<S>, StrandedBecause>, CallError> {
        let entry = match self.registry.find(&row.definition, row.version) {
            Ok(entry) => entry,
            Err(because) => return Ok(Err(because)),
        };
        if StoredFingerprint::parse(&row.fingerprint).is_none() {
            return Ok(Err(StrandedBecause::NewerForm));
        }
        let revived = self.revive(scope, key, row, entry)?;
        let judged = |revived: Revived<S>| {
            let phases = entry.phases_of(&revived.outputs, revived.call.as_ref());
            Judged { definition: entry.definition, phases, revived }
        };
        Ok(revived.map(judged))
    }

    fn revive(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        entry: &Entry<S>,
    ) -> Result<Result<Revived<S>, StrandedBecause>, CallError> {
        let work = row.work.as_ref().ok_or(unreadable("params"))?;
        let plain = self.open(scope, key, work)?;
        let Some(outputs) = plain.outputs() else {
            // Where it stands is known by its recovery point alone.
            let point = &row.recovery_point;
            return Ok(match entry.definition.stands_at(point) {
                true => Ok(Revived::undecodable(StrandedBecause::OutputsUndecodable)),
                false => Err(StrandedBecause::UnknownRecoveryPoint),
            });
        };
        let (keys, stands) = (&self.derived_keys, Stands::from(row));
        let (progress, call) = match progress(&entry.definition, keys, &stands, outputs.phases()) {
            Ok(known) => known,
            Err(because) => return Ok(Err(because)),
        };
        let is_uncalled = call.is_none();
        let undecodable = |because| {
            // The outputs are kept: whatever becomes of the row, they say what is done.
            let outputs = plain.outputs().unwrap_or_default();
            Ok(Ok(Revived { outputs, is_uncalled, ..Revived::undecodable(because) }))
        };
        // What a type's `Deserialize` does with a stored value is the application's; a panic of it is an
        // attempt like any other failure.
        let Some(Ok(request)) = panics::catch(|| (entry.decode)(&plain.params)) else {
            return undecodable(StrandedBecause::ParametersUndecodable);
        };
        let Some(context) = plain.context() else {
            return undecodable(StrandedBecause::OutputsUndecodable);
        };
        if !panics::catch(|| are_read(&*request, &outputs)).unwrap_or(false) {
            return undecodable(StrandedBecause::OutputsUndecodable);
        }
        let found = Revival::Ready(progress);
        Ok(Ok(Revived { found, request, context, outputs, call, is_uncalled }))
    }

    /// Why this process cannot continue an unfinished row, if it cannot. Touches nothing.
    pub(crate) fn stranded_because(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
    ) -> Option<StrandedBecause> {
        if self.has_no_code() {
            return None;
        }
        match self.judge(scope, key, row) {
            Err(CallError::Unreadable { .. }) => Some(StrandedBecause::Sealed),
            Err(_) => Some(StrandedBecause::NewerForm),
            Ok(Err(because)) => Some(because),
            Ok(Ok(judged)) => match judged.revived.found {
                // One that waits for an operator alone is not left to another build.
                Revival::Ready(Progress::Continues) if judged.is_unasked(row) => {
                    Some(StrandedBecause::NotAskedHere)
                }
                Revival::Ready(Progress::Continues) => None,
                Revival::Ready(Progress::CallMayHaveBeenMade) => {
                    Some(StrandedBecause::CallMayHaveBeenMade)
                }
                Revival::Undecodable(because) => Some(because),
            },
        }
    }

    /// The same of an unfinished row, as far as it is seen without the stored values: of the definition, of the
    /// phases that the row was run under, and of where it stands.
    pub(crate) fn stranded_by_place(
        &self,
        (definition, version): (&str, u32),
        row: &Stands<'_>,
    ) -> Option<StrandedBecause> {
        if self.has_no_code() {
            return None;
        }
        let definition = match self.registry.find(definition, version) {
            Ok(entry) => &entry.definition,
            Err(because) => return Some(because),
        };
        let Some(PhaseList { phases: listed, .. }) = PhaseList::parse(row.phases) else {
            return Some(StrandedBecause::NewerForm);
        };
        let Some(done) = row.done(&listed, definition.phases) else {
            return Some(StrandedBecause::UnknownRecoveryPoint);
        };
        let committed = listed.iter().take(done).map(|phase| phase.name.as_str());
        match progress(definition, &self.derived_keys, row, committed) {
            Ok((Progress::Continues, _)) => {
                let next = definition.phases.get(done);
                row.is_unasked(next).then_some(StrandedBecause::NotAskedHere)
            }
            Ok((Progress::CallMayHaveBeenMade, _)) => Some(StrandedBecause::CallMayHaveBeenMade),
            Err(because) => Some(because),
        }
    }

    /// An engine without a definition is an operator's, on a database alone: it runs nothing, and so nothing is
    /// stranded at it.
    pub(crate) fn has_no_code(&self) -> bool {
        self.registry.entries().next().is_none()
    }

    /// The definition, where it is registered.
    pub(crate) fn known_definition(&self, name: &str, version: u32) -> Option<Definition> {
        self.registry.get(name, version).map(|entry| entry.definition)
    }

    /// The name of a definition that is registered, in any version.
    pub(crate) fn known_name(&self, name: &str) -> Option<&'static str> {
        self.known_names().into_iter().find(|known| *known == name)
    }

    /// The names of the definitions that are registered.
    pub(crate) fn known_names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> =
            self.registry.entries().map(|entry| entry.definition.name).collect();
        names.dedup();
        names
    }

    /// Name and version of each definition that is registered.
    pub(crate) fn known_versions(&self) -> Vec<(&'static str, u32)> {
        let of = |entry: &Entry<S>| (entry.definition.name, entry.definition.version);
        self.registry.entries().map(of).collect()
    }

    /// The definitions that are registered, with their phases as they stand with the rows that are run here.
    pub(crate) fn definitions(&self) -> Vec<NodeDefinition> {
        let of = |entry: &Entry<S>| NodeDefinition {
            name: entry.definition.name.to_owned(),
            version: entry.definition.version,
            phases: entry.phases.to_string(),
        };
        self.registry.entries().map(of).collect()
    }

    /// The row's definition, or one without a name and phases.
    pub(super) fn definition_of(&self, row: &KeyRow) -> Definition {
        self.registry
            .get(&row.definition, row.version)
            .map_or(UNREGISTERED, |entry| entry.definition)
    }
}

/// Whether the phases that are left can read the outputs that they ask for.
fn are_read<S: Store>(request: &dyn BoundRequest<S>, outputs: &Outputs) -> bool {
    let next = outputs.len();
    (0..next)
        .all(|index| outputs.get(index).is_some_and(|out| request.reads(index, out, next).is_ok()))
}

/// What serde says of a type that does not read a value, as far as it says it of the type: what it expects, or misses. The
/// rest quotes the value (G19).
fn of_the_type(error: &str) -> Option<String> {
    let said = error.rsplit_once(" at line ").map_or(error, |(said, _)| said);
    if said.starts_with("missing field `") {
        return Some(said.to_owned());
    }
    let kinds = ["invalid type: ", "invalid value: ", "unknown field `", "unknown variant `"];
    let (_, expected) = said.rsplit_once(", expected ")?;
    kinds.iter().any(|kind| said.starts_with(kind)).then(|| format!("expected {expected}"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Charge {
        id: u64,
        kind: Kind,
    }

    #[derive(Debug, Deserialize)]
    enum Kind {
        Card,
        Cash,
        Coupon,
    }

    /// By the errors of serde itself: another text of theirs would be found here.
    #[test]
    fn g19_what_a_type_expects_is_told_and_not_what_it_read() {
        let told = |json: &str| {
            of_the_type(&serde_json::from_str::<Charge>(json).unwrap_err().to_string())
        };
        let told = |json: &str| told(json).unwrap_or_default();
        assert_eq!(told(r#"{"kind":"Card"}"#), "missing field `id`");
        for (canary, expected) in [
            (r#"{"id":"a, expected canary","kind":"Card"}"#, "expected u64"),
            (r#"{"id":-4711,"kind":"Card"}"#, "expected u64"),
            (r#"{"id":47.11,"kind":"Card"}"#, "expected u64"),
            (r#"{"id":1,"kind":"canary"}"#, "expected one of `Card`, `Cash`, `Coupon`"),
            (r#"{"canary":1}"#, "expected `id` or `kind`"),
            ("\"canary\"", "expected struct Charge"),
        ] {
            assert_eq!(told(canary), expected, "{canary}");
        }
        assert_eq!(of_the_type("a canary pays nothing at line 1 column 9"), None);
    }
}
