//! Acts: resolving, retrying or erasing a request, retrying or discarding a job. Each act needs a permission
//! and a reason, and applies only to the row as the actor saw it. It is audited in its own transaction; a
//! refusal is audited in a separate one.

use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::audit::ACTS;
use super::request::RowVersion;
use super::{Ops, OpsError, Permissions};
use crate::chance;
use crate::engine::{Compares, EraseError, OperatorAct, Resolution, ResolveError, Resolved};
use crate::observe;
use crate::store::audit::{AuditEntry, AuditSearch, Audited};
use crate::store::operators::{FoundRequest, JobAct, JobFate, OperatorStore, ScopeLimits, Walk};
use crate::store::pauses::is_name;
use crate::store::{EraseAct, KeyRow, Status, StoreError};

/// How many audit rows one search reads.
const AUDIT_PAGE: u32 = 1000;

/// A statement's clock may be a little behind that of the one before it: each rounds it in its own way.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::seconds(1);

/// Longest reason, in characters.
const MAX_REASON: usize = 500;

impl<S: OperatorStore> Ops<S> {
    /// Records the actor's resolution of a request that waits for one.
    /// [`Engine::resolve`](crate::Engine::resolve) says which resolutions are refused. Needs
    /// [`Permissions::ACT`].
    ///
    /// If the same resolution is repeated, it returns [`Resolved::Already`]. If the resolution has an output or a reply, only
    /// the actor who gave it, and actors with [`Permissions::REVEAL`], get this answer. For others the repetition is refused
    /// without being compared, so that it confirms no guess of a stored value.
    ///
    /// The audit row has the attempt that a resolution *not executed* names, and the SHA-256 and the length of an output or of
    /// a reply's body, as they were given; also that of a refusal.
    ///
    /// # Errors
    /// [`OpsError::MovedOn`] if the row has changed since the actor saw it; [`OpsError::Resolve`] if the
    /// resolution is refused.
    pub async fn resolve(
        &self,
        request_id: Uuid,
        version: &RowVersion,
        resolution: Resolution,
        reason: &str,
    ) -> Result<Resolved, OpsError> {
        let (act, after) = resolution.act();
        let entry = AuditEntry {
            // A text that cannot be the name of a phase is refused, and is not kept in the audit either.
            phase: resolution.phase().filter(|phase| is_name(phase)).map(str::to_owned),
            attempt: resolution.attempt(),
            value: resolution.value_digest(),
            ..self.reasoned(act, Some(request_id), reason)?
        };
        let mut entry = self.permitted(Permissions::ACT, entry).await?;
        let resolved = self.try_resolve(version, &resolution, after, &mut entry).await;
        self.settle(entry, resolved).await
    }

    /// Whether a resolution would be refused for the type of its output: before it is reviewed and given a reason.
    /// Nothing is written. Needs [`Permissions::ACT`].
    ///
    /// # Errors
    /// [`OpsError::Resolve`], as [`resolve`](Self::resolve) would return it.
    pub async fn check_type(
        &self,
        request_id: Uuid,
        resolution: &Resolution,
    ) -> Result<(), OpsError> {
        self.needs(Permissions::ACT)?;
        let FoundRequest { scope, key, row, .. } = self.find_by_id(request_id).await?;
        Ok(self.core.check_type(&scope, &key, &row, resolution)?)
    }

    /// Retries a dead letter, with a new count of attempts: [`Resolution::retry`]. Needs
    /// [`Permissions::ACT`].
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub async fn retry(
        &self,
        request_id: Uuid,
        version: &RowVersion,
        reason: &str,
    ) -> Result<Resolved, OpsError> {
        self.resolve(request_id, version, Resolution::retry(), reason).await
    }

    /// Erases a settled request: see [`Engine::erase`](crate::Engine::erase). Needs
    /// [`Permissions::ERASE`].
    ///
    /// # Errors
    /// [`OpsError::MovedOn`] if the row has changed since the actor saw it; [`OpsError::Erase`] if the
    /// request is not settled.
    pub async fn erase(
        &self,
        request_id: Uuid,
        version: &RowVersion,
        reason: &str,
    ) -> Result<Resolved, OpsError> {
        let mut entry = self.begin(Permissions::ERASE, "erase", Some(request_id), reason).await?;
        let erased = self.try_erase(version, &mut entry).await;
        self.settle(entry, erased).await
    }

    /// Delivers a dead job again, with a new count of attempts. `attempts` is the number that the actor
    /// [saw](super::JobView::attempts). Needs [`Permissions::ACT`].
    ///
    /// # Errors
    /// [`OpsError::MovedOn`]; [`OpsError::NoSuchJob`] if the job is no longer a dead letter.
    pub async fn retry_job(&self, id: Uuid, attempts: u32, reason: &str) -> Result<(), OpsError> {
        let retried = self.settle_job("job.retry", JobFate::Retry, id, attempts, reason).await;
        self.core.wakeups.staged.notify_one();
        retried
    }

    /// Deletes a dead job. It is never delivered. Needs [`Permissions::ACT`].
    ///
    /// # Errors
    /// As [`retry_job`](Self::retry_job).
    pub async fn discard_job(&self, id: Uuid, attempts: u32, reason: &str) -> Result<(), OpsError> {
        self.settle_job("job.discard", JobFate::Discard, id, attempts, reason).await
    }

    pub(super) async fn try_resolve(
        &self,
        version: &RowVersion,
        resolution: &Resolution,
        after: Status,
        entry: &mut AuditEntry,
    ) -> Result<Resolved, OpsError> {
        let found = self.about(entry, after).await?;
        let FoundRequest { scope, key, row, .. } = &found;
        let is_as_seen = |row: &KeyRow| version.is_of(row);
        let compares = match self.actor.permissions().contain(Permissions::REVEAL) {
            false if resolution.has_value() => Compares::Nothing,
            _ => Compares::Values,
        };
        let mut act = OperatorAct { is_as_seen: &is_as_seen, audit: entry, compares };
        let mut told = self.core.apply_resolution(scope, key, resolution, Some(act)).await;
        let is_refused = matches!(told, Err(ResolveError::MovedOn | ResolveError::Conflict(_)));
        // The actor gave a value to this call before (a double click): comparing with it reveals nothing new.
        if is_refused
            && compares == Compares::Nothing
            && self.has_given(entry, row.created_at).await?
        {
            act.compares = Compares::Values;
            told = self.core.apply_resolution(scope, key, resolution, Some(act)).await;
        }
        match told {
            Ok(Resolved::Applied) => Ok(Resolved::Applied),
            Err(ResolveError::Unavailable(error)) => Err(error.into()),
            // The answer to its commit may have been lost, and the row be further by now: the audit tells.
            _ if self.is_audited(entry, found.now).await? => Ok(Resolved::Applied),
            told => Ok(told?),
        }
    }

    /// Whether the act, which was done at `since` or later if at all, has its audit row: it is there exactly if the act
    /// was applied.
    pub(super) async fn is_audited(
        &self,
        entry: &AuditEntry,
        since: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        self.audit_has(entry.request_id, since, |act| act.id == entry.id).await
    }

    /// Whether the audit has an applied act of this actor with the same name, for the same request and phase. (A
    /// resolution that finishes the request has no phase.)
    async fn has_given(
        &self,
        entry: &AuditEntry,
        since: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let is_same = |row: &Audited| {
            let is_own = row.outcome == "applied" && row.actor == entry.actor;
            is_own && row.act == entry.act && row.phase == entry.phase
        };
        self.audit_has(entry.request_id, since, is_same).await
    }

    /// Whether one of the audit rows since then, of a request or of all, is so. Whatever the actor may see of the audit:
    /// a row of no request has no scope.
    pub(super) async fn audit_has(
        &self,
        request_id: Option<Uuid>,
        since: DateTime<Utc>,
        is_so: impl Fn(&Audited) -> bool + Send,
    ) -> Result<bool, StoreError> {
        let (all, since) = (ScopeLimits::default(), since - CLOCKS_DIFFER);
        let search = AuditSearch::of_request(request_id);
        let mut before = (Walk::Newest.start().time, Uuid::max());
        loop {
            let page = self.store.audit_before(&all, &search, before, AUDIT_PAGE).await?;
            if page.rows.iter().any(&is_so) {
                return Ok(true);
            }
            match page.rows.last() {
                Some(last) if page.rows.len() >= AUDIT_PAGE as usize && last.at >= since => {
                    before = (last.at, last.id);
                }
                _ => return Ok(false),
            }
        }
    }

    pub(super) async fn try_erase(
        &self,
        version: &RowVersion,
        entry: &mut AuditEntry,
    ) -> Result<Resolved, OpsError> {
        let found = self.about(entry, Status::Completed).await?;
        let FoundRequest { scope, key, row, .. } = &found;
        let seen = version.seen_of(row);
        let act = EraseAct { seen: &seen, audit: entry };
        match self.core.erase(scope, key, Some(act)).await {
            Ok(Some(Resolved::Applied)) => Ok(Resolved::Applied),
            Err(EraseError::Unavailable(error)) => Err(error.into()),
            // As above: a store may send it again where no answer came, and finds it erased.
            _ if self.is_audited(entry, found.now).await? => Ok(Resolved::Applied),
            told => told?.ok_or(OpsError::NoSuchRequest),
        }
    }

    async fn settle_job(
        &self,
        act: &'static str,
        fate: JobFate,
        id: Uuid,
        attempts: u32,
        reason: &str,
    ) -> Result<(), OpsError> {
        let mut entry = self.begin(Permissions::ACT, act, None, reason).await?;
        entry.job_id = Some(id);
        let settled = self.try_settle_job(fate, id, attempts, &mut entry).await;
        self.settle(entry, settled).await
    }

    async fn try_settle_job(
        &self,
        fate: JobFate,
        id: Uuid,
        attempts: u32,
        entry: &mut AuditEntry,
    ) -> Result<(), OpsError> {
        let job = self.store.dead_job(self.actor.limits(), id).await?;
        let job = job.ok_or(OpsError::NoSuchJob)?;
        entry.scope = Some(job.scope.clone());
        entry.request_id = Some(job.request_id);
        let act = JobAct { scope: &job.scope, id, attempts, fate, audit: entry };
        match self.store.settle_job(&act).await? {
            true => Ok(()),
            false => Err(OpsError::MovedOn),
        }
    }

    /// The audit row of an act, if the actor may do it. A refusal is audited, too.
    pub(super) async fn begin(
        &self,
        needs: Permissions,
        act: &'static str,
        request_id: Option<Uuid>,
        reason: &str,
    ) -> Result<AuditEntry, OpsError> {
        let entry = self.reasoned(act, request_id, reason)?;
        self.permitted(needs, entry).await
    }

    /// The audit row of an act, if its reason can be kept.
    fn reasoned(
        &self,
        act: &'static str,
        request_id: Option<Uuid>,
        reason: &str,
    ) -> Result<AuditEntry, OpsError> {
        let reason = reason.trim();
        let is_bad = reason.is_empty()
            || reason.chars().count() > MAX_REASON
            || reason.contains(char::is_control);
        match is_bad {
            true => Err(OpsError::BadReason),
            false => Ok(self.entry(act, request_id, reason)),
        }
    }

    async fn permitted(
        &self,
        needs: Permissions,
        entry: AuditEntry,
    ) -> Result<AuditEntry, OpsError> {
        match self.actor.permissions().contain(needs) {
            true => Ok(entry),
            false => Err(self.refused(entry, OpsError::NotAllowed { needs }).await),
        }
    }

    pub(super) fn entry(
        &self,
        act: &'static str,
        request_id: Option<Uuid>,
        reason: &str,
    ) -> AuditEntry {
        debug_assert!(ACTS.contains(&act), "{act} cannot be found in the audit");
        AuditEntry {
            id: next_id(),
            actor: self.actor.name().to_owned(),
            act,
            outcome: "applied",
            refused_because: None,
            reason: reason.to_owned(),
            scope: None,
            request_id,
            job_id: None,
            bulk_id: None,
            definition: None,
            version: None,
            phase: None,
            attempt: None,
            value: None,
            before: None,
            after: None,
        }
    }

    /// The request that the act is about, noted in its audit row.
    pub(super) async fn about(
        &self,
        entry: &mut AuditEntry,
        after: Status,
    ) -> Result<FoundRequest, OpsError> {
        let id = entry.request_id.ok_or(OpsError::NoSuchRequest)?;
        let found = self.find_by_id(id).await?;
        entry.scope = Some(found.scope.as_str().to_owned());
        entry.definition = Some(found.row.definition.clone());
        entry.version = Some(found.row.version);
        entry.before = Some(found.row.status.as_str().to_owned());
        entry.after = Some(after.as_str().to_owned());
        Ok(found)
    }

    /// What became of an act. Applied, it was audited with its write; anything else is audited here.
    pub(super) async fn settle<T: Done>(
        &self,
        mut entry: AuditEntry,
        done: Result<T, OpsError>,
    ) -> Result<T, OpsError> {
        match done {
            Ok(done) => {
                if done.is_already() {
                    entry.outcome = "already";
                    entry.after.clone_from(&entry.before);
                    self.store.record(&entry).await?;
                }
                observe::operated(entry.act, entry.outcome);
                Ok(done)
            }
            Err(refused) => Err(self.refused(entry, refused).await),
        }
    }

    /// Audits a refusal. If the store does not answer, nothing is audited here: the audit row of an act is there exactly if the
    /// act was applied.
    pub(super) async fn refused(&self, entry: AuditEntry, refused: OpsError) -> OpsError {
        if refused.is_of_no_answer() {
            return refused;
        }
        let entry = AuditEntry {
            outcome: "refused",
            refused_because: Some(refused.to_string()),
            after: entry.before.clone(),
            ..entry
        };
        observe::operated(entry.act, entry.outcome);
        match self.store.record(&entry).await {
            Ok(()) => refused,
            Err(error) => OpsError::Unavailable(error),
        }
    }
}

/// What an act came to.
pub(super) trait Done {
    /// Whether nothing had to be written.
    fn is_already(&self) -> bool;
}

impl Done for Resolved {
    fn is_already(&self) -> bool {
        matches!(self, Self::Already | Self::Finished)
    }
}

impl Done for () {
    fn is_already(&self) -> bool {
        false
    }
}

/// An id of the audit: random, and greater than those of this process before it, so that acts of one instant
/// are listed in their order.
fn next_id() -> Uuid {
    static ACTS: AtomicU64 = AtomicU64::new(0);
    let mut bytes = chance::uuid().into_bytes();
    let number = ACTS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    bytes[..6].copy_from_slice(&number[2..]);
    Uuid::new_v8(bytes)
}
