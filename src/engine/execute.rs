//! [`Call::execute`]: from a call to its answer. Reads the key's row, decides, reserves or takes
//! over, and hands over to `run`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::decide::{Asked, Decision, decide, is_held_by_its_creator};
use super::lease::{Entered, Holder, Lease};
use super::outcome::{ExecuteError, FailureCause, Finished, Outcome};
use super::progress::StrandedBecause;
use super::quota::Admission;
use super::registry::Entry;
use super::run::{Ended, Run, jitter, timed_out};
use super::stored::unreadable;
use super::{Call, Core};
use crate::codec::CodecError;
use crate::config::{OnDuplicate, Quota};
use crate::definition::{Definition, Phases, RequestDefinition, STARTED};
use crate::fingerprint::{
    Fingerprint, FingerprintError, FingerprintRule, FingerprintVersion, RequestOrigin,
    StoredFingerprint, fingerprint, fingerprint_in,
};
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::observe::{self, Subject};
use crate::phase::{Outputs, Reply, RequestContext};
use crate::roundtrip::{self, Because, Loss, Order, difference};
#[cfg(not(feature = "fault-injection"))]
use crate::store::whole_millis;
use crate::store::{
    Birth, Commit, Glance, KeyRow, NewRow, Reserved, Right, Status, Store, StoreError, Transaction,
};
use crate::task;

impl<S: Store, A: Send + Sync + 'static, R: RequestDefinition<S, A>> Call<S, A, R> {
    /// Runs the request, or answers what became of it.
    ///
    /// # Errors
    /// As [`Engine::execute`](super::Engine::execute).
    pub async fn execute(self) -> Result<Outcome, ExecuteError> {
        let entered = self.core.running.enter().ok_or(ExecuteError::ShuttingDown)?;
        self.prepare(entered, false)?.detached().await
    }

    /// Stores the request as `pending` and answers [`Outcome::Accepted`], durably, without running
    /// it: a completer does ([`Engine::spawn_workers`](super::Engine::spawn_workers)). A request
    /// that is known already is answered as by [`execute`](Self::execute), and not run either.
    ///
    /// # Errors
    /// As [`Engine::execute`](super::Engine::execute).
    pub async fn accept(self) -> Result<Outcome, ExecuteError> {
        let entered = self.core.running.enter().ok_or(ExecuteError::ShuttingDown)?;
        self.prepare(entered, true)?.detached().await
    }

    /// As [`execute`](Self::execute), on the caller's own task: whoever drops the future drops the
    /// work, which then looks as after a crash there (G13). For tests.
    #[doc(hidden)]
    pub async fn __execute_in_place(self) -> Result<Outcome, ExecuteError> {
        let entered = self.core.running.enter().ok_or(ExecuteError::ShuttingDown)?;
        self.prepare(entered, false)?.in_place().await
    }

    /// As [`accept`](Self::accept), in the same way.
    #[doc(hidden)]
    pub async fn __accept_in_place(self) -> Result<Outcome, ExecuteError> {
        let entered = self.core.running.enter().ok_or(ExecuteError::ShuttingDown)?;
        self.prepare(entered, true)?.in_place().await
    }

    /// Everything that can be refused before anything is stored.
    fn prepare(self, entered: Entered, background: bool) -> Result<Attempt<S, A>, ExecuteError> {
        let definition = R::DEFINITION;
        let (name, version) = (definition.name, definition.version);
        let entry = self.core.registry.get(name, version).ok_or_else(|| {
            observe::not_registered_call(name, version);
            ExecuteError::NotRegistered { name, version }
        })?;
        let phases = entry.phases.clone();
        let limits = self.core.settings.limits;
        let fingerprint = fingerprint(&self.origin, &self.request)?;
        let context = self.context?;
        within("context", context.as_ref().map_or(0, |c| c.get().len()), limits.context)?;
        let on_duplicate = self.on_duplicate;
        let has_quota = self.core.settings.quota != Quota::default();
        Ok(Attempt {
            core: self.core,
            scope: self.scope,
            key: self.key,
            definition,
            phases,
            fingerprint,
            given: Box::new(Given { origin: self.origin, request: self.request }),
            compared: Mutex::default(),
            context,
            background,
            looks_first: !self.expects_new || has_quota,
            request_id: new_request_id(),
            patience: match on_duplicate {
                OnDuplicate::Answer => None,
                OnDuplicate::Wait(bound) => Some(Moment::now().after(bound)),
            },
            _entered: entered,
        })
    }
}

fn new_request_id() -> Uuid {
    #[cfg(feature = "fault-injection")]
    if let Some(id) = crate::fault::request_id() {
        return id;
    }
    crate::chance::uuid()
}

fn within(what: &'static str, size: usize, limit: usize) -> Result<(), ExecuteError> {
    if size > limit {
        return Err(ExecuteError::TooLarge { what, size, limit });
    }
    Ok(())
}

/// What the caller gave, of whichever type it is.
struct Given<R> {
    origin: RequestOrigin,
    request: R,
}

trait Asking<S: Store, A>: Send + Sync {
    fn origin(&self) -> &RequestOrigin;

    /// The parameters as they are stored.
    fn params(&self) -> serde_json::Result<Vec<u8>>;

    /// The parameters as each attempt sees them: read from their stored form, so many times. `given` is
    /// the fingerprint of what the caller gave.
    fn read_params(
        &self,
        params: &[u8],
        given: &Fingerprint,
        readings: u32,
    ) -> Result<Box<dyn Phases<S, A>>, ExecuteError>;

    /// The fingerprint in another version than that of this process.
    fn fingerprint_in(&self, version: FingerprintVersion) -> Option<Fingerprint>;

    /// The fingerprint of stored parameters, read by the caller's type; `None` where they are not of
    /// that type.
    fn fingerprint_of(&self, params: &[u8]) -> Option<Fingerprint>;
}

impl<R: serde::Serialize> Given<R> {
    /// Whether the parameters have their fingerprint still, once they were stored and read.
    fn compare(&self, read: &R, given: &Fingerprint) -> Result<(), ExecuteError> {
        if fingerprint(&self.origin, read)? != *given {
            let loss = difference(&self.request, read, Order::Counts);
            let Loss { path, because } =
                loss.unwrap_or(Loss { path: Vec::new(), because: Because::Differs });
            let rule = match because {
                Because::Order => FingerprintRule::Unordered,
                _ => FingerprintRule::NotStable,
            };
            return Err(FingerprintError::at(path, rule).into());
        }
        Ok(())
    }
}

impl<S: Store, A, R: RequestDefinition<S, A>> Asking<S, A> for Given<R> {
    fn origin(&self) -> &RequestOrigin {
        &self.origin
    }

    fn params(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&self.request)
    }

    fn read_params(
        &self,
        params: &[u8],
        given: &Fingerprint,
        readings: u32,
    ) -> Result<Box<dyn Phases<S, A>>, ExecuteError> {
        let read = || {
            serde_json::from_slice::<R>(params).map_err(|_| {
                let path = roundtrip::stored(&self.request).err().map(|loss| loss.path);
                FingerprintError::at(path.unwrap_or_default(), FingerprintRule::NotRead)
            })
        };
        // What has another fingerprint each time that it is read would make a mismatch of each retry.
        for _ in 1..readings {
            self.compare(&read()?, given)?;
        }
        let read = read()?;
        self.compare(&read, given)?;
        Ok(Box::new(read))
    }

    fn fingerprint_in(&self, version: FingerprintVersion) -> Option<Fingerprint> {
        fingerprint_in(version, &self.origin, &self.request).ok()
    }

    fn fingerprint_of(&self, params: &[u8]) -> Option<Fingerprint> {
        let read: R = serde_json::from_slice(params).ok()?;
        fingerprint(&self.origin, &read).ok()
    }
}

/// Whether a row is of the request that is asked for (G9).
#[derive(Clone, Copy)]
enum Comparison {
    Same,
    Another,
    /// This process cannot tell: it does not know the version of the row's fingerprint, or the row's
    /// parameters are of a type that the caller's cannot read.
    NotKnownHere,
    /// The row is not the one any more that was seen.
    Changed,
}

/// One call on its way, detached from its caller.
struct Attempt<S: Store, A> {
    core: Arc<Core<S, A>>,
    scope: Scope,
    key: IdempotencyKey,
    definition: Definition,
    phases: Arc<str>,
    fingerprint: Fingerprint,
    given: Box<dyn Asking<S, A>>,
    /// What the stored parameters of a row came to, once they were read.
    compared: Mutex<Option<(Uuid, Comparison)>>,
    context: Option<Box<RawValue>>,
    /// Whether to store it and leave the work to the workers.
    background: bool,
    /// Whether to look at the key before it is reserved.
    looks_first: bool,
    /// Under which this call creates the row, if it does. By it the call knows its own row again
    /// after a commit that got no answer.
    request_id: Uuid,
    /// Until when to wait for somebody else.
    patience: Option<Moment>,
    _entered: Entered,
}

/// Says so where it is dropped before its end: it panicked, or its runtime is gone.
struct Task<'a, S: Store, A: Send + Sync + 'static> {
    attempt: &'a Attempt<S, A>,
    has_ended: bool,
}

impl<S: Store, A: Send + Sync + 'static> Drop for Task<'_, S, A> {
    fn drop(&mut self) {
        if !self.has_ended {
            observe::call_failed(self.attempt.subject(), &ExecuteError::TaskLost);
        }
    }
}

/// How often the row is looked at anew because it changed between two statements (H20).
pub(super) const LOOKS: u32 = 16;

impl<S: Store, A: Send + Sync + 'static> Attempt<S, A> {
    /// On a task of its own: whoever awaits it may go away (R10, WIRE 35).
    async fn detached(self) -> Result<Outcome, ExecuteError> {
        let span = observe::request(&self.definition, &self.scope, &self.key);
        // A look leaves nothing behind, so it needs no task; and most often it is all for a replay.
        let look = async {
            match self.looks_first {
                true => self.core.store.look(&self.scope, &self.key).await,
                false => Ok(None),
            }
        };
        let looked = async {
            let mut row = look.await?;
            let told = self.told_at_once(&mut row).await?;
            Ok::<_, ExecuteError>((row, told))
        };
        let row = match tracing::Instrument::instrument(looked, span.clone()).await {
            Ok((row, None)) => row,
            Ok((_, Some(outcome))) => return span.in_scope(|| self.answered(Ok(outcome))),
            Err(error) => return span.in_scope(|| self.answered(Err(error))),
        };
        let settling = async move {
            let mut task = Task { attempt: &self, has_ended: false };
            let settled = self.settle(Some(row)).await;
            task.has_ended = true;
            settled
        };
        let settling = tracing::Instrument::instrument(settling, span);
        // Boxed, because tokio moves a task's future about several times, and this one is large.
        task::spawn(carried!(Box::pin(settling))).await.unwrap_or(Err(ExecuteError::TaskLost))
    }

    /// On the caller's own task.
    async fn in_place(self) -> Result<Outcome, ExecuteError> {
        let seen = (!self.looks_first).then_some(None);
        // Boxed, because the future of a whole request is deep, and its caller's is deeper.
        Box::pin(self.settle(seen)).await
    }

    /// The answer, where the row says it and nothing has to be done.
    async fn told_at_once(
        &self,
        row: &mut Option<Glance>,
    ) -> Result<Option<Outcome>, ExecuteError> {
        let Some(asked) = self.asked(row.as_ref()).await? else { return Ok(None) };
        match decide(row.as_ref(), &asked) {
            Decision::Create { .. }
            | Decision::TakeOver
            | Decision::Recover
            | Decision::InProgress { .. } => Ok(None),
            // Settled while this call waits, perhaps.
            Decision::Unknown { retry_after } if self.can_wait(retry_after) => Ok(None),
            decision => self.answer(decision, row.take()).map(Some),
        }
    }

    /// Another transaction is about to create the key's row, or to change the one that there is, and
    /// takes long. What a row says comes before that it is busy: a call that expected a new key has not
    /// looked at it yet (G9).
    async fn busy(&self) -> Result<Looked, ExecuteError> {
        let mut row = self.core.store.look(&self.scope, &self.key).await?;
        let told = self.told_at_once(&mut row).await?;
        let retry_after = self.core.settings.lock_wait;
        Ok(Looked::Ended(told.unwrap_or(Outcome::InProgress { retry_after })))
    }

    fn answered(&self, outcome: Result<Outcome, ExecuteError>) -> Result<Outcome, ExecuteError> {
        observe::answered(self.definition.name, &outcome);
        if let Err(error) = &outcome {
            observe::call_failed(self.subject(), error);
        }
        outcome
    }

    /// What a log may know of the request. Its id is that of this call, as long as no row is known.
    fn subject(&self) -> Subject<'_> {
        Subject {
            definition: self.definition.name,
            request_id: self.request_id,
            scope: &self.scope,
            key: &self.key,
        }
    }

    async fn settle(&self, seen: Option<Option<Glance>>) -> Result<Outcome, ExecuteError> {
        self.answered(self.settled(seen).await)
    }

    /// `seen`: the key's row, where somebody has just looked.
    async fn settled(&self, mut seen: Option<Option<Glance>>) -> Result<Outcome, ExecuteError> {
        let mut admitted = None;
        let mut rejected = None;
        let mut restarts = 0;
        let mut too_slow = None;
        let mut looks = 0;
        let mut waits = 0;
        let mut ran = false;
        loop {
            let row = match seen.take() {
                Some(row) => row,
                None => self.core.store.look(&self.scope, &self.key).await?,
            };
            let decided = self.asked(row.as_ref()).await?.map(|asked| decide(row.as_ref(), &asked));
            let Some(decision) = decided else {
                looks += 1;
                match looks < LOOKS {
                    true => continue,
                    // It changed each time: another process is working on it.
                    false => {
                        return Ok(Outcome::InProgress { retry_after: Duration::from_secs(1) });
                    }
                }
            };
            // It would be as slow again.
            if let (Decision::Create { .. }, Some(cause)) = (&decision, too_slow.take()) {
                observe::not_begun(self.subject(), &cause);
                let retry_after = self.core.settings.back_off(1);
                return Ok(Outcome::Failed { cause, retry_after });
            }
            let ended = match (decision, row) {
                (Decision::Create { .. }, _) if ran => {
                    return Err(ExecuteError::RowDeleted);
                }
                (Decision::Create { replaces }, _) => {
                    let admission = match &admitted {
                        Some(admission) => admission,
                        None => admitted.insert(self.core.admit(&self.scope, &self.key).await?),
                    };
                    self.create(replaces, admission.clone(), &mut rejected).await?
                }
                #[cfg(feature = "fault-injection")]
                (Decision::InProgress { .. }, Some(row)) if mutated!(ApplicationClock) => {
                    self.resume(&row, Right::Own).await?
                }
                // What a call waited for has failed: that is its answer too. A hundred that wait would all
                // run it at the same moment.
                (Decision::TakeOver, Some(row))
                    if waits > 0
                        && row.status == Status::FailedRetryable
                        && !row.back_off_left.is_zero() =>
                {
                    let cause = FailureCause::OtherAttempt;
                    let retry_after = row.back_off_left;
                    Looked::Ended(Outcome::Failed { cause, retry_after })
                }
                // A call that accepts leaves the row to the workers; one of them may have it already, where
                // the commit of the acceptance got no answer.
                (Decision::TakeOver, Some(_)) if self.background => {
                    Looked::Ended(Outcome::Accepted)
                }
                (Decision::InProgress { .. }, Some(row))
                    if self.background && row.request_id == self.request_id =>
                {
                    Looked::Ended(Outcome::Accepted)
                }
                (Decision::TakeOver, Some(row)) => self.resume(&row, Right::Free).await?,
                (Decision::Recover, Some(row)) => self.resume(&row, Right::Own).await?,
                (decision, row) => Looked::Ended(self.answer(decision, row)?),
            };
            match ended {
                Looked::Ended(Outcome::InProgress { retry_after }) => {
                    if !self.wait_for_the_other(waits).await {
                        return Ok(Outcome::InProgress { retry_after });
                    }
                    waits = waits.saturating_add(1);
                }
                // A wait that an outcome cannot be known by would be in vain.
                Looked::Ended(Outcome::Unknown { retry_after })
                    if self.can_wait(retry_after) && self.wait_for_the_other(waits).await =>
                {
                    waits = waits.saturating_add(1);
                }
                Looked::Ended(outcome) => {
                    #[cfg(feature = "fault-injection")]
                    self.before_reply(&outcome).await;
                    return Ok(outcome);
                }
                Looked::Changed | Looked::Found(_) | Looked::Lost if looks >= LOOKS => {
                    return Ok(Outcome::InProgress { retry_after: Duration::from_secs(1) });
                }
                again @ (Looked::Changed | Looked::Found(_) | Looked::Lost) => {
                    // The first time it was a race; after that something goes on.
                    if looks > 0 {
                        tokio::time::sleep(jitter(looks)).await;
                    }
                    looks += 1;
                    ran |= matches!(again, Looked::Lost);
                    if let Looked::Found(row) = again {
                        seen = Some(Some(row));
                    }
                }
                Looked::Restart { reply, error } => {
                    rejected = reply.or(rejected);
                    restarts += 1;
                    // Statements that were handed over, and took longer than their phase may.
                    too_slow = self
                        .definition
                        .phases
                        .first()
                        .filter(|first| first.batch)
                        .filter(|_| error.as_ref().is_some_and(StoreError::is_unanswered))
                        .map(timed_out);
                    match error {
                        Some(error) if restarts > self.core.settings.max_reruns => {
                            return Err(error.into());
                        }
                        Some(_) => tokio::time::sleep(jitter(restarts)).await,
                        None => {}
                    }
                }
            }
        }
    }

    /// `None`: the row changed meanwhile.
    async fn asked(&self, row: Option<&Glance>) -> Result<Option<Asked<'_>>, ExecuteError> {
        let comparison = match row {
            None => Comparison::Same,
            Some(row) => self.compare(row).await?,
        };
        let same_request = match comparison {
            Comparison::Same => Some(true),
            Comparison::Another => Some(false),
            Comparison::NotKnownHere => None,
            Comparison::Changed => return Ok(None),
        };
        let knows_version = row.is_none_or(|row| self.knows(row));
        let (definition, runs_as) = (&self.definition, self.runs_as());
        Ok(Some(Asked { definition, knows_version, runs_as, same_request }))
    }

    fn knows(&self, row: &Glance) -> bool {
        row.version == self.definition.version
            || self.core.registry.get(&row.definition, row.version).is_some()
    }

    /// Why `decide` leaves the row alone.
    fn unknown_because(&self, row: Option<&Glance>) -> StrandedBecause {
        match row {
            Some(row) if StoredFingerprint::parse(&row.fingerprint).is_none() => {
                StrandedBecause::NewerForm
            }
            Some(row) if !self.knows(row) => StrandedBecause::UnknownVersion,
            _ => StrandedBecause::ParametersUndecodable,
        }
    }

    /// The id under which this call creates the row and runs it; `None` where it leaves that to the workers.
    fn runs_as(&self) -> Option<Uuid> {
        #[cfg(feature = "fault-injection")]
        if mutated!(RecoverAccepted) {
            return Some(self.request_id);
        }
        (!self.background).then_some(self.request_id)
    }

    /// Whether the row is of this request. Costs a statement only where the fingerprints differ and the
    /// origins do not: then either this is another request, or the type has changed since.
    async fn compare(&self, row: &Glance) -> Result<Comparison, ExecuteError> {
        #[cfg(feature = "fault-injection")]
        if mutated!(SkipFingerprint) {
            return Ok(Comparison::Same);
        }
        let Some(stored) = StoredFingerprint::parse(&row.fingerprint) else {
            return Ok(Comparison::NotKnownHere);
        };
        let is_same = match stored.version == FingerprintVersion::CURRENT {
            true => self.fingerprint.matches(stored.fingerprint),
            // An older row is compared in its own form (WIRE 59).
            false => self
                .given
                .fingerprint_in(stored.version)
                .is_some_and(|own| own.matches(stored.fingerprint)),
        };
        if is_same {
            return Ok(Comparison::Same);
        }
        if row.definition != self.definition.name || !stored.came_by(self.given.origin()) {
            return Ok(Comparison::Another);
        }
        // Of a key that is about to be used anew nothing is compared.
        if row.is_over() {
            return Ok(Comparison::Another);
        }
        let known = *self.compared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((request_id, comparison)) = known
            && request_id == row.request_id
        {
            return Ok(comparison);
        }
        let params = self.core.store.params(&self.scope, &self.key, row.request_id).await?;
        let Some(params) = params else { return Ok(Comparison::Changed) };
        let params = self.core.decode(&self.scope, &self.key, "params", params)?;
        let comparison = match self.given.fingerprint_of(&params) {
            Some(stored) if stored == self.fingerprint => Comparison::Same,
            Some(_) => Comparison::Another,
            None => Comparison::NotKnownHere,
        };
        *self.compared.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            Some((row.request_id, comparison));
        Ok(comparison)
    }

    fn answer(&self, decision: Decision, row: Option<Glance>) -> Result<Outcome, ExecuteError> {
        Ok(match decision {
            Decision::Mismatch => Outcome::Mismatch,
            Decision::InProgress { retry_after: lease_left } => {
                let retry_after = self.core.settings.ask_again_after(lease_left);
                Outcome::InProgress { retry_after }
            }
            Decision::Unknown { retry_after } => Outcome::Unknown { retry_after },
            Decision::DeadLetter => Outcome::DeadLetter,
            Decision::Erased => Outcome::Erased,
            Decision::NotKnownHere => {
                let request_id = row.as_ref().map_or(self.request_id, |row| row.request_id);
                let subject = Subject { request_id, ..self.subject() };
                self.core.left_alone(subject, self.unknown_because(row.as_ref()))
            }
            Decision::Replay => {
                let row = row.ok_or(unreadable("response"))?;
                // Ours, where the commit that created and finished it got no answer.
                let ours = is_held_by_its_creator(&row, self.runs_as());
                let (replayed, expires_at) = (!ours, row.expires_at);
                match self.core.decode_reply(&self.scope, &self.key, row.response)? {
                    Ok(reply) => Outcome::Finished(Finished { reply, replayed, expires_at }),
                    Err(status) => Outcome::ReplyNotRetained { status },
                }
            }
            // Their rows are taken apart by the caller.
            Decision::Create { .. } | Decision::TakeOver | Decision::Recover => {
                return Err(unreadable("status"));
            }
        })
    }

    #[cfg(feature = "fault-injection")]
    async fn before_reply(&self, outcome: &Outcome) {
        if let (Outcome::Finished(finished), Some(last)) = (outcome, self.definition.phases.last())
            && !finished.replayed
        {
            reach!(last.name, BeforeReply);
        }
    }

    /// Goes on with the row that was seen, if it is still that.
    async fn resume(&self, seen: &Glance, right: Right) -> Result<Looked, ExecuteError> {
        let row = self.core.store.read(&self.scope, &self.key).await?;
        let is_still = |row: &KeyRow| {
            (row.request_id, row.lease_token, row.status)
                == (seen.request_id, seen.lease_token, seen.status)
        };
        let Some(row) = row.filter(is_still) else { return Ok(Looked::Changed) };
        self.core.resume(&self.scope, &self.key, row, right).await
    }

    /// Whether this call waits for others, and longer than this.
    fn can_wait(&self, at_least: Duration) -> bool {
        self.patience.is_some_and(|until| until.since(Moment::now()) > at_least)
    }

    /// Whether there was time left to wait for the other holder, and it was waited for. `rounds`: how
    /// often it was waited for before.
    async fn wait_for_the_other(&self, rounds: u32) -> bool {
        const FIRST_POLL: Duration = Duration::from_millis(25);
        const LONGEST_POLL: Duration = Duration::from_millis(500);
        let left = self.patience.map(|until| until.since(Moment::now())).unwrap_or_default();
        // A shutdown does not wait for one that only waits.
        if left.is_zero() || self.core.running.is_closing() {
            return false;
        }
        let poll = (FIRST_POLL * (1 << rounds.min(5))).min(LONGEST_POLL);
        tokio::time::sleep(poll.min(left)).await;
        true
    }

    /// Creates the row and runs the request from its start; or, where an earlier round of this call
    /// came to a rejection, creates the row finished.
    async fn create(
        &self,
        replaces: Option<Uuid>,
        admission: Option<Arc<Admission>>,
        rejected: &mut Option<Reply>,
    ) -> Result<Looked, ExecuteError> {
        let not_storable = |_| ExecuteError::NotStorable { what: "parameters" };
        let plain = self.given.params().map_err(not_storable)?;
        within("parameters", plain.len(), self.core.settings.limits.params)?;
        // Each attempt runs what was stored (G5), the first one too: what does not come back from its
        // stored form is refused here, and not found out after a crash.
        let entry = self.core.registry.get(self.definition.name, self.definition.version);
        let readings = entry.map_or(1, Entry::readings);
        let request = self.given.read_params(&plain, &self.fingerprint, readings)?;
        let fingerprint = self.fingerprint.stored(self.given.origin());
        let encode = |column, bytes| {
            self.core
                .encode(&self.scope, &self.key, column, bytes)
                .map_err(|CodecError(why)| ExecuteError::Unreadable { what: column, why })
        };
        let params = encode("params", &plain)?;
        let context =
            self.context.as_ref().map(|c| encode("context", c.get().as_bytes())).transpose()?;
        let settings = &self.core.settings;
        let row = NewRow {
            scope: &self.scope,
            key: &self.key,
            request_id: self.request_id,
            definition: self.definition.name,
            version: self.definition.version,
            phases: &self.phases,
            fingerprint: &fingerprint,
            params: &params,
            context: context.as_deref(),
            birth: match self.background {
                false => Birth::Held(settings.lease),
                true => Birth::Pending,
            },
            retention: settings.retention,
            lock_wait: settings.lock_wait,
            replaces,
        };
        reach!(STARTED, BeforePhase);
        let first = self.definition.phases.first();
        if let Some(phase) = first.filter(|phase| phase.batch && phase.shares_the_reservation())
            && !self.background
            && rejected.is_none()
        {
            let created_at = self.core.now().await?;
            let run = self.start(request, created_at, created_at, Moment::now());
            let run = Run { admission, ..run };
            return match run.fresh_batch(phase, &row).await? {
                Ended::Busy => self.busy().await,
                ended => Ok(ended.into()),
            };
        }
        let sent = Moment::now();
        let (tx, created_at, expires_at) = match self.core.store.reserve(&row).await? {
            Reserved::Exists(Some(row)) => return Ok(Looked::Found(row)),
            Reserved::Exists(None) => return Ok(Looked::Changed),
            Reserved::Busy => return self.busy().await,
            Reserved::Fresh { tx, created_at, expires_at } => (tx, created_at, expires_at),
        };
        observe::created(self.definition.name);
        if self.background {
            let commit =
                committing!(STARTED, BeforeCommit to AfterCommit, tx.commit_reservation().await);
            return Ok(match commit {
                Commit::Done => {
                    self.core.bells.accepted.notify_one();
                    Looked::Ended(Outcome::Accepted)
                }
                Commit::Unknown(error) => Looked::Restart { reply: None, error: Some(error) },
                Commit::Failed(error) => return Err(error.into()),
                Commit::Fenced | Commit::Refused(_) => Looked::Changed,
            });
        }
        self.core.clock.heard(created_at);
        let run = self.start(request, created_at, expires_at, sent);
        let run = Run { admission, ..run };
        let ended = match rejected.take() {
            Some(reply) => run.finish_fresh(tx, reply).await?,
            None => run.fresh(tx).await?,
        };
        Ok(ended.into())
    }
}

impl<S: Store, A: Send + Sync + 'static> Attempt<S, A> {
    /// A request from which nothing has run yet. `sent`: a moment before the statement that creates its row.
    fn start(
        &self,
        request: Box<dyn Phases<S, A>>,
        created_at: DateTime<Utc>,
        expires_at: DateTime<Utc>,
        sent: Moment,
    ) -> Run<S, A> {
        #[cfg(not(feature = "fault-injection"))]
        let created_at = whole_millis(created_at);
        #[cfg(feature = "fault-injection")]
        let created_at = super::mutants::created_at(created_at);
        Run {
            core: self.core.clone(),
            definition: self.definition,
            request,
            context: RequestContext {
                scope: self.scope.clone(),
                key: self.key.clone(),
                request_id: self.request_id,
                created_at,
                attempt: 1,
                context: self.context.clone(),
            },
            holder: Holder {
                scope: self.scope.clone(),
                key: self.key.clone(),
                request_id: self.request_id,
            },
            fingerprint: self.fingerprint.as_str().to_owned(),
            outputs: Outputs::default(),
            point: STARTED.to_owned(),
            lease: Lease::new(1, self.core.settings.lease, sent),
            expires_at,
            heartbeat: None,
            advanced: (Duration::ZERO, sent),
            forgiven_attempts: 0,
            back_off_ends: None,
            reruns: 0,
            admission: None,
        }
    }
}

/// What one look at the row came to.
pub(super) enum Looked {
    Ended(Outcome),
    /// Somebody was faster: look again.
    Changed,
    /// Somebody was faster, and this is the row.
    Found(Glance),
    /// It ran here, and the lease was lost: look again, and answer as a loser (G3).
    Lost,
    /// The row was not committed, or nobody knows: look again, and go on from there.
    Restart {
        reply: Option<Reply>,
        error: Option<StoreError>,
    },
}

impl From<Ended> for Looked {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Outcome(outcome) => Self::Ended(outcome),
            Ended::Exists | Ended::Busy => Self::Changed,
            Ended::Lost => Self::Lost,
            Ended::Rejected(reply) => Self::Restart { reply: Some(reply), error: None },
            Ended::Again { error, rejected } => {
                Self::Restart { reply: rejected, error: Some(error) }
            }
        }
    }
}
