//! Pauses: a foreign phase that no engine begins, because its provider is under maintenance, say.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Ops, OpsError, Permissions};
use crate::definition::{Phase, PhaseKind};
use crate::engine::Resolved;
use crate::store::operators::OperatorStore;
use crate::store::pauses::{PauseAct, PauseWhat, PausedPhase};

/// A foreign phase that is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PauseView {
    /// The definition's name; of all its versions.
    pub definition: String,
    /// The phase's name, or one that it had.
    pub phase: String,
    /// The operator's own reason.
    pub reason: String,
    /// Who paused it.
    pub paused_by: String,
    /// Since when, by the database's clock.
    pub paused_at: DateTime<Utc>,
    /// Until when. `None`: until an operator ends it.
    pub ends_at: Option<DateTime<Utc>>,
}

impl From<PausedPhase> for PauseView {
    fn from(pause: PausedPhase) -> Self {
        let PausedPhase { definition, phase, reason, paused_by, paused_at, ends_at, .. } = pause;
        Self { definition, phase, reason, paused_by, paused_at, ends_at }
    }
}

/// A foreign phase of a definition that is registered here: it may be paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct ForeignPhase {
    /// The definition's name.
    pub definition: String,
    /// The phase's name.
    pub phase: String,
}

fn is_foreign(phase: &Phase) -> bool {
    matches!(phase.kind, PhaseKind::Foreign(_))
}

impl<S: OperatorStore, A: Send + Sync + 'static> Ops<S, A> {
    /// Pauses a foreign phase, in every version of its definition, for so long or until it is
    /// [ended](Self::unpause). Needs [`Permissions::PAUSE`], and to see every scope. A pause that is there is
    /// replaced.
    ///
    /// Each engine asks for pauses every five seconds, and before its first foreign phase; after that it begins
    /// the phase no more. A call that is under way goes on. A request that comes to the phase is released with
    /// its reason and tried again every half a minute, or at the end of the pause; that counts as no attempt.
    /// Its client is told what it is told of any passing failure: 503 and `Retry-After`.
    ///
    /// A provider's window goes on meanwhile: a pause that outlasts it leaves the requests that wait *unknown*,
    /// because an earlier attempt may have made the call (G11).
    ///
    /// # Errors
    /// [`OpsError::NoSuchPhase`], [`OpsError::NotEveryScope`].
    pub async fn pause(
        &self,
        definition: &str,
        phase: &str,
        length: Option<Duration>,
        reason: &str,
    ) -> Result<Resolved, OpsError> {
        self.set_pause("pause", (definition, phase), PauseWhat::Begin(length), reason).await
    }

    /// Ends a pause: engines begin the phase again within five seconds, and the requests that met the pause
    /// within half a minute. Needs [`Permissions::PAUSE`], and to see every scope.
    ///
    /// # Errors
    /// [`OpsError::NotEveryScope`].
    pub async fn unpause(
        &self,
        definition: &str,
        phase: &str,
        reason: &str,
    ) -> Result<Resolved, OpsError> {
        self.set_pause("unpause", (definition, phase), PauseWhat::End, reason).await
    }

    /// What is paused, a thousand phases at most. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError`].
    pub async fn pauses(&self) -> Result<Vec<PauseView>, OpsError> {
        self.needs(Permissions::READ)?;
        let pauses = self.core.store.pauses().await?;
        Ok(pauses.into_iter().map(PauseView::from).collect())
    }

    /// The foreign phases that are registered here, in the order of their definitions. Needs
    /// [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError`].
    pub fn foreign_phases(&self) -> Result<Vec<ForeignPhase>, OpsError> {
        self.needs(Permissions::READ)?;
        let known = self.core.registry.entries().map(|entry| entry.definition);
        let foreign = known.flat_map(|known| {
            let phases = known.phases.iter().filter(|phase| is_foreign(phase));
            phases.map(|phase| ForeignPhase {
                definition: known.name.to_owned(),
                phase: phase.name.to_owned(),
            })
        });
        let mut foreign: Vec<_> = foreign.collect();
        foreign.sort();
        // Of several versions.
        foreign.dedup();
        Ok(foreign)
    }

    async fn set_pause(
        &self,
        act: &'static str,
        (definition, phase): (&str, &str),
        what: PauseWhat,
        reason: &str,
    ) -> Result<Resolved, OpsError> {
        let mut entry = self.begin(Permissions::PAUSE, act, None, reason).await?;
        entry.definition = Some(definition.to_owned());
        entry.phase = Some(phase.to_owned());
        let written = match self.may_set(definition, phase, what) {
            Ok(()) => {
                let act = PauseAct { definition, phase, what, audit: &entry };
                self.core.store.set_pause(&act).await.map_err(OpsError::from)
            }
            Err(refused) => Err(refused),
        };
        let resolved = written.map(|written| match written {
            true => Resolved::Applied,
            false => Resolved::Already,
        });
        self.core.look_at_pauses().await;
        self.settle(entry, resolved).await
    }

    fn may_set(&self, definition: &str, phase: &str, what: PauseWhat) -> Result<(), OpsError> {
        if !self.actor.sees_every_scope() {
            return Err(OpsError::NotEveryScope);
        }
        // A pause that was of another build may be ended by any.
        if what == PauseWhat::End {
            return Ok(());
        }
        let known = self.core.registry.entries().map(|entry| entry.definition);
        let is_known = known.filter(|known| known.name == definition).any(|known| {
            known.phases.iter().any(|known| known.is_called(phase) && is_foreign(known))
        });
        if is_known { Ok(()) } else { Err(OpsError::NoSuchPhase) }
    }
}
