//! Bulk acts in the store in memory.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use futures_util::FutureExt;
use uuid::Uuid;

use super::record::{AuditRecord, BulkRecord, ItemRecord, Time};
use super::session::Session;
use super::{Memory, audited};
use crate::definition::Isolation;
use crate::store::StoreError;
use crate::store::bulk::{BulkRow, NewBulk, bulk_row, limits_text};

/// What is changed of a bulk act, at a time.
type Changing = Box<dyn FnOnce(&mut BulkRecord, DateTime<Utc>) + Send>;

/// A change of one bulk act, with what has to be so, and the audit row of it.
pub(super) struct BulkChange {
    pub(super) id: Uuid,
    pub(super) matches: Box<dyn Fn(&BulkRecord) -> bool + Send + Sync>,
    pub(super) change: Changing,
    pub(super) audit: Option<AuditRecord>,
}

async fn insert(session: &mut Session, bulk: BulkRecord, audit: AuditRecord) -> QueryResult<()> {
    session.begin(Isolation::ReadCommitted)?;
    let inserted = match session.insert_bulk(bulk).await {
        Ok(()) => audited(session, Some(audit)).await,
        Err(error) => Err(error),
    };
    session.conclude(inserted).await
}

async fn change(session: &mut Session, change: BulkChange) -> QueryResult<bool> {
    let BulkChange { id, matches, change, audit } = change;
    session.begin(Isolation::ReadCommitted)?;
    let changed = match session.update_bulk(id, matches, change).await {
        Ok(true) => audited(session, audit).await.map(|()| true),
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
