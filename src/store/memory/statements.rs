//! The engine's statements on a key's row, as the server executes them. Each says what the SQL of the same name
//! says in the PostgreSQL store.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::result::DatabaseErrorKind;
use uuid::Uuid;

use super::error::{MARK_EXISTS, MARK_FENCED, MARK_LEFT, error};
use super::next_state::{Birth, Guarded, NextState, TakeOver};
use super::record::{KeyRecord, Place, Record, after};
use super::session::Session;
use crate::store::{Hold, Status};

fn mark(mark: &str) -> diesel::result::Error {
    error(DatabaseErrorKind::Unknown, mark)
}

/// Whether a statement waits for a row that another transaction holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    ForTheLock,
    No,
}

/// Whether a transaction that keeps what it saw at its beginning has the lock of the key's row.
pub(super) enum Pinned {
    Locked,
    OfAnother,
    Gone,
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

    /// `UPDATE … WHERE …` of one row: what the statement sees is judged first, then the newest version
    /// behind the lock. `None` where no row matches; `change` may delete it.
    pub(super) async fn update(
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
        // A row that exists and is not being changed needs no lock to be seen.
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
}
