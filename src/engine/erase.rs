//! [`Engine::erase`]: removes user data from settled requests, and leaves a tombstone.

use std::time::Duration;

use super::resolve::Resolved;
use super::{Core, Engine};
use crate::key::{IdempotencyKey, Scope};
use crate::observe::{self, Subject};
use crate::store::{Erase, EraseAct, Halving, Refused, SettledKey, Status, Store, StoreError};

/// How many rows one statement of [`Engine::erase_scope`] reads or changes at most.
const BATCH: u32 = 1000;

/// How many rows one statement counts at most: some ten milliseconds.
const COUNTED: u32 = 10_000;

/// How long a server takes to notice that the client has closed a connection on which it did not answer in time, and to undo
/// that statement. Until then its rows are locked, and would be passed over.
const UNDONE_WITHIN: Duration = Duration::from_secs(2);

/// The result of [`Engine::erase_scope`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErasedScope {
    /// How many requests were erased now.
    pub erased: u64,
    /// How many are left, because they are not settled or their staged jobs are not delivered: repeat
    /// the call once they are.
    pub left: u64,
    /// How many of these are settled, but the server refuses to change their row, for example because a trigger of the
    /// application raises an error. The log names each once a minute, or, if there are very many, one in each second;
    /// [`Engine::erase`] returns the server's error for one.
    pub refused: u64,
}

/// Why a request was not erased. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EraseError {
    /// There is no row under this key, and no staged job of a former one.
    #[error("there is no request under this key; check the scope and the key")]
    NoSuchKey,
    /// It is running, or waits to be run or reconciled. Let it end, or
    /// [resolve](Engine::resolve) it.
    #[error("the request is {}, and not settled: let it end or resolve it first", status.as_str())]
    NotSettled {
        /// Where it stands.
        status: Status,
    },
    /// Jobs that it staged are still to be delivered. Erased, they would be lost (G18).
    #[error("the request has staged jobs that are not delivered yet: erase it once they are")]
    JobsWaiting,
    /// The row has changed since the operator read it: read it again.
    #[error("the request has changed since it was read: read it again")]
    MovedOn,
    /// Another transaction holds the lock of its row, or of one of its staged jobs.
    #[error("the request is in use: try again")]
    InUse,
    /// The store could not be read or written.
    #[error("the store is unavailable; repeat the erasure")]
    Unavailable(#[source] StoreError),
}

impl From<StoreError> for EraseError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Locked => Self::InUse,
            error => Self::Unavailable(error),
        }
    }
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// Erases a settled request: deletes its parameters, context, outputs, reply and fingerprint, and those of
    /// its staged jobs that are dead letters. A tombstone stays: scope, key,
    /// definition, times, counts and the reply's status. It keeps the key from running again for the
    /// rest of its retention (a dead letter is closed, and its retention starts now), and is
    /// then reaped like any finished key. Until then, every call with the key, with the same
    /// parameters or with others, gets [`Outcome::Erased`](crate::Outcome::Erased), over HTTP 410.
    ///
    /// Staged jobs outlive their key: if the key was reaped, this erases its staged jobs that
    /// are dead letters.
    ///
    /// With a [replay cache](crate::replay_cache::CachedReplays#erasure), once this has returned, no call gets the answer
    /// from the cache either; see there for a cache that does not confirm the erasure.
    ///
    /// The definition of the request need not be registered here. Erasing is idempotent.
    /// It does not erase business tables, backups, or the database's own log and dead rows.
    ///
    /// # Errors
    /// [`EraseError`]: the request is not settled, or its staged jobs are not delivered.
    pub async fn erase(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), EraseError> {
        match self.core.erase(scope, key, None).await? {
            Some(_) => Ok(()),
            None => self.erase_reaped(scope, key).await,
        }
    }

    /// What is left of a request whose key was reaped.
    async fn erase_reaped(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), EraseError> {
        if self.core.store.count_orphans(scope, Some(key)).await? > 0 {
            return Err(EraseError::JobsWaiting);
        }
        match self.erase_orphaned_jobs(scope, Some(key)).await? {
            0 => Err(EraseError::NoSuchKey),
            _ => Ok(()),
        }
    }

    async fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> Result<u64, StoreError> {
        let mut sum = 0;
        loop {
            let erased = self.core.store.erase_orphaned_jobs(scope, key, BATCH).await?;
            sum += u64::from(erased);
            // Fewer than were searched for may be erased: others are revived in between. There may be more behind those.
            if erased == 0 {
                return Ok(sum);
            }
        }
    }

    /// [Erases](Self::erase) all settled requests of a scope, a thousand at a time, and the dead staged jobs of
    /// those whose key was reaped. A request whose row the server [refuses](ErasedScope::refused) to change blocks no
    /// other. If a thousand take too long for the server to answer, fewer are erased at a time.
    ///
    /// # Errors
    /// [`StoreError`]; what was erased so far stays erased, and the next call continues. It is also an error if nothing was
    /// erased because the server refuses every settled request.
    pub async fn erase_scope(&self, scope: &Scope) -> Result<ErasedScope, StoreError> {
        let erased = self.core.buried(scope, None, self.erase_rows(scope)).await;
        // Also where the server refuses each row that is left: these jobs have none.
        self.erase_orphaned_jobs(scope, None).await?;
        let (mut sum, store) = (erased?, &self.core.store);
        sum.left = self.count_unerased(scope).await? + store.count_orphans(scope, None).await?;
        Ok(sum)
    }

    /// How many rows of the scope are not erased.
    async fn count_unerased(&self, scope: &Scope) -> Result<u64, StoreError> {
        let (mut sum, mut after) = (0, String::new());
        loop {
            let page = self.core.store.count_unerased(scope, &after, COUNTED).await?;
            sum += page.0;
            match page.1 {
                Some(last) => after = last,
                None => return Ok(sum),
            }
        }
    }

    /// All settled rows of the scope.
    async fn erase_rows(&self, scope: &Scope) -> Result<ErasedScope, StoreError> {
        let mut erasure = ScopeErasure {
            store: &self.core.store,
            scope,
            retention: self.core.settings.retention,
            after: String::new(),
            at_a_time: BATCH as usize,
            has_probed: false,
            sum: ErasedScope::default(),
            refused: None,
        };
        while erasure.erase_page().await? {}
        match erasure.refused {
            Some(error) if erasure.sum.erased == 0 => Err(error),
            _ => Ok(erasure.sum),
        }
    }
}

/// The erasure of a scope's settled rows, from the first key to the last: each statement begins behind what was read for
/// those before it, whatever became of that.
struct ScopeErasure<'a, S> {
    store: &'a S,
    scope: &'a Scope,
    retention: Duration,
    /// The next page begins behind this key.
    after: String,
    /// How many rows are erased at a time, at most.
    at_a_time: usize,
    has_probed: bool,
    sum: ErasedScope,
    /// What the server said of the last row that it refused.
    refused: Option<StoreError>,
}

impl<S: Store> ScopeErasure<'_, S> {
    /// Erases the rows of the next page, and says whether there may be another page.
    async fn erase_page(&mut self) -> Result<bool, StoreError> {
        let page = self.store.keys_to_erase(self.scope, &self.after, BATCH).await?;
        for rows in page.rows.chunks(self.at_a_time) {
            let mut parts = Halving::of(rows);
            while let Some(part) = parts.next_part() {
                let (Some(first), Some(last)) = (part.first(), part.last()) else { break };
                match self.erase_between(&first.key, &last.key).await {
                    Ok(erased) => {
                        self.sum.erased += u64::from(erased);
                        observe::erased(erased);
                    }
                    Err(error) => match parts.refused(part, error)? {
                        Refused::Halved => {
                            self.probe().await?;
                            continue;
                        }
                        Refused::TooSlow(_) => {
                            self.at_a_time = part.len() / 2;
                            tokio::time::sleep(UNDONE_WITHIN).await;
                            return Ok(true);
                        }
                        // Another transaction has locked what belongs to it: it is left.
                        Refused::One(StoreError::Locked) => {}
                        Refused::One(error) => self.refuse(last, error),
                    },
                }
                self.after.clone_from(&last.key);
            }
        }
        let Some(next) = page.next else { return Ok(false) };
        self.after = next;
        Ok(true)
    }

    async fn erase_between(&self, first: &str, last: &str) -> Result<u32, StoreError> {
        self.store.erase_between(self.scope, (first, last), self.retention).await
    }

    /// Erases no row, once. If even that is refused, the reason is not in the rows.
    async fn probe(&mut self) -> Result<(), StoreError> {
        if !std::mem::replace(&mut self.has_probed, true) {
            self.erase_between("", "").await?;
        }
        Ok(())
    }

    fn refuse(&mut self, row: &SettledKey, error: StoreError) {
        self.sum.refused += 1;
        // An invalid key: the row was written by hand.
        if let Ok(key) = IdempotencyKey::new(&row.key) {
            let (definition, request_id) = (&row.definition, row.request_id);
            let subject = Subject { definition, request_id, scope: self.scope, key: &key };
            observe::not_erased(subject, error.kind());
        }
        self.refused = Some(error);
    }
}

impl<S: Store> Core<S> {
    /// Erases the row of this key, with an operator's audit row where there is one. `None`: there is no row.
    pub(crate) async fn erase(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        act: Option<EraseAct<'_>>,
    ) -> Result<Option<Resolved>, EraseError> {
        self.buried(scope, Some(key), self.erase_row(scope, key, act)).await
    }

    async fn erase_row(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        act: Option<EraseAct<'_>>,
    ) -> Result<Option<Resolved>, EraseError> {
        let retention = match self.has_no_code() {
            true => self.retention_of(scope, key).await?,
            false => self.settings.retention,
        };
        let erase = Erase { scope, key, retention, act };
        if self.store.erase_key(&erase).await? > 0 {
            observe::erased(1);
            return Ok(Some(Resolved::Applied));
        }
        let Some(row) = self.store.read_key(scope, key).await? else { return Ok(None) };
        match row.status {
            Status::Completed if row.is_erased() => Ok(Some(Resolved::Already)),
            _ if act.is_some_and(|act| !act.seen.is(&row)) => Err(EraseError::MovedOn),
            Status::Completed | Status::DeadLetter => Err(EraseError::JobsWaiting),
            status => Err(EraseError::NotSettled { status }),
        }
    }

    /// How long the application keeps a key, as the key's row tells a process that has none of its code: at least.
    async fn retention_of(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Duration, StoreError> {
        let row = self.store.read_key(scope, key).await?;
        let kept = row.and_then(|row| (row.expires_at - row.created_at).to_std().ok());
        Ok(self.settings.retention.max(kept.unwrap_or_default()))
    }
}
