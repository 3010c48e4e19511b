//! What an operator sees of a request: [`Summary`] in a list, [`Details`] of one. Neither has a key, a scope
//! or a value in it: those are [revealed](super::Ops::reveal).

use atomic_phases_compat::CallState;
use chrono::{DateTime, TimeDelta, Utc};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::audit::AuditRecord;
use super::filter::State;
use super::jobs::{JobView, Place};
use super::why::Why;
use crate::definition::{Definition, FINISHED, ListedKind, ListedPhase, PhaseList, STARTED};
use crate::engine::{PlaceOfFinish, Stands, StrandedBecause, are_one};
use crate::key::{ShortHash, hex};
use crate::store::events::{EventKind, PastEvent, StoredEvents};
use crate::store::operators::{FoundRequest, ListedRequest, state_name};
use crate::store::{KeyRow, Seen, Status};
use crate::traces::Traceparent;

/// Identifies how far a request had come when it was read, for example as an `ETag`. Pass it to an act: if the request
/// has moved since, the act is refused. A call of its reconcile function that found nothing out does not change it. The
/// version of a pause identifies that pause.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowVersion(pub(super) String);

/// What moves a request. Not the fencing token: that also grows when a reconcile function is asked and does not know,
/// and then an operator's answer is about the same call as before.
struct Stage<'a> {
    id: Uuid,
    status: &'a str,
    waits: bool,
    recovery_point: &'a str,
    open_intent: Option<&'a str>,
    /// Grows with each attempt, and not when a request is looked into.
    attempts: u32,
}

impl RowVersion {
    fn of(stage: &Stage<'_>) -> Self {
        let Stage { id, status, waits, recovery_point, open_intent, attempts } = *stage;
        // While it is looked into, its outcome is as unknown as before.
        let status = match Status::parse(status) {
            Some(Status::InProgress) if waits => Status::Unknown.as_str(),
            _ => status,
        };
        let call = open_intent.unwrap_or_default();
        let text = format!("{id} {attempts} {status} {recovery_point} {call}");
        Self(hex(&Sha256::digest(text.as_bytes())[..8]))
    }

    fn of_listed(row: &ListedRequest) -> Self {
        Self::of(&Stage {
            id: row.request_id,
            status: &row.status,
            waits: row.waiting_since.is_some(),
            recovery_point: &row.recovery_point,
            open_intent: row.open_intent.as_deref(),
            attempts: row.attempts,
        })
    }

    /// Whether the row still is as it was seen.
    pub(super) fn is_of(&self, row: &KeyRow) -> bool {
        *self
            == Self::of(&Stage {
                id: row.request_id,
                status: row.status.as_str(),
                waits: row.waiting_since.is_some(),
                recovery_point: &row.recovery_point,
                open_intent: row.open_intent.as_deref(),
                attempts: row.attempts,
            })
    }

    /// The row as it was seen, if this is how it is; otherwise as no row is: what is known already is then
    /// still known, and nothing is news.
    pub(super) fn seen_of(&self, row: &KeyRow) -> Seen {
        match self.is_of(row) {
            true => Seen::of(row),
            false => Seen::gone(row),
        }
    }

    /// As text, for a client that brings it back.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whatever a client brings back. One that is none of ours fits no row.
impl From<&str> for RowVersion {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// A request as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Its id, which logs contain, and by which it can be found again.
    pub request_id: Uuid,
    /// To be passed to an act on this request.
    pub version: RowVersion,
    /// Name and version of its definition.
    pub definition: (String, u32),
    /// Its state.
    pub state: State,
    /// Why this build cannot continue it: its definition, version or phase list is another one. Only for
    /// unfinished rows, and judged without the stored values.
    pub stranded: Option<StrandedBecause>,
    /// The last committed phase; `started` before the first, `finished` after the last.
    pub recovery_point: String,
    /// The phase at which it stands: the one that is next, or whose call is open. `None` in three cases: it is finished,
    /// this build cannot read its phase list, or this build does not find its recovery point there.
    pub phase: Option<String>,
    /// The phase whose intent to call is stored, and no outcome: an `at_most_once` phase, or one whose outcome is unknown.
    /// An idempotent phase stores no intent: see [`may_have_been_called`](Self::may_have_been_called).
    pub open_intent: Option<String>,
    /// Whether [`phase`](Self::phase) is idempotent and an attempt may have made its call: its effect may be there, though
    /// nothing is [open](Self::open_intent). Look it up at the provider before you finish or erase the request.
    pub may_have_been_called: bool,
    /// The phase whose call may have had its effect, and whose outcome is not stored: that call is [open](Self::open_intent),
    /// or [may have been made](Self::may_have_been_called), or an operator finished the request when it was so.
    pub perhaps_called: Option<String>,
    /// Why the last attempt ended without finishing the request.
    pub reason: Option<String>,
    /// The number of its last attempt: how often its lease was acquired. Not all attempts count towards the cap.
    pub attempts: u32,
    /// When it was accepted.
    pub created_at: DateTime<Utc>,
    /// Since when it has been waiting for a reconcile function or an operator.
    pub waiting_since: Option<DateTime<Utc>>,
    /// Until when its holder has its lease.
    pub leased_until: Option<DateTime<Utc>>,
    /// When it is next due for a worker.
    pub next_at: Option<DateTime<Utc>>,
    /// When its key expires, if it is finished by then.
    pub expires_at: DateTime<Utc>,
    /// The first eight hex digits of the scope's SHA-256, as in logs.
    pub scope_hash: String,
    /// The same for the key.
    pub key_hash: String,
}

impl Summary {
    pub(super) fn of(
        row: &ListedRequest,
        stranded: Option<StrandedBecause>,
        phases: &[PhaseView],
    ) -> Self {
        let state = State::parse(&row.state);
        let is_over = matches!(state, State::Finished | State::Erased);
        let name = |phase: &PhaseView| phase.name.clone();
        let perhaps_called = phases.iter().find(|phase| phase.is_perhaps_called());
        let at = phases.iter().find(|phase| phase.is_current());
        // A call has no outcome, whether its phase is found in the list or not.
        let finish = row.resolution.as_deref().and_then(PlaceOfFinish::of).filter(|_| is_over);
        let at_its_end = finish.and_then(|end| end.open_intent.or(end.perhaps_called));
        let called = || row.open_intent.as_deref().or(at_its_end).map(str::to_owned);
        Self {
            request_id: row.request_id,
            version: RowVersion::of_listed(row),
            definition: (row.definition.clone(), row.version),
            state,
            stranded,
            recovery_point: row.recovery_point.clone(),
            may_have_been_called: at.is_some_and(PhaseView::may_have_been_called) && !is_over,
            perhaps_called: perhaps_called.map(name).or_else(called),
            phase: at.map(name).or_else(called).filter(|_| !is_over),
            open_intent: row.open_intent.clone(),
            reason: row.reason.clone().filter(|_| !is_over),
            attempts: row.attempts,
            created_at: row.created_at,
            waiting_since: row.waiting_since,
            leased_until: row.locked_until,
            next_at: row.run_after,
            expires_at: row.expires_at,
            scope_hash: ShortHash(&row.scope).to_string(),
            key_hash: ShortHash(&row.key).to_string(),
        }
    }
}

/// The same columns of a request that was found by itself.
pub(super) fn listed(found: &FoundRequest) -> ListedRequest {
    let FoundRequest { scope, key, now, row } = found;
    let status = row.status.as_str();
    let ends = |left: std::time::Duration| Some(*now + left).filter(|_| !left.is_zero());
    let waits = row.waiting_since.is_some();
    let (leased, backs_off) = (!row.lease_left.is_zero(), !row.back_off_left.is_zero());
    ListedRequest {
        request_id: row.request_id,
        scope: scope.as_str().to_owned(),
        key: key.as_str().to_owned(),
        definition: row.definition.clone(),
        version: row.version,
        phases: row.phases.clone(),
        state: state_name(status, waits, row.is_erased(), leased, backs_off).to_owned(),
        status: status.to_owned(),
        recovery_point: row.recovery_point.clone(),
        open_intent: row.open_intent.clone(),
        reason: row.reason.clone(),
        attempts: row.attempts,
        resolution: row.resolution.clone(),
        locked_until: ends(row.lease_left),
        run_after: row.for_workers.then_some(*now + row.back_off_left),
        waiting_since: row.waiting_since,
        created_at: row.created_at,
        expires_at: row.expires_at,
    }
}

/// All that is known of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Details {
    /// What a list shows of it.
    pub summary: Summary,
    /// Why it waits, and what ends the wait.
    pub why: Why,
    /// The database's clock when it was read.
    pub read_at: DateTime<Utc>,
    /// The phases that it is run under.
    pub phases: Vec<PhaseView>,
    /// What is known to have happened, the oldest first.
    pub timeline: Vec<Happened>,
    /// How many exceptional events are no longer stored.
    pub events_gone: u32,
    /// If operators acted on it more than a hundred times: the timeline has the latest hundred, and
    /// [`Ops::audit`](super::Ops::audit) of the request continues from here.
    pub earlier_acts: Option<Place>,
    /// How often the reconcile function was called since the outcome became unknown.
    pub reconciles: u32,
    /// The last resolution of an unknown outcome, from a reconcile function, a webhook or an operator.
    pub resolution: Option<String>,
    /// Its staged jobs that are not yet delivered, a hundred at most.
    pub jobs: Vec<JobView>,
}

/// A phase of a request, and whether the request has passed it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhaseView {
    /// Its name.
    pub name: String,
    /// Where it works.
    pub kind: PhaseViewKind,
    /// How far the request has come with it.
    pub stands: PhaseStands,
}

impl PhaseView {
    /// Whether the request stands at it: it is the next one, or its call is open.
    pub(crate) fn is_current(&self) -> bool {
        use PhaseStands::{CallOpen, MayHaveBeenCalled, Next};
        matches!(self.stands, CallOpen | MayHaveBeenCalled | Next)
    }

    pub(super) fn may_have_been_called(&self) -> bool {
        self.stands == PhaseStands::MayHaveBeenCalled
    }

    /// Whether its call may have had its effect, and no outcome is stored.
    fn is_perhaps_called(&self) -> bool {
        matches!(self.stands, PhaseStands::CallOpen | PhaseStands::MayHaveBeenCalled)
    }
}

/// Where a phase works, and what its provider promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PhaseViewKind {
    /// In the database.
    Local,
    /// At a provider that honors the derived key.
    Idempotent,
    /// At a provider that is called at most once.
    AtMostOnce,
}

impl PhaseViewKind {
    /// Its name, for example `at_most_once`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Idempotent => "idempotent",
            Self::AtMostOnce => "at_most_once",
        }
    }
}

impl From<ListedKind> for PhaseViewKind {
    fn from(kind: ListedKind) -> Self {
        match kind {
            ListedKind::Local => Self::Local,
            ListedKind::Idempotent => Self::Idempotent,
            ListedKind::AtMostOnce => Self::AtMostOnce,
        }
    }
}

/// How far a request has come with a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PhaseStands {
    /// It is committed.
    Done,
    /// Its intent to call is stored: its call may have been made, and has no outcome.
    CallOpen,
    /// It is the next, and idempotent, so that no intent is stored: an attempt may have made its call, perhaps the one that
    /// runs. It is made again under the same derived key. Or it was the next, when an operator finished the request.
    MayHaveBeenCalled,
    /// It is the next. If it is foreign, no call of it was made, as far as is known, or none had an effect.
    Next,
    /// It comes later.
    Later,
    /// The request is finished, and it may have run. Whether it did, skipped its call, or was not needed because an earlier
    /// phase answered, is not stored.
    Over,
    /// An operator finished the request before it was committed; an attempt may have begun it. If it is foreign, no call of
    /// it was made, as far as is known, or none had an effect.
    NotCommitted,
    /// It did not run: an operator finished the request before it.
    NotRun,
}

impl PhaseStands {
    /// Its name, for example `call_open`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::CallOpen => "call_open",
            Self::MayHaveBeenCalled => "may_have_been_called",
            Self::Next => "next",
            Self::Later => "later",
            Self::Over => "over",
            Self::NotCommitted => "not_committed",
            Self::NotRun => "not_run",
        }
    }
}

/// One thing that is known to have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Happened {
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// What.
    pub what: Event,
    /// The trace of the call that created the request, or of the attempt that ended with this event, if the
    /// engine [traces](crate::engine::EngineBuilder::traces).
    pub trace: Option<Traceparent>,
}

impl Happened {
    pub(super) fn at(at: DateTime<Utc>, what: Event) -> Self {
        Self { at, what, trace: None }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It was accepted.
    Accepted,
    /// The last recovery point was committed, or an operator resolved a call as not executed.
    Committed {
        /// The recovery point.
        recovery_point: String,
    },
    /// It stopped, and waits for a reconcile function or an operator.
    Waits {
        /// Why.
        reason: Option<String>,
    },
    /// An exceptional event, such as a release. A row keeps about the latest thirty, and counts [those that
    /// are gone](Details::events_gone).
    Left {
        /// How.
        kind: EventKind,
        /// The number of the attempt.
        attempt: u32,
        /// The phase that it is about.
        phase: Option<String>,
        /// The reason, or the resolution.
        reason: Option<String>,
    },
    /// A job that is not yet delivered was staged.
    Staged {
        /// The job's name.
        job: String,
    },
    /// An operator acted, or was refused. For actors who may read the audit.
    Acted(Box<AuditRecord>),
}

/// What the phases of the list that the row is run under have come to. Empty, where the list is of a form
/// that this build does not know.
pub(super) fn phases(row: &Stands<'_>, definition: Option<&Definition>) -> Vec<PhaseView> {
    let Some(PhaseList { phases: listed, .. }) = PhaseList::parse(row.phases) else {
        return Vec::new();
    };
    let known = definition.map_or(&[][..], |definition| definition.phases);
    let is_over = row.recovery_point == FINISHED;
    let finish = row.resolution.and_then(PlaceOfFinish::of).filter(|_| is_over);
    let PlaceOfFinish { recovery_point, open_intent, perhaps_called } =
        finish.unwrap_or(PlaceOfFinish {
            recovery_point: row.recovery_point,
            open_intent: row.open_intent,
            perhaps_called: None,
        });
    let done = row.at(recovery_point).done(&listed, known);
    let (is_known, done) = (done.is_some(), done.unwrap_or(0));
    let is = |phase: &ListedPhase, name: Option<&str>| {
        name.is_some_and(|name| are_one(known, &phase.name, name))
    };
    let stands = |index: usize, phase: &ListedPhase| match open_intent {
        _ if is_over && (finish.is_none() || !is_known) => PhaseStands::Over,
        _ if is(phase, open_intent) => PhaseStands::CallOpen,
        _ if is(phase, perhaps_called) => PhaseStands::MayHaveBeenCalled,
        _ if index < done => PhaseStands::Done,
        None if is_over && index == done => PhaseStands::NotCommitted,
        _ if is_over => PhaseStands::NotRun,
        None if index == done && is_known => match row.call(phase, done, known) {
            CallState::NotMade => PhaseStands::Next,
            // Without an intent: its provider honors the derived key.
            CallState::MayHaveBeenMade | CallState::IntentOpen => PhaseStands::MayHaveBeenCalled,
        },
        _ => PhaseStands::Later,
    };
    let views = listed.into_iter().enumerate().map(|(index, phase)| PhaseView {
        stands: stands(index, &phase),
        kind: phase.kind.into(),
        name: phase.name,
    });
    views.collect()
}

/// What the row itself tells of its past.
pub(super) fn happened(
    found: &FoundRequest,
    jobs: &[JobView],
    events: &StoredEvents,
) -> Vec<Happened> {
    let row = &found.row;
    let events = events.kept();
    let trace = row.trace.and_then(|trace| trace.creation);
    let mut all = vec![Happened { trace, ..Happened::at(row.created_at, Event::Accepted) }];
    if row.recovery_point != STARTED {
        let recovery_point = row.recovery_point.clone();
        let at = found.now - row.since_advance;
        all.push(Happened::at(at, Event::Committed { recovery_point }));
    }
    // An event of the same statement tells the same, unless it is gone, or a build wrote the row that knew none.
    let is_told = |since: DateTime<Utc>| {
        use EventKind::{DeadLetter, Unknown, WindowPassed};
        let stopped =
            events.iter().filter(|it| matches!(it.kind, Unknown | WindowPassed | DeadLetter));
        stopped.map(|it| (it.at - since).abs()).any(|apart| apart < TimeDelta::seconds(1))
    };
    let waits = row.waiting_since.filter(|since| !is_told(*since));
    all.extend(events.into_iter().map(|event| {
        let PastEvent { at, kind, attempt, place: phase, reason, trace } = event;
        Happened { at, what: Event::Left { kind, attempt, phase, reason }, trace }
    }));
    all.extend(waits.map(|at| {
        let reason = row.reason.clone();
        Happened::at(at, Event::Waits { reason })
    }));
    all.extend(jobs.iter().map(|job| {
        let what = Event::Staged { job: job.name.clone() };
        Happened::at(job.staged_at, what)
    }));
    all
}
