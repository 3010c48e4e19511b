//! From an existing row to a run: its lease is acquired, its values are brought back to life, and
//! what was found decides how it goes on. A retry, the completer and the reconciler all come here.

use std::sync::Arc;

use super::Core;
use super::decide::{Plan, plan};
use super::execute::Looked;
use super::lease::{Holder, Lease};
use super::outcome::{ExecuteError, FailureCause, Outcome};
use super::progress::phases_done;
use super::run::Run;
use super::stored::unreadable;

use crate::fingerprint::StoredFingerprint;
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::observe;
use crate::phase::RequestContext;
use crate::store::{Claim, KeyRow, Right, Status, Store, StoreError};

/// A row whose lease is ours, and how many of its phases are done.
pub(super) struct Taken<S: Store, A> {
    pub(super) run: Run<S, A>,
    pub(super) row: KeyRow,
    pub(super) done: usize,
}

impl<S: Store, A: Send + Sync + 'static> Core<S, A> {
    /// Acquires the lease of an existing row and resumes after its recovery point.
    pub(super) async fn resume(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: KeyRow,
        right: Right,
    ) -> Result<Looked, ExecuteError> {
        let Taken { mut run, row, done } = match self.take_over(scope, key, row, right).await? {
            Ok(taken) => taken,
            Err(looked) => return Ok(looked),
        };
        let settings = &self.settings;
        let phase = run.definition.phases.get(done).map_or("", |phase| phase.name);
        let next = plan(&row, &run.definition, done, settings.max_attempts, settings.window_margin);
        let ended = match (next, right) {
            (_, Right::Reconcile) => run.reconcile(row.open_intent, row.reconciles).await?,
            (Plan::Run, _) => run.resumed().await?,
            #[cfg(feature = "fault-injection")]
            (Plan::OpenIntent, _) if mutated!(RepeatOpenIntent) => run.resumed().await?,
            (Plan::OpenIntent, _) => {
                let intent = row.open_intent.as_deref();
                observe::unknown(
                    run.definition.name,
                    phase,
                    "its call was under way when the lease ended",
                );
                let hold = run.reconcile_after(phase);
                run.leave(Status::Unknown, intent, hold).await?
            }
            (Plan::WindowPassed, _) => {
                observe::unknown(run.definition.name, phase, "the provider's window has passed");
                let hold = run.reconcile_after(phase);
                run.leave(Status::Unknown, Some(phase), hold).await?
            }
            (Plan::GiveUp, _) => run.give_up().await?,
        };
        Ok(ended.into())
    }

    /// Acquires the lease, if somebody here can go on with the row and nobody was faster.
    pub(super) async fn take_over(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: KeyRow,
        right: Right,
    ) -> Result<Result<Taken<S, A>, Looked>, ExecuteError> {
        let Some(entry) = self.registry.get(&row.definition, row.version) else {
            return Ok(Err(Looked::Ended(self.not_known_here())));
        };
        let claim = Claim {
            scope,
            key,
            request_id: row.request_id,
            lease_token: row.lease_token,
            status: row.status,
            // The point was read with the phases: those of another point are not known yet.
            recovery_point: (right != Right::Own).then_some(&row.recovery_point),
            phases: (right != Right::Own).then_some(&entry.phases),
            right,
        };
        let back_off_ends = (row.status == Status::FailedRetryable && right == Right::Free)
            .then(|| Moment::now().after(row.back_off_left));
        // A row that this process cannot continue is not touched (G14).
        let work = row.work.ok_or(unreadable("params"))?;
        let decoded = self.decode_work(scope, key, work)?;
        let done = phases_done(&entry.definition, &row.recovery_point, &decoded.outputs);
        let Some(fingerprint) =
            StoredFingerprint::parse(&row.fingerprint).filter(|_| done.is_some())
        else {
            return Ok(Err(Looked::Ended(self.not_known_here())));
        };
        let fingerprint = fingerprint.fingerprint.to_owned();
        let request = (entry.decode)(&decoded.params).map_err(|_| unreadable("params"))?;
        reach!(&row.recovery_point, BeforeTakeOver);
        let sent = Moment::now();
        let mut row = match self.store.take_over(&claim, self.settings.hold()).await {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(Err(Looked::Changed)),
            // Its holder outlives its lease in a transaction that keeps the row locked.
            Err(StoreError::Locked) => {
                let retry_after = self.settings.lock_wait;
                return Ok(Err(Looked::Ended(Outcome::InProgress { retry_after })));
            }
            Err(error) => return Err(error.into()),
        };
        reach!(&row.recovery_point, AfterTakeOver);
        // The former holder may have gone on since the row was read.
        let work = row.work.take().ok_or(unreadable("params"))?;
        let decoded = self.decode_work(scope, key, work)?;
        let done = phases_done(&entry.definition, &row.recovery_point, &decoded.outputs);
        let Some(done) = done else { return Ok(Err(Looked::Ended(self.not_known_here()))) };
        observe::resumed(entry.definition.name, &row.recovery_point, row.attempts);
        let run = Run {
            core: self.clone(),
            definition: entry.definition,
            request,
            holder: Holder { scope: scope.clone(), key: key.clone(), request_id: row.request_id },
            fingerprint,
            context: RequestContext {
                scope: scope.clone(),
                key: key.clone(),
                request_id: row.request_id,
                created_at: row.created_at,
                attempt: row.attempts,
                context: decoded.context,
            },
            outputs: decoded.outputs,
            point: row.recovery_point.clone(),
            lease: Lease::new(row.lease_token, self.settings.lease, sent),
            expires_at: row.expires_at,
            heartbeat: None,
            advanced: (row.since_advance, sent),
            forgiven_attempts: row.forgiven_attempts,
            back_off_ends,
            reruns: 0,
        };
        Ok(Ok(Taken { run, row, done }))
    }

    pub(super) fn not_known_here(&self) -> Outcome {
        let cause = FailureCause::NotKnownHere;
        observe::stopped(&cause);
        Outcome::Failed { cause, retry_after: self.settings.back_off(1) }
    }
}
