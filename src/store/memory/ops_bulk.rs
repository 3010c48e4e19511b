//! Bulk acts in the store in memory.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use futures_util::FutureExt;
use uuid::Uuid;

use super::Memory;
use super::record::{AuditRecord, BulkRecord, ItemRecord, Time};
use super::round_trips::write_audit;
use super::session::Session;
use crate::definition::Isolation;
use crate::store::StoreError;
use crate::store::audit::AuditEntry;
use crate::store::bulk::{BulkClaim, BulkRow, NewBulk, SettledItem, bulk_row, limits_text};
use crate::store::row::whole_millis;

/// What is changed of a bulk act, at a time.
type Changing = Box<dyn FnOnce(&mut BulkRecord, DateTime<Utc>) + Send>;

/// A change of one bulk act, with what has to be so, and the audit row of it.
pub(super) struct BulkChange {
    id: Uuid,
    matches: Box<dyn Fn(&BulkRecord) -> bool + Send + Sync>,
    change: Changing,
    audit: Option<AuditRecord>,
}

impl BulkChange {
    pub(super) fn claim(claim: &BulkClaim) -> Self {
        let BulkClaim { id, token, lease } = *claim;
        Self {
            id,
            matches: Box::new(move |bulk| bulk.lease_token == token && bulk.ended_at.is_none()),
            change: Box::new(move |bulk, now| {
                bulk.lease_token += 1;
                bulk.locked_until = Some(Time(now + lease));
            }),
            audit: None,
        }
    }

    pub(super) fn settle(item: &SettledItem<'_>) -> Self {
        let (token, position) = (item.token, item.position as usize);
        let (outcome, because) = (item.outcome.to_owned(), item.because.map(str::to_owned));
        Self {
            id: item.bulk_id,
            matches: Box::new(move |bulk| {
                let is_open = |item: &ItemRecord| item.outcome.is_none();
                bulk.lease_token == token && bulk.items.get(position).is_some_and(is_open)
            }),
            change: Box::new(move |bulk, _| {
                if let Some(item) = bulk.items.get_mut(position) {
                    (item.outcome, item.because) = (Some(outcome), because);
                }
            }),
            audit: item.audit.map(AuditRecord::of),
        }
    }

    /// Ends a slice, and the bulk act where nothing is left of it.
    pub(super) fn leave(id: Uuid, token: i64) -> Self {
        Self {
            id,
            matches: Box::new(move |bulk| bulk.lease_token == token && bulk.ended_at.is_none()),
            change: Box::new(|bulk, now| {
                bulk.locked_until = None;
                let is_over = bulk.stopped_by.is_some()
                    || bulk.items.iter().all(|item| item.outcome.is_some());
                bulk.ended_at = is_over.then(|| Time(whole_millis(now)));
            }),
            audit: None,
        }
    }

    pub(super) fn stop(id: Uuid, audit: &AuditEntry) -> Self {
        let by = audit.actor.clone();
        Self {
            id,
            matches: Box::new(|bulk| bulk.ended_at.is_none() && bulk.stopped_by.is_none()),
            change: Box::new(move |bulk, now| {
                bulk.ended_at = bulk.locked_until.is_none().then(|| Time(whole_millis(now)));
                bulk.stopped_by = Some(by);
            }),
            audit: Some(AuditRecord::of(audit)),
        }
    }
}

async fn insert(session: &mut Session, bulk: BulkRecord, audit: AuditRecord) -> QueryResult<()> {
    session.begin(Isolation::ReadCommitted)?;
    let inserted = match session.insert_bulk(bulk).await {
        Ok(()) => write_audit(session, Some(audit)).await,
        Err(error) => Err(error),
    };
    session.conclude(inserted).await
}

async fn change(session: &mut Session, change: BulkChange) -> QueryResult<bool> {
    let BulkChange { id, matches, change, audit } = change;
    session.begin(Isolation::ReadCommitted)?;
    let changed = match session.update_bulk(id, matches, change).await {
        Ok(true) => write_audit(session, audit).await.map(|()| true),
        unchanged => unchanged,
    };
    session.conclude(changed).await
}

async fn read(session: &mut Session) -> QueryResult<Vec<BulkRecord>> {
    session.begin(Isolation::ReadCommitted)?;
    let bulks = session.read_bulks();
    session.conclude(bulks).await
}

/// As the statements of the other stores tell it.
pub(super) fn row(bulk: &BulkRecord) -> BulkRow {
    let count =
        |is: &dyn Fn(&ItemRecord) -> bool| bulk.items.iter().filter(|item| is(item)).count();
    let settled = count(&|item| item.outcome.is_some());
    let applied = count(&|item| item.outcome.as_deref() == Some("applied"));
    let items = i32::try_from(bulk.items.len()).unwrap_or(i32::MAX);
    let said = (bulk.id.uuid(), bulk.act.clone(), bulk.actor.clone(), bulk.reason.clone());
    let ended_at = bulk.ended_at.map(|time| time.0);
    bulk_row((
        said,
        (bulk.limits.clone(), items, settled as i64, applied as i64),
        (bulk.started_at.0, ended_at, bulk.stopped_by.clone(), bulk.lease_token),
    ))
}

impl Memory {
    /// All bulk acts, the oldest first.
    pub(super) async fn read_bulks(&self) -> Result<Vec<BulkRecord>, StoreError> {
        let mut bulks =
            self.ask_again("read the bulk acts", |session| read(session).boxed()).await?;
        bulks.sort_by_key(|bulk| (bulk.started_at, bulk.id.uuid()));
        Ok(bulks)
    }

    pub(super) async fn insert_bulk(&self, bulk: &NewBulk<'_>) -> Result<(), StoreError> {
        let item = |(request_id, seen): &(Uuid, String)| ItemRecord {
            request_id: (*request_id).into(),
            seen: seen.clone(),
            outcome: None,
            because: None,
        };
        let record = BulkRecord {
            id: bulk.id.into(),
            act: bulk.act.to_owned(),
            actor: bulk.audit.actor.clone(),
            reason: bulk.audit.reason.clone(),
            limits: limits_text(bulk.limits),
            // The database says when.
            started_at: Time(DateTime::UNIX_EPOCH),
            ended_at: None,
            stopped_by: None,
            lease_token: 0,
            locked_until: None,
            items: bulk.items.iter().map(item).collect(),
        };
        let audit = AuditRecord::of(bulk.audit);
        self.ask("start a bulk act", move |session| insert(session, record, audit).boxed()).await
    }

    pub(super) async fn change_bulk(&self, bulk: BulkChange) -> Result<bool, StoreError> {
        self.ask("change a bulk act", move |session| change(session, bulk).boxed()).await
    }
}
