//! Pauses: foreign phases that no engine begins, for example while a provider is under maintenance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::act::next_id;
use super::filter::LONGEST;
use super::node::of_node;
use super::{Ops, OpsError, Permissions};
use crate::definition::{Phase, PhaseKind, PhaseList};
use crate::engine::Resolved;
use crate::observe;
use crate::store::audit::{AuditEntry, AuditSearch};
use crate::store::operators::{Limits, OperatorStore, Walk};
use crate::store::pauses::{PauseAct, PauseWhat, PausedPhase, RUNS, is_name};

/// Among how many of an operator's latest pauses the one that was just written is looked for.
const LATEST_PAUSES: u32 = 100;

/// A foreign phase that is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PauseView {
    /// The definition's name; the pause applies to all its versions.
    pub definition: String,
    /// The phase's name, or one of its earlier names.
    pub phase: String,
    /// The operator's own reason.
    pub reason: String,
    /// Who paused it.
    pub paused_by: String,
    /// Since when, by the database's clock.
    pub paused_at: DateTime<Utc>,
    /// When it ends. `None`: when an operator ends it.
    pub ends_at: Option<DateTime<Utc>>,
}

impl From<PausedPhase> for PauseView {
    fn from(pause: PausedPhase) -> Self {
        let PausedPhase { definition, phase, reason, paused_by, paused_at, ends_at, .. } = pause;
        Self { definition, phase, reason, paused_by, paused_at, ends_at }
    }
}

/// A foreign phase of a registered definition, which can be paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct ForeignPhase {
    /// The definition's name.
    pub definition: String,
    /// The phase's name.
    pub phase: String,
    /// Its earlier names, in any version: a pause under one of them applies, too.
    pub was: Vec<String>,
}

impl ForeignPhase {
    /// Whether this pause applies to it.
    #[must_use]
    pub fn is_paused_by(&self, pause: &PauseView) -> bool {
        let is_its_name = self.phase == pause.phase || self.was.contains(&pause.phase);
        self.definition == pause.definition && is_its_name
    }
}

fn is_foreign(phase: &Phase) -> bool {
    matches!(phase.kind, PhaseKind::Foreign(_))
}

impl<S: OperatorStore> Ops<S> {
    /// Pauses a foreign phase in every version of its definition, for a given time or until
    /// [`unpause`](Self::unpause). Replaces an existing pause of the phase, also another operator's: the audit row says what
    /// it was ([`AuditRecord::before`](super::AuditRecord::before)). Needs [`Permissions::PAUSE`], and
    /// an actor who may see every scope.
    ///
    /// The pause is stored under the oldest name of the phase (`was`), so that older builds and other
    /// versions, which know the phase by that name, apply it too.
    ///
    /// Each engine reads the pauses every five seconds, and before its first foreign phase; from then on it
    /// does not begin the phase. A call that has begun continues. A request that reaches the phase is
    /// released with the pause as its reason, and tried again every half minute, or when the pause ends;
    /// these attempts do not count. Its client gets the answer to a transient failure: 503 with
    /// `Retry-After`.
    ///
    /// The provider's window keeps running. If the pause outlasts it, requests whose call an earlier attempt
    /// may have made become *unknown* (G11).
    ///
    /// # Errors
    /// [`OpsError::NoSuchPhase`], [`OpsError::NotEveryScope`], [`OpsError::TooLong`].
    pub async fn pause(
        &self,
        definition: &str,
        phase: &str,
        length: Option<Duration>,
        reason: &str,
    ) -> Result<Resolved, OpsError> {
        let set = self.set_pause("pause", (definition, phase), PauseWhat::Begin(length), reason);
        set.await.map(|(resolved, _)| resolved)
    }

    /// As [`pause`](Self::pause), and also returns how the phase was paused before, if it was: `paused`, or `paused until` and
    /// a time. That pause, perhaps another operator's, was replaced. `None` also if that cannot be read; the audit has it.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub async fn pause_replacing(
        &self,
        definition: &str,
        phase: &str,
        length: Option<Duration>,
        reason: &str,
    ) -> Result<(Resolved, Option<String>), OpsError> {
        let set = self.set_pause("pause", (definition, phase), PauseWhat::Begin(length), reason);
        let (resolved, id) = set.await?;
        let search = AuditSearch {
            request_id: None,
            actor: Some(self.actor.name().to_owned()),
            acts: Some(vec!["pause".to_owned()]),
        };
        let newest = (Walk::Newest.start().time, Uuid::max());
        let all = Limits::default();
        // The phase is paused. Where what that replaced cannot be read now, the audit has it.
        let found = self.core.store.audit_before(&all, &search, newest, LATEST_PAUSES).await;
        let rows = found.map(|found| found.rows).unwrap_or_default();
        let before = rows.into_iter().find(|row| row.id == id).and_then(|row| row.before);
        Ok((resolved, before.filter(|before| before != RUNS)))
    }

    /// Ends a pause. Engines begin the phase again within five seconds, and requests that met the pause
    /// resume within half a minute. Any name of the phase identifies the pause. Needs [`Permissions::PAUSE`],
    /// and an actor who may see every scope.
    ///
    /// # Errors
    /// [`OpsError::NotEveryScope`].
    pub async fn unpause(
        &self,
        definition: &str,
        phase: &str,
        reason: &str,
    ) -> Result<Resolved, OpsError> {
        let set = self.set_pause("unpause", (definition, phase), PauseWhat::End, reason);
        set.await.map(|(resolved, _)| resolved)
    }

    /// The current pauses, a thousand at most. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError`].
    pub async fn pauses(&self) -> Result<Vec<PauseView>, OpsError> {
        self.needs(Permissions::READ)?;
        let pauses = self.core.store.list_pauses().await?;
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
        let mut foreign = BTreeMap::<(&str, &str), BTreeSet<&str>>::new();
        for known in known {
            for phase in known.phases.iter().filter(|phase| is_foreign(phase)) {
                // Of all versions.
                foreign.entry((known.name, phase.name)).or_default().extend(phase.was);
            }
        }
        let told = foreign.into_iter().map(|((definition, phase), was)| ForeignPhase {
            definition: definition.to_owned(),
            phase: phase.to_owned(),
            was: was.into_iter().map(ToOwned::to_owned).collect(),
        });
        Ok(told.collect())
    }

    /// Returns what became of the act, and the id of its audit row: the last, where it wrote several.
    async fn set_pause(
        &self,
        act: &'static str,
        (definition, phase): (&str, &str),
        what: PauseWhat,
        reason: &str,
    ) -> Result<(Resolved, Uuid), OpsError> {
        let mut entry = self.begin(Permissions::PAUSE, act, None, reason).await?;
        if ![definition, phase].into_iter().all(is_name) {
            // It is kept in no audit either.
            return Err(self.refused(entry, OpsError::NoSuchPhase).await);
        }
        entry.definition = Some(definition.to_owned());
        entry.phase = Some(phase.to_owned());
        let written = self.try_set_pause((definition, phase), what, &mut entry).await;
        self.core.look_at_pauses().await;
        let id = entry.id;
        self.settle(entry, written).await.map(|resolved| (resolved, id))
    }

    async fn try_set_pause(
        &self,
        (definition, phase): (&str, &str),
        what: PauseWhat,
        entry: &mut AuditEntry,
    ) -> Result<Resolved, OpsError> {
        self.may_set(definition, phase, what)?;
        let mut names = self.names_of(definition, phase);
        let mut is_told = self.core.known_name(definition).is_some();
        if names.is_empty() {
            names = self.names_elsewhere(definition, phase).await?;
            is_told |= !names.is_empty();
            // If no process announces the phase any more, its pause has the name that the operator gave.
            if !names.iter().any(|name| name == phase) {
                names.push(phase.to_owned());
            }
        }
        match what {
            PauseWhat::Begin(_) => names.truncate(1),
            PauseWhat::End => {
                let mut paused = self.core.store.list_pauses().await?;
                paused.retain(|pause| pause.definition == definition);
                names.retain(|name| paused.iter().any(|pause| pause.phase == *name));
                // A pause under a name of the phase that is not known here would last.
                if names.is_empty() && !paused.is_empty() && !is_told {
                    return Err(OpsError::NoSuchPhase);
                }
            }
        }
        let mut resolved = Resolved::Already;
        for name in names {
            // Of each pause that is written there is a row.
            if resolved == Resolved::Applied {
                observe::operated(entry.act, entry.outcome);
                entry.id = next_id();
            }
            let audit = AuditEntry { phase: Some(name.clone()), ..entry.clone() };
            let act = PauseAct { definition, phase: &name, what, audit: &audit };
            if self.core.store.set_pause(&act).await? {
                resolved = Resolved::Applied;
            }
        }
        if resolved == Resolved::Already {
            entry.before = Some(RUNS.to_owned());
        }
        Ok(resolved)
    }

    /// The names of a foreign phase in all versions, the oldest first; none of one that this build does not know.
    fn names_of(&self, definition: &str, phase: &str) -> Vec<String> {
        let known = self.core.registry.entries().map(|entry| entry.definition);
        let phases = known.filter(|known| known.name == definition).flat_map(|known| known.phases);
        let mut names: Vec<String> = Vec::new();
        for known in phases.filter(|known| is_foreign(known) && known.is_called(phase)) {
            for name in known.was.iter().rev().chain([&known.name]) {
                if !names.iter().any(|other| other == name) {
                    names.push((*name).to_owned());
                }
            }
        }
        names
    }

    /// The names of a phase that this build does not know, as running processes announce them: those that its derived key
    /// is made of.
    async fn names_elsewhere(
        &self,
        definition: &str,
        phase: &str,
    ) -> Result<Vec<String>, OpsError> {
        let nodes = self.core.store.nodes().await?;
        let known = nodes.iter().flat_map(of_node).filter(|known| known.name == definition);
        let lists = known.filter_map(|known| PhaseList::parse(&known.phases));
        let mut names: Vec<String> =
            lists.filter_map(|list| Some(list.named(phase)?.key_name.clone())).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn may_set(&self, definition: &str, phase: &str, what: PauseWhat) -> Result<(), OpsError> {
        if !self.actor.sees_every_scope() {
            return Err(OpsError::NotEveryScope);
        }
        // A pause that was of another build may be ended by any.
        if what == PauseWhat::End {
            return Ok(());
        }
        if matches!(what, PauseWhat::Begin(Some(length)) if length > LONGEST) {
            return Err(OpsError::TooLong);
        }
        let known = self.core.registry.entries().map(|entry| entry.definition);
        let is_known = known.filter(|known| known.name == definition).any(|known| {
            known.phases.iter().any(|known| known.is_called(phase) && is_foreign(known))
        });
        if is_known { Ok(()) } else { Err(OpsError::NoSuchPhase) }
    }
}
