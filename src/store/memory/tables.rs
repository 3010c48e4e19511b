//! The engine's smaller tables, as the server reads and writes them: the audit, pauses, bulk acts.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::result::DatabaseErrorKind;
use uuid::Uuid;

use super::error::error;
use super::record::{AuditRecord, BulkRecord, PauseRecord, Place, Record, Time};
use super::session::Session;
use super::statements::Wait;
use crate::store::row::whole_millis;

impl Session {
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

    /// Writes a row of it, or deletes one, if what is there is as it was seen. `false`: it is not.
    pub(super) async fn write_pause(
        &mut self,
        place: Place,
        is_as_seen: impl Fn(Option<&PauseRecord>) -> bool + Send,
        pause: Option<PauseRecord>,
    ) -> QueryResult<bool> {
        self.statement()?;
        let locked = self.locked(&place).await?;
        let newest = locked.newest(&place);
        let is_as_seen = is_as_seen(newest.as_deref().and_then(Record::pause));
        if is_as_seen {
            locked.write(place, pause.map(Record::Pause));
        }
        Ok(is_as_seen)
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
}
