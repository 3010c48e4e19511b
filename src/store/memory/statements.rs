//! The engine's statements, as the server executes them. Each says what the SQL of the same name says
//! in the PostgreSQL store.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::result::DatabaseErrorKind;
use uuid::Uuid;

use super::database::error;
use super::record::{
    AuditRecord, BulkRecord, Bytes, JobRecord, KeyRecord, PauseRecord, Place, Record, Time,
};
use super::session::Session;
use crate::job::{FIRST_NOTICE, StagedJob};
use crate::store::events::with;
use crate::store::row::{millis, whole_millis};
use crate::store::{
    Change, Claim, ERASED, Guard, Hold, NewRow, Refusal, Right, Seen, Settles, Status,
    StoredResponse,
};

/// A time that the database is to say.
const UNSET: DateTime<Utc> = DateTime::UNIX_EPOCH;

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

    fn at(self, now: DateTime<Utc>) -> KeyRecord {
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
            event: change.event.map(str::to_owned),
        }
    }

    /// The same by the commit of a phase.
    pub(super) fn of_phase(change: &Change<'_>) -> Self {
        Self { waits: None, forgiven: 0, no_attempt: false, event: None, ..Self::of(change) }
    }

    fn apply(self, row: &mut KeyRecord, now: DateTime<Utc>) {
        if row.recovery_point != self.to || self.settles.window() {
            row.advanced_at = Time(now);
        }
        if self.settles.outcome() {
            row.reconciles = 0;
        }
        if self.settles.attempts() {
            row.forgiven_attempts = row.attempts;
        } else {
            // Never more than there were: a reconciler's run is no attempt, and may be forgiven too.
            row.forgiven_attempts = row.attempts.min(row.forgiven_attempts + self.forgiven);
        }
        row.attempts -= i32::from(self.no_attempt);
        row.run_after = match (self.due, self.lease) {
            (None, _) => None,
            // While it runs, the workers hear of it only once it is slow.
            (Some(due), Some(_)) => {
                let shown = row.run_after.is_some() || after(row.created_at.0, YOUNG).0 < now;
                let stays = row.run_after.filter(|time| time.0 >= after(now, due / 2).0);
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
    event: Option<String>,
    trace: Option<Bytes>,
    hold: Hold,
}

/// Whether a transaction that keeps what it saw at its beginning has the lock of the key's row.
pub(super) enum Pinned {
    Locked,
    OfAnother,
    Gone,
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

    fn apply(&self, row: &mut KeyRecord, now: DateTime<Utc>) {
        row.status = Status::InProgress.as_str().to_owned();
        row.lease_token += 1;
        row.locked_until = Some(after(now, self.hold.lease));
        row.run_after = row.locked_until;
        row.expires_at = row.expires_at.max(after(now, self.hold.retention));
        let found_none = row.open_intent.is_none() || mutated!(CountIntentFound);
        row.attempts += i32::from(self.right == Right::Free && found_none);
        row.reconciles += i32::from(self.right == Right::Reconcile);
        if let Some(phases) = &self.phases {
            row.phases = phases.clone();
        }
        // With an intent in it the row waits, or is to wait, for what became of the call: whoever looks into it.
        if self.right == Right::Free && row.open_intent.is_none() {
            row.waiting_since = None;
        }
        if let Some(trace) = &self.trace {
            row.trace = Some(trace.clone());
        }
        note(row, self.event.as_deref(), now);
    }
}

pub(super) fn after(time: DateTime<Utc>, length: Duration) -> Time {
    Time(time + chrono::Duration::milliseconds(millis(length)))
}

/// Where the guarded update finds no row, what is behind it comes to nothing.
pub(super) const MARK_FENCED: &str = "atomic_phases:fenced";
pub(super) const MARK_LEFT: &str = "atomic_phases:left";
pub(super) const MARK_EXISTS: &str = "atomic_phases:exists";

fn mark(mark: &str) -> diesel::result::Error {
    error(DatabaseErrorKind::Unknown, mark)
}

/// Whether a statement waits for a row that another transaction holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    ForTheLock,
    No,
}

/// Why the engine's guarded update came to nothing.
pub(super) fn refusal(message: &str) -> Option<Refusal> {
    if message.contains(MARK_LEFT) {
        Some(Refusal::LeftTransaction)
    } else if message.contains("current transaction is aborted") {
        Some(Refusal::SwallowedError)
    } else {
        None
    }
}

impl Session {
    pub(super) fn hello(&mut self) -> QueryResult<()> {
        self.begin(crate::definition::Isolation::ReadCommitted)?;
        self.rollback();
        Ok(())
    }

    /// The key's row, without a lock.
    pub(super) fn read_key(&mut self, place: &Place) -> QueryResult<Option<KeyRecord>> {
        let seen = self.statement()?.see(place);
        Ok(seen.as_deref().and_then(Record::key).cloned())
    }

    /// All rows of the key table.
    pub(super) fn read_keys(&mut self) -> QueryResult<Vec<KeyRecord>> {
        let from = Place::Key(String::new(), String::new());
        let to = Place::Job(String::new(), Uuid::nil(), i64::MIN);
        let seen = self.statement()?.see_all(from..to);
        Ok(seen.iter().filter_map(|(_, record)| record.key()).cloned().collect())
    }

    /// All rows of the audit table, the oldest first.
    pub(super) fn read_audit(&mut self) -> QueryResult<Vec<AuditRecord>> {
        let from = Place::Audit(DateTime::<Utc>::MIN_UTC, Uuid::nil());
        let to = Place::Audit(DateTime::<Utc>::MAX_UTC, Uuid::max());
        let seen = self.statement()?.see_all(from..to);
        Ok(seen.iter().filter_map(|(_, record)| record.audit()).cloned().collect())
    }

    /// Writes an audit row, in the open transaction.
    pub(super) async fn insert_audit(&mut self, audit: AuditRecord) -> QueryResult<()> {
        self.statement()?;
        // As it is read back from a dump: every store keeps milliseconds at least.
        let at = Time(whole_millis(self.now()));
        let audit = AuditRecord { at, ..audit };
        let place = audit.place();
        self.locked(&place).await?.write(place, Some(Record::Audit(audit)));
        Ok(())
    }

    /// All rows of the table of pauses.
    pub(super) fn read_pauses(&mut self) -> QueryResult<Vec<PauseRecord>> {
        let from = Place::Pause(String::new(), String::new());
        let to = Place::Pause(char::MAX.to_string(), String::new());
        let seen = self.statement()?.see_all(from..to);
        Ok(seen.iter().filter_map(|(_, record)| record.pause()).cloned().collect())
    }

    /// Writes a row of it, or deletes one; the open transaction tells whether there was one before.
    pub(super) async fn write_pause(
        &mut self,
        place: Place,
        pause: Option<PauseRecord>,
    ) -> QueryResult<bool> {
        let was_there = self.statement()?.see(&place).is_some();
        self.locked(&place).await?.write(place, pause.map(Record::Pause));
        Ok(was_there)
    }

    /// All rows of the table of jobs.
    pub(super) fn read_jobs(&mut self) -> QueryResult<Vec<JobRecord>> {
        let from = Place::Job(String::new(), Uuid::nil(), i64::MIN);
        let to = Place::Row(String::new(), String::new());
        let seen = self.statement()?.see_all(from..to);
        Ok(seen.iter().filter_map(|(_, record)| record.job()).cloned().collect())
    }

    /// All rows of the table of bulk acts.
    pub(super) fn read_bulks(&mut self) -> QueryResult<Vec<BulkRecord>> {
        let (from, to) = (Place::Bulk(Uuid::nil()), Place::Bulk(Uuid::max()));
        let seen = self.statement()?.see_all(from..to);
        Ok(seen.iter().filter_map(|(_, record)| record.bulk()).cloned().collect())
    }

    /// Writes a new row of it, in the open transaction, at its time.
    pub(super) async fn insert_bulk(&mut self, bulk: BulkRecord) -> QueryResult<()> {
        self.statement()?;
        let bulk = BulkRecord { started_at: Time(whole_millis(self.now())), ..bulk };
        let place = bulk.place();
        let locked = self.locked(&place).await?;
        if locked.newest(&place).is_some() {
            let message = "duplicate key value violates unique constraint";
            return Err(error(DatabaseErrorKind::UniqueViolation, message));
        }
        locked.write(place, Some(Record::Bulk(bulk)));
        Ok(())
    }

    /// `UPDATE` of one of them. `false`: no row matches.
    pub(super) async fn update_bulk(
        &mut self,
        id: Uuid,
        matches: impl Fn(&BulkRecord) -> bool + Send + Sync,
        change: impl FnOnce(&mut BulkRecord, DateTime<Utc>) + Send,
    ) -> QueryResult<bool> {
        let matches = |record: &Record, _| record.bulk().is_some_and(&matches);
        let change = |record, now| match record {
            Record::Bulk(mut bulk) => {
                change(&mut bulk, now);
                Some(Record::Bulk(bulk))
            }
            other => Some(other),
        };
        let updated = self.update(&Place::Bulk(id), Wait::ForTheLock, matches, change).await?;
        Ok(updated.is_some())
    }

    /// `UPDATE … WHERE …` of one row: what the statement sees is judged first, then the newest version
    /// behind the lock. `None` where no row matches; `change` may delete it.
    async fn update(
        &mut self,
        place: &Place,
        wait: Wait,
        matches: impl Fn(&Record, DateTime<Utc>) -> bool + Send + Sync,
        change: impl FnOnce(Record, DateTime<Utc>) -> Option<Record> + Send,
    ) -> QueryResult<Option<(Record, DateTime<Utc>)>> {
        let seen = self.statement()?.see(place);
        if !seen.is_some_and(|record| matches(&record, self.now())) {
            return Ok(None);
        }
        let newest = match wait {
            Wait::ForTheLock => self.locked(place).await?.newest(place),
            // `SKIP LOCKED`
            Wait::No if self.is_of_another(place) => return Ok(None),
            Wait::No => self.locked(place).await?.newest(place),
        };
        let now = self.now();
        let Some(record) = newest.filter(|record| matches(record, now)) else { return Ok(None) };
        let changed = change((*record).clone(), now);
        self.locked(place).await?.write(place.clone(), changed.clone());
        Ok(Some((changed.unwrap_or((*record).clone()), now)))
    }

    pub(super) async fn update_key(
        &mut self,
        place: &Place,
        wait: Wait,
        matches: impl Fn(&KeyRecord, DateTime<Utc>) -> bool + Send + Sync,
        change: impl FnOnce(&mut KeyRecord, DateTime<Utc>) + Send,
    ) -> QueryResult<Option<(KeyRecord, DateTime<Utc>)>> {
        let matches = |record: &Record, now| record.key().is_some_and(|key| matches(key, now));
        let change = |record, now| match record {
            Record::Key(mut key) => {
                change(&mut key, now);
                Some(Record::Key(key))
            }
            other => Some(other),
        };
        let updated = self.update(place, wait, matches, change).await?;
        Ok(updated.and_then(|(record, now)| Some((record.key()?.clone(), now))))
    }

    pub(super) async fn update_job(
        &mut self,
        place: &Place,
        matches: impl Fn(&JobRecord, DateTime<Utc>) -> bool + Send + Sync,
        change: impl FnOnce(JobRecord, DateTime<Utc>) -> Option<JobRecord> + Send,
    ) -> QueryResult<Option<(JobRecord, DateTime<Utc>)>> {
        let matches = |record: &Record, now| record.job().is_some_and(|job| matches(job, now));
        let change = |record, now| match record {
            Record::Job(job) => change(job, now).map(Record::Job),
            other => Some(other),
        };
        let updated = self.update(place, Wait::ForTheLock, matches, change).await?;
        Ok(updated.and_then(|(record, now)| Some((record.job()?.clone(), now))))
    }

    pub(super) async fn delete_key(
        &mut self,
        place: &Place,
        wait: Wait,
        matches: impl Fn(&KeyRecord, DateTime<Utc>) -> bool + Send + Sync,
    ) -> QueryResult<bool> {
        let matches = |record: &Record, now| record.key().is_some_and(|key| matches(key, now));
        Ok(self.update(place, wait, matches, |_, _| None).await?.is_some())
    }

    pub(super) async fn take_over(
        &mut self,
        take: TakeOver,
    ) -> QueryResult<Option<(KeyRecord, DateTime<Utc>)>> {
        let matches = |row: &KeyRecord, now| take.matches(row, now);
        let change = |row: &mut KeyRecord, now| take.apply(row, now);
        self.update_key(&take.place, Wait::No, matches, change).await
    }

    /// The next state of a row, guarded.
    pub(super) async fn advance(
        &mut self,
        guard: &Guarded,
        next: NextState,
        wait: Wait,
    ) -> QueryResult<bool> {
        let matches = |row: &KeyRecord, _| guard.matches(row);
        let change = |row: &mut KeyRecord, now| next.apply(row, now);
        Ok(self.update_key(&guard.place, wait, matches, change).await?.is_some())
    }

    /// The same in a phase's transaction, where no row is an error.
    pub(super) async fn advance_or_fail(
        &mut self,
        guard: &Guarded,
        next: NextState,
    ) -> QueryResult<()> {
        if !self.ours {
            return Err(mark(MARK_LEFT));
        }
        let advanced = self.advance(guard, next, Wait::ForTheLock).await;
        match self.noted(advanced)? {
            true => Ok(()),
            false => self.noted(Err(mark(MARK_FENCED))),
        }
    }

    /// Locks the row for a transaction that keeps what it saw at its beginning, as its first statement.
    /// Whether the row is as the guard says is the last statement's to judge.
    pub(super) fn pin(&mut self, guard: &Guarded) -> QueryResult<Pinned> {
        let seen = self.statement()?.see(&guard.place);
        let Some(row) = seen.as_deref().and_then(Record::key) else { return Ok(Pinned::Gone) };
        Ok(match self.open()?.try_lock(&guard.place)? {
            true => Pinned::Locked,
            false if guard.matches(row) => Pinned::OfAnother,
            false => Pinned::Gone,
        })
    }

    pub(super) async fn renew(&mut self, guard: &Guarded, hold: Hold) -> QueryResult<bool> {
        let matches = |row: &KeyRecord, _| guard.holds(row);
        let change = |row: &mut KeyRecord, now| {
            row.locked_until = Some(after(now, hold.lease));
            row.run_after = row.locked_until;
            row.expires_at = row.expires_at.max(after(now, hold.retention));
        };
        Ok(self.update_key(&guard.place, Wait::No, matches, change).await?.is_some())
    }

    async fn make_room(&mut self, birth: &Birth) -> QueryResult<()> {
        let Some(request_id) = birth.replaces else { return Ok(()) };
        let matches = |row: &KeyRecord, now| {
            row.request_id.uuid() == request_id
                && row.is(Status::Completed)
                && row.expires_at.0 <= now
        };
        self.delete_key(&birth.place(), Wait::ForTheLock, matches).await.map(drop)
    }

    /// `INSERT … ON CONFLICT DO NOTHING`: waits for a transaction that is about to create, change or
    /// delete the row. `Err` of the row that the statement sees: the key is taken. It sees none where
    /// the row was created while it waited (H20).
    #[allow(clippy::type_complexity)]
    async fn insert(
        &mut self,
        birth: Birth,
    ) -> QueryResult<Result<KeyRecord, Option<(KeyRecord, DateTime<Utc>)>>> {
        self.patience.lock_timeout = Some(super::ROW_LOCK_WAIT);
        let made_room = self.make_room(&birth).await;
        self.noted(made_room)?;
        let place = birth.place();
        let seen = self.statement()?.see(&place);
        let taken = |session: &Self| {
            seen.as_deref().and_then(Record::key).map(|key| (key.clone(), session.now()))
        };
        // A row that is there and that nobody changes needs no lock to be seen.
        if !self.is_of_another(&place) && self.exists(&place)? {
            return Ok(Err(taken(self)));
        }
        let locked = self.locked(&place).await.map(|tx| tx.newest(&place).is_some());
        let exists = self.noted(locked)?;
        self.patience.lock_timeout = None;
        if exists {
            return Ok(Err(taken(self)));
        }
        let row = birth.at(self.now());
        self.locked(&place).await?.write(place, Some(Record::Key(row.clone())));
        Ok(Ok(row))
    }

    fn exists(&mut self, place: &Place) -> QueryResult<bool> {
        Ok(self.open()?.newest(place).is_some())
    }

    #[allow(clippy::type_complexity)]
    pub(super) async fn reserve(
        &mut self,
        birth: Birth,
    ) -> QueryResult<Result<KeyRecord, Option<(KeyRecord, DateTime<Utc>)>>> {
        self.begin(crate::definition::Isolation::ReadCommitted)?;
        self.insert(birth).await
    }

    /// The row as its first phase leaves it; that there is one is an error.
    pub(super) async fn create(&mut self, birth: Birth) -> QueryResult<KeyRecord> {
        self.begin(crate::definition::Isolation::ReadCommitted)?;
        match self.insert(birth).await? {
            Ok(row) => Ok(row),
            Err(_) => self.noted(Err(mark(MARK_EXISTS))),
        }
    }

    pub(super) async fn insert_job(&mut self, job: JobRecord) -> QueryResult<()> {
        let place = job.place();
        self.statement()?;
        let locked = self.locked(&place).await.map(|tx| tx.newest(&place).is_some());
        if self.noted(locked)? {
            let message = "duplicate key value violates unique constraint";
            return self.noted(Err(error(DatabaseErrorKind::UniqueViolation, message)));
        }
        let now = Time(self.now());
        let run_after = if job.run_after == Some(waits()) { waits() } else { now };
        let job = JobRecord { staged_at: now, run_after: Some(run_after), ..job };
        self.locked(&place).await?.write(place, Some(Record::Job(job)));
        Ok(())
    }

    /// Whether no earlier job of the same request is still to be delivered, and, of one that is let try again,
    /// no later one under way. A notice waits for none, and none waits for it.
    pub(super) fn is_next(jobs: &[JobRecord], job: &JobRecord, now: DateTime<Utc>) -> bool {
        let is_under_way = |other: &JobRecord| {
            other.attempts > 0
                && other.reason.is_none()
                && other.run_after.is_some_and(|until| until.0 > now)
        };
        let holds_back = |other: &JobRecord| match other.position < job.position {
            true => job.position < FIRST_NOTICE && other.run_after.is_some(),
            false => {
                job.forgiven_attempts > 0
                    && other.position > job.position
                    && other.position < FIRST_NOTICE
                    && is_under_way(other)
            }
        };
        let of_its_request =
            |other: &&JobRecord| other.scope == job.scope && other.request_id == job.request_id;
        !jobs.iter().filter(of_its_request).any(holds_back)
    }

    /// What users gave goes out of a settled row whose jobs are settled too: those of this life, or, for
    /// one key, of every life of it.
    pub(super) async fn erase(
        &mut self,
        place: &Place,
        retention: Duration,
        lives: Lives,
        seen: Option<&AsSeen>,
    ) -> QueryResult<bool> {
        let jobs = self.read_jobs()?;
        let settled = |row: &KeyRecord, _: DateTime<Utc>| {
            lives.are_settled(row, &jobs) && seen.is_none_or(|seen| seen.is(row))
        };
        let change = |row: &mut KeyRecord, now: DateTime<Utc>| {
            if !row.is(Status::Completed) {
                row.expires_at = row.expires_at.max(after(now, retention));
            }
            row.status = Status::Completed.as_str().to_owned();
            row.recovery_point = "finished".to_owned();
            row.fingerprint = ERASED.to_owned();
            (row.open_intent, row.locked_until, row.run_after) = (None, None, None);
            (row.resolution, row.context, row.outputs) = (None, None, None);
            (row.reason, row.waiting_since) = (None, None);
            (row.events, row.events_written, row.trace) = (None, None, None);
            row.params = Bytes::default();
            row.response_status = row.response_status.or(Some(410));
            (row.response_headers, row.response_body) = (None, None);
        };
        let updated = self.update_key(place, Wait::No, settled, change).await?;
        let Some((row, _)) = updated else { return Ok(false) };
        for job in jobs.iter().filter(|job| is_of_key(job, &row)) {
            let dead = |job: &JobRecord, _: DateTime<Utc>| job.run_after.is_none();
            self.update_job(&job.place(), dead, |_, _| None).await?;
        }
        Ok(true)
    }

    /// Locks the dead jobs in front of this one: none of them is revived until its claim is committed. `false`
    /// where one of them is about to be.
    pub(super) fn lock_dead_before(&mut self, place: &Place) -> QueryResult<bool> {
        let jobs = self.read_jobs()?;
        let Place::Job(scope, request_id, position) = place else { return Ok(true) };
        let mut dead = jobs.iter().filter(|job| {
            (&job.scope, job.request_id.uuid()) == (scope, *request_id)
                && job.position < *position
                && job.run_after.is_none()
        });
        dead.try_fold(true, |all, job| Ok(all && self.open()?.try_lock(&job.place())?))
    }

    /// Whether a row that was not erased could have been.
    pub(super) fn is_settled(
        &mut self,
        place: &Place,
        lives: Lives,
        as_seen: Option<&AsSeen>,
    ) -> QueryResult<bool> {
        let jobs = self.read_jobs()?;
        let seen = self.statement()?.see(place);
        let row = seen.as_deref().and_then(Record::key);
        Ok(row.is_some_and(|row| {
            lives.are_settled(row, &jobs) && as_seen.is_none_or(|seen| seen.is(row))
        }))
    }

    /// Deletes a batch of the dead jobs whose key has no row but an erased one.
    pub(super) async fn erase_orphaned_jobs(
        &mut self,
        scope: &str,
        key: Option<&str>,
        limit: u32,
    ) -> QueryResult<u32> {
        let (keys, jobs) = (self.read_keys()?, self.read_jobs()?);
        let has_row = |job: &JobRecord| {
            keys.iter().any(|row| {
                (&row.scope, &row.idempotency_key) == (&job.scope, &job.idempotency_key)
                    && row.fingerprint != ERASED
            })
        };
        let orphan = |job: &&JobRecord| {
            job.scope == scope
                && key.is_none_or(|key| key == job.idempotency_key)
                && job.run_after.is_none()
                && !has_row(job)
        };
        let mut erased = 0;
        for job in jobs.iter().filter(orphan).take(limit as usize) {
            let dead = |job: &JobRecord, _: DateTime<Utc>| job.run_after.is_none();
            erased += u32::from(self.update_job(&job.place(), dead, |_, _| None).await?.is_some());
        }
        Ok(erased)
    }

    /// How many requests have jobs that are to be delivered, and no row.
    pub(super) fn count_orphans(&mut self, scope: &str, key: Option<&str>) -> QueryResult<u64> {
        let (keys, jobs) = (self.read_keys()?, self.read_jobs()?);
        let has_row = |job: &JobRecord| {
            keys.iter().any(|row| row.scope == job.scope && row.request_id == job.request_id)
        };
        let orphan = |job: &&JobRecord| {
            job.scope == scope
                && key.is_none_or(|key| key == job.idempotency_key)
                && job.run_after.is_some()
                && !has_row(job)
        };
        let requests: std::collections::BTreeSet<Uuid> =
            jobs.iter().filter(orphan).map(|job| job.request_id.uuid()).collect();
        Ok(requests.len() as u64)
    }
}

/// A row as an operator saw it.
#[derive(Clone)]
pub(super) struct AsSeen {
    request_id: Uuid,
    token: i64,
    status: Status,
}

impl AsSeen {
    pub(super) fn of(seen: &Seen) -> Self {
        Self { request_id: seen.request_id, token: seen.lease_token, status: seen.status }
    }

    fn is(&self, row: &KeyRecord) -> bool {
        row.request_id.uuid() == self.request_id
            && row.lease_token == self.token
            && row.is(self.status)
    }
}

/// Of which lives of a key the jobs have to be settled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lives {
    This,
    All,
}

impl Lives {
    fn are_settled(self, row: &KeyRecord, jobs: &[JobRecord]) -> bool {
        let of = |job: &&JobRecord| match self {
            Self::All => is_of_key(job, row),
            Self::This => job.scope == row.scope && job.request_id == row.request_id,
        };
        (row.is(Status::Completed) || row.is(Status::DeadLetter))
            && !jobs.iter().filter(of).any(|job| job.run_after.is_some())
    }
}

fn is_of_key(job: &JobRecord, row: &KeyRecord) -> bool {
    job.scope == row.scope && job.idempotency_key == row.idempotency_key
}

/// A job to be staged.
pub(super) fn staged(guard: &Guard<'_>, job: &StagedJob) -> JobRecord {
    JobRecord {
        scope: guard.scope.as_str().to_owned(),
        request_id: guard.request_id.into(),
        position: job.position,
        job_id: job.id.into(),
        idempotency_key: guard.key.as_str().to_owned(),
        name: job.name.clone(),
        args: job.args.as_slice().into(),
        staged_at: Time(UNSET),
        attempts: 0,
        forgiven_attempts: 0,
        reason: None,
        run_after: job.is_behind_another().then(waits),
        trace: job.trace().map(Bytes::from),
    }
}

/// When a job is due that waits for another one of its request: not before the end of that one makes it due.
pub(super) fn waits() -> Time {
    const END_OF_9999: i64 = 253_402_214_400;
    Time(DateTime::from_timestamp(END_OF_9999, 0).unwrap_or(DateTime::<Utc>::MAX_UTC))
}
