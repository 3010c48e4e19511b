//! What a row has to be for a resolution: of a phase that the request stands before, not held by another process, and
//! readable with what the resolution says.

use serde_json::value::RawValue;

use super::types::ResolutionKind;
use super::{AGAIN, Resolution, ResolveError};
use crate::definition::{Phase, PhaseKind};
use crate::engine::resolution::Denial;
use crate::engine::revive::{Judged, Revival, Revived};
use crate::engine::{Core, StrandedBecause};
use crate::key::{IdempotencyKey, Scope};
use crate::phase::Outputs;
use crate::store::{KeyRow, Status, Store};

impl<S: Store> Core<S> {
    /// Whether what a resolution says of a call would be refused for its type, as far as the row itself tells. Nothing is
    /// read from the database.
    pub(crate) fn check_type(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        resolution: &Resolution,
    ) -> Result<(), ResolveError> {
        let ResolutionKind::Executed { phase, output } = &resolution.kind else { return Ok(()) };
        let (index, _) = self.phase_of(row, phase)?;
        match self.judge_unfinished(scope, key, row)? {
            Some(judged) => self.reads(row, &judged.revived, index, output),
            None => Ok(()),
        }
    }

    /// An output that the later phases could not read would be in their way for ever; and the last phase has no output:
    /// what it ends with is a reply, for `Resolution::finish`.
    pub(super) fn reads(
        &self,
        row: &KeyRow,
        revived: &Revived<S>,
        index: usize,
        output: &RawValue,
    ) -> Result<(), ResolveError> {
        if let Revival::Undecodable(because) = revived.found {
            return Err(ResolveError::Undecodable(because));
        }
        if index + 1 == self.phases_of(row)?.len() {
            let why =
                Some("the last phase returns a reply, so finish the request with one".to_owned());
            return Err(ResolveError::OtherType { why });
        }
        revived.reads(index, output).map_err(|why| ResolveError::OtherType { why })
    }

    /// What can be made of the row, if this process knows it; `None` of a completed one.
    pub(super) fn judge_unfinished(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
    ) -> Result<Option<Judged<S>>, ResolveError> {
        if row.status == Status::Completed {
            return Ok(None);
        }
        self.judge(scope, key, row)?.map(Some).map_err(ResolveError::NotKnownHere)
    }

    /// A process whose codec has another secret would seal the reply so that no other can open it, and one that lacks the
    /// codec would not seal it. One that has none of the application's code knows neither its codec, nor which header lines
    /// it keeps, nor for how long.
    pub(super) fn keeps_replies(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
    ) -> Result<(), ResolveError> {
        if self.has_no_code() {
            self.phases_of(row)?;
        }
        let Some(work) = &row.work else { return Ok(()) };
        let plain = self.open(scope, key, work)?;
        // Parameters that are not JSON were sealed, and this process has no codec.
        match serde_json::from_slice::<serde::de::IgnoredAny>(&plain.params) {
            Ok(_) => Ok(()),
            Err(_) => Err(ResolveError::NotKnownHere(StrandedBecause::Sealed)),
        }
    }

    pub(super) fn phases_of(&self, row: &KeyRow) -> Result<&'static [Phase], ResolveError> {
        let entry = self.registry.find(&row.definition, row.version);
        Ok(entry.map_err(ResolveError::NotKnownHere)?.definition.phases)
    }

    pub(super) fn phase_of(
        &self,
        row: &KeyRow,
        name: &str,
    ) -> Result<(usize, &'static Phase), ResolveError> {
        let mut phases = self.phases_of(row)?.iter().enumerate();
        phases.find(|(_, phase)| phase.is_called(name)).ok_or(ResolveError::NotThatPhase)
    }
}

/// Whether the row says already that the call of `phase` in this attempt had no effect: by a resolution, or by what a
/// release has noted. Both are about the calls of all attempts up to theirs: those of an idempotent phase are one call to its
/// provider, and another is called again only once the call before is known to have had no effect (G2).
pub(super) fn is_denied(row: &KeyRow, phase: &Phase, attempt: u32) -> bool {
    let Some(denial) = Denial::of(row.resolution.as_deref()) else { return false };
    // A run's own note leaves a dead letter as it is. What is said of its last attempt lets it run again.
    let is_news =
        denial.is_note && attempt == row.attempts && row.status != Status::FailedRetryable;
    attempt <= denial.attempt && !is_news && phase.is_called(denial.phase)
}

pub(super) fn not_running(row: &KeyRow) -> Result<(), ResolveError> {
    match row.status {
        // A lease that has ended is soon another process'.
        Status::InProgress => {
            Err(ResolveError::InProgress { retry_after: row.lease_left.max(AGAIN) })
        }
        _ => Ok(()),
    }
}

/// Whether the request stands before `phase`, and `phase` is a foreign one.
pub(super) fn waits_for(
    row: &KeyRow,
    index: usize,
    phase: &Phase,
    outputs: &Outputs,
) -> Result<(), ResolveError> {
    let foreign = matches!(phase.kind, PhaseKind::Foreign(_));
    let other = row.open_intent.as_deref().is_some_and(|intent| !phase.is_called(intent));
    match foreign && !other && index == outputs.len() {
        true => Ok(()),
        false => Err(ResolveError::NotThatPhase),
    }
}
