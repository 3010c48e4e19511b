//! What operators ask for: on two connections of their own, so that no search takes one from a request. Health checks and
//! workers search in the same way, and have a connection each: an operator's search may take its five seconds, and they
//! cannot wait for that. The engine reads the pauses on that of the workers.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::QueryFragment;
use diesel_async::RunQueryDsl;
use uuid::Uuid;

use super::ask::{answered_within, ask, await_answer};
use super::literal::BoundStatement;
use super::ops_statements as ops;
use super::pool::{Checkout, ConnectionGuard};
use super::statements as sql;
use super::tuple_rows::RowsAwaited;
use super::waits::{WAIT_A_SECOND_FOR_TABLES, WAIT_FOR_TABLES_AS_SERVER_SAYS, patiently};
use super::{MIGRATIONS, Mysql, MysqlConn};
use crate::error::is_of_reading_only;
use crate::key::Scope;
use crate::store::StoreError;
use crate::store::audit::{AuditEntry, AuditSearch, Audited, audited};
use crate::store::bulk::{
    BulkClaim, BulkItem, BulkPart, BulkRow, NewBulk, SettledItem, bulk_item, bulk_row, limits_text,
};
use crate::store::census::{CensusGroup, CensusLease, JobCensus, census_group};
use crate::store::events::StoredEvents;
use crate::store::in_millis::bulk as bulk_sql;
use crate::store::in_millis::census as census_sql;
use crate::store::in_millis::nodes as node_sql;
use crate::store::in_millis::{Allowed, Place, is_full, place};
use crate::store::migrations::{Applied, not_among};
use crate::store::nodes::{NodeEntry, NodeRow, node};
use crate::store::operators::{
    Counted, FoundRequest, JobAct, JobFate, LATE_MS, ListPlace, ListRequests, ListedRequest,
    OperatedJob, OperatorStore, RequestAt, ScopeLimits, SearchPage, WaitingCounts, found_request,
    listed_request, operated_job,
};
use crate::store::pauses::{PauseAct, PauseWhat, PausedPhase, paused_phase};
use crate::store::row::millis;

/// How long one search may take.
const SEARCH_WITHIN: Duration = Duration::from_secs(5);

/// Sends one statement that writes nothing, so it may be sent again: see [`searched`](Mysql::searched).
macro_rules! search {
    ($store:expr, $doing:literal, |$conn:ident| $query:expr) => {
        $store
            .searched(|| async {
                let mut connection = $crate::store::mysql::pool::ConnectionGuard::that_answers(
                    &$store.searches,
                    SEARCH_WITHIN,
                )
                .await?;
                let $conn: &mut $crate::store::mysql::MysqlConn = &mut connection;
                answered_within(SEARCH_WITHIN, $doing, $query).await
            })
            .await
    };
}

/// What two statements see that are sent behind it.
const OF_ONE_MOMENT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
     START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

/// Nothing was written.
const ITS_END: &str = "ROLLBACK AND NO CHAIN NO RELEASE";

/// The rows of a page and, where it is not full, how far was looked: both of one moment. If rows went or came between
/// the two, the second would tell another place than the first came to, and the next page would pass over what
/// lies between.
macro_rules! look {
    ($store:expr, $doing:literal, $limit:expr, $rows:expr => $row:ty, $end:expr) => {{
        let limit = $limit;
        search!($store, $doing, |conn| async {
            send_text(conn, OF_ONE_MOMENT).await?;
            let looked = async {
                let rows = $rows.rows::<$row>(conn).await?;
                let end = match is_full(&rows, limit) {
                    true => Vec::new(),
                    false => $end.rows::<Place>(conn).await?,
                };
                Ok((rows, place(end)))
            };
            let looked = looked.await;
            let ended = send_text(conn, ITS_END).await;
            looked.and_then(|looked| ended.map(|()| looked))
        })
    }};
}

/// Sends a text of the engine's, which knows what it does to its session: what is sent as an application's statement is
/// would have the connection closed behind it.
async fn send_text(conn: &mut MysqlConn, text: &str) -> QueryResult<()> {
    conn.texts(text).await.failure.map_or(Ok(()), |failure| Err(failure.into()))
}

impl Mysql {
    async fn settled(
        &self,
        guarded: &(impl QueryFragment<diesel::mysql::Mysql> + Sync),
        audit: &(dyn Fn() -> diesel::QueryResult<BoundStatement> + Sync),
    ) -> Result<bool, StoreError> {
        self.by_an_operator("settle a dead job", guarded, &[audit]).await
    }
}

impl OperatorStore for Mysql {
    fn for_probes(&self) -> Self {
        Self { searches: self.probes.clone(), ..self.clone() }
    }

    fn for_workers(&self) -> Self {
        Self { searches: self.workers.clone(), ..self.clone() }
    }

    async fn unapplied_migrations(&self) -> Result<Vec<String>, StoreError> {
        let applied = search!(self, "read which migrations have run", |conn| {
            Applied {}.rows::<String>(conn)
        })?;
        not_among::<diesel::mysql::Mysql>(&MIGRATIONS, &applied)
    }

    async fn is_read_only(&self) -> Result<bool, StoreError> {
        match search!(self, "tell whether it can be written to", |conn| async {
            // Less than the probe's caller waits for the probe.
            send_text(conn, WAIT_A_SECOND_FOR_TABLES).await?;
            let written = ops::WriteNothing {}.execute(conn).await;
            let ended = send_text(conn, WAIT_FOR_TABLES_AS_SERVER_SAYS).await;
            written.and_then(|written| ended.map(|()| written))
        }) {
            // Of a table that is locked, by a backup or a migration, say: its server is no other than it was.
            Ok(_) | Err(StoreError::Locked) => Ok(false),
            Err(error) if error.of_diesel().is_some_and(is_of_reading_only) => {
                self.leave_behind(&error);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    async fn list_requests(
        &self,
        list: &ListRequests,
    ) -> Result<SearchPage<ListedRequest, ListPlace>, StoreError> {
        let (rows, end) = look!(
            self,
            "list requests",
            list.limit,
            ops::List::new::<Db>(list) => ops::StoredListed,
            ops::EndOfLook::new(list)
        )?;
        let place = |(time, request_id)| ListPlace { time, request_id };
        let rows = rows.into_iter().filter_map(ops::listed).map(listed_request).collect();
        Ok(SearchPage { rows, searched_to: end.map(place) })
    }

    async fn requests_by_ids(
        &self,
        ids: &[Uuid],
        limits: &ScopeLimits,
    ) -> Result<Vec<ListedRequest>, StoreError> {
        let rows = search!(self, "find requests", |conn| {
            ops::ByIds::new::<Db>(ids, limits).rows::<ops::StoredListed>(conn)
        })?;
        Ok(rows.into_iter().filter_map(ops::listed).map(listed_request).collect())
    }

    async fn find_request(
        &self,
        at: RequestAt<'_>,
        limits: &ScopeLimits,
    ) -> Result<Option<FoundRequest>, StoreError> {
        let rows = search!(self, "find a request", |conn| {
            ops::Find::new::<Db>(at, limits).rows::<(String, String, sql::StoredRow)>(conn)
        })?;
        let found = rows.into_iter().next();
        found.map(|(scope, key, row)| found_request((scope, key, sql::row(row)?))).transpose()
    }

    async fn events(&self, found: &FoundRequest) -> Result<StoredEvents, StoreError> {
        let rows = search!(self, "read the events of a request", |conn| {
            ops::Events {
                scope: found.scope.as_str().to_owned(),
                key: found.key.as_str().to_owned(),
                request_id: found.row.request_id.as_bytes().to_vec(),
            }
            .rows::<(Option<Vec<u8>>, Option<i32>)>(conn)
        })?;
        let (bytes, written) = rows.into_iter().next().unwrap_or_default();
        let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(StoredEvents::of(text, written))
    }

    async fn count_waiting(&self, limits: &ScopeLimits) -> Result<WaitingCounts, StoreError> {
        let rows = search!(self, "count what waits", |conn| {
            ops::Count::new::<Db>(limits).rows::<Counted<i64>>(conn)
        })?;
        Ok(WaitingCounts::of(rows, DateTime::from_timestamp_millis))
    }

    async fn claim_census(&self, lease: CensusLease) -> Result<bool, StoreError> {
        let claimed = ask!(self.searches, "claim the census", |conn| {
            let (holder, lease_ms) = (lease.holder.as_bytes().to_vec(), millis(lease.length));
            census_sql::ClaimCensus { holder, lease_ms }.execute(conn)
        })?;
        Ok(claimed == 1)
    }

    async fn unfinished(
        &self,
        limits: &ScopeLimits,
        paused: &str,
    ) -> Result<Vec<CensusGroup>, StoreError> {
        let groups = search!(self, "count unfinished requests", |conn| {
            census_sql::Groups::of::<Db>(limits, paused).rows::<census_sql::Grouped>(conn)
        })?;
        Ok(groups.into_iter().filter_map(census_sql::group).map(census_group).collect())
    }

    async fn operators_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows = search!(self, "tell the time", |conn| sql::Now {}.rows::<i64>(conn))?;
        sql::time(rows.into_iter().next().unwrap_or(i64::MAX), "now")
    }

    async fn job_census(&self) -> Result<JobCensus, StoreError> {
        let jobs = search!(self, "count staged jobs", |conn| {
            census_sql::Jobs {}.rows::<census_sql::JobsRow>(conn)
        })?;
        Ok(jobs.into_iter().next().map(JobCensus::in_millis).unwrap_or_default())
    }

    async fn jobs_of(
        &self,
        scope: &Scope,
        request_id: Uuid,
    ) -> Result<Vec<OperatedJob>, StoreError> {
        let rows = search!(self, "list a request's jobs", |conn| {
            ops::JobsOf {
                scope: scope.as_str().to_owned(),
                request_id: request_id.as_bytes().to_vec(),
            }
            .rows::<ops::StoredJob>(conn)
        })?;
        Ok(rows.into_iter().filter_map(ops::operated).map(operated_job).collect())
    }

    async fn dead_jobs_after(
        &self,
        limits: &ScopeLimits,
        (staged_at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<SearchPage<OperatedJob, (DateTime<Utc>, Uuid)>, StoreError> {
        let (staged_at, id) = (staged_at.timestamp_millis(), id.as_bytes().to_vec());
        let (rows, searched_to) = look!(
            self,
            "list dead jobs",
            limit,
            ops::DeadJobsAfter {
                staged_at,
                id: id.clone(),
                allowed: Allowed::by::<Db>(limits),
                limit: limit.into(),
            } => ops::StoredJob,
            ops::EndOfDeadJobs { staged_at, id: id.clone() }
        )?;
        let rows = rows.into_iter().filter_map(ops::operated).map(operated_job).collect();
        Ok(SearchPage { rows, searched_to })
    }

    async fn late_jobs(
        &self,
        limits: &ScopeLimits,
        limit: u32,
    ) -> Result<Vec<OperatedJob>, StoreError> {
        let rows = search!(self, "list late jobs", |conn| {
            let allowed = Allowed::by::<Db>(limits);
            ops::LateJobs { late_ms: LATE_MS, allowed, limit: limit.into() }
                .rows::<ops::StoredJob>(conn)
        })?;
        Ok(rows.into_iter().filter_map(ops::operated).map(operated_job).collect())
    }

    async fn dead_job(
        &self,
        limits: &ScopeLimits,
        id: Uuid,
    ) -> Result<Option<OperatedJob>, StoreError> {
        let rows = search!(self, "find a dead job", |conn| {
            ops::DeadJob { id: id.as_bytes().to_vec(), allowed: Allowed::by::<Db>(limits) }
                .rows::<ops::StoredJob>(conn)
        })?;
        Ok(rows.into_iter().filter_map(ops::operated).map(operated_job).next())
    }

    async fn settle_job(&self, act: &JobAct<'_>) -> Result<bool, StoreError> {
        let audit = || BoundStatement::of(&ops::InsertAudit::of(act.audit));
        let (scope, job_id) = (act.scope.to_owned(), act.id.as_bytes().to_vec());
        let attempts = act.attempts.cast_signed();
        match act.fate {
            JobFate::Retry => {
                let retry = ops::RetryJob { scope, job_id, attempts };
                self.settled(&retry, &audit).await
            }
            JobFate::Discard => {
                let discard = ops::DiscardDeadJob { scope, job_id, attempts };
                self.settled(&discard, &audit).await
            }
        }
    }

    async fn announce(&self, entry: &NodeEntry) -> Result<(), StoreError> {
        match ask!(self.pool, "forget processes", |conn| node_sql::Forget {}.execute(conn)) {
            // It reads all rows, and another process writes its own: the next one forgets.
            Ok(_) | Err(StoreError::Locked) => {}
            Err(error) => return Err(error),
        }
        let announced = ask!(self.pool, "announce the process", |conn| {
            node_sql::Announce::new(entry).execute(conn)
        });
        announced.map(drop)
    }

    async fn depart(&self, id: Uuid) -> Result<(), StoreError> {
        let departed = ask!(self.pool, "take the process away", |conn| {
            node_sql::Depart { id: id.as_bytes().to_vec() }.execute(conn)
        });
        departed.map(drop)
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let rows = search!(self, "read the processes", |conn| {
            node_sql::Nodes {}.rows::<node_sql::StoredNode>(conn)
        })?;
        Ok(rows.into_iter().filter_map(node_sql::stored_node).map(node).collect())
    }

    async fn saw_a_node(&self, within: TimeDelta) -> Result<bool, StoreError> {
        let saw = search!(self, "look for a process", |conn| {
            node_sql::SawNode { within_ms: within.num_milliseconds() }.rows::<i64>(conn)
        })?;
        Ok(saw == [1])
    }

    async fn list_pauses(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let rows = search!(self, "list the pauses", |conn| {
            ops::Pauses {}.rows::<ops::StoredPause>(conn)
        })?;
        Ok(rows.into_iter().filter_map(ops::pause).map(paused_phase).collect())
    }

    async fn set_pause(&self, act: &PauseAct<'_>) -> Result<bool, StoreError> {
        const DOING: &str = "pause a phase, or end that";
        let (definition, phase) = (|| act.definition.to_owned(), || act.phase.to_owned());
        let hold = || match act.what {
            PauseWhat::Begin(_) => {
                BoundStatement::of(&ops::HoldPause { definition: definition(), phase: phase() })
            }
            PauseWhat::Replace(..) | PauseWhat::End(_) => {
                BoundStatement::of(&ops::HoldPaused { definition: definition(), phase: phase() })
            }
        };
        let write = || match act.what {
            PauseWhat::Begin(length) | PauseWhat::Replace(_, length) => {
                BoundStatement::of(&ops::PausePhase {
                    definition: definition(),
                    phase: phase(),
                    reason: act.audit.reason.clone(),
                    paused_by: act.audit.actor.clone(),
                    for_ms: length.map(millis),
                })
            }
            PauseWhat::End(_) => {
                BoundStatement::of(&ops::UnpausePhase { definition: definition(), phase: phase() })
            }
        };
        // Between the lock and the write, so that it says what that replaces, and only if that is as it was seen.
        let audit = ops::AuditPause::of(act);
        self.by_an_operator_behind(&hold, DOING, &audit, &[&write]).await
    }

    async fn start_bulk(&self, bulk: &NewBulk<'_>) -> Result<(), StoreError> {
        let id = || bulk.id.as_bytes().to_vec();
        let start = bulk_sql::StartBulk {
            id: id(),
            act: bulk.act.to_owned(),
            actor: bulk.audit.actor.clone(),
            reason: bulk.audit.reason.clone(),
            limits: limits_text(bulk.limits),
            items: bulk.items.len() as i64,
        };
        let pairs: Vec<(String, &str)> =
            bulk.items.iter().map(|(id, seen)| (id.simple().to_string(), &**seen)).collect();
        // Texts have a JSON form.
        let requests = serde_json::to_string(&pairs).unwrap_or_default();
        let items = || BoundStatement::of(&ops::AddItems { id: id(), requests: requests.clone() });
        let audit = || BoundStatement::of(&ops::InsertAudit::of(bulk.audit));
        self.by_an_operator("start a bulk act", &start, &[&items, &audit]).await.map(drop)
    }

    async fn bulks(
        &self,
        (started_at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<Vec<BulkRow>, StoreError> {
        let (started_at, id) = (started_at.timestamp_millis(), id.as_bytes().to_vec());
        let rows = search!(self, "list bulk acts", |conn| {
            bulk_sql::Bulks { started_at, id: id.clone(), limit: limit.into() }
                .rows::<bulk_sql::StoredBulk>(conn)
        })?;
        Ok(rows.into_iter().filter_map(bulk_sql::bulk).map(bulk_row).collect())
    }

    async fn counted_bulks(&self, bulks: &[BulkRow]) -> Result<Vec<BulkRow>, StoreError> {
        let rows = search!(self, "count what bulk acts did", |conn| {
            bulk_sql::CountedBulks::of::<Db>(bulks).rows::<bulk_sql::StoredBulk>(conn)
        })?;
        Ok(rows.into_iter().filter_map(bulk_sql::bulk).map(bulk_row).collect())
    }

    async fn bulk(&self, id: Uuid) -> Result<Option<BulkRow>, StoreError> {
        let rows = search!(self, "find a bulk act", |conn| {
            bulk_sql::Bulk { id: id.as_bytes().to_vec() }.rows::<bulk_sql::StoredBulk>(conn)
        })?;
        Ok(rows.into_iter().filter_map(bulk_sql::bulk).map(bulk_row).next())
    }

    async fn bulk_items(
        &self,
        id: Uuid,
        part: BulkPart,
        limit: u32,
    ) -> Result<Vec<BulkItem>, StoreError> {
        let all = part == BulkPart::All;
        let rows = search!(self, "read a bulk act", |conn| {
            bulk_sql::BulkItems { id: id.as_bytes().to_vec(), all, limit: limit.into() }
                .rows::<bulk_sql::StoredItem>(conn)
        })?;
        Ok(rows.into_iter().filter_map(bulk_sql::item).map(bulk_item).collect())
    }

    async fn open_bulks(&self, limit: u32) -> Result<Vec<BulkRow>, StoreError> {
        let rows = ask!(self.pool, "search for bulk acts", |conn| {
            bulk_sql::OpenBulks { limit: limit.into() }.rows::<bulk_sql::StoredBulk>(conn)
        })?;
        Ok(rows.into_iter().filter_map(bulk_sql::bulk).map(bulk_row).collect())
    }

    async fn claim_bulk(&self, claim: &BulkClaim) -> Result<bool, StoreError> {
        let BulkClaim { id, token, lease } = *claim;
        let claimed = ask!(self.pool, "claim a bulk act", |conn| {
            let (id, lease_ms) = (id.as_bytes().to_vec(), millis(lease));
            bulk_sql::ClaimBulk { token, lease_ms, id }.execute(conn)
        })?;
        Ok(claimed == 1)
    }

    async fn settle_bulk_item(&self, item: &SettledItem<'_>) -> Result<bool, StoreError> {
        const DOING: &str = "settle a part of a bulk act";
        let settle = bulk_sql::SettleItem {
            outcome: item.outcome.to_owned(),
            because: item.because.map(str::to_owned),
            id: item.bulk_id.as_bytes().to_vec(),
            position: item.position.into(),
            token: item.token,
        };
        match item.audit {
            None => self.together(DOING, &settle, &[]).await,
            Some(entry) => {
                let audit = || BoundStatement::of(&ops::InsertAudit::of(entry));
                self.together(DOING, &settle, &[&audit]).await
            }
        }
    }

    async fn leave_bulk(&self, id: Uuid, token: i64) -> Result<(), StoreError> {
        let left = ask!(self.pool, "leave a bulk act", |conn| {
            bulk_sql::LeaveBulk { id: id.as_bytes().to_vec(), token }.execute(conn)
        });
        left.map(drop)
    }

    async fn stop_bulk(&self, id: Uuid, audit: &AuditEntry) -> Result<bool, StoreError> {
        let (by, id) = (audit.actor.clone(), id.as_bytes().to_vec());
        let stop = bulk_sql::StopBulk { by, id };
        let audit = || BoundStatement::of(&ops::InsertAudit::of(audit));
        self.by_an_operator("stop a bulk act", &stop, &[&audit]).await
    }

    /// On a connection of requests, as an act is: searches may have those of operators for as long as they are slow.
    async fn record(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let recorded = self.until_prepared(|| {
            patiently(|| async {
                let mut connection = ConnectionGuard::by(&self.pool, Checkout::Pinged).await?;
                let conn: &mut MysqlConn = &mut connection;
                let written = ops::InsertAudit::of(entry).execute(conn);
                await_answer("write the audit", written).await.map(drop)
            })
        });
        recorded.await
    }

    async fn audit_before(
        &self,
        limits: &ScopeLimits,
        search: &AuditSearch,
        (at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<SearchPage<Audited, (DateTime<Utc>, Uuid)>, StoreError> {
        let place_of = (at.timestamp_millis(), id.as_bytes().to_vec());
        let (rows, searched_to) = look!(
            self,
            "read the audit",
            limit,
            ops::Audit::new::<Db>(search, place_of.clone(), limits, limit) => ops::StoredAudit,
            ops::EndOfAudit::new(search, place_of.clone())
        )?;
        let rows = rows.into_iter().filter_map(ops::audit).map(audited).collect();
        Ok(SearchPage { rows, searched_to })
    }
}
