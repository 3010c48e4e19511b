//! [`DatabaseTime`]: between which two times the database's clock is now, without asking it each time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::Notify;

use crate::lock::lock;
use crate::moment::Moment;
use crate::store::Store;
use crate::task;

/// How old the last answer may be: two clocks drift apart by milliseconds in that time, and one that was set is
/// found out.
const ASK_AFTER: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct DatabaseTime {
    told: Mutex<Option<ClockReading>>,
    is_asking: AtomicBool,
    heard: Notify,
}

/// The database looked at its clock somewhere between the two moments.
#[derive(Clone, Copy)]
struct ClockReading {
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
    /// `None` where the database does not say so in time. One task asks it for all that want to know, and continues
    /// behind their time limits: a later caller has its answer.
    pub(super) async fn now<S: Store>(self: &Arc<Self>, store: &S, limit: Duration) -> Option<Now> {
        let store = store.clone();
        self.now_by(async move { store.database_time().await.ok() }, limit).await
    }

    async fn now_by(
        self: &Arc<Self>,
        told: impl Future<Output = Option<DateTime<Utc>>> + Send + 'static,
        limit: Duration,
    ) -> Option<Now> {
        if let Some(now) = self.known() {
            return Some(now);
        }
        let heard = self.heard.notified();
        if !self.is_asking.swap(true, Ordering::AcqRel) {
            let asking = Asking(self.clone());
            task::spawn(async move { asking.ask(told).await });
        }
        let _ = tokio::time::timeout(limit, heard).await;
        self.known()
    }

    fn known(&self) -> Option<Now> {
        let told = (*lock(&self.told))?;
        let at_most = told.sent.elapsed();
        (at_most < ASK_AFTER).then(|| Now {
            at_the_earliest: told.time + told.heard.elapsed(),
            at_the_latest: told.time + at_most,
        })
    }
}

/// The task that asks. Ends with an answer, without one, or with the task: the next caller asks again.
struct Asking(Arc<DatabaseTime>);

impl Asking {
    async fn ask(self, told: impl Future<Output = Option<DateTime<Utc>>>) {
        let sent = Moment::now();
        let Some(time) = told.await else { return };
        let told = ClockReading { time, sent, heard: Moment::now() };
        *lock(&self.0.told) = Some(told);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.is_asking.store(false, Ordering::Release);
        self.0.heard.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use futures_util::future::join_all;
    use tokio::sync::watch;

    use super::*;

    /// However many want to know while the database stands still: none waits behind another.
    #[tokio::test(start_paused = true)]
    async fn g17_who_wants_to_know_the_time_waits_for_his_own_limit_at_most() {
        let (time, asked) = (Arc::new(DatabaseTime::default()), Arc::new(AtomicU32::new(0)));
        let (answer, answered) = watch::channel(None);
        let told = || {
            let (asked, mut answered) = (asked.clone(), answered.clone());
            async move {
                asked.fetch_add(1, Ordering::SeqCst);
                let told = answered.wait_for(Option::is_some).await;
                told.ok().and_then(|told| *told)
            }
        };
        let began = tokio::time::Instant::now();
        let limit = Duration::from_millis(50);
        let all = join_all((0..100).map(|_| time.now_by(told(), limit))).await;
        assert!(all.iter().all(Option::is_none));
        assert!(began.elapsed() < limit * 2, "{:?}", began.elapsed());
        assert_eq!(asked.load(Ordering::SeqCst), 1, "one asks for all");
        answer.send(Some(Utc::now())).unwrap();
        assert!(time.now_by(told(), limit).await.is_some(), "the one who asked went on");
    }

    #[tokio::test]
    async fn an_ask_without_an_answer_is_followed_by_another() {
        let time = Arc::new(DatabaseTime::default());
        let limit = Duration::from_secs(30);
        assert!(time.now_by(async { None }, limit).await.is_none());
        assert!(time.now_by(async { Some(Utc::now()) }, limit).await.is_some());
    }
}
