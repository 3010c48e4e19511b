//! [`Clock`]: the database's clock, estimated between two reads of it.

use std::sync::Mutex;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::Core;
use crate::lock::lock;
use crate::moment::Moment;
use crate::store::{Store, StoreError, whole_millis};

/// What the database's clock said, carried forward by this machine's monotonic one. It only dates
/// the creation of a request that is computed before its row is written, the ages on an operator's pages, and what the
/// first answer says at least of its key's expiry; no lease, no expiry and no window rests on it.
#[derive(Default)]
pub(crate) struct Clock(Mutex<Option<(DateTime<Utc>, Moment)>>);

/// Two clocks drift apart by seconds in this time, not more.
const ASK_AFTER: Duration = Duration::from_secs(3600);

impl Clock {
    pub(crate) fn set(&self, now: DateTime<Utc>) {
        *lock(&self.0) = Some((now, Moment::now()));
    }

    pub(crate) fn reads(&self) -> Option<DateTime<Utc>> {
        let (told, then) = (*lock(&self.0))?;
        let since = then.elapsed();
        (since < ASK_AFTER).then(|| told + since)
    }

    /// A time that is `length` from now at the latest, in whole milliseconds: the estimate is behind the database's clock by
    /// the time that its answer took. `None` if the clock was not read within the last hour.
    pub(super) fn after(&self, length: Duration) -> Option<DateTime<Utc>> {
        Some(whole_millis(self.reads()? + length))
    }
}

impl<S: Store> Core<S> {
    /// The database's time; asked for once an hour at most, while requests come in.
    pub(crate) async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        if let Some(now) = self.clock.reads() {
            return Ok(now);
        }
        let now = self.store.database_time().await?;
        self.clock.set(now);
        Ok(now)
    }
}
