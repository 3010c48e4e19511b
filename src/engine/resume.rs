//! From an existing row to a run: its stored values are judged, its lease is acquired, and what was
//! found decides how it continues. A retry, the completer and the reconciler all come here.

use std::sync::Arc;
use std::time::Duration;

use super::decide::{Plan, WINDOW_PASSED, plan};
use super::lease::Lease;
use super::outcome::{CallError, FailureCause, Outcome};
use super::progress::Progress;
use super::revive::{Judged, Revival, Revived};
use super::run::{RoundEnd, Run};
use super::stranded::StrandedBecause;
use super::{Core, observed};
use crate::definition::Definition;
use crate::fingerprint::StoredFingerprint;
use crate::key::{IdempotencyKey, Scope};
use crate::moment::Moment;
use crate::observe::{self, Subject};
use crate::phase::RequestContext;
use crate::store::events::{EventKind, line};
use crate::store::{Claim, KeyRow, Right, Status, Store, StoreError};
use crate::traces::StoredTrace;

const CALL_UNDER_WAY: &str = "its call was under way when the lease ended";
const LEASE_ENDED: &str = "the lease of the last attempt ended before the request did";

/// The fingerprint as derived keys are made of it. Of a row that none is made for it is of no matter.
fn of_derived_keys(stored: &str) -> String {
    StoredFingerprint::parse(stored).map_or(stored, |stored| stored.fingerprint).to_owned()
}

/// The claim of a row as it was judged. One of our own is acquired wherever it stands by now.
fn claim<'a, S: Store>(
    scope: &'a Scope,
    key: &'a IdempotencyKey,
    row: &'a KeyRow,
    judged: &'a Judged<S>,
    right: Right,
) -> Claim<'a> {
    let is_own = right == Right::Own;
    Claim {
        recovery_point: (!is_own).then_some(&row.recovery_point),
        // From here on calls are made under this build's classes and provider keys. A row whose call may
        // have been made under others keeps those until the intent that says so is written; and one that
        // cannot be decoded is not run here, so that what it was run under stays what it was. What a call was
        // begun under that may be under way stays in the list in any case (`Entry::phases_of`).
        phases: (!is_own && judged.is_run_here()).then_some(&judged.phases),
        ..Claim::of_row(scope, key, row, right)
    }
}

/// Whether no call can have had an effect when the row is acquired, as far as this process can tell.
fn is_uncalled<S: Store>(judged: &Judged<S>, right: Right) -> bool {
    match right {
        Right::Free => judged.revived.is_uncalled,
        // Its creation got no answer, and nothing has run since.
        Right::Own => true,
        Right::Reconcile | Right::Resolve => false,
    }
}

impl<S: Store> Core<S> {
    /// Acquires the lease of an existing row and resumes after its recovery point.
    pub(super) async fn resume(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: KeyRow,
        right: Right,
    ) -> Result<RoundEnd, CallError> {
        match self.acquire(scope, key, row, right).await? {
            Ok(acquired) => acquired.go_on().await,
            Err(end) => Ok(end),
        }
    }

    /// Acquires the lease of an existing row, if this process can continue it and no other was faster.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: KeyRow,
        right: Right,
    ) -> Result<Result<Acquired<S>, RoundEnd>, CallError> {
        // A row that this process cannot continue is not touched (G14).
        let mut judged = match self.judge(scope, key, &row)? {
            Ok(judged) => judged,
            Err(because) => return Ok(Err(self.leaves(scope, key, &row, because))),
        };
        // Left to a build that has the function, and not asked in vain until the cap.
        if right == Right::Reconcile && judged.is_unasked(&row) {
            return Ok(Err(self.leaves(scope, key, &row, StrandedBecause::NotAskedHere)));
        }
        let before = Before::of(&row, right);
        let is_uncalled = is_uncalled(&judged, right);
        let event = before.is_behind_another().then(|| self.event_of_takeover(&row));
        let trace = self.trace_of_holder(&row, right);
        let claim = Claim {
            event: event.as_deref(),
            trace: trace.as_ref().map(<[u8; _]>::as_slice),
            // A back-off, a queue or a commit without an answer that takes longer than the window would else be followed by
            // no call, ever (G17).
            opens_window: is_uncalled && judged.is_window_next(),
            ..claim(scope, key, &row, &judged, right)
        };
        reach!(&row.recovery_point, BeforeTakeOver);
        let sent = Moment::now();
        let row = match self.store.take_over_key(&claim, self.settings.hold()).await {
            Ok(Some(row)) => row,
            // Another process was faster.
            Ok(None) => return Ok(Err(RoundEnd::Changed)),
            // Its holder outlives its lease in a transaction that keeps the row locked.
            Err(StoreError::Locked) => {
                let retry_after = self.settings.creation_wait;
                return Ok(Err(RoundEnd::Outcome(Outcome::InProgress { retry_after })));
            }
            Err(error) => return Err(error.into()),
        };
        reach!(&row.recovery_point, AfterTakeOver);
        if right == Right::Own {
            // A commit of our own may have moved it since it was read.
            judged = match self.judge(scope, key, &row)? {
                Ok(judged) => judged,
                Err(because) => return Ok(Err(self.leaves(scope, key, &row, because))),
            };
        }
        let Judged { definition, revived, .. } = judged;
        let found = revived.found;
        let run = self.run_of(scope, key, &row, sent, definition, revived);
        if before.is_behind_another() {
            observe::taken_over(run.subject(), &row.recovery_point, row.attempts);
        }
        let back_off_ends = before.back_off_ends;
        let run = Run { back_off_ends, may_be_called: !is_uncalled, ..run };
        Ok(Ok(Acquired { run, row, found, before }))
    }

    /// What the row's history says of a takeover behind a holder whose lease ended.
    fn event_of_takeover(&self, row: &KeyRow) -> String {
        let trace = row.trace.and_then(|trace| trace.last).filter(|_| self.is_traced());
        let intent = row.open_intent.as_deref();
        line(EventKind::TakenOver, row.attempts, intent, Some(LEASE_ENDED), trace)
    }

    /// The row is left to a node that knows it (G14).
    fn leaves(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        because: StrandedBecause,
    ) -> RoundEnd {
        let (definition, request_id) = (&row.definition, row.request_id);
        let subject = Subject { definition, request_id, scope, key };
        RoundEnd::Outcome(self.left_alone(subject, because))
    }

    /// A run of a row that was just taken over, by a statement that was sent after `sent`.
    pub(super) fn run_of(
        self: &Arc<Self>,
        scope: &Scope,
        key: &IdempotencyKey,
        row: &KeyRow,
        sent: Moment,
        definition: Definition,
        revived: Revived<S>,
    ) -> Run<S> {
        let told = if mutated!(WindowWhenRead) { Moment::now() } else { sent };
        Run {
            core: self.clone(),
            definition,
            request: revived.request,
            fingerprint: of_derived_keys(&row.fingerprint),
            derivation: match revived.call {
                Some(call) => call.derivation,
                None => self.derived_keys.current().clone(),
            },
            taken_over_under: Some(row.phases.clone()),
            context: RequestContext {
                scope: scope.clone(),
                key: key.clone(),
                request_id: row.request_id,
                created_at: row.created_at,
                attempt: row.attempts,
                context: revived.context,
            },
            outputs: revived.outputs,
            point: row.recovery_point.clone().into(),
            lease: Lease::new(row.lease_token, self.settings.lease, sent),
            expires_at: row.expires_at,
            heartbeat: None,
            advanced: (row.since_advance, told),
            forgiven_attempts: row.forgiven_attempts,
            may_be_executed: None,
            may_be_called: true,
            back_off_ends: None,
            reruns: 0,
            creation: Arc::default(),
            admission: None,
            hint: None,
        }
    }

    /// The answer for an unknown outcome that is reconciled after this time, or only by an operator.
    pub(super) fn unknown(&self, looked_into: Option<Duration>) -> Outcome {
        let retry_after = looked_into.unwrap_or(self.settings.reconcile_after);
        Outcome::Unknown { retry_after, is_asked: looked_into.is_some() }
    }

    pub(super) fn left_alone(&self, subject: Subject<'_>, because: StrandedBecause) -> Outcome {
        let cause = FailureCause::NotKnownHere;
        observed::left_alone(subject, because);
        Outcome::Failed { cause, retry_after: self.settings.back_off(1) }
    }
}

/// What a row was before it was acquired, and by which right it is.
struct Before {
    right: Right,
    /// Its last holder's lease ended before the request did.
    crashed: bool,
    /// That holder looked into what had become of a call.
    has_waited: bool,
    /// Its trace, and how many attempts it had.
    trace: Option<(StoredTrace, u32)>,
    back_off_ends: Option<Moment>,
}

impl Before {
    fn of(row: &KeyRow, right: Right) -> Self {
        let crashed = row.status == Status::InProgress;
        let backs_off = row.status == Status::FailedRetryable && right == Right::Free;
        Self {
            right,
            crashed,
            has_waited: crashed && row.waiting_since.is_some(),
            trace: row.trace.map(|trace| (trace, row.attempts)),
            back_off_ends: backs_off.then(|| Moment::now().after(row.back_off_left)),
        }
    }

    /// Whether the lease that ended was another process'.
    fn is_behind_another(&self) -> bool {
        self.crashed && self.right == Right::Free
    }
}

/// A row whose lease is ours, brought back to life.
pub(super) struct Acquired<S: Store> {
    pub(super) run: Run<S>,
    row: KeyRow,
    found: Revival,
    before: Before,
}

impl<S: Store> Acquired<S> {
    /// Resumes after its recovery point.
    pub(super) async fn go_on(self) -> Result<RoundEnd, CallError> {
        let Self { mut run, row, found, before } = self;
        let Before { right, crashed, has_waited, trace, .. } = before;
        let attempt = row.attempts;
        observe::resumed(run.definition.name, &row.recovery_point, attempt);
        run.core.attempt_begins(row.request_id, attempt, &row.recovery_point, trace);
        let settings = &run.core.settings;
        let done = run.outputs.len();
        let phase = run.definition.phases.get(done).map_or("", |phase| phase.name);
        let next = plan(&row, &run.definition, done, settings.max_attempts, settings.window_margin);
        match (found, next) {
            (Revival::Ready(_), _) if right == Right::Reconcile => {
                boxed!(run.reconcile(&row)).await
            }
            (Revival::Undecodable(because), _) if right == Right::Reconcile => {
                let intent = row.open_intent.as_deref();
                run.still_unknown(&row, intent, Some(because.as_str())).await
            }
            (Revival::Ready(_), Plan::OpenIntent) if mutated!(RepeatOpenIntent) => {
                run.resume().await
            }
            (_, Plan::OpenIntent) if has_waited => run.waits_on(row.open_intent.as_deref()).await,
            (_, Plan::OpenIntent) => {
                run.leave_unknown(row.open_intent.as_deref(), CALL_UNDER_WAY).await
            }
            (Revival::Ready(Progress::CallMayHaveBeenMade), _) => {
                let reason = StrandedBecause::CallMayHaveBeenMade.as_str();
                run.found_unknown(phase, reason).await
            }
            (Revival::Ready(Progress::Continues), Plan::WindowPassed) => {
                run.found_unknown(phase, WINDOW_PASSED).await
            }
            (_, Plan::GiveUp) => {
                let last = if crashed { Some(LEASE_ENDED) } else { row.reason.as_deref() };
                run.give_up(last).await
            }
            (Revival::Undecodable(because), Plan::Run | Plan::WindowPassed) => {
                run.release(FailureCause::Undecodable { what: because.as_str() }, None).await
            }
            (Revival::Ready(Progress::Continues), Plan::Run) => run.resume().await,
        }
    }

    /// Gives a row back that was pending, and of which nothing has run. Whether it was still ours.
    pub(super) async fn give_back(mut self) -> Result<bool, CallError> {
        self.run.give_back().await
    }
}
