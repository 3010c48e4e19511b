//! What operators ask PostgreSQL for: each search in a transaction that reads only and has a time limit, on
//! connections that no request waits for. Health checks and workers search in the same way.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use diesel::result::Error;
use diesel_async::RunQueryDsl;
use futures_util::future::join3;
use uuid::Uuid;

use super::census as census_sql;
use super::ops_bulk as bulk_sql;
use super::ops_nodes as node_sql;
use super::ops_statements as ops;
use super::pool::Pool;
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

impl<P: Pool> Postgres<P> {
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
