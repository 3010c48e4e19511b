//! [`Engine::resolve`]: a resolution, from a webhook or an operator, of a request that waits for one.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::attempt::MAX_ROUNDS;
use super::outcome::CallError;
use super::pause::jitter;
use super::progress::StrandedBecause;
use super::resolution::{executed, finished_at, not_executed};
use super::revive::{Found, Revived};
use super::run::{Run, Transition};
use super::{Core, Engine};
use crate::definition::{EffectClass, Phase, PhaseKind};
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::observe::{self, Span};
use crate::phase::{Outputs, Reply};
use crate::store::audit::AuditEntry;
use crate::store::events::EventKind;
use crate::store::{
    Claim, Commit, KeyRow, Right, Seen, Settles, Status, Store, StoreError, StoredResponse,
};

/// After how long to say a word again, where no lease tells.
const AGAIN: Duration = Duration::from_secs(1);

/// What a webhook or an operator knows about a request whose outcome is unknown, or about a dead letter.
///
/// A resolution names a key, and a key may have several successive requests: a finished one expires with its
/// retention, and the next call with its key is a new request. If a resolution may come later than that, for example
/// because a provider redelivers its webhooks for days, it must name its request
/// ([`of_request`](Self::of_request)). Otherwise a resolution of a call of the first request is applied to the
/// second, and a call that was made may be made again (G2). An operator's resolution
/// ([`Ops::resolve`](crate::ops::Ops::resolve)) always names its request.
#[derive(Debug)]
pub struct Resolution {
    kind: ResolutionKind,
    /// The request that it is about, and no other under its key.
    request: Option<Uuid>,
}

#[derive(Clone, Debug)]
enum ResolutionKind {
    Executed { phase: String, output: Box<RawValue> },
    NotExecuted { phase: String, attempt: u32 },
    Finish(Reply),
    Retry,
}

impl Resolution {
    /// The call of `phase` had its effect, and this is the output that the phase would have returned.
    /// The request continues after it.
    ///
    /// # Errors
    /// [`ResolveError::NotStorable`] if `output` has no JSON form.
    pub fn executed(
        phase: impl Into<String>,
        output: &impl Serialize,
    ) -> Result<Self, ResolveError> {
        let output =
            serde_json::value::to_raw_value(output).map_err(|_| ResolveError::NotStorable)?;
        Ok(ResolutionKind::Executed { phase: phase.into(), output }.into())
    }

    /// The call of `phase` in this attempt
    /// ([`RequestContext::attempt`](crate::RequestContext::attempt),
    /// [`RequestStatus::attempt`](crate::engine::RequestStatus::attempt)) had no effect and will have none:
    /// it may be made again. Because of the attempt, a resolution of an earlier call, delivered twice or late,
    /// is not applied to a later call.
    pub fn not_executed(phase: impl Into<String>, attempt: u32) -> Self {
        ResolutionKind::NotExecuted { phase: phase.into(), attempt }.into()
    }

    /// Closes the request with this reply, for an operator who has settled it by hand.
    pub fn finish(reply: Reply) -> Self {
        ResolutionKind::Finish(reply).into()
    }

    /// Retries a dead letter, with a new count of attempts.
    pub fn retry() -> Self {
        ResolutionKind::Retry.into()
    }

    /// Applies only to the request with this id
    /// ([`RequestContext::request_id`](crate::RequestContext::request_id),
    /// [`RequestStatus::request_id`](crate::engine::RequestStatus::request_id)). If the key belongs to another request
    /// by now, the resolution is refused ([`ResolveError::AnotherRequest`]).
    #[must_use]
    pub fn of_request(self, request_id: Uuid) -> Self {
        Self { request: Some(request_id), ..self }
    }

    /// What an audit row says of it, and in which status it leaves the request.
    pub(crate) fn act(&self) -> (&'static str, Status) {
        match &self.kind {
            ResolutionKind::Executed { .. } => ("resolve.executed", Status::FailedRetryable),
            ResolutionKind::NotExecuted { .. } => ("resolve.not_executed", Status::FailedRetryable),
            ResolutionKind::Finish(_) => ("resolve.finish", Status::Completed),
            ResolutionKind::Retry => ("retry", Status::FailedRetryable),
        }
    }
}

impl From<ResolutionKind> for Resolution {
    fn from(kind: ResolutionKind) -> Self {
        Self { kind, request: None }
    }
}

/// A row as a run, and the phases that it is run under from now on.
type Standing<S> = (Run<S>, Option<Arc<str>>);

/// What a word is taken under, besides that the row waits for it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms<'a> {
    /// Whether the row still is as an operator saw it.
    pub(crate) is_as_seen: Option<&'a (dyn Fn(&KeyRow) -> bool + Sync)>,
    /// Written with the word.
    pub(crate) audit: Option<&'a AuditEntry>,
}

/// What a word is to a row.
enum Weighed {
    /// Known already.
    Known(Resolved),
    /// News, with what is to be stored. Everything that can be refused was refused before, while the row
    /// was not touched yet.
    News(Prepared),
}

/// What became of the writing of a word.
enum Written {
    Applied,
    /// The row was not as it was weighed: somebody was faster.
    Overtaken,
    /// The same, behind a commit that got no answer: it may have been ours.
    PerhapsBefore,
}

/// What a word stores, encoded.
enum Prepared {
    Outputs(Vec<u8>),
    Reply(StoredResponse),
    Nothing,
}

/// The result of a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Resolved {
    /// It was written. A completer or the next retry continues the request.
    Applied,
    /// The same resolution was known already.
    Already,
    /// The request had finished before the resolution came, for example because a webhook was slower
    /// than the answer. Nothing was written. Whether it finished with this output is not known, because the output of
    /// a call is not stored if its request continued to its end without interruption. Compare with your own tables if
    /// that matters.
    Finished,
}

impl Resolved {
    /// One word, as the JSON API tells it: `applied`, `already`, `finished`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Already => "already",
            Self::Finished => "finished",
        }
    }
}

/// Why a resolution was refused. Nothing was written, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// There is no row under this key.
    #[error("there is no request under this key")]
    NoSuchKey,
    /// The request that the resolution names is gone, and its key belongs to another request: nothing is left to resolve.
    #[error("the key belongs to another request now, so nothing is left to resolve")]
    AnotherRequest,
    /// The row has changed since the operator read it: read it again.
    #[error("the request has moved on since it was looked at: look again")]
    MovedOn,
    /// It contradicts an earlier resolution or result.
    #[error("this contradicts an earlier resolution or result: {0}")]
    Conflict(&'static str),
    /// The request's definition has no such phase, or the request does not wait for a resolution of it.
    #[error(
        "the request does not wait for a resolution of this phase; its status names the phase whose call has no outcome"
    )]
    NotThatPhase,
    /// The request is in use: a holder runs it now, perhaps the very call that the resolution is about, or another
    /// transaction has locked its row. Repeat the resolution later.
    #[error("the request is in use; repeat the resolution in {retry_after:?}")]
    InProgress {
        /// The rest of the holder's lease; a second if the row is locked.
        retry_after: Duration,
    },
    /// This process cannot continue the request (G14): send a resolution of one of its calls to another process.
    /// [`Resolution::finish`] and [`Engine::erase`] do not need the definition.
    #[error("this process cannot continue the request: {0}")]
    NotKnownHere(StrandedBecause),
    /// Whether the later phases could read the output cannot be checked.
    #[error("the output cannot be checked: {0}")]
    Undecodable(StrandedBecause),
    /// The output is of another type than the phase's: the later phases could not read it.
    #[error("the output is of another type than the phase's")]
    OtherType,
    /// The value has no JSON form, is over its cap, or cannot be replayed.
    #[error(
        "the value cannot be stored: it has no JSON form, exceeds its cap in Limits together with the stored \
         outputs, or is a reply that HTTP does not allow"
    )]
    NotStorable,
    /// The task that wrote it was lost with its runtime. Whether the resolution was written is not known: repeat
    /// it.
    #[error(
        "the task that wrote the resolution was lost; repeat it, because it may not have been written"
    )]
    TaskLost,
    /// The store could not be read or written. If its answer to the commit was lost for good, whether the
    /// resolution was written is not known: repeat it.
    #[error("the store is unavailable")]
    Unavailable(#[source] StoreError),
    /// This process cannot read a stored value. The row was not changed.
    #[error("the stored {what} of the request are not readable")]
    Unreadable {
        /// Which value.
        what: &'static str,
    },
}

fn is_idempotent(phase: &Phase) -> bool {
    matches!(phase.kind, PhaseKind::Foreign(EffectClass::Idempotent { .. }))
}

impl From<StoreError> for ResolveError {
    fn from(error: StoreError) -> Self {
        CallError::from(error).into()
    }
}

impl From<CallError> for ResolveError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(StoreError::Locked) => Self::InProgress { retry_after: AGAIN },
            CallError::Unavailable(error) => Self::Unavailable(error),
            CallError::Unreadable { what, .. } => Self::Unreadable { what },
            CallError::TaskLost => Self::TaskLost,
            _ => Self::NotKnownHere(StrandedBecause::NewerForm),
        }
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
        self.core.take_word(scope, key, &resolution, Terms::default()).await
    }
}

impl<S: Store> Core<S> {
    /// Takes a word under these terms.
    pub(crate) async fn take_word(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        Resolution { kind: word, request }: &Resolution,
        terms: Terms<'_>,
    ) -> Result<Resolved, ResolveError> {
        let (mut perhaps_before, mut refused) = (false, None);
        for _ in 0..MAX_ROUNDS {
            let row = self.store.read(scope, key).await?.ok_or(ResolveError::NoSuchKey)?;
            let seen = Seen::of(&row);
            match refused.take() {
                Some((before, because)) if before == seen => return Err(because),
                _ => {}
            }
            // What is written below is written to this request, or to none.
            let is_another = request.is_some_and(|request| request != row.request_id);
            if is_another && !mutated!(AnyLife) {
                return Err(ResolveError::AnotherRequest);
            }
            let weighed = self.weigh(scope, key, &row, word).await;
            let has_moved = terms.is_as_seen.is_some_and(|is_as_seen| !is_as_seen(&row));
            let prepared = match weighed {
                // Of an operator's word the audit tells whose it was.
                Ok(Weighed::Known(Resolved::Already))
                    if perhaps_before && terms.audit.is_none() =>
                {
                    return Ok(Resolved::Applied);
                }
                Ok(Weighed::Known(known)) => return Ok(known),
                Err(ResolveError::Unavailable(error)) => {
                    return Err(ResolveError::Unavailable(error));
                }
                _ if has_moved => return Err(ResolveError::MovedOn),
                // The row alone tells it.
                Err(running @ ResolveError::InProgress { .. }) => return Err(running),
                // The word was held against what two statements read: a refusal counts if the row is the same
                // behind them. In between it may have gone on, been finished and been erased.
                Err(because) => {
                    refused = Some((seen, because));
                    continue;
                }
                Ok(Weighed::News(prepared)) => prepared,
            };
            match self.settle(scope, key, row, word, prepared, terms.audit).await? {
                Written::Applied => return Ok(Resolved::Applied),
                Written::Overtaken => {}
                Written::PerhapsBefore => perhaps_before = true,
            }
        }
        Err(ResolveError::InProgress { retry_after: AGAIN })
    }

    /// Writes the word to a row that waits for it, on a task of its own: a caller that goes away, as a webhook's
    /// handler does with its connection, leaves no commit behind that nobody asks about.
    async fn settle(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: KeyRow,
        word: &ResolutionKind,
        prepared: Prepared,
        audit: Option<&AuditEntry>,
    ) -> Result<Written, ResolveError> {
        let (core, scope, key) = (self.clone(), scope.clone(), key.clone());
        let (word, audit) = (word.clone(), audit.cloned());
        let settling = async move {
            let _entered = core.running.enter();
            core.write_word(&scope, &key, &row, &word, prepared, audit.as_ref()).await
        };
        let settling = Span::current().around(Box::pin(settling));
        let task = crate::task::spawn(carried!(settling));
        task.await.unwrap_or(Err(ResolveError::TaskLost))
    }

    /// Acquires the row as it was weighed and writes the word to it, in one transaction: a process that dies
    /// leaves the word with its audit row, or the row as it was.
    async fn write_word(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        word: &ResolutionKind,
        prepared: Prepared,
        audit: Option<&AuditEntry>,
    ) -> Result<Written, ResolveError> {
        let (run, phases) = self.standing(scope, key, row, word)?;
        let claim = Claim {
            scope,
            key,
            request_id: row.request_id,
            lease_token: row.lease_token,
            status: row.status,
            recovery_point: Some(&row.recovery_point),
            phases: phases.as_deref(),
            right: Right::Resolve,
            event: None,
            trace: None,
        };
        if mutated!(EncodeBehindTakeOver) && matches!(prepared, Prepared::Nothing) {
            let _ = self.store.take_over(&claim, self.settings.hold()).await;
        }
        let said = Some(word.phase()).filter(|phase| !phase.is_empty());
        let settled = run.transition_by(row, word, prepared)?;
        let (attempt, trace) = (row.attempts, self.trace());
        let settled = settled.noted(EventKind::Resolved, attempt, said, Some(word.name()), trace);
        // As long as somebody else would wait for an answer of ours.
        let until = Moment::now().after(self.settings.lease);
        let (mut tries, mut is_unanswered) = (0, false);
        loop {
            reach!(&row.recovery_point, BeforeTakeOver);
            let error = match run.settle(&claim, &settled, audit).await {
                Commit::Done(()) => {
                    let definition = run.definition.name;
                    observe::resolved(definition, run.subject(), word.name(), word.phase());
                    return Ok(Written::Applied);
                }
                Commit::Fenced | Commit::Refused(_) if is_unanswered => {
                    return Ok(Written::PerhapsBefore);
                }
                Commit::Fenced | Commit::Refused(_) => return Ok(Written::Overtaken),
                // Sent again, it waits for the first, and finds the row as that one left it (G7).
                Commit::Unknown(error) => {
                    if !is_unanswered {
                        observe::commit_unanswered(run.definition.name, run.subject());
                    }
                    is_unanswered = true;
                    error
                }
                Commit::Failed(error) => error,
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
            tries += 1;
            tokio::time::sleep(jitter(tries)).await;
        }
    }

    /// The row as a run that makes the transition, and the phases that it is run under from now on. What ends
    /// the request or lets it try again needs nothing of what is stored; a word about a call is for a process
    /// that knows the request.
    fn standing(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        word: &ResolutionKind,
    ) -> Result<Standing<S>, ResolveError> {
        let (definition, revived, phases) = match word {
            ResolutionKind::Finish(_) | ResolutionKind::Retry => {
                (self.definition_of(row), Revived::nothing(), None)
            }
            ResolutionKind::Executed { .. } | ResolutionKind::NotExecuted { .. } => {
                let judged = self.judge(scope, key, row)?.map_err(ResolveError::NotKnownHere)?;
                let is_run_here = judged.is_run_here();
                (judged.definition, judged.revived, is_run_here.then_some(judged.phases))
            }
        };
        Ok((self.held(scope, key, row, Moment::now(), definition, revived), phases))
    }

    /// Whether `word` is known already, contradicts what is known, or is news to a row that waits for it.
    async fn weigh(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        word: &ResolutionKind,
    ) -> Result<Weighed, ResolveError> {
        let conflict = |what| Err(ResolveError::Conflict(what));
        let known = |resolved| Ok(Weighed::Known(resolved));
        let not_storable = |_| ResolveError::NotStorable;
        match word {
            ResolutionKind::Executed { phase, output } => {
                let (index, phase) = self.phase_of(row, phase)?;
                let revived = self.revived(scope, key, row)?;
                not_running(row)?;
                let mut outputs = self.stored_outputs(scope, key).await?;
                if let Some(stored) = outputs.get(index) {
                    return match equal(stored, output) {
                        true => known(Resolved::Already),
                        false => conflict("the phase has another output"),
                    };
                }
                // Its output was not kept, or erased: by now, or since the row was read.
                let is_over = row.status == Status::Completed && !phase.kind.is_local();
                if is_over && !mutated!(RefuseBehindErasure) {
                    return known(Resolved::Finished);
                }
                let denied = not_executed(phase, row.attempts);
                if row.resolution.as_deref() == Some(&denied) {
                    return conflict("the call was said not to have been executed");
                }
                waits_for(row, index, phase, &outputs)?;
                // Only a completed row has nothing to bring back to life.
                let Some(revived) = revived else {
                    return known(Resolved::Finished);
                };
                if let Found::Undecodable(because) = revived.found {
                    return Err(ResolveError::Undecodable(because));
                }
                // An output that the later phases could not read would be in their way for ever; and the last
                // phase has no output: what it ends with is a reply, for `Resolution::finish`.
                let is_last = index + 1 == self.phases_of(row)?.len();
                if is_last || !revived.reads(index, output) {
                    return Err(ResolveError::OtherType);
                }
                outputs.push(phase.name, output.clone());
                match self.encode_outputs(scope, key, &outputs) {
                    Err(_) if mutated!(EncodeBehindTakeOver) => {
                        Ok(Weighed::News(Prepared::Nothing))
                    }
                    encoded => Ok(Weighed::News(Prepared::Outputs(encoded.map_err(not_storable)?))),
                }
            }
            ResolutionKind::NotExecuted { phase, attempt } => {
                let (index, phase) = self.phase_of(row, phase)?;
                self.revived(scope, key, row)?;
                not_running(row)?;
                if row.resolution.as_deref() == Some(&not_executed(phase, *attempt)) {
                    return known(Resolved::Already);
                }
                if row.status == Status::Completed {
                    return conflict("the request is finished");
                }
                let outputs = self.stored_outputs(scope, key).await?;
                if outputs.get(index).is_some() {
                    return conflict("the phase has an output");
                }
                waits_for(row, index, phase, &outputs)?;
                if *attempt != row.attempts {
                    return conflict("the request is in another attempt by now");
                }
                match row.status {
                    Status::Unknown | Status::DeadLetter => Ok(Weighed::News(Prepared::Nothing)),
                    // Nothing is known of its call, and nothing waits to be: the same call is made again.
                    _ if is_idempotent(phase) => Err(ResolveError::NotThatPhase),
                    // Released after a failure that had no effect either.
                    _ => known(Resolved::Already),
                }
            }
            ResolutionKind::Finish(reply) => {
                if !(200..=599).contains(&reply.status()) {
                    return Err(ResolveError::NotStorable);
                }
                // A request whose holder is gone may be one that no process goes on with.
                if !row.lease_left.is_zero() {
                    not_running(row)?;
                }
                self.opens(scope, key, row)?;
                match row.status {
                    Status::Completed if self.is_stored(scope, key, reply).await? => {
                        known(Resolved::Already)
                    }
                    Status::Completed => conflict("the request is finished with another reply"),
                    _ => {
                        let encoded = self.encode_reply(scope, key, reply).map_err(not_storable)?;
                        Ok(Weighed::News(Prepared::Reply(encoded)))
                    }
                }
            }
            ResolutionKind::Retry => {
                not_running(row)?;
                match row.status {
                    Status::DeadLetter if row.open_intent.is_none() => {
                        Ok(Weighed::News(Prepared::Nothing))
                    }
                    Status::Pending | Status::FailedRetryable => known(Resolved::Already),
                    Status::Completed => conflict("the request is finished"),
                    _ => conflict("the outcome of a call is unknown: say whether it was executed"),
                }
            }
        }
    }

    /// What can be made of the row, if this process knows it; `None` of a completed one.
    fn revived(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
    ) -> Result<Option<Revived<S>>, ResolveError> {
        if row.status == Status::Completed {
            return Ok(None);
        }
        match self.judge(scope, key, row)? {
            Ok(judged) => Ok(Some(judged.revived)),
            Err(because) => Err(ResolveError::NotKnownHere(because)),
        }
    }

    /// A process whose codec has another secret would seal the reply so that no other can open it; one that has
    /// none of the application's code would not seal it at all.
    fn opens(&self, scope: &Scope, key: &IdempotencyKey, row: &KeyRow) -> Result<(), ResolveError> {
        let Some(work) = &row.work else { return Ok(()) };
        let plain = self.open(scope, key, work)?;
        let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(&plain.params).is_ok();
        match self.has_no_code() && !is_json() {
            true => Err(ResolveError::NotKnownHere(StrandedBecause::Sealed)),
            false => Ok(()),
        }
    }

    fn phases_of(&self, row: &KeyRow) -> Result<&'static [Phase], ResolveError> {
        let entry = self.registry.find(&row.definition, row.version);
        Ok(entry.map_err(ResolveError::NotKnownHere)?.definition.phases)
    }

    fn phase_of(&self, row: &KeyRow, name: &str) -> Result<(usize, &'static Phase), ResolveError> {
        let mut phases = self.phases_of(row)?.iter().enumerate();
        phases.find(|(_, phase)| phase.is_called(name)).ok_or(ResolveError::NotThatPhase)
    }

    async fn stored_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Outputs, ResolveError> {
        let stored = self.store.outputs(scope, key).await?;
        Ok(self.decode_outputs(scope, key, stored)?)
    }

    /// Whether the request was finished with this reply. One that was not retained is like any other.
    async fn is_stored(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        reply: &Reply,
    ) -> Result<bool, ResolveError> {
        let Some(row) = self.store.look(scope, key).await? else { return Ok(false) };
        Ok(match self.decode_reply(scope, key, row.response)? {
            Ok(stored) => stored == *reply,
            Err(status) => status == reply.status(),
        })
    }
}

fn not_running(row: &KeyRow) -> Result<(), ResolveError> {
    match row.status {
        Status::InProgress => Err(ResolveError::InProgress { retry_after: row.lease_left }),
        _ => Ok(()),
    }
}

/// Whether the request stands before `phase`, and `phase` is one that calls somebody.
fn waits_for(
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

/// By value: white space and the order of members do not matter.
fn equal(one: &RawValue, other: &RawValue) -> bool {
    let value = |raw: &RawValue| serde_json::from_str::<serde_json::Value>(raw.get()).ok();
    value(one) == value(other)
}

impl<S: Store> Run<S> {
    /// What a word makes of the row.
    fn transition_by(
        &self,
        row: &KeyRow,
        word: &ResolutionKind,
        prepared: Prepared,
    ) -> Result<Transition, ResolveError> {
        let next = self.definition.phases.get(self.outputs.len());
        let next = || next.ok_or(ResolveError::NotThatPhase);
        Ok(match (word, prepared) {
            (ResolutionKind::Executed { .. }, Prepared::Outputs(outputs)) => {
                let phase = next()?;
                self.released_behind(phase, outputs, executed(phase))
            }
            (ResolutionKind::Finish(reply), Prepared::Reply(stored)) => {
                self.finished_by(reply.clone(), stored, finished_at(row))
            }
            // Nothing was encoded.
            (ResolutionKind::Executed { .. } | ResolutionKind::Finish(_), _) => {
                return Err(ResolveError::NotStorable);
            }
            (ResolutionKind::NotExecuted { attempt, .. }, _) => {
                let said = not_executed(next()?, *attempt);
                self.released(said, Settles::WindowAndAttempts, Duration::ZERO)
            }
            // The calls that were made before were made: the window goes on (G11).
            _ => self.released("retry".to_owned(), Settles::Attempts, Duration::ZERO),
        })
    }
}

impl ResolutionKind {
    fn name(&self) -> &'static str {
        match self {
            Self::Executed { .. } => "executed",
            Self::NotExecuted { .. } => "not_executed",
            Self::Finish(_) => "finish",
            Self::Retry => "retry",
        }
    }

    fn phase(&self) -> &str {
        match self {
            Self::Executed { phase, .. } | Self::NotExecuted { phase, .. } => phase,
            Self::Finish(_) | Self::Retry => "",
        }
    }
}
