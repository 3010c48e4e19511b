//! The keys under which a request calls its providers, for an operator who looks a call up there. They are derived, and
//! stored nowhere.

use super::{Core, StrandedBecause};
use crate::definition::{ListedKind, PhaseList};
use crate::derived_key::DerivedKey;
use crate::fingerprint::StoredFingerprint;
use crate::key::{IdempotencyKey, Scope};
use crate::store::{KeyRow, Store};

impl<S: Store> Core<S> {
    /// The name and the derived key of each idempotent phase, in order, as in the build that ran the request last (G1): that
    /// of an open call is certain, and others are if the secret was not replaced between the phases. None of an erased
    /// request: what they are made of is gone.
    pub(crate) fn provider_keys(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
    ) -> Result<Vec<(String, DerivedKey)>, StrandedBecause> {
        if row.is_erased() {
            return Ok(Vec::new());
        }
        let list = PhaseList::parse(&row.phases).ok_or(StrandedBecause::NewerForm)?;
        let stored = StoredFingerprint::parse(&row.fingerprint);
        let fingerprint = stored.ok_or(StrandedBecause::NewerForm)?.fingerprint;
        let derivation = self.derived_keys.marked(list.keys.as_deref());
        let derivation = derivation.ok_or(StrandedBecause::DerivedKeysChanged)?;
        let phases = list.phases.into_iter().filter(|phase| phase.kind == ListedKind::Idempotent);
        let keys = phases.map(|phase| {
            let (definition, id) = (row.definition.as_str(), row.request_id);
            let of_phase = &phase.key_name;
            let derived = derivation.derive(scope, key, definition, of_phase, fingerprint, id);
            (phase.name, derived)
        });
        Ok(keys.collect())
    }
}
