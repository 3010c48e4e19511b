//! [`Engine::resolve`]: a resolution, from a webhook or an operator, of a request that waits for one.

mod checks;
mod equal;
mod types;
mod weigh;

use std::sync::Arc;

use uuid::Uuid;

use self::types::ResolutionKind;
pub use self::types::{Resolution, ResolveError, Resolved};
use self::weigh::{News, Weighed};
use super::attempt::{AGAIN, MAX_ROUNDS};
use super::jitter::jitter;
use super::resolution::said;
use super::run::{Run, Transition};
use super::{Core, Engine};
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::observe::{self, Span, Subject};
use crate::store::audit::AuditEntry;
use crate::store::events::EventKind;
use crate::store::{Claim, Commit, KeyRow, Right, Seen, Store, StoreError};

/// What a resolution is compared with, if its phase or its request has ended. The answer [`Resolved::Already`] confirms a
/// stored value, which the operator may not be allowed to see (G19).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compares {
    /// With the stored output, or the stored reply.
    Values,
    /// With no value: a resolution that has one is refused.
    Nothing,
}

/// The conditions and the audit row of an operator's resolution.
#[derive(Clone, Copy)]
pub(crate) struct OperatorAct<'a> {
    /// Whether the row still is as the operator saw it.
    pub(crate) is_as_seen: &'a (dyn Fn(&KeyRow) -> bool + Sync),
    /// Written with the resolution.
    pub(crate) audit: &'a AuditEntry,
    pub(crate) compares: Compares,
}

/// The result of writing a resolution.
enum Written {
    Applied,
    /// The row has changed since it was read: another process was faster.
    Overtaken,
    /// The same, after a commit that got no answer, with this error: the change may have been ours.
    PerhapsBefore(StoreError),
}

/// A resolution that may have been written to the row that was read.
struct Unanswered {
    request_id: Uuid,
    lease_token: i64,
    error: StoreError,
}

impl Unanswered {
    /// Whether the resolution was a retry, and was written. The request may have gone on behind the commit: nothing else
    /// of the row tells of a retry then.
    fn has_let_retry(&self, row: &KeyRow, kind: &ResolutionKind) -> bool {
        matches!(kind, ResolutionKind::Retry)
            && said(row.resolution.as_deref()) == Some(kind.name())
            && self.request_id == row.request_id
            && self.lease_token < row.lease_token
    }
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// Applies a resolution from a webhook or an operator to a request, fenced like every write. Repeating a
    /// resolution returns [`Resolved::Already`]; a different one is refused; one about a call of a request that
    /// has ended returns [`Resolved::Finished`]. It is written by a task of its own, even if the caller goes away.
    ///
    /// # Errors
    /// [`ResolveError`]; nothing was written.
    pub async fn resolve(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        resolution: Resolution,
    ) -> Result<Resolved, ResolveError> {
        self.core.apply_resolution(scope, key, &resolution, None).await
    }
}

impl<S: Store> Core<S> {
    /// Applies a resolution, of an operator or of a webhook.
    pub(crate) async fn apply_resolution(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        resolution: &Resolution,
        act: Option<OperatorAct<'_>>,
    ) -> Result<Resolved, ResolveError> {
        let mut unanswered = None;
        let told = self.apply(scope, key, resolution, act, &mut unanswered).await;
        match (told, unanswered) {
            // What is refused may be what came of the row after its own commit. Of an operator's, the audit tells.
            (Err(refusal), Some(Unanswered { error, .. }))
                if act.is_none() && refusal.denies_a_write() =>
            {
                Err(ResolveError::Unavailable(error))
            }
            (told, _) => told,
        }
    }

    /// Applies it, and notes if it may have been written by a commit that got no answer.
    async fn apply(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        Resolution { kind, request }: &Resolution,
        act: Option<OperatorAct<'_>>,
        unanswered: &mut Option<Unanswered>,
    ) -> Result<Resolved, ResolveError> {
        // What is written is written to this request, or to none. An operator's is the request that the audit row names.
        let request = request.or(act.and_then(|act| act.audit.request_id));
        let mut refused = None;
        for _ in 0..MAX_ROUNDS {
            let row = self.store.read_key(scope, key).await?.ok_or(ResolveError::NoSuchKey)?;
            let seen = Seen::of(&row);
            match refused.take() {
                Some((before, because)) if before == seen => return Err(because),
                _ => {}
            }
            if request.is_some_and(|id| id != row.request_id) && !mutated!(AnyLife) {
                return Err(ResolveError::AnotherRequest);
            }
            // For an operator, the audit says who resolved it.
            let before = unanswered.as_ref().filter(|_| act.is_none());
            if before.is_some_and(|before| before.has_let_retry(&row, kind)) {
                return Ok(Resolved::Applied);
            }
            let news = match self.weigh_as_seen(scope, key, &row, kind, act).await? {
                Ok(Weighed::Known(Resolved::Already)) if before.is_some() => {
                    return Ok(Resolved::Applied);
                }
                Ok(Weighed::Known(known)) => return Ok(known),
                Ok(Weighed::News(news)) => news,
                Err(because) => {
                    refused = Some((seen, because));
                    continue;
                }
            };
            let (request_id, lease_token) = (row.request_id, row.lease_token);
            match self.settle(scope, key, row, kind, news, act.map(|act| act.audit)).await? {
                Written::Applied => return Ok(Resolved::Applied),
                Written::Overtaken => {}
                Written::PerhapsBefore(error) => {
                    *unanswered = Some(Unanswered { request_id, lease_token, error });
                }
            }
        }
        Err(ResolveError::InProgress { retry_after: AGAIN })
    }

    /// What the resolution is to the row, if that is as the operator saw it. The inner error is a refusal that rests on what
    /// two statements read, and counts only if the row is still the same after them: in between the request may have
    /// continued, finished and been erased.
    async fn weigh_as_seen(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        kind: &ResolutionKind,
        act: Option<OperatorAct<'_>>,
    ) -> Result<Result<Weighed<S>, ResolveError>, ResolveError> {
        let compares = act.map_or(Compares::Values, |act| act.compares);
        match self.weigh(scope, key, row, kind, compares).await {
            Ok(known @ Weighed::Known(_)) => Ok(Ok(known)),
            Err(unavailable @ ResolveError::Unavailable(_)) => Err(unavailable),
            _ if act.is_some_and(|act| !(act.is_as_seen)(row)) => Err(ResolveError::MovedOn),
            Ok(news) => Ok(Ok(news)),
            // The row alone shows this.
            Err(running @ ResolveError::InProgress { .. }) => Err(running),
            Err(because @ ResolveError::NotEncoded { .. }) if mutated!(EncodeBehindTakeOver) => {
                let claim = Claim::of_row(scope, key, row, Right::Resolve);
                let _ = self.store.take_over_key(&claim, self.settings.hold()).await;
                Err(because)
            }
            Err(because) => Ok(Err(because)),
        }
    }

    /// Writes the resolution to a row that waits for it, on a task of its own. If the caller goes away, as a webhook's
    /// handler does with its connection, the task still resolves a commit whose outcome is unknown.
    async fn settle(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: KeyRow,
        kind: &ResolutionKind,
        news: Box<News<S>>,
        audit: Option<&AuditEntry>,
    ) -> Result<Written, ResolveError> {
        let (core, scope, key) = (self.clone(), scope.clone(), key.clone());
        let (kind, audit) = (kind.clone(), audit.cloned());
        let settling = async move {
            let _entered = core.running.enter();
            core.write_resolution(&scope, &key, &row, &kind, *news, audit.as_ref()).await
        };
        let settling = Span::current().around(Box::pin(settling));
        let task = crate::task::spawn(carried!(settling));
        task.await.unwrap_or_else(|lost| Err(without_an_answer(&lost)))
    }

    /// Acquires the row as it was read and writes the resolution to it, in one transaction: a process that dies
    /// leaves the resolution with its audit row, or the row as it was. Why it reads the answer itself: see
    /// `engine/run/commit`.
    async fn write_resolution(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        kind: &ResolutionKind,
        news: News<S>,
        audit: Option<&AuditEntry>,
    ) -> Result<Written, ResolveError> {
        let News { run, phases, transition } = news;
        let claim = Claim::of_row(scope, key, row, Right::Resolve);
        let claim = Claim { phases: phases.as_deref(), ..claim };
        let (attempt, trace, phase) = (row.attempts, self.trace(), kind.phase());
        let settled =
            transition.noted(EventKind::Resolved, attempt, phase, Some(kind.name()), trace);
        let written = self.send_until_answered(row, &run, &claim, &settled, audit).await?;
        if matches!(written, Written::Applied) {
            let (definition, subject) = labels(&run, row);
            let by = if audit.is_some() { "operator" } else { "application" };
            observe::resolved(definition, subject, kind.name(), phase.unwrap_or_default(), by);
        }
        Ok(written)
    }

    /// Sends the transition again where that may help, for as long as the outcome of its commit is unknown.
    async fn send_until_answered(
        &self,
        row: &KeyRow,
        run: &Run<S>,
        claim: &Claim<'_>,
        transition: &Transition,
        audit: Option<&AuditEntry>,
    ) -> Result<Written, ResolveError> {
        // For as long as another process would wait for our lease.
        let until = Moment::now().after(self.settings.lease);
        let (mut tries, mut unanswered) = (0, None);
        loop {
            reach!(&row.recovery_point, BeforeTakeOver);
            let (error, is_unanswered) = match run.settle(claim, transition, audit).await {
                Commit::Done(()) => return Ok(Written::Applied),
                Commit::Fenced | Commit::Refused(_) => {
                    return Ok(unanswered.map_or(Written::Overtaken, Written::PerhapsBefore));
                }
                // Sent again, it waits for the first, and finds the row as that one left it (G7).
                Commit::Unknown(error) => {
                    if unanswered.is_none() {
                        let (definition, subject) = labels(run, row);
                        observe::commit_unanswered(definition, subject);
                    }
                    (error, true)
                }
                Commit::Failed(error) => (error, unanswered.is_some()),
            };
            let is_over = match (is_unanswered, &error) {
                (true, _) => Moment::now() >= until,
                // Its lock was waited for.
                (false, StoreError::Locked) => true,
                _ => !error.is_worth_a_rerun() || tries >= self.settings.max_reruns,
            };
            if is_over {
                // Of a commit without an answer, whatever was said last: by now the row may be locked by that very
                // commit, and that it is in use would mean that nothing was written.
                return Err(match is_unanswered {
                    true => ResolveError::Unavailable(error),
                    false => error.into(),
                });
            }
            if is_unanswered {
                unanswered = Some(error);
            }
            tries += 1;
            tokio::time::sleep(jitter(tries)).await;
        }
    }
}

/// The labels of a row. The log names its definition, even one that is not registered here. A metric has labels of known
/// definitions only, so that their number is bounded.
fn labels<'a, S: Store>(run: &'a Run<S>, row: &'a KeyRow) -> (&'static str, Subject<'a>) {
    let known = Some(run.definition.name).filter(|name| !name.is_empty());
    let subject = Subject { definition: &row.definition, ..run.subject() };
    (known.unwrap_or(observe::OTHER), subject)
}

/// Why a task gave no answer.
fn without_an_answer(lost: &tokio::task::JoinError) -> ResolveError {
    match lost.is_panic() {
        true => ResolveError::TaskPanicked,
        false => ResolveError::TaskLost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn panics() {
        std::panic::resume_unwind(Box::new("a defect"))
    }

    #[tokio::test]
    async fn a_task_that_panicked_is_not_lost_with_its_runtime() {
        let lost = tokio::spawn(panics()).await.unwrap_err();
        assert!(matches!(without_an_answer(&lost), ResolveError::TaskPanicked));
        let waits = tokio::spawn(std::future::pending::<()>());
        waits.abort();
        let lost = waits.await.unwrap_err();
        assert!(matches!(without_an_answer(&lost), ResolveError::TaskLost));
    }
}
