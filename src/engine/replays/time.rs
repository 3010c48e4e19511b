//! [`DatabaseTime`]: between which two times the database's clock is now, without asking it each time.

use std::sync::{Mutex as Sync, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Mutex;

use crate::moment::Moment;
use crate::store::Store;

/// How old the last answer may be: two clocks drift apart by milliseconds in that time, and one that was set is
/// found out.
const ASK_AFTER: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct DatabaseTime {
    told: Sync<Option<Told>>,
    asking: Mutex<()>,
}

/// The database looked at its clock somewhere between the two moments.
#[derive(Clone, Copy)]
struct Told {
    time: DateTime<Utc>,
    sent: Moment,
    heard: Moment,
}

/// Between these two times.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) at_the_earliest: DateTime<Utc>,
    pub(super) at_the_latest: DateTime<Utc>,
}

impl DatabaseTime {
    /// `None` where the database does not say. One call asks it for all that want to know.
    pub(super) async fn now(&self, store: &impl Store) -> Option<Now> {
        if let Some(now) = self.known() {
            return Some(now);
        }
        let _asking = self.asking.lock().await;
        if let Some(now) = self.known() {
            return Some(now);
        }
        let sent = Moment::now();
        let time = store.now().await.ok()?;
        let told = Told { time, sent, heard: Moment::now() };
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
        self.known()
    }

    fn known(&self) -> Option<Now> {
        let told = (*self.told.lock().unwrap_or_else(PoisonError::into_inner))?;
        let at_most = told.sent.elapsed();
        (at_most < ASK_AFTER).then(|| Now {
            at_the_earliest: told.time + told.heard.elapsed(),
            at_the_latest: told.time + at_most,
        })
    }
}
