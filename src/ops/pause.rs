//! Pauses: foreign phases that no engine begins, for example while a provider is under maintenance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use super::act::Done;
use super::filter::LONGEST;
use super::node::of_node;
use super::{Ops, OpsError, Permissions, RowVersion};
use crate::definition::{Phase, PhaseKind, PhaseList};
use crate::key::hex;
use crate::store::audit::AuditEntry;
use crate::store::operators::OperatorStore;
use crate::store::pauses::{MAX_PAUSES, PauseAct, PauseWhat, PausedPhase, is_name};

/// The shortest pause. A pause of no duration would be reported as done, and would replace a lasting pause by none.
const SHORTEST: Duration = Duration::from_secs(1);

/// A foreign phase that is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PauseView {
    /// The definition's name; the pause applies to all its versions.
    pub definition: String,
    /// The phase's name, or one of its earlier names.
    pub phase: String,
    /// To be passed to the act that replaces or ends it.
    pub version: RowVersion,
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
        let version = RowVersion::of_pause(&pause);
        let PausedPhase { definition, phase, reason, paused_by, paused_at, ends_at, .. } = pause;
        Self { definition, phase, version, reason, paused_by, paused_at, ends_at }
    }
}

impl RowVersion {
    /// Made of all that is stored of a pause: two pauses may begin in one millisecond.
    fn of_pause(pause: &PausedPhase) -> Self {
        let PausedPhase { definition, phase, reason, paused_by, paused_at, ends_at, .. } = pause;
        let times = (paused_at.timestamp_micros(), ends_at.map(|ends| ends.timestamp_micros()));
        let text = format!("{:?}", (definition, phase, reason, paused_by, times));
        Self(hex(&Sha256::digest(text.as_bytes())[..8]))
    }
}

impl Done for PausedPhase {
    fn is_already(&self) -> bool {
        false
    }
}

impl Done for Option<PausedPhase> {
    fn is_already(&self) -> bool {
        false
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
    /// Pauses a foreign phase in every version of its definition, for a given time or until [`unpause`](Self::unpause). If the
    /// phase is paused already, this is refused: [`replace_pause`](Self::replace_pause) names the pause that it replaces. Needs
    /// [`Permissions::PAUSE`], and an actor who may see every scope.
    ///
    /// The pause is stored under the oldest name of the phase (`was`), so that older builds and other
    /// versions, which know the phase by that name, apply it too. A build that does not know that name stores it under a
    /// newer one, and older builds do not apply that pause: end it, and pause the phase again. Under one name, a phase has
    /// one pause at most: of operators who pause it concurrently, all but one are refused. Under two names it may have
    /// two, and [`unpause`](Self::unpause) says so.
    ///
    /// A thousand phases are paused at a time, at most, in all definitions: every engine reads all of them.
    ///
    /// Each engine reads the pauses every five seconds, and before its first foreign phase; from then on it
    /// does not begin the phase. An engine that has never been able to read them begins no foreign phase. A call that has begun
    /// continues. A request that reaches the phase is released with the pause as its reason, and tried again every half minute,
    /// or at the pause's end, if that comes sooner. These attempts do not count towards the cap. A reconcile function is still
    /// called; if it does not find the outcome, that does not count, either. The client gets the answer to a transient failure:
    /// 503 with `Retry-After`.
    ///
    /// The provider's window keeps running. If the pause outlasts it, requests whose call an earlier attempt
    /// may have made become *unknown* (G11).
    ///
    /// # Errors
    /// [`OpsError::MovedOn`] if it is paused, under any of its names; [`OpsError::NoSuchPhase`],
    /// [`OpsError::NotEveryScope`], [`OpsError::TooLong`]; [`OpsError::TooShort`] if it would last less than a second;
    /// [`OpsError::TooManyPauses`] if a thousand others are paused.
    pub async fn pause(
        &self,
        definition: &str,
        phase: &str,
        length: Option<Duration>,
        reason: &str,
    ) -> Result<(), OpsError> {
        let entry = self.begin_on("pause", (definition, phase), reason).await?;
        let paused = self.try_pause((definition, phase), length, &entry).await;
        self.settle_pause(entry, paused).await
    }

    /// As [`pause`](Self::pause), in the place of the pause that the actor [saw](PauseView::version), perhaps another
    /// operator's. Returns that one. Any name of the phase identifies it.
    ///
    /// # Errors
    /// [`OpsError::MovedOn`] if that pause was replaced, or has ended; the others of [`pause`](Self::pause).
    pub async fn replace_pause(
        &self,
        definition: &str,
        phase: &str,
        version: &RowVersion,
        length: Option<Duration>,
        reason: &str,
    ) -> Result<PauseView, OpsError> {
        let entry = self.begin_on("pause", (definition, phase), reason).await?;
        let replaced = self.try_replace_pause((definition, phase), version, length, &entry).await;
        self.settle_pause(entry, replaced).await.map(PauseView::from)
    }

    /// Ends the pause that the actor [saw](PauseView::version), and no other one. Engines begin the phase again within five
    /// seconds. No request is moved: those that met the pause resume at their next attempt, within half a minute. Any name
    /// of the phase identifies the pause. Needs [`Permissions::PAUSE`], and an actor who may see every scope.
    ///
    /// Returns the pause that the phase still has under another of its names, if any: builds that know different names
    /// of a phase may each pause it. The phase stays paused until that one ends, too.
    ///
    /// # Errors
    /// [`OpsError::MovedOn`] if that pause was replaced, or has ended; [`OpsError::NoSuchPhase`] if a phase of the definition
    /// is paused, and this build cannot tell whether it is this one; [`OpsError::NotEveryScope`].
    pub async fn unpause(
        &self,
        definition: &str,
        phase: &str,
        version: &RowVersion,
        reason: &str,
    ) -> Result<Option<PauseView>, OpsError> {
        let entry = self.begin_on("unpause", (definition, phase), reason).await?;
        let ended = self.try_unpause((definition, phase), version, &entry).await;
        let still_paused = self.settle_pause(entry, ended).await?;
        Ok(still_paused.map(PauseView::from))
    }

    /// The current pauses. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError`].
    pub async fn pauses(&self) -> Result<Vec<PauseView>, OpsError> {
        self.needs(Permissions::READ)?;
        let pauses = self.store.list_pauses().await?;
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

    /// The audit row of an act on this phase, if the actor may do it.
    async fn begin_on(
        &self,
        act: &'static str,
        (definition, phase): (&str, &str),
        reason: &str,
    ) -> Result<AuditEntry, OpsError> {
        let mut entry = self.begin(Permissions::PAUSE, act, None, reason).await?;
        if ![definition, phase].into_iter().all(is_name) {
            // It is kept in no audit either.
            return Err(self.refused(entry, OpsError::NoSuchPhase).await);
        }
        entry.definition = Some(definition.to_owned());
        entry.phase = Some(phase.to_owned());
        Ok(entry)
    }

    /// As [`settle`](Self::settle), after this process has read the pauses: it applies the act immediately.
    async fn settle_pause<T: Done>(
        &self,
        entry: AuditEntry,
        done: Result<T, OpsError>,
    ) -> Result<T, OpsError> {
        self.core.read_pauses().await;
        self.settle(entry, done).await
    }

    async fn try_pause(
        &self,
        (definition, phase): (&str, &str),
        length: Option<Duration>,
        entry: &AuditEntry,
    ) -> Result<(), OpsError> {
        let names = self.names_to_pause(definition, phase, length)?;
        let [oldest, newer @ ..] = names.as_slice() else { return Err(OpsError::NoSuchPhase) };
        // The statement that writes the pause checks the oldest name. Only a build that does not know this name writes
        // under another.
        if !newer.is_empty() && !self.pauses_under(definition, newer).await?.is_empty() {
            return Err(OpsError::MovedOn);
        }
        let done = self.set_pause((definition, oldest), PauseWhat::Begin(length), entry).await;
        // The statement does not say which of the two it found.
        if matches!(done, Err(OpsError::MovedOn))
            && self.has_no_room_for(definition, oldest).await?
        {
            return Err(OpsError::TooManyPauses);
        }
        done
    }

    /// Whether so many other phases are paused that this one cannot be.
    async fn has_no_room_for(&self, definition: &str, name: &str) -> Result<bool, OpsError> {
        let paused = self.store.list_pauses().await?;
        let is_paused =
            paused.iter().any(|pause| pause.definition == definition && pause.phase == name);
        Ok(!is_paused && paused.len() >= MAX_PAUSES)
    }

    async fn try_replace_pause(
        &self,
        (definition, phase): (&str, &str),
        version: &RowVersion,
        length: Option<Duration>,
        entry: &AuditEntry,
    ) -> Result<PausedPhase, OpsError> {
        let names = self.names_to_pause(definition, phase, length)?;
        let mut paused = self.pauses_under(definition, &names).await?.into_iter();
        let seen = paused.find(|pause| RowVersion::of_pause(pause) == *version);
        let seen = seen.ok_or(OpsError::MovedOn)?;
        // A pause that is replaced keeps its name.
        let what = PauseWhat::Replace(&seen, length);
        self.set_pause((definition, &seen.phase), what, entry).await?;
        Ok(seen)
    }

    /// The pause that the phase still has, if any.
    async fn try_unpause(
        &self,
        (definition, phase): (&str, &str),
        version: &RowVersion,
        entry: &AuditEntry,
    ) -> Result<Option<PausedPhase>, OpsError> {
        // A pause that was of another build may be ended by any.
        self.needs_every_scope()?;
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
        let mut paused = self.store.list_pauses().await?;
        paused.retain(|pause| pause.definition == definition);
        let is_any_paused = !paused.is_empty();
        paused.retain(|pause| names.contains(&pause.phase));
        // A pause under a name of the phase that is not known here would last.
        if paused.is_empty() && is_any_paused && !is_told {
            return Err(OpsError::NoSuchPhase);
        }
        let seen = paused.iter().position(|pause| RowVersion::of_pause(pause) == *version);
        let seen = paused.remove(seen.ok_or(OpsError::MovedOn)?);
        self.set_pause((definition, &seen.phase), PauseWhat::End(&seen), entry).await?;
        Ok(paused.into_iter().next())
    }

    /// The pauses of a phase under these names.
    async fn pauses_under(
        &self,
        definition: &str,
        names: &[String],
    ) -> Result<Vec<PausedPhase>, OpsError> {
        let mut paused = self.store.list_pauses().await?;
        paused.retain(|pause| pause.definition == definition && names.contains(&pause.phase));
        Ok(paused)
    }

    /// Writes a pause, or its end, under one name of the phase, with the audit row.
    async fn set_pause(
        &self,
        (definition, name): (&str, &str),
        what: PauseWhat<'_>,
        entry: &AuditEntry,
    ) -> Result<(), OpsError> {
        let audit = AuditEntry { phase: Some(name.to_owned()), ..entry.clone() };
        let act = PauseAct { definition, phase: name, what, audit: &audit };
        match self.store.set_pause(&act).await? {
            true => Ok(()),
            false => Err(OpsError::MovedOn),
        }
    }

    /// The names of a foreign phase that the actor may pause for so long, the oldest first.
    fn names_to_pause(
        &self,
        definition: &str,
        phase: &str,
        length: Option<Duration>,
    ) -> Result<Vec<String>, OpsError> {
        self.needs_every_scope()?;
        if length.is_some_and(|length| length > LONGEST) {
            return Err(OpsError::TooLong);
        }
        if length.is_some_and(|length| length < SHORTEST) {
            return Err(OpsError::TooShort);
        }
        let names = self.names_of(definition, phase);
        if names.is_empty() { Err(OpsError::NoSuchPhase) } else { Ok(names) }
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
        let nodes = self.store.nodes().await?;
        let known = nodes.iter().flat_map(of_node).filter(|known| known.name == definition);
        let lists = known.filter_map(|known| PhaseList::parse(&known.phases));
        let mut names: Vec<String> =
            lists.filter_map(|list| Some(list.named(phase)?.key_name.clone())).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn needs_every_scope(&self) -> Result<(), OpsError> {
        if self.actor.sees_every_scope() { Ok(()) } else { Err(OpsError::NotEveryScope) }
    }
}
