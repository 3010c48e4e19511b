//! What operators ask the store in memory for. It has no index to walk: it keeps no more rows than a
//! simulation makes.

use chrono::{DateTime, TimeDelta, Utc};
use diesel::QueryResult;
use futures_util::FutureExt;
use uuid::Uuid;

use super::Memory;
use super::census::{by_standing, of_jobs};
use super::ops_bulk::{BulkChange, row};
use super::ops_rows::{
    MAX_ROWS, audited, is_asked_for, is_behind, late, listed, operated, page_of,
};
use super::record::{AuditRecord, JobRecord, KeyRecord, Place, Time};
use super::round_trips::{read_jobs, read_keys, write_audit};
use super::session::Session;
use crate::definition::Isolation;
use crate::key::Scope;
use crate::lock::lock;
use crate::number::to_u32;
use crate::store::audit::{AuditEntry, AuditSearch, Audited};
use crate::store::bulk::{BulkClaim, BulkItem, BulkPart, BulkRow, NewBulk, SettledItem};
use crate::store::census::{CensusGroup, CensusLease, JobCensus};
use crate::store::events::StoredEvents;
use crate::store::nodes::{NodeEntry, NodeRow};
use crate::store::operators::{
    FoundRequest, JobAct, JobFate, ListPlace, ListRequests, ListedRequest, MAX_JOBS, OperatedJob,
    OperatorStore, RequestAt, ScopeLimits, SearchPage, WaitingCounts, Walk, found_request,
};
use crate::store::pauses::{PauseAct, PausedPhase};
use crate::store::{Store, StoreError};

async fn read_audit(session: &mut Session) -> QueryResult<Vec<AuditRecord>> {
    session.begin(Isolation::ReadCommitted)?;
    let audit = session.read_audit();
    session.conclude(audit).await
}

async fn record(session: &mut Session, audit: AuditRecord) -> QueryResult<()> {
    session.begin(Isolation::ReadCommitted)?;
    let written = session.insert_audit(audit).await;
    session.conclude(written).await
}

/// A dead letter is delivered again, with a new count of attempts.
fn revived(job: JobRecord, now: DateTime<Utc>) -> Option<JobRecord> {
    let run_after = Some(Time(now));
    let attempts = job.attempts + 1;
    Some(JobRecord { run_after, attempts, forgiven_attempts: attempts, ..job })
}

async fn settle_job(
    session: &mut Session,
    (place, attempts): (Place, i32),
    fate: JobFate,
    audit: AuditRecord,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let dead = move |job: &JobRecord, _| job.run_after.is_none() && job.attempts == attempts;
    let settle = match fate {
        JobFate::Retry => revived,
        JobFate::Discard => |_, _| None,
    };
    let settled = match session.update_job(&place, dead, settle).await {
        Ok(Some(_)) => write_audit(session, Some(audit)).await.map(|()| true),
        Ok(None) => Ok(false),
        Err(error) => Err(error),
    };
    session.conclude(settled).await
}

impl Memory {
    async fn jobs(&self) -> Result<Vec<JobRecord>, StoreError> {
        self.ask_again("read the jobs", |session| read_jobs(session).boxed()).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.ask_again("read the keys", |session| read_keys(session).boxed()).await
    }

    fn change_nodes(&self, change: impl FnOnce(&mut Vec<NodeRow>)) {
        change(&mut lock(&self.database().0.nodes));
    }
}

impl OperatorStore for Memory {
    fn for_probes(&self) -> Self {
        self.clone()
    }

    fn for_workers(&self) -> Self {
        self.clone()
    }

    async fn unapplied_migrations(&self) -> Result<Vec<String>, StoreError> {
        crate::store::Store::missing_migrations(self).await
    }

    async fn is_read_only(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn list_requests(
        &self,
        list: &ListRequests,
    ) -> Result<SearchPage<ListedRequest, ListPlace>, StoreError> {
        let (keys, now) = (self.keys().await?, self.database().now());
        let mut rows: Vec<ListedRequest> = keys.iter().map(|key| listed(key, now)).collect();
        rows.retain(|row| is_behind(row, list));
        let order = |row: &ListedRequest| {
            let ListPlace { time, request_id } = row.place(list.walk);
            (time, request_id)
        };
        rows.sort_by_key(order);
        if list.walk == Walk::Newest {
            rows.reverse();
        }
        let asked = |row: &ListedRequest| is_asked_for(row, list, now).then(|| row.clone());
        Ok(page_of(rows, list.limit, asked, |row| row.place(list.walk)))
    }

    async fn requests_by_ids(
        &self,
        ids: &[Uuid],
        limits: &ScopeLimits,
    ) -> Result<Vec<ListedRequest>, StoreError> {
        let (keys, now) = (self.keys().await?, self.database().now());
        let is_meant =
            |row: &&KeyRecord| ids.contains(&row.request_id.uuid()) && limits.allow(&row.scope);
        Ok(keys.iter().filter(is_meant).map(|row| listed(row, now)).collect())
    }

    async fn find_request(
        &self,
        at: RequestAt<'_>,
        limits: &ScopeLimits,
    ) -> Result<Option<FoundRequest>, StoreError> {
        let (keys, now) = (self.keys().await?, self.database().now());
        let is_meant = |row: &&KeyRecord| match at {
            RequestAt::Id(id) => row.request_id.uuid() == id,
            RequestAt::Key(scope, key) => {
                row.scope == scope.as_str() && row.idempotency_key == key.as_str()
            }
        };
        let found = keys.iter().find(|row| is_meant(row) && limits.allow(&row.scope));
        let found = found.map(|row| {
            let (scope, key) = (row.scope.clone(), row.idempotency_key.clone());
            found_request((scope, key, row.clone().row(now)))
        });
        found.transpose()
    }

    async fn events(&self, found: &FoundRequest) -> Result<StoredEvents, StoreError> {
        let id = found.row.request_id;
        let row = self.keys().await?.into_iter().find(|row| row.request_id.uuid() == id);
        let columns = row.map(|row| (row.events, row.events_written)).unwrap_or_default();
        Ok(StoredEvents::of(columns.0, columns.1))
    }

    async fn count_waiting(&self, limits: &ScopeLimits) -> Result<WaitingCounts, StoreError> {
        let (keys, jobs, now) = (self.keys().await?, self.jobs().await?, self.database().now());
        let mut waiting: Vec<_> = keys.iter().filter(|key| key.waiting_since.is_some()).collect();
        waiting.sort_by_key(|key| key.waiting_since);
        let mut due: Vec<_> = keys.iter().filter(|key| key.run_after.is_some()).collect();
        due.sort_by_key(|key| key.run_after);
        let dead: Vec<_> = jobs.iter().filter(|job| job.run_after.is_none()).collect();
        let late = late(&jobs, now);
        let more = [waiting.len(), due.len(), dead.len(), late.len()].map(|rows| rows > MAX_ROWS);
        waiting.truncate(MAX_ROWS + 1);
        due.truncate(MAX_ROWS + 1);
        let allowed = |key: &&&KeyRecord| limits.allow(&key.scope);
        let of = |all: &[&str]| {
            let those = |key: &&&KeyRecord| all.contains(&key.status.as_str());
            to_u32(waiting.iter().filter(allowed).filter(those).count())
        };
        // A row that waits and is in progress is looked into: its outcome is still unknown.
        let unknown = ["unknown", "in_progress"];
        let working = || due.iter().filter(allowed).filter(|key| key.waiting_since.is_none());
        let is_due = |key: &&&KeyRecord| key.run_after.is_some_and(|due| due.0 <= now);
        Ok(WaitingCounts {
            unknown: of(&unknown),
            dead_letters: of(&["dead_letter"]),
            oldest_waiting: waiting
                .iter()
                .filter(allowed)
                .filter(|key| key.status == "dead_letter" || unknown.contains(&&*key.status))
                .filter_map(|key| key.waiting_since)
                .map(|since| since.0)
                .min(),
            due: to_u32(working().filter(is_due).count()),
            dead_jobs: to_u32(
                dead.iter().take(MAX_ROWS + 1).filter(|job| limits.allow(&job.scope)).count(),
            ),
            late_jobs: to_u32(
                late.iter().take(MAX_ROWS + 1).filter(|job| limits.allow(&job.scope)).count(),
            ),
            waiting_is_more: more[0],
            due_is_more: more[1],
            dead_jobs_are_more: more[2],
            late_jobs_are_more: more[3],
        })
    }

    async fn claim_census(&self, lease: CensusLease) -> Result<bool, StoreError> {
        Ok(self.database().claim_census(lease))
    }

    async fn unfinished(
        &self,
        limits: &ScopeLimits,
        paused: &str,
    ) -> Result<Vec<CensusGroup>, StoreError> {
        let mut keys = self.keys().await?;
        keys.retain(|key| limits.allow(&key.scope));
        Ok(by_standing(&keys, self.database().now(), paused))
    }

    async fn operators_time(&self) -> Result<DateTime<Utc>, StoreError> {
        self.database_time().await
    }

    async fn job_census(&self) -> Result<JobCensus, StoreError> {
        Ok(of_jobs(&self.jobs().await?, self.database().now()))
    }

    async fn jobs_of(
        &self,
        scope: &Scope,
        request_id: Uuid,
    ) -> Result<Vec<OperatedJob>, StoreError> {
        let jobs = self.jobs().await?;
        let ours =
            |job: &&JobRecord| job.scope == scope.as_str() && job.request_id.uuid() == request_id;
        Ok(jobs.iter().filter(ours).take(MAX_JOBS as usize).map(operated).collect())
    }

    async fn dead_jobs_after(
        &self,
        limits: &ScopeLimits,
        place: (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<SearchPage<OperatedJob, (DateTime<Utc>, Uuid)>, StoreError> {
        let mut jobs = self.jobs().await?;
        let place_of = |job: &JobRecord| (job.staged_at.0, job.job_id.uuid());
        jobs.retain(|job| job.run_after.is_none() && place_of(job) > place);
        jobs.sort_by_key(place_of);
        let seen = |job: &JobRecord| limits.allow(&job.scope).then(|| operated(job));
        Ok(page_of(jobs, limit, seen, place_of))
    }

    async fn late_jobs(
        &self,
        limits: &ScopeLimits,
        limit: u32,
    ) -> Result<Vec<OperatedJob>, StoreError> {
        let jobs = self.jobs().await?;
        let looked_at = late(&jobs, self.database().now()).into_iter().take(MAX_ROWS);
        let allowed = looked_at.filter(|job| limits.allow(&job.scope));
        Ok(allowed.take(limit as usize).map(operated).collect())
    }

    async fn dead_job(
        &self,
        limits: &ScopeLimits,
        id: Uuid,
    ) -> Result<Option<OperatedJob>, StoreError> {
        let jobs = self.jobs().await?;
        let meant = |job: &&JobRecord| {
            job.run_after.is_none() && job.job_id.uuid() == id && limits.allow(&job.scope)
        };
        Ok(jobs.iter().find(meant).map(operated))
    }

    async fn settle_job(&self, act: &JobAct<'_>) -> Result<bool, StoreError> {
        let jobs = self.jobs().await?;
        let meant = |job: &&JobRecord| job.scope == act.scope && job.job_id.uuid() == act.id;
        let Some(place) = jobs.iter().find(meant).map(JobRecord::place) else { return Ok(false) };
        let at = (place, act.attempts.cast_signed());
        let (fate, audit) = (act.fate, AuditRecord::of(act.audit));
        let settled =
            self.ask("settle a job", move |session| settle_job(session, at, fate, audit).boxed());
        settled.await
    }

    async fn announce(&self, entry: &NodeEntry) -> Result<(), StoreError> {
        let now = self.database().now();
        self.change_nodes(|nodes| {
            nodes.retain(|node| now - node.seen_at < chrono::Duration::days(1));
            let started_at = nodes.iter().find(|node| node.entry.id == entry.id);
            let started_at = started_at.map_or(now, |node| node.started_at);
            nodes.retain(|node| node.entry.id != entry.id);
            nodes.push(NodeRow { entry: entry.clone(), started_at, seen_at: now, now });
        });
        Ok(())
    }

    async fn depart(&self, id: Uuid) -> Result<(), StoreError> {
        self.change_nodes(|nodes| nodes.retain(|node| node.entry.id != id));
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let now = self.database().now();
        let mut nodes = Vec::new();
        self.change_nodes(|all| nodes.clone_from(all));
        nodes.sort_by_key(|node| std::cmp::Reverse(node.seen_at));
        Ok(nodes.into_iter().map(|node| NodeRow { now, ..node }).collect())
    }

    async fn saw_a_node(&self, within: TimeDelta) -> Result<bool, StoreError> {
        Ok(self.nodes().await?.iter().any(|node| node.now - node.seen_at <= within))
    }

    async fn list_pauses(&self) -> Result<Vec<PausedPhase>, StoreError> {
        self.paused_phases().await
    }

    async fn set_pause(&self, act: &PauseAct<'_>) -> Result<bool, StoreError> {
        self.write_pause(act).await
    }

    async fn start_bulk(&self, bulk: &NewBulk<'_>) -> Result<(), StoreError> {
        self.insert_bulk(bulk).await
    }

    async fn bulks(
        &self,
        before: (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<Vec<BulkRow>, StoreError> {
        let bulks = self.read_bulks().await?;
        let is_asked_for = |bulk: &BulkRow| (bulk.started_at, bulk.id) < before;
        let uncounted = |bulk: BulkRow| BulkRow { settled: 0, applied: 0, ..bulk };
        let rows = bulks.iter().rev().map(row).filter(is_asked_for).map(uncounted);
        Ok(rows.take(limit as usize).collect())
    }

    async fn counted_bulks(&self, bulks: &[BulkRow]) -> Result<Vec<BulkRow>, StoreError> {
        let rows = self.read_bulks().await?;
        let is_asked_for = |bulk: &BulkRow| bulks.iter().any(|other| other.id == bulk.id);
        Ok(rows.iter().map(row).filter(is_asked_for).collect())
    }

    async fn bulk(&self, id: Uuid) -> Result<Option<BulkRow>, StoreError> {
        let bulks = self.read_bulks().await?;
        let mut rows = bulks.iter().map(row);
        Ok(rows.find(|bulk| bulk.id == id))
    }

    async fn bulk_items(
        &self,
        id: Uuid,
        part: BulkPart,
        limit: u32,
    ) -> Result<Vec<BulkItem>, StoreError> {
        let bulks = self.read_bulks().await?;
        let bulk = bulks.into_iter().find(|bulk| bulk.id.uuid() == id);
        let items = (0..).zip(bulk.into_iter().flat_map(|bulk| bulk.items));
        let wanted = items.filter(|(_, item)| part == BulkPart::All || item.outcome.is_none());
        let told = wanted.map(|(position, item)| BulkItem {
            position,
            request_id: item.request_id.uuid(),
            seen: item.seen,
            outcome: item.outcome,
            because: item.because,
        });
        Ok(told.take(limit as usize).collect())
    }

    async fn open_bulks(&self, limit: u32) -> Result<Vec<BulkRow>, StoreError> {
        let (bulks, now) = (self.read_bulks().await?, self.database().now());
        let open = bulks.iter().filter(|bulk| {
            bulk.ended_at.is_none() && bulk.locked_until.is_none_or(|until| until.0 <= now)
        });
        Ok(open.take(limit as usize).map(row).collect())
    }

    async fn claim_bulk(&self, claim: &BulkClaim) -> Result<bool, StoreError> {
        self.change_bulk(BulkChange::claim(claim)).await
    }

    async fn settle_bulk_item(&self, item: &SettledItem<'_>) -> Result<bool, StoreError> {
        self.change_bulk(BulkChange::settle(item)).await
    }

    async fn leave_bulk(&self, id: Uuid, token: i64) -> Result<(), StoreError> {
        self.change_bulk(BulkChange::leave(id, token)).await.map(drop)
    }

    async fn stop_bulk(&self, id: Uuid, audit: &AuditEntry) -> Result<bool, StoreError> {
        self.change_bulk(BulkChange::stop(id, audit)).await
    }

    async fn record(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let audit = AuditRecord::of(entry);
        self.ask("write the audit", move |session| record(session, audit).boxed()).await
    }

    async fn audit_before(
        &self,
        limits: &ScopeLimits,
        search: &AuditSearch,
        before: (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<SearchPage<Audited, (DateTime<Utc>, Uuid)>, StoreError> {
        let mut rows =
            self.ask_again("read the audit", |session| read_audit(session).boxed()).await?;
        let place = |row: &AuditRecord| (row.at.0, row.id.uuid());
        let of = |row: &AuditRecord| row.request_id.as_ref().map(|id| id.uuid());
        let is_of = |row: &AuditRecord| search.request_id.is_none_or(|id| of(row) == Some(id));
        rows.retain(|row| is_of(row) && place(row) < before);
        rows.reverse();
        let seen = |row: &AuditRecord| {
            let is_allowed = limits.allow(row.scope.as_deref().unwrap_or_default());
            let is_asked_for = search.actor.as_ref().is_none_or(|actor| *actor == row.actor)
                && search.acts.as_ref().is_none_or(|acts| acts.contains(&row.act));
            (is_allowed && is_asked_for).then(|| audited(row))
        };
        Ok(page_of(rows, limit, seen, place))
    }
}
