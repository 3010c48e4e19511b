//! What operators ask PostgreSQL for: each search in a transaction that reads only and has a time limit, on
//! connections that no request waits for. Health checks and workers search in the same way, and have a turn each: an
//! operator's search may take its five seconds, and they cannot wait for that. The engine reads the pauses in the turn of
//! the workers.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use diesel::result::Error;
use diesel_async::RunQueryDsl;
use futures_util::future::join3;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::census as census_sql;
use super::connection::ConnectionGuard;
use super::ops_bulk as bulk_sql;
use super::ops_nodes as node_sql;
use super::ops_statements as ops;
use super::pool::{Pool, WritablePool};
use super::session::Settings;
use super::{
    LOCKED_WAIT, MIGRATIONS, Postgres, answered, ask_again, ask_in_transaction, ask_within,
    on_another, sql,
};
use crate::definition::Isolation;
use crate::key::Scope;
use crate::store::StoreError;
use crate::store::audit::{AuditEntry, AuditRow, AuditSearch, Audited, audited};
use crate::store::bulk::{
    BulkClaim, BulkColumns, BulkItem, BulkPart, BulkRow, ItemColumns, NewBulk, SettledItem,
    bulk_item, bulk_row,
};
use crate::store::census::{CensusGroup, CensusLease, GroupColumns, JobCensus, census_group};
use crate::store::events::StoredEvents;
use crate::store::migrations::{Applied, not_among};
use crate::store::nodes::{NodeColumns, NodeEntry, NodeRow, node};
use crate::store::operators::{
    Counted, FoundRequest, FoundRow, JobAct, JobFate, LATE_MS, ListPlace, ListRequests,
    ListedRequest, ListedRow, OperatedJob, OperatedRow, OperatorStore, RequestAt, SEARCH_WITHIN,
    ScopeLimits, SearchPage, WaitingCounts, found_request, listed_request, operated_job,
};
use crate::store::pauses::{PauseAct, PauseRow, PauseWhat, PausedPhase, paused_phase};
use crate::store::row::millis;

/// How many searches of operators run at a time, each on a connection.
const SEARCHES: usize = 2;

/// How many more there are: one of a health check, one of a worker.
const OTHERS: usize = 2;

/// How many connections all of them have.
pub(super) const CONNECTIONS: usize = SEARCHES + OTHERS;

/// Where searches run, and in whose slots.
#[derive(Clone, Debug)]
pub(super) struct Operators<P> {
    /// `None`: the requests' own, of which they take half at most.
    pool: Option<WritablePool<P>>,
    /// Of operators, or of those who ask in their place.
    slots: SearchSlots,
    probes: SearchSlots,
    workers: SearchSlots,
}

/// How many searches run at a time.
#[derive(Clone, Debug)]
struct SearchSlots {
    free: Arc<Semaphore>,
    none_is_free: &'static str,
}

/// A connection for a search, and the right to have one.
struct SearchConnection<P: Pool> {
    connection: ConnectionGuard<P>,
    _permit: OwnedSemaphorePermit,
}

impl<P: Pool> Operators<P> {
    /// In a pool of their own.
    pub(super) fn on(pool: P) -> Self {
        let connections = pool.max_size();
        Self::with(Some(pool), connections)
    }

    /// In the pool of the requests, which has this size: half of it is left to them, whatever is slow to be found.
    pub(super) fn beside_requests(size: usize) -> Self {
        Self::with(None, size / 2)
    }

    /// The same where the size of the requests' pool is another.
    pub(super) fn resized(self, size: usize) -> Self {
        if self.pool.is_none() { Self::beside_requests(size) } else { self }
    }

    /// With so many connections at a time. Of fewer than they could use, operators leave one to each of the others; then
    /// those share one; and then all do.
    fn with(pool: Option<P>, connections: usize) -> Self {
        let semaphore = |number| Arc::new(Semaphore::new(number));
        let operators = semaphore(connections.saturating_sub(OTHERS).clamp(1, SEARCHES));
        let probes = if connections < OTHERS { operators.clone() } else { semaphore(1) };
        let workers = if connections <= OTHERS { probes.clone() } else { semaphore(1) };
        let of = |free, none_is_free| SearchSlots { free, none_is_free };
        Self {
            pool: pool.map(WritablePool::of),
            slots: of(operators, "each connection for operators' searches is in use: try again"),
            probes: of(probes, "the connection for health checks is in use: try again"),
            workers: of(workers, "the connection for workers' searches is in use: try again"),
        }
    }

    fn in_slots(&self, slots: &SearchSlots) -> Self {
        Self { slots: slots.clone(), ..self.clone() }
    }
}

impl<P: Pool> Postgres<P> {
    /// A pool of its own for operators' searches, for health checks, and for the searches of workers and the engine's reads
    /// of the pauses. It must reach the same primary as the pool of the requests: on a standby, a pause would be read late. Give
    /// it four connections: two for the searches of operators, one for health checks, one for workers and the pauses. Of fewer,
    /// operators take one: of two, health checks and workers share the other; of one, they wait for operators' searches. (bb8's
    /// pool does not report its size: it needs four.)
    ///
    /// A pool that [`connect`](Postgres::connect) opens has another of this size beside it. A pool that the
    /// application has made has none, unless it sets one here. Without it, searches take half of the requests' connections at
    /// most, and four at most, and that half is divided by the rule above. So in a pool of fewer than four, health checks
    /// wait for operators' searches. (A pool of one is not divided.) They also wait for requests: while requests use all
    /// connections, `http::Health` cannot tell that from a database that does not answer.
    #[must_use]
    pub fn operators_pool(self, pool: P) -> Self {
        Self { operators: Operators::on(pool), ..self }
    }

    /// A connection in a transaction that is about to be begun.
    async fn search_connection(&self) -> Result<SearchConnection<P>, StoreError> {
        let SearchConnection { connection, _permit: permit } =
            self.connection_for_reading().await?;
        Ok(SearchConnection { connection: connection.in_transaction()?, _permit: permit })
    }

    async fn connection_for_reading(&self) -> Result<SearchConnection<P>, StoreError> {
        let SearchSlots { free, none_is_free } = &self.operators.slots;
        let permit = tokio::time::timeout(self.pool.wait(), free.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(StoreError::NoConnection((*none_is_free).to_owned()));
        };
        let connection = ConnectionGuard::of(self.pool_of_operators()).await?;
        Ok(SearchConnection { connection, _permit: permit })
    }

    /// The phases that are paused, by a statement of its own: each process sends it every few seconds.
    pub(super) async fn read_pauses(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let rows = on_another(self.pool_of_operators(), || async {
            let reading = self.connection_for_reading().await?;
            let mut conn = reading.connection.shared()?;
            let answer = answered(ops::Pauses {}.load::<PauseRow>(&mut conn)).await;
            reading.connection.settle("read the pauses", answer).await
        });
        Ok(rows.await?.into_iter().map(paused_phase).collect())
    }

    fn pool_of_operators(&self) -> &WritablePool<P> {
        self.operators.pool.as_ref().unwrap_or(&self.pool)
    }

    /// A probe has found that the database can only be read: requests and operators leave it, so that both can write as
    /// soon as a probe says that it can be written to.
    fn leave_read_only(&self) {
        self.pool.leave_read_only();
        if let Some(pool) = &self.operators.pool {
            pool.leave_read_only();
        }
    }
}

/// A page, and, where it is not full, how far was looked: both of one snapshot.
macro_rules! look {
    ($store:expr, $doing:literal, $limit:expr, $rows:expr => $row:ty, $end:expr => $place:ty) => {
        on_another($store.pool_of_operators(), || async {
            let searching = $store.search_connection().await?;
            let conn = searching.connection.shared()?;
            let looking = async {
                let (begun, set, rows) = join3(
                    ops::BeginReadOnly {}.execute(&mut &*conn),
                    ops::SearchLimit { bound: SEARCH_WITHIN }.execute(&mut &*conn),
                    $rows.load::<$row>(&mut &*conn),
                )
                .await;
                begun.and(set)?;
                let rows = rows?;
                let is_full = rows.len() >= $limit as usize;
                let end = match is_full {
                    true => Vec::new(),
                    false => $end.load::<$place>(&mut &*conn).await?,
                };
                Ok::<_, Error>((rows, end.into_iter().next()))
            };
            let answer = answered(async {
                let looked = looking.await;
                // Of a failed transaction it is a rollback.
                let committed = sql::CommitTx {}.execute(&mut &*conn).await;
                let looked = looked?;
                committed.map(|_| looked)
            });
            let answer = answer.await;
            searching.connection.settle($doing, answer).await
        })
        .await
    };
}

/// Sends one statement that reads, in a transaction with a time limit.
macro_rules! search {
    ($store:expr, $doing:literal, |$conn:ident| $query:expr) => {
        on_another($store.pool_of_operators(), || async {
            let searching = $store.search_connection().await?;
            ask_in_transaction!(
                searching.connection,
                $doing,
                [ops::BeginReadOnly {}, ops::SearchLimit { bound: SEARCH_WITHIN }],
                |$conn| $query
            )
        })
        .await
    };
}

impl<P: Pool> OperatorStore for Postgres<P> {
    fn for_probes(&self) -> Self {
        let operators = self.operators.in_slots(&self.operators.probes);
        Self { operators, ..self.clone() }
    }

    fn for_workers(&self) -> Self {
        let operators = self.operators.in_slots(&self.operators.workers);
        Self { operators, ..self.clone() }
    }

    async fn unapplied_migrations(&self) -> Result<Vec<String>, StoreError> {
        let applied = search!(self, "read which migrations have run", |conn| {
            Applied {}.load::<String>(&mut conn)
        })?;
        not_among::<diesel::pg::Pg>(&MIGRATIONS, &applied)
    }

    async fn is_read_only(&self) -> Result<bool, StoreError> {
        let is = search!(self, "tell whether it can be written to", |conn| {
            async {
                let is = ops::IsReadOnly {}.load::<bool>(&mut conn).await?;
                if is.contains(&true) {
                    // Before its own connection goes back, which is closed then: it may be that session alone.
                    self.leave_read_only();
                }
                Ok::<_, Error>(is)
            }
        })?;
        Ok(is.contains(&true))
    }

    async fn list_requests(
        &self,
        list: &ListRequests,
    ) -> Result<SearchPage<ListedRequest, ListPlace>, StoreError> {
        let (rows, end) = look!(
            self, "list requests", list.limit,
            ops::List::new(list) => ListedRow, ops::EndOfLook::new(list) => (DateTime<Utc>, Uuid)
        )?;
        let place = |(time, request_id)| ListPlace { time, request_id };
        Ok(SearchPage {
            rows: rows.into_iter().map(listed_request).collect(),
            searched_to: end.map(place),
        })
    }

    async fn requests_by_ids(
        &self,
        ids: &[Uuid],
        limits: &ScopeLimits,
    ) -> Result<Vec<ListedRequest>, StoreError> {
        let rows = search!(self, "find requests", |conn| {
            let allowed = ops::Allowed::by(limits);
            ops::ByIds { ids: ids.to_vec(), allowed }.load::<ListedRow>(&mut conn)
        })?;
        Ok(rows.into_iter().map(listed_request).collect())
    }

    async fn find_request(
        &self,
        at: RequestAt<'_>,
        limits: &ScopeLimits,
    ) -> Result<Option<FoundRequest>, StoreError> {
        let rows = match at {
            RequestAt::Id(request_id) => search!(self, "find a request", |conn| {
                let allowed = ops::Allowed::by(limits);
                ops::ById { request_id, allowed }.load::<FoundRow>(&mut conn)
            }),
            RequestAt::Key(scope, key) => search!(self, "find a request", |conn| {
                let (scope, key) = (scope.as_str(), key.as_str());
                ops::ByKey { scope, key, allowed: ops::Allowed::by(limits) }
                    .load::<FoundRow>(&mut conn)
            }),
        };
        rows?.into_iter().next().map(found_request).transpose()
    }

    async fn events(&self, found: &FoundRequest) -> Result<StoredEvents, StoreError> {
        let (scope, key) = (found.scope.as_str(), found.key.as_str());
        let request_id = found.row.request_id;
        let rows = search!(self, "read the events of a request", |conn| {
            ops::Events { scope, key, request_id }.load::<(Option<String>, Option<i32>)>(&mut conn)
        })?;
        let (text, written) = rows.into_iter().next().unwrap_or_default();
        Ok(StoredEvents::of(text, written))
    }

    async fn count_waiting(&self, limits: &ScopeLimits) -> Result<WaitingCounts, StoreError> {
        let rows = search!(self, "count what waits", |conn| {
            ops::Count::new(limits).load::<Counted<DateTime<Utc>>>(&mut conn)
        })?;
        Ok(WaitingCounts::of(rows, Some))
    }

    async fn claim_census(&self, lease: CensusLease) -> Result<bool, StoreError> {
        let CensusLease { holder, length } = lease;
        let claim = census_sql::ClaimCensus { holder, lease_ms: millis(length) };
        let searching = self.search_connection().await?;
        let claimed = ask_in_transaction!(
            searching.connection,
            "claim the census",
            [sql::Begin(Isolation::ReadCommitted), Settings::new(Some(LOCKED_WAIT))],
            |conn| claim.execute(&mut conn)
        )?;
        Ok(claimed == 1)
    }

    async fn unfinished(
        &self,
        limits: &ScopeLimits,
        paused: &str,
    ) -> Result<Vec<CensusGroup>, StoreError> {
        let groups = search!(self, "count unfinished requests", |conn| {
            census_sql::Groups::of(limits, paused).load::<GroupColumns>(&mut conn)
        })?;
        Ok(groups.into_iter().map(census_group).collect())
    }

    async fn operators_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows = search!(self, "tell the time", |conn| {
            sql::Now {}.load::<DateTime<Utc>>(&mut conn)
        })?;
        rows.into_iter()
            .next()
            .ok_or_else(|| StoreError::database("tell the time", Error::NotFound))
    }

    async fn job_census(&self) -> Result<JobCensus, StoreError> {
        let jobs = search!(self, "count staged jobs", |conn| {
            census_sql::Jobs {}.load::<census_sql::JobsRow>(&mut conn)
        })?;
        Ok(jobs.into_iter().next().map(JobCensus::from).unwrap_or_default())
    }

    async fn jobs_of(
        &self,
        scope: &Scope,
        request_id: Uuid,
    ) -> Result<Vec<OperatedJob>, StoreError> {
        let rows = search!(self, "list a request's jobs", |conn| {
            ops::JobsOf { scope: scope.as_str(), request_id }.load::<OperatedRow>(&mut conn)
        })?;
        Ok(rows.into_iter().map(operated_job).collect())
    }

    async fn dead_jobs_after(
        &self,
        limits: &ScopeLimits,
        (staged_at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<SearchPage<OperatedJob, (DateTime<Utc>, Uuid)>, StoreError> {
        let (rows, searched_to) = look!(
            self, "list dead jobs", limit,
            ops::DeadJobsAfter { staged_at, id, allowed: ops::Allowed::by(limits), limit: limit.into() }
                => OperatedRow,
            ops::EndOfDeadJobs { staged_at, id } => (DateTime<Utc>, Uuid)
        )?;
        Ok(SearchPage { rows: rows.into_iter().map(operated_job).collect(), searched_to })
    }

    async fn late_jobs(
        &self,
        limits: &ScopeLimits,
        limit: u32,
    ) -> Result<Vec<OperatedJob>, StoreError> {
        let rows = search!(self, "list late jobs", |conn| {
            let allowed = ops::Allowed::by(limits);
            ops::LateJobs { late_ms: LATE_MS, allowed, limit: limit.into() }
                .load::<OperatedRow>(&mut conn)
        })?;
        Ok(rows.into_iter().map(operated_job).collect())
    }

    async fn dead_job(
        &self,
        limits: &ScopeLimits,
        id: Uuid,
    ) -> Result<Option<OperatedJob>, StoreError> {
        let rows = search!(self, "find a dead job", |conn| {
            ops::DeadJob { id, allowed: ops::Allowed::by(limits) }.load::<OperatedRow>(&mut conn)
        })?;
        Ok(rows.into_iter().next().map(operated_job))
    }

    async fn settle_job(&self, act: &JobAct<'_>) -> Result<bool, StoreError> {
        let (scope, job_id) = (act.scope, act.id);
        let attempts = act.attempts.cast_signed();
        let audit = ops::InsertAudit::of(act.audit);
        let settled = match act.fate {
            JobFate::Retry => {
                let retry = ops::RetryJob { scope, job_id, attempts, audit };
                ask_within!(LOCKED_WAIT, self, "retry a dead job", |conn| retry.execute(&mut conn))
            }
            JobFate::Discard => {
                let discard = ops::DiscardDeadJob { scope, job_id, attempts, audit };
                ask_within!(LOCKED_WAIT, self, "discard a dead job", |conn| {
                    discard.execute(&mut conn)
                })
            }
        };
        Ok(settled? == 1)
    }

    async fn announce(&self, entry: &NodeEntry) -> Result<(), StoreError> {
        let announced = ask_within!(LOCKED_WAIT, self, "announce the process", |conn| {
            node_sql::Announce::new(entry).execute(&mut conn)
        });
        announced.map(drop)
    }

    async fn depart(&self, id: Uuid) -> Result<(), StoreError> {
        let departed = ask_within!(LOCKED_WAIT, self, "take the process away", |conn| {
            node_sql::Depart { id }.execute(&mut conn)
        });
        departed.map(drop)
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let rows = search!(self, "read the processes", |conn| {
            node_sql::Nodes {}.load::<NodeColumns>(&mut conn)
        })?;
        Ok(rows.into_iter().map(node).collect())
    }

    async fn saw_a_node(&self, within: TimeDelta) -> Result<bool, StoreError> {
        let saw = search!(self, "look for a process", |conn| {
            node_sql::SawNode { within_ms: within.num_milliseconds() }.load::<bool>(&mut conn)
        })?;
        Ok(saw == [true])
    }

    async fn list_pauses(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let rows = search!(self, "list the pauses", |conn| {
            ops::Pauses {}.load::<PauseRow>(&mut conn)
        })?;
        Ok(rows.into_iter().map(paused_phase).collect())
    }

    async fn set_pause(&self, act: &PauseAct<'_>) -> Result<bool, StoreError> {
        let PauseAct { definition, phase, .. } = *act;
        let (reason, paused_by) = (&*act.audit.reason, &*act.audit.actor);
        let audit = ops::AuditPause::of(act);
        let written = match act.what {
            PauseWhat::Begin(length) => {
                let for_ms = length.map(millis);
                let pause = ops::PausePhase { definition, phase, reason, paused_by, for_ms, audit };
                ask_within!(LOCKED_WAIT, self, "pause a phase", |conn| pause.execute(&mut conn))
            }
            PauseWhat::Replace(seen, length) => {
                let (for_ms, ended_at) = (length.map(millis), seen.ends_at);
                let seen = ops::SeenPause::of(seen);
                let replace = ops::ReplacePause {
                    definition,
                    phase,
                    reason,
                    paused_by,
                    for_ms,
                    seen,
                    ended_at,
                    audit,
                };
                ask_within!(LOCKED_WAIT, self, "replace a pause", |conn| {
                    replace.execute(&mut conn)
                })
            }
            PauseWhat::End(seen) => {
                let seen = ops::SeenPause::of(seen);
                let unpause = ops::UnpausePhase { definition, phase, seen, audit };
                ask_within!(LOCKED_WAIT, self, "unpause a phase", |conn| unpause.execute(&mut conn))
            }
        };
        Ok(written? == 1)
    }

    async fn start_bulk(&self, bulk: &NewBulk<'_>) -> Result<(), StoreError> {
        let start = bulk_sql::StartBulk::new(bulk);
        let started =
            ask_within!(LOCKED_WAIT, self, "start a bulk act", |conn| start.execute(&mut conn));
        started.map(drop)
    }

    async fn bulks(
        &self,
        (started_at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<Vec<BulkRow>, StoreError> {
        let limit = limit.into();
        let rows = search!(self, "list bulk acts", |conn| {
            bulk_sql::Bulks { started_at, id, limit }.load::<BulkColumns>(&mut conn)
        })?;
        Ok(rows.into_iter().map(bulk_row).collect())
    }

    async fn counted_bulks(&self, bulks: &[BulkRow]) -> Result<Vec<BulkRow>, StoreError> {
        let ids = || bulks.iter().map(|bulk| bulk.id.to_string()).collect::<Vec<_>>();
        let rows = search!(self, "count what bulk acts did", |conn| {
            bulk_sql::CountedBulks { ids: ids() }.load::<BulkColumns>(&mut conn)
        })?;
        Ok(rows.into_iter().map(bulk_row).collect())
    }

    async fn bulk(&self, id: Uuid) -> Result<Option<BulkRow>, StoreError> {
        let rows = search!(self, "find a bulk act", |conn| {
            bulk_sql::Bulk { id }.load::<BulkColumns>(&mut conn)
        })?;
        Ok(rows.into_iter().next().map(bulk_row))
    }

    async fn bulk_items(
        &self,
        id: Uuid,
        part: BulkPart,
        limit: u32,
    ) -> Result<Vec<BulkItem>, StoreError> {
        let (all, limit) = (part == BulkPart::All, limit.into());
        let rows = search!(self, "read a bulk act", |conn| {
            bulk_sql::BulkItems { id, all, limit }.load::<ItemColumns>(&mut conn)
        })?;
        Ok(rows.into_iter().map(bulk_item).collect())
    }

    async fn open_bulks(&self, limit: u32) -> Result<Vec<BulkRow>, StoreError> {
        let limit = limit.into();
        let rows = ask_again!(self, "search for bulk acts", |conn| {
            bulk_sql::OpenBulks { limit }.load::<BulkColumns>(&mut conn)
        })?;
        Ok(rows.into_iter().map(bulk_row).collect())
    }

    async fn claim_bulk(&self, claim: &BulkClaim) -> Result<bool, StoreError> {
        let BulkClaim { id, token, lease } = *claim;
        let claim = bulk_sql::ClaimBulk { token, lease_ms: millis(lease), id };
        let claimed =
            ask_within!(LOCKED_WAIT, self, "claim a bulk act", |conn| claim.execute(&mut conn))?;
        Ok(claimed == 1)
    }

    async fn settle_bulk_item(&self, item: &SettledItem<'_>) -> Result<bool, StoreError> {
        let settle = bulk_sql::SettleItem {
            outcome: item.outcome,
            because: item.because,
            id: item.bulk_id,
            position: item.position.cast_signed(),
            token: item.token,
        };
        let settled = match item.audit {
            None => ask_within!(LOCKED_WAIT, self, "settle a part of a bulk act", |conn| {
                settle.execute(&mut conn)
            }),
            Some(entry) => {
                let audit = ops::InsertAudit::of(entry);
                let settle = bulk_sql::SettleAudited { settle, audit };
                ask_within!(LOCKED_WAIT, self, "settle a part of a bulk act", |conn| {
                    settle.execute(&mut conn)
                })
            }
        };
        Ok(settled? == 1)
    }

    async fn leave_bulk(&self, id: Uuid, token: i64) -> Result<(), StoreError> {
        let left = ask_within!(LOCKED_WAIT, self, "leave a bulk act", |conn| {
            bulk_sql::LeaveBulk { id, token }.execute(&mut conn)
        });
        left.map(drop)
    }

    async fn stop_bulk(&self, id: Uuid, audit: &AuditEntry) -> Result<bool, StoreError> {
        let by = &*audit.actor;
        let stop = bulk_sql::StopBulk { by, id, audit: ops::InsertAudit::of(audit) };
        let stopped =
            ask_within!(LOCKED_WAIT, self, "stop a bulk act", |conn| stop.execute(&mut conn))?;
        Ok(stopped == 1)
    }

    async fn record(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let record = ops::Record { audit: ops::InsertAudit::of(entry) };
        let bound: Duration = LOCKED_WAIT;
        ask_within!(bound, self, "write the audit", |conn| record.execute(&mut conn)).map(drop)
    }

    async fn audit_before(
        &self,
        limits: &ScopeLimits,
        search: &AuditSearch,
        (at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<SearchPage<Audited, (DateTime<Utc>, Uuid)>, StoreError> {
        let (rows, searched_to) = match search.request_id {
            Some(request_id) => look!(
                self, "read the audit of a request", limit,
                ops::AuditOf {
                    request_id, at, id, asked: ops::AskedAudit::of(search, limits), limit: limit.into(),
                } => AuditRow,
                ops::EndOfAuditOf { request_id, at, id } => (DateTime<Utc>, Uuid)
            ),
            None => look!(
                self, "read the audit", limit,
                ops::AuditOfAll { at, id, asked: ops::AskedAudit::of(search, limits), limit: limit.into() }
                    => AuditRow,
                ops::EndOfAudit { at, id } => (DateTime<Utc>, Uuid)
            ),
        }?;
        Ok(SearchPage { rows: rows.into_iter().map(audited).collect(), searched_to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DeadpoolPool;

    /// How many searches run at a time in the requests' pool of this size.
    fn taken_of(size: usize) -> usize {
        let Operators { slots, probes, workers, .. } =
            Operators::<DeadpoolPool>::beside_requests(size);
        let mut all = vec![slots.free];
        for free in [probes.free, workers.free] {
            if !all.iter().any(|known| Arc::ptr_eq(known, &free)) {
                all.push(free);
            }
        }
        all.iter().map(|free| free.available_permits()).sum()
    }

    #[test]
    fn g16_searches_leave_half_of_the_requests_connections() {
        let taken = [1, 2, 3, 4, 5, 6, 7, 8, 9, 100].map(taken_of);
        assert_eq!(taken, [1, 1, 1, 2, 2, 3, 3, 4, 4, 4]);
    }
}
