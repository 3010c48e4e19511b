//! What the engine's statements write: a new row, a guard, the next state of a row, a takeover. Each copies what
//! its statement was given, because the server executes it even if its client is gone.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::record::{Bytes, KeyRecord, Place, Time, UNSET, after};
use crate::store::events::with;
use crate::store::{Change, Claim, Guard, Hold, NewRow, Right, Settles, Status, StoredResponse};

/// A row to be created.
pub(super) struct Birth {
    pub(super) row: KeyRecord,
    pub(super) lease: Option<Duration>,
    pub(super) due: Option<Duration>,
    pub(super) retention: Duration,
    pub(super) replaces: Option<Uuid>,
}

impl Birth {
    pub(super) fn of(row: &NewRow<'_>) -> Self {
        let epoch = Time(UNSET);
        let first = row.birth.attempts();
        Self {
            row: KeyRecord {
                scope: row.scope.as_str().to_owned(),
                idempotency_key: row.key.as_str().to_owned(),
                request_id: row.request_id.into(),
                definition: row.definition.to_owned(),
                definition_version: row.version.cast_signed(),
                phases: row.phases.to_owned(),
                fingerprint: row.fingerprint.to_owned(),
                status: row.birth.status().as_str().to_owned(),
                recovery_point: "started".to_owned(),
                open_intent: None,
                lease_token: first.into(),
                locked_until: None,
                run_after: None,
                attempts: first,
                forgiven_attempts: 0,
                reconciles: 0,
                resolution: None,
                reason: None,
                waiting_since: None,
                events: None,
                events_written: None,
                trace: row.trace.map(Bytes::from),
                advanced_at: epoch,
                created_at: epoch,
                expires_at: epoch,
                params: row.params.into(),
                context: row.context.map(Bytes::from),
                outputs: None,
                response_status: None,
                response_headers: None,
                response_body: None,
            },
            lease: row.birth.lease(),
            due: row.birth.due(),
            retention: row.retention,
            replaces: row.replaces,
        }
    }

    /// As its first phase leaves it.
    pub(super) fn changed(mut self, created_at: DateTime<Utc>, change: &Change<'_>) -> Self {
        let row = &mut self.row;
        row.status = change.status.as_str().to_owned();
        row.recovery_point = change.recovery_point.to_owned();
        row.created_at = Time(created_at);
        row.outputs = change.outputs.map(Bytes::from);
        if let Some(response) = change.response {
            row.respond(response);
        }
        self.lease = change.lease();
        self
    }

    pub(super) fn place(&self) -> Place {
        self.row.place()
    }

    pub(super) fn at(self, now: DateTime<Utc>) -> KeyRecord {
        let mut row = self.row;
        if row.created_at.0 == UNSET {
            row.created_at = Time(now);
        }
        row.advanced_at = Time(now);
        row.expires_at = after(now, self.retention);
        row.locked_until = self.lease.map(|lease| after(now, lease));
        row.run_after = self.due.map(|due| after(now, due));
        row
    }
}

/// By what a write is guarded (G3).
#[derive(Clone)]
pub(super) struct Guarded {
    pub(super) place: Place,
    request_id: Uuid,
    token: i64,
    from: String,
}

impl Guarded {
    pub(super) fn by(guard: &Guard<'_>) -> Self {
        Self {
            place: Place::Key(guard.scope.as_str().to_owned(), guard.key.as_str().to_owned()),
            request_id: guard.request_id,
            token: guard.lease_token,
            from: guard.recovery_point.to_owned(),
        }
    }

    pub(super) fn matches(&self, row: &KeyRecord) -> bool {
        self.holds(row) && row.recovery_point == self.from
    }

    /// The lease, wherever the row stands.
    pub(super) fn holds(&self, row: &KeyRecord) -> bool {
        row.request_id.uuid() == self.request_id
            && row.lease_token == self.token
            && row.is(Status::InProgress)
    }
}

/// The next state of a row.
#[derive(Clone)]
pub(super) struct NextState {
    status: Status,
    to: String,
    outputs: Option<Bytes>,
    open_intent: Option<String>,
    lease: Option<Duration>,
    due: Option<Duration>,
    resolution: Option<String>,
    settles: Settles,
    reason: Option<String>,
    forgiven: i32,
    no_attempt: bool,
    /// Whether it is left to a reconcile function or an operator; a phase's commit says nothing of it.
    waits: Option<bool>,
    response: Option<StoredResponse>,
    keep_for: Option<Duration>,
    event: Option<String>,
}

/// Writes a [line](crate::store::events::line) behind those that the row has.
fn note(row: &mut KeyRecord, line: Option<&str>, now: DateTime<Utc>) {
    let Some(line) = line else { return };
    row.events = Some(with(row.events.take(), line, now));
    row.events_written = Some(row.events_written.unwrap_or_default() + 1);
}

/// A request that is older than this shows itself to the workers with each step.
const YOUNG: Duration = Duration::from_secs(5);

impl NextState {
    pub(super) fn of(change: &Change<'_>) -> Self {
        Self {
            status: change.status,
            to: change.recovery_point.to_owned(),
            outputs: change.outputs.map(Bytes::from),
            open_intent: change.open_intent.map(str::to_owned),
            lease: change.lease(),
            due: change.due(),
            resolution: change.resolution.map(str::to_owned),
            settles: change.settles,
            reason: change.reason.map(str::to_owned),
            forgiven: change.forgiven_attempts.cast_signed(),
            no_attempt: change.was_no_attempt,
            waits: Some(change.waits()),
            response: change.response.cloned(),
            keep_for: change.keep_for,
            event: change.event.map(str::to_owned),
        }
    }

    /// The same by the commit of a phase.
    pub(super) fn of_phase(change: &Change<'_>) -> Self {
        Self { waits: None, forgiven: 0, no_attempt: false, event: None, ..Self::of(change) }
    }

    pub(super) fn apply(self, row: &mut KeyRecord, now: DateTime<Utc>) {
        if row.recovery_point != self.to || self.settles.window() {
            row.advanced_at = Time(now);
        }
        if self.settles.outcome() {
            row.reconciles = 0;
        }
        if self.settles.attempts() {
            row.forgiven_attempts = row.attempts;
        } else {
            // Never more than there were: a reconciler's run is not an attempt, and may be forgiven too.
            row.forgiven_attempts = row.attempts.min(row.forgiven_attempts + self.forgiven);
        }
        row.attempts -= i32::from(self.no_attempt);
        row.run_after = match (self.due, self.lease) {
            (None, _) => None,
            // While it runs, the workers hear of it only once it is slow.
            (Some(due), Some(_)) => {
                let shown = row.run_after.is_some() || after(row.created_at.0, YOUNG).0 < now;
                // One behind the lease's end is of a clock that was set back.
                let fits = after(now, due / 2).0..=after(now, due).0;
                let stays = row.run_after.filter(|time| fits.contains(&time.0));
                stays.or_else(|| shown.then(|| after(now, due)))
            }
            (Some(due), None) => Some(after(now, due)),
        };
        row.status = self.status.as_str().to_owned();
        row.recovery_point = self.to;
        row.outputs = self.outputs.or(row.outputs.take());
        row.open_intent = self.open_intent;
        row.locked_until = self.lease.map(|lease| after(now, lease));
        row.resolution = self.resolution.or(row.resolution.take());
        row.reason = self.reason.or(row.reason.take());
        note(row, self.event.as_deref(), now);
        if let Some(waits) = self.waits {
            row.waiting_since = waits.then(|| row.waiting_since.unwrap_or(Time(now)));
        }
        if let Some(response) = &self.response {
            row.respond(response);
        }
        if let Some(keep_for) = self.keep_for {
            row.expires_at = row.expires_at.max(after(now, keep_for));
        }
    }
}

/// A lease to be acquired.
pub(super) struct TakeOver {
    pub(super) place: Place,
    request_id: Uuid,
    token: i64,
    from: Status,
    stands_at: Option<String>,
    phases: Option<String>,
    right: Right,
    opens_window: bool,
    event: Option<String>,
    trace: Option<Bytes>,
    hold: Hold,
}

impl TakeOver {
    pub(super) fn new(claim: &Claim<'_>, hold: Hold) -> Self {
        Self {
            place: Place::Key(claim.scope.as_str().to_owned(), claim.key.as_str().to_owned()),
            request_id: claim.request_id,
            token: claim.lease_token,
            from: claim.status,
            stands_at: claim.recovery_point.map(str::to_owned),
            phases: claim.phases.map(str::to_owned),
            right: claim.right,
            opens_window: claim.opens_window,
            event: claim.event.map(str::to_owned),
            trace: claim.trace.map(Bytes::from),
            hold,
        }
    }

    pub(super) fn matches(&self, row: &KeyRecord, now: DateTime<Utc>) -> bool {
        row.request_id.uuid() == self.request_id
            && row.lease_token == self.token
            && row.is(self.from)
            && self.stands_at.as_ref().is_none_or(|point| *point == row.recovery_point)
            && (!row.is(Status::InProgress)
                || self.right == Right::Own
                || row.locked_until.is_none_or(|until| until.0 <= now))
    }

    pub(super) fn apply(&self, row: &mut KeyRecord, now: DateTime<Utc>) {
        row.status = Status::InProgress.as_str().to_owned();
        row.lease_token += 1;
        row.locked_until = Some(after(now, self.hold.lease));
        row.run_after = row.locked_until;
        row.expires_at = row.expires_at.max(after(now, self.hold.retention));
        if self.opens_window {
            row.advanced_at = Time(now);
        }
        let found_none = row.open_intent.is_none() || mutated!(CountIntentFound);
        row.attempts += i32::from(self.right == Right::Free && found_none);
        row.reconciles += i32::from(self.right == Right::Reconcile);
        if let Some(phases) = &self.phases {
            row.phases = phases.clone();
        }
        // With an intent in it the row waits for the outcome of its call.
        if self.right == Right::Free && row.open_intent.is_none() {
            row.waiting_since = None;
        }
        if let Some(trace) = &self.trace {
            row.trace = Some(trace.clone());
        }
        note(row, self.event.as_deref(), now);
    }
}
