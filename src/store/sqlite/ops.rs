//! What operators ask SQLite for: on a connection of their own that reads only, beside the writer and the reader of requests.
//! Health checks and workers have one each, too, so that they do not wait for an operator's search. A database in memory has
//! one connection, which all of them then share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use diesel::connection::SimpleConnection;
use diesel::result::Error;
use diesel::sqlite::Sqlite as Db;
use diesel::{Connection, QueryResult, RunQueryDsl, SqliteConnection};
use uuid::Uuid;

use super::ask::thread_gone;
use super::error::{is_of_another_writer, is_of_reading_only};
use super::file::OpenFile;
use super::ops_statements as ops;
use super::{MIGRATIONS, Sqlite, statements as sql};
use crate::key::Scope;
use crate::lock::lock;
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
use crate::store::in_millis::tuple_rows::BlockingRows;
use crate::store::in_millis::{Allowed, Place, Reached, is_full, place};
use crate::store::migrations::{Applied, not_among};
use crate::store::nodes::{NodeEntry, NodeRow, node};
use crate::store::operators::{
    Counted, FoundRequest, JobAct, JobFate, LATE_MS, ListPlace, ListRequests, ListedRequest,
    OperatedJob, OperatorStore, RequestAt, ScopeLimits, SearchPage, WaitingCounts, found_request,
    listed_request, operated_job,
};
use crate::store::pauses::{PauseAct, PauseWhat, PausedPhase, paused_phase};
use crate::store::row::millis;

/// How long to wait for the writer to be told whether there can be one. A caller that has it writes.
const ASKS_FOR: Duration = Duration::from_millis(200);

/// Where searches run; `None` where there is no file.
#[derive(Clone)]
pub(super) struct Operators {
    /// Of operators, or of those who ask in their place.
    own: Option<Arc<Own>>,
    probes: Option<Arc<Own>>,
    workers: Option<Arc<Own>>,
}

/// A connection, opened for the first search.
struct Own {
    url: String,
    file: OpenFile,
    conn: Mutex<Option<SqliteConnection>>,
}

impl Operators {
    /// Beside the connections to the file at `url`.
    pub(super) fn beside(url: Option<String>, file: &OpenFile) -> Self {
        let own = || {
            let url = url.clone()?;
            Some(Arc::new(Own { url, file: file.clone(), conn: Mutex::default() }))
        };
        Self { own: own(), probes: own(), workers: own() }
    }
}

impl Own {
    /// Runs `search` in one transaction, so that all that it reads is of one moment.
    fn search<R>(
        &self,
        search: impl FnOnce(&mut SqliteConnection) -> QueryResult<R>,
    ) -> QueryResult<R> {
        // Opened by its path, another file would get what the log of this one has.
        self.file.check()?;
        let mut slot = lock(&self.conn);
        let mut conn = match slot.take() {
            Some(conn) => conn,
            None => {
                let opened = open(&self.url)?;
                self.file.check()?;
                opened
            }
        };
        let found = conn.transaction(search)?;
        *slot = Some(conn);
        Ok(found)
    }
}

fn open(url: &str) -> QueryResult<SqliteConnection> {
    let refused = |error: diesel::ConnectionError| {
        diesel::result::Error::DatabaseError(
            diesel::result::DatabaseErrorKind::UnableToSendCommand,
            Box::new(error.to_string()),
        )
    };
    let mut conn = SqliteConnection::establish(url).map_err(refused)?;
    conn.batch_execute("PRAGMA busy_timeout = 5000; PRAGMA query_only = ON")?;
    Ok(conn)
}

impl Sqlite {
    async fn search<R: Send + 'static>(
        &self,
        doing: &'static str,
        search: impl FnOnce(&mut SqliteConnection) -> QueryResult<R> + Send + 'static,
    ) -> Result<R, StoreError> {
        let Some(own) = self.operators.own.clone() else { return self.run(doing, search).await };
        let searching = tokio::task::spawn_blocking(move || own.search(search));
        let found = searching.await.unwrap_or_else(|_| Err(thread_gone()));
        found.map_err(|error| StoreError::database(doing, error))
    }
}

pub(super) fn paused(rows: Vec<ops::StoredPause>) -> Vec<PausedPhase> {
    rows.into_iter().filter_map(ops::pause).map(paused_phase).collect()
}

/// A page, and, where it is not full, how far was looked.
fn page_of<R>(
    rows: Vec<R>,
    limit: u32,
    end: impl FnOnce() -> QueryResult<Vec<Place>>,
) -> QueryResult<(Vec<R>, Reached)> {
    let end = if is_full(&rows, limit) { Vec::new() } else { end()? };
    Ok((rows, place(end)))
}

impl OperatorStore for Sqlite {
    fn for_probes(&self) -> Self {
        let own = self.operators.probes.clone();
        Self { operators: Operators { own, ..self.operators.clone() }, ..self.clone() }
    }

    fn for_workers(&self) -> Self {
        let own = self.operators.workers.clone();
        Self { operators: Operators { own, ..self.operators.clone() }, ..self.clone() }
    }

    async fn unapplied_migrations(&self) -> Result<Vec<String>, StoreError> {
        let read = |conn: &mut _| Applied {}.rows::<String>(conn);
        let applied = self.search("read which migrations have run", read).await?;
        not_among::<diesel::sqlite::Sqlite>(&MIGRATIONS, &applied)
    }

    /// On the one connection that writes, which may be in use for as long as a phase takes.
    async fn is_read_only(&self) -> Result<bool, StoreError> {
        let write = |conn: &mut SqliteConnection| {
            // It does not wait for another process: all that this connection is for would wait behind it.
            conn.batch_execute("PRAGMA busy_timeout = 0")?;
            let written = ops::WriteNothing {}.execute(conn);
            // As it was opened with (`PRAGMAS`).
            conn.batch_execute("PRAGMA busy_timeout = 10000")?;
            written
        };
        let writing = self.run("tell whether it can be written to", write);
        match tokio::time::timeout(ASKS_FOR, writing).await {
            Ok(Err(error)) if is_of_reading_only(&error) => Ok(true),
            Ok(Err(error)) if is_of_another_writer(&error) => Ok(false),
            Ok(Ok(_)) | Err(_) => Ok(false),
            Ok(Err(error)) => Err(error),
        }
    }

    async fn list_requests(
        &self,
        list: &ListRequests,
    ) -> Result<SearchPage<ListedRequest, ListPlace>, StoreError> {
        let (rows, end, limit) =
            (ops::List::new::<Db>(list), ops::EndOfLook::new(list), list.limit);
        let (rows, end) = self
            .search("list requests", move |conn| {
                let found = rows.rows::<ops::StoredListed>(conn)?;
                page_of(found, limit, || end.rows(conn))
            })
            .await?;
        let place = |(time, request_id)| ListPlace { time, request_id };
        let rows = rows.into_iter().filter_map(ops::listed).map(listed_request).collect();
        Ok(SearchPage { rows, searched_to: end.map(place) })
    }

    async fn requests_by_ids(
        &self,
        ids: &[Uuid],
        limits: &ScopeLimits,
    ) -> Result<Vec<ListedRequest>, StoreError> {
        let find = ops::ByIds::new::<Db>(ids, limits);
        let rows =
            self.search("find requests", move |conn| find.rows::<ops::StoredListed>(conn)).await?;
        Ok(rows.into_iter().filter_map(ops::listed).map(listed_request).collect())
    }

    async fn find_request(
        &self,
        at: RequestAt<'_>,
        limits: &ScopeLimits,
    ) -> Result<Option<FoundRequest>, StoreError> {
        let find = ops::Find::new::<Db>(at, limits);
        let rows = self
            .search("find a request", move |conn| {
                find.rows::<(String, String, sql::StoredRow)>(conn)
            })
            .await?;
        let found = rows.into_iter().next();
        found.map(|(scope, key, row)| found_request((scope, key, sql::row(row)?))).transpose()
    }

    async fn events(&self, found: &FoundRequest) -> Result<StoredEvents, StoreError> {
        let events = ops::Events {
            scope: found.scope.as_str().to_owned(),
            key: found.key.as_str().to_owned(),
            request_id: found.row.request_id.as_bytes().to_vec(),
        };
        let load =
            move |conn: &mut SqliteConnection| events.rows::<(Option<String>, Option<i32>)>(conn);
        let rows = self.search("read the events of a request", load).await?;
        let (text, written) = rows.into_iter().next().unwrap_or_default();
        Ok(StoredEvents::of(text, written))
    }

    async fn count_waiting(&self, limits: &ScopeLimits) -> Result<WaitingCounts, StoreError> {
        let count = ops::Count::new::<Db>(limits);
        let load = move |conn: &mut SqliteConnection| count.rows::<Counted<i64>>(conn);
        let rows = self.search("count what waits", load).await?;
        Ok(WaitingCounts::of(rows, DateTime::from_timestamp_millis))
    }

    async fn claim_census(&self, lease: CensusLease) -> Result<bool, StoreError> {
        let holder = lease.holder.as_bytes().to_vec();
        let lease_ms = millis(lease.length);
        let claim = census_sql::ClaimCensus { holder, lease_ms };
        Ok(self.run("claim the census", move |conn| claim.execute(conn)).await? == 1)
    }

    async fn unfinished(
        &self,
        limits: &ScopeLimits,
        paused: &str,
    ) -> Result<Vec<CensusGroup>, StoreError> {
        let groups = census_sql::Groups::of::<Db>(limits, paused);
        let load = move |conn: &mut SqliteConnection| groups.rows::<census_sql::Grouped>(conn);
        let groups = self.search("count unfinished requests", load).await?;
        Ok(groups.into_iter().filter_map(census_sql::group).map(census_group).collect())
    }

    async fn operators_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let load = |conn: &mut SqliteConnection| sql::Now {}.rows::<i64>(conn);
        let rows = self.search("tell the time", load).await?;
        sql::time(rows.into_iter().next().unwrap_or(-1), "now")
    }

    async fn job_census(&self) -> Result<JobCensus, StoreError> {
        let load =
            |conn: &mut SqliteConnection| census_sql::Jobs {}.rows::<census_sql::JobsRow>(conn);
        let jobs = self.search("count staged jobs", load).await?;
        Ok(jobs.into_iter().next().map(JobCensus::in_millis).unwrap_or_default())
    }

    async fn jobs_of(
        &self,
        scope: &Scope,
        request_id: Uuid,
    ) -> Result<Vec<OperatedJob>, StoreError> {
        let jobs = ops::JobsOf {
            scope: scope.as_str().to_owned(),
            request_id: request_id.as_bytes().to_vec(),
        };
        let rows = self
            .search("list a request's jobs", move |conn| jobs.rows::<ops::StoredJob>(conn))
            .await?;
        Ok(rows.into_iter().filter_map(ops::operated).map(operated_job).collect())
    }

    async fn dead_jobs_after(
        &self,
        limits: &ScopeLimits,
        (staged_at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<SearchPage<OperatedJob, (DateTime<Utc>, Uuid)>, StoreError> {
        let (staged_at, id) = (staged_at.timestamp_millis(), id.as_bytes().to_vec());
        let end = ops::EndOfDeadJobs { staged_at, id: id.clone() };
        let allowed = Allowed::by::<Db>(limits);
        let rows = ops::DeadJobsAfter { staged_at, id, allowed, limit: limit.into() };
        let (rows, searched_to) = self
            .search("list dead jobs", move |conn| {
                let found = rows.rows::<ops::StoredJob>(conn)?;
                page_of(found, limit, || end.rows(conn))
            })
            .await?;
        let rows = rows.into_iter().filter_map(ops::operated).map(operated_job).collect();
        Ok(SearchPage { rows, searched_to })
    }

    async fn late_jobs(
        &self,
        limits: &ScopeLimits,
        limit: u32,
    ) -> Result<Vec<OperatedJob>, StoreError> {
        let allowed = Allowed::by::<Db>(limits);
        let jobs = ops::LateJobs { late_ms: LATE_MS, allowed, limit: limit.into() };
        let rows =
            self.search("list late jobs", move |conn| jobs.rows::<ops::StoredJob>(conn)).await?;
        Ok(rows.into_iter().filter_map(ops::operated).map(operated_job).collect())
    }

    async fn dead_job(
        &self,
        limits: &ScopeLimits,
        id: Uuid,
    ) -> Result<Option<OperatedJob>, StoreError> {
        let job = ops::DeadJob { id: id.as_bytes().to_vec(), allowed: Allowed::by::<Db>(limits) };
        let rows =
            self.search("find a dead job", move |conn| job.rows::<ops::StoredJob>(conn)).await?;
        Ok(rows.into_iter().filter_map(ops::operated).map(operated_job).next())
    }

    async fn settle_job(&self, act: &JobAct<'_>) -> Result<bool, StoreError> {
        let (scope, job_id) = (act.scope.to_owned(), act.id.as_bytes().to_vec());
        let attempts = act.attempts.cast_signed();
        let audit = Some(ops::InsertAudit::of(act.audit));
        match act.fate {
            JobFate::Retry => {
                let retry = ops::RetryJob { scope, job_id, attempts };
                self.together("settle a dead job", retry, audit).await
            }
            JobFate::Discard => {
                let discard = ops::DiscardDeadJob { scope, job_id, attempts };
                self.together("settle a dead job", discard, audit).await
            }
        }
    }

    async fn announce(&self, entry: &NodeEntry) -> Result<(), StoreError> {
        let announce = node_sql::Announce::new(entry);
        let announced = self.run("announce the process", move |conn| {
            node_sql::Forget {}.execute(conn)?;
            announce.execute(conn)
        });
        announced.await.map(drop)
    }

    async fn depart(&self, id: Uuid) -> Result<(), StoreError> {
        let depart = node_sql::Depart { id: id.as_bytes().to_vec() };
        self.run("take the process away", move |conn| depart.execute(conn)).await.map(drop)
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let read =
            |conn: &mut SqliteConnection| node_sql::Nodes {}.rows::<node_sql::StoredNode>(conn);
        let rows = self.search("read the processes", read).await?;
        Ok(rows.into_iter().filter_map(node_sql::stored_node).map(node).collect())
    }

    async fn saw_a_node(&self, within: TimeDelta) -> Result<bool, StoreError> {
        let look = node_sql::SawNode { within_ms: within.num_milliseconds() };
        let saw = self.search("look for a process", |conn| look.rows::<i64>(conn)).await?;
        Ok(saw == [1])
    }

    async fn list_pauses(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let read = |conn: &mut SqliteConnection| ops::Pauses {}.rows::<ops::StoredPause>(conn);
        Ok(paused(self.search("read the pauses", read).await?))
    }

    async fn set_pause(&self, act: &PauseAct<'_>) -> Result<bool, StoreError> {
        let (definition, phase) = (act.definition.to_owned(), act.phase.to_owned());
        let (reason, paused_by) = (act.audit.reason.clone(), act.audit.actor.clone());
        let audit = ops::AuditPause::of(act);
        let hold = matches!(act.what, PauseWhat::Begin(_))
            .then(|| ops::HoldPause { definition: definition.clone(), phase: phase.clone() });
        // For how long it is paused; `None`: it is not paused any more.
        let pause = match act.what {
            PauseWhat::Begin(length) | PauseWhat::Replace(_, length) => Some(length.map(millis)),
            PauseWhat::End(_) => None,
        };
        let written = self.run("pause a phase, or end that", move |conn| {
            let written = conn.immediate_transaction(|conn| {
                if let Some(hold) = hold {
                    hold.execute(conn)?;
                }
                // Before the write, so that it says what that replaces.
                if audit.execute(conn)? == 0 {
                    return Err(Error::RollbackTransaction);
                }
                match pause {
                    Some(for_ms) => {
                        ops::PausePhase { definition, phase, reason, paused_by, for_ms }
                            .execute(conn)?
                    }
                    None => ops::UnpausePhase { definition, phase }.execute(conn)?,
                };
                Ok(true)
            });
            match written {
                Err(Error::RollbackTransaction) => Ok(false),
                written => written,
            }
        });
        written.await
    }

    async fn start_bulk(&self, bulk: &NewBulk<'_>) -> Result<(), StoreError> {
        let id = bulk.id.as_bytes().to_vec();
        let start = bulk_sql::StartBulk {
            id: id.clone(),
            act: bulk.act.to_owned(),
            actor: bulk.audit.actor.clone(),
            reason: bulk.audit.reason.clone(),
            limits: limits_text(bulk.limits),
            items: bulk.items.len() as i64,
        };
        let (items, audit) = (bulk.items.to_vec(), ops::InsertAudit::of(bulk.audit));
        let started = self.run("start a bulk act", move |conn| {
            conn.immediate_transaction(|conn| {
                start.execute(conn)?;
                for (position, (request_id, seen)) in (0..).zip(items) {
                    let (id, request_id) = (id.clone(), request_id.as_bytes().to_vec());
                    ops::AddItem { id, position, request_id, seen }.execute(conn)?;
                }
                audit.execute(conn)
            })
        });
        started.await.map(drop)
    }

    async fn bulks(
        &self,
        (started_at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<Vec<BulkRow>, StoreError> {
        let (started_at, id) = (started_at.timestamp_millis(), id.as_bytes().to_vec());
        let bulks = bulk_sql::Bulks { started_at, id, limit: limit.into() };
        let load = move |conn: &mut SqliteConnection| bulks.rows::<bulk_sql::StoredBulk>(conn);
        let rows = self.search("list bulk acts", load).await?;
        Ok(rows.into_iter().filter_map(bulk_sql::bulk).map(bulk_row).collect())
    }

    async fn counted_bulks(&self, bulks: &[BulkRow]) -> Result<Vec<BulkRow>, StoreError> {
        let counted = bulk_sql::CountedBulks::of::<Db>(bulks);
        let load = move |conn: &mut SqliteConnection| counted.rows::<bulk_sql::StoredBulk>(conn);
        let rows = self.search("count what bulk acts did", load).await?;
        Ok(rows.into_iter().filter_map(bulk_sql::bulk).map(bulk_row).collect())
    }

    async fn bulk(&self, id: Uuid) -> Result<Option<BulkRow>, StoreError> {
        let bulk = bulk_sql::Bulk { id: id.as_bytes().to_vec() };
        let load = move |conn: &mut SqliteConnection| bulk.rows::<bulk_sql::StoredBulk>(conn);
        let rows = self.search("find a bulk act", load).await?;
        Ok(rows.into_iter().filter_map(bulk_sql::bulk).map(bulk_row).next())
    }

    async fn bulk_items(
        &self,
        id: Uuid,
        part: BulkPart,
        limit: u32,
    ) -> Result<Vec<BulkItem>, StoreError> {
        let all = part == BulkPart::All;
        let items = bulk_sql::BulkItems { id: id.as_bytes().to_vec(), all, limit: limit.into() };
        let load = move |conn: &mut SqliteConnection| items.rows::<bulk_sql::StoredItem>(conn);
        let rows = self.search("read a bulk act", load).await?;
        Ok(rows.into_iter().filter_map(bulk_sql::item).map(bulk_item).collect())
    }

    async fn open_bulks(&self, limit: u32) -> Result<Vec<BulkRow>, StoreError> {
        let open = bulk_sql::OpenBulks { limit: limit.into() };
        let load = move |conn: &mut SqliteConnection| open.rows::<bulk_sql::StoredBulk>(conn);
        let rows = self.search("search for bulk acts", load).await?;
        Ok(rows.into_iter().filter_map(bulk_sql::bulk).map(bulk_row).collect())
    }

    async fn claim_bulk(&self, claim: &BulkClaim) -> Result<bool, StoreError> {
        let BulkClaim { id, token, lease } = *claim;
        let (id, lease_ms) = (id.as_bytes().to_vec(), millis(lease));
        let claim = bulk_sql::ClaimBulk { token, lease_ms, id };
        let claimed = self.run("claim a bulk act", move |conn| claim.execute(conn)).await?;
        Ok(claimed == 1)
    }

    async fn settle_bulk_item(&self, item: &SettledItem<'_>) -> Result<bool, StoreError> {
        let settle = bulk_sql::SettleItem {
            outcome: item.outcome.to_owned(),
            because: item.because.map(str::to_owned),
            id: item.bulk_id.as_bytes().to_vec(),
            position: item.position.into(),
            token: item.token,
        };
        let audit = item.audit.map(ops::InsertAudit::of);
        self.together("settle a part of a bulk act", settle, audit).await
    }

    async fn leave_bulk(&self, id: Uuid, token: i64) -> Result<(), StoreError> {
        let leave = bulk_sql::LeaveBulk { id: id.as_bytes().to_vec(), token };
        self.run("leave a bulk act", move |conn| leave.execute(conn)).await.map(drop)
    }

    async fn stop_bulk(&self, id: Uuid, audit: &AuditEntry) -> Result<bool, StoreError> {
        let (by, id) = (audit.actor.clone(), id.as_bytes().to_vec());
        let stop = bulk_sql::StopBulk { by, id };
        self.together("stop a bulk act", stop, Some(ops::InsertAudit::of(audit))).await
    }

    async fn record(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let audit = ops::InsertAudit::of(entry);
        self.run("write the audit", move |conn| audit.execute(conn)).await.map(drop)
    }

    async fn audit_before(
        &self,
        limits: &ScopeLimits,
        search: &AuditSearch,
        (at, id): (DateTime<Utc>, Uuid),
        limit: u32,
    ) -> Result<SearchPage<Audited, (DateTime<Utc>, Uuid)>, StoreError> {
        let place_of = (at.timestamp_millis(), id.as_bytes().to_vec());
        let rows = ops::Audit::new::<Db>(search, place_of.clone(), limits, limit);
        let end = ops::EndOfAudit::new(search, place_of);
        let (rows, searched_to) = self
            .search("read the audit", move |conn| {
                let found = rows.rows::<ops::StoredAudit>(conn)?;
                page_of(found, limit, || end.rows(conn))
            })
            .await?;
        let rows = rows.into_iter().filter_map(ops::audit).map(audited).collect();
        Ok(SearchPage { rows, searched_to })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;
    use crate::store::{Store, WorkerStore};

    /// SQLite's searches cannot be interrupted.
    #[tokio::test(flavor = "multi_thread")]
    async fn g16_health_checks_and_workers_do_not_wait_for_a_search_of_operators() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.db");
        let db = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
        db.migrate().await.unwrap();
        let ((begin, begun), (end, ends)) = (oneshot::channel(), mpsc::channel::<()>());
        let searching = db.search("search for long", move |_| {
            let _ = begin.send(());
            let _ = ends.recv();
            Ok(())
        });
        let others = async {
            begun.await.unwrap();
            let limits = ScopeLimits::default();
            let asked = async {
                db.for_probes().dead_job(&limits, Uuid::nil()).await.unwrap();
                db.for_workers().unfinished(&limits, "paused").await.unwrap();
                db.paused_phases().await.unwrap();
            };
            let asked = tokio::time::timeout(Duration::from_secs(5), asked).await;
            drop(end);
            asked.expect("they wait for no search");
        };
        let (searched, ()) = tokio::join!(searching, others);
        searched.unwrap();
    }

    /// Operators' connections are opened for their first search.
    #[tokio::test]
    async fn connections_that_are_opened_later_do_not_depend_on_the_directory_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let folder = folder.to_str().unwrap();
        let above = std::env::current_dir().unwrap().components().count() - 1;
        let relative = format!("{}{}", "../".repeat(above), folder.trim_start_matches('/'));
        for (url, later) in [
            (format!("{relative}/a%3f.db"), format!("{folder}/a%3f.db")),
            (format!("sqlite://{relative}/b.db"), format!("file:{folder}/b.db")),
            (
                format!("file:{relative}/c%23%3f%25.db?mode=rwc"),
                format!("file:{folder}/c%23%3f%25.db?mode=rwc"),
            ),
        ] {
            let db = Sqlite::connect(&url).await.unwrap();
            assert_eq!(db.operators.own.as_ref().unwrap().url, later);
            db.migrate().await.unwrap();
            db.list_pauses().await.expect("it is the same file");
        }
    }
}
