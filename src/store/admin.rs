//! What is done by hand, through the engine: erasures, the number of dead jobs, and the surveys of `check`.

use std::future::Future;
use std::time::Duration;

use super::{Erase, Page, SettledKey, StoreError, SurveyedJob, SurveyedRow};
use crate::key::{IdempotencyKey, Scope};

/// The part of a [`Store`](super::Store) that operators and deploys need, beside
/// [`OperatorStore`](super::operators::OperatorStore).
#[doc(hidden)]
pub trait AdminStore: Send + Sync {
    /// Takes what users gave out of a settled row, and deletes its dead jobs: one guarded statement. Says
    /// how many rows there were: none that is unfinished, or that has jobs to be delivered.
    fn erase_key(&self, erase: &Erase<'_>) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// The same of the settled rows of the scope from one key to another, but for those that another
    /// transaction has locked. If the server refuses one, none is erased, and the result is an error. Their dead
    /// jobs may be left to [`erase_orphaned_jobs`](Self::erase_orphaned_jobs).
    fn erase_between(
        &self,
        scope: &Scope,
        keys: (&str, &str),
        retention: Duration,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Reads `limit` rows of the scope behind this key. Of these, those that [`erase_key`](Self::erase_key) may take.
    fn keys_to_erase(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> impl Future<Output = Result<Page<SettledKey, String>, StoreError>> + Send;

    /// Reads `limit` rows of the scope behind this key: how many are not erased, and where the next page begins.
    fn count_unerased(
        &self,
        scope: &Scope,
        after: &str,
        limit: u32,
    ) -> impl Future<Output = Result<(u64, Option<String>), StoreError>> + Send;

    /// Deletes dead jobs of the scope, or of one of its keys, whose key has no row but an erased one, and says how many.
    /// Searches for up to `limit` of them, or of their requests, and leaves what is revived in between: any number but
    /// zero says nothing of how many are left.
    fn erase_orphaned_jobs(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        limit: u32,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// How many requests of the scope, or of one of its keys, have no row and jobs that are still to be
    /// delivered.
    fn count_orphans(
        &self,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// How many jobs are dead letters.
    fn dead_jobs(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Unfinished rows by the partial indexes, `limit` of each at most, and those among the `latest` youngest by the
    /// index on expiry. A row may come twice. Where there may be more that were created within `youth`, the
    /// [oldest](FoundBy::OldestOfYouth) of the youngest says so.
    fn survey_keys(
        &self,
        limit: u32,
        latest: u32,
        youth: Duration,
    ) -> impl Future<Output = Result<Vec<SurveyedRow>, StoreError>> + Send;

    /// Staged jobs, those that have been due for longest first, then the oldest dead letters: `limit` of each at
    /// most. Arguments that are longer than `most_bytes` stay where they are.
    fn survey_jobs(
        &self,
        limit: u32,
        most_bytes: u32,
    ) -> impl Future<Output = Result<Vec<SurveyedJob>, StoreError>> + Send;
}

/// How many rows of a page are counted, how many it has, and its last key.
pub(super) type CountedRow = (i64, i64, Option<String>);

/// What is counted in a page of up to `limit` rows, and where the next one begins.
pub(super) fn counted(rows: Vec<CountedRow>, limit: u32) -> (u64, Option<String>) {
    let Some((counted, read, last)) = rows.into_iter().next() else { return (0, None) };
    (u64::try_from(counted).unwrap_or(0), last.filter(|_| read >= i64::from(limit)))
}
