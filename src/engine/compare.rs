//! Whether a row is of the request that is asked for (G9).

use uuid::Uuid;

use super::attempt::{Attempt, Mode};
use super::decide::{CallFacts, Comparison};
use super::outcome::CallError;
use super::stranded::StrandedBecause;
use crate::fingerprint::{FingerprintVersion, StoredFingerprint};
use crate::lock::lock;
use crate::store::{KeySummary, Store};

impl<S: Store> Attempt<S> {
    /// `None`: the row changed meanwhile.
    pub(super) async fn facts(&self, row: &KeySummary) -> Result<Option<CallFacts>, CallError> {
        let Some(comparison) = self.compare(row).await? else { return Ok(None) };
        let (definition, runs_as) = (self.definition.name, self.runs_as());
        let knows_version = self.knows(row);
        Ok(Some(CallFacts { definition, knows_version, runs_as, comparison }))
    }

    fn knows(&self, row: &KeySummary) -> bool {
        row.version == self.definition.version
            || self.core.registry.get(&row.definition, row.version).is_some()
    }

    /// Why `decide` leaves the row alone.
    pub(super) fn unknown_because(&self, row: &KeySummary) -> StrandedBecause {
        if StoredFingerprint::parse(&row.fingerprint).is_none() {
            StrandedBecause::NewerForm
        } else if !self.knows(row) {
            StrandedBecause::UnknownVersion
        } else {
            StrandedBecause::ParametersUndecodable
        }
    }

    /// The id under which this call creates the row and runs it; `None` where it leaves that to the workers.
    pub(super) fn runs_as(&self) -> Option<Uuid> {
        if mutated!(RecoverAccepted) {
            return Some(self.request_id);
        }
        (self.mode == Mode::Run).then_some(self.request_id)
    }

    /// Whether the row is of this request. Costs a statement only where the fingerprints differ and the
    /// origins do not: then either this is another request, or the type has changed since. `None`: the row is not
    /// the one any more that was seen.
    async fn compare(&self, row: &KeySummary) -> Result<Option<Comparison>, CallError> {
        if mutated!(SkipFingerprint) {
            return Ok(Some(Comparison::Same));
        }
        let Some(stored) = StoredFingerprint::parse(&row.fingerprint) else {
            return Ok(Some(Comparison::NotKnownHere));
        };
        let is_same = match stored.version == FingerprintVersion::CURRENT {
            true => self.fingerprint.matches(stored.fingerprint),
            // An older row is compared in its own form (`w59_*` in `tests/http`).
            false => self
                .given
                .fingerprint_in(stored.version)
                .is_some_and(|own| own.matches(stored.fingerprint)),
        };
        if is_same {
            return Ok(Some(Comparison::Same));
        }
        if row.definition != self.definition.name || !stored.came_by(self.given.origin()) {
            return Ok(Some(Comparison::Another));
        }
        // Of a key that is about to be used anew nothing is compared.
        if row.is_over() {
            return Ok(Some(Comparison::Another));
        }
        let known = *lock(&self.compared);
        if let Some((request_id, comparison)) = known
            && request_id == row.request_id
        {
            return Ok(Some(comparison));
        }
        let given = self.core.store.read_params(&self.scope, &self.key, row.request_id).await?;
        let Some((params, _)) = given else { return Ok(None) };
        let params = self.core.decode(&self.scope, &self.key, "params", params)?;
        let comparison = match self.given.fingerprint_of(&params) {
            Some(stored) if stored == self.fingerprint => Comparison::Same,
            Some(_) => Comparison::Another,
            None => Comparison::NotKnownHere,
        };
        *lock(&self.compared) = Some((row.request_id, comparison));
        Ok(Some(comparison))
    }
}
