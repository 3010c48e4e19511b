//! The lease of a running request and its heartbeat; and [`Running`], the count of what runs here.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::key::{IdempotencyKey, Scope};
use crate::store::{Guard, Hold, Store};

/// The right to run one row, as its holder believes it. The database has the last word: each write
/// is guarded by the token (G3), so a wrong belief costs time and never an effect.
#[derive(Clone)]
pub(super) struct Lease(Arc<State>);

struct State {
    token: AtomicI64,
    lost: watch::Sender<bool>,
    /// When the database last said that the lease is ours. Measured by this machine's monotonic
    /// clock, and compared only with itself.
    confirmed: Mutex<Instant>,
}

impl Lease {
    pub(super) fn new(token: i64) -> Self {
        Self(Arc::new(State {
            token: AtomicI64::new(token),
            lost: watch::Sender::new(false),
            confirmed: Mutex::new(Instant::now()),
        }))
    }

    pub(super) fn token(&self) -> i64 {
        self.0.token.load(Ordering::Acquire)
    }

    /// The token after we took our own row over.
    pub(super) fn raise(&self, token: i64) {
        self.0.token.store(token, Ordering::Release);
        self.confirm();
    }

    pub(super) fn lose(&self) {
        self.0.lost.send_replace(true);
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.0.lost.borrow()
    }

    /// Until it is lost, which it may never be.
    pub(super) async fn lost(&self) {
        // The sender lives in self, so this ends only then.
        let _ = self.0.lost.subscribe().wait_for(|lost| *lost).await;
    }

    pub(super) fn confirm(&self) {
        *self.0.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Instant::now();
    }

    pub(super) fn unconfirmed_for(&self) -> Duration {
        #[cfg(feature = "fault-injection")]
        if crate::fault::is_late() {
            return Duration::MAX;
        }
        self.0.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).elapsed()
    }
}

/// Whose lease it is.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) scope: Scope,
    pub(super) key: IdempotencyKey,
    pub(super) request_id: uuid::Uuid,
}

impl Holder {
    pub(super) fn guard<'a>(&'a self, lease_token: i64, recovery_point: &'a str) -> Guard<'a> {
        Guard {
            scope: &self.scope,
            key: &self.key,
            request_id: self.request_id,
            lease_token,
            recovery_point,
        }
    }
}

/// Renews the lease at a third of its length for as long as this value lives. A request that is
/// faster than that never writes one.
pub(super) struct Heartbeat(JoinHandle<()>);

impl Heartbeat {
    pub(super) fn start<S: Store>(store: S, holder: Holder, lease: Lease, hold: Hold) -> Self {
        Self(tokio::spawn(async move {
            loop {
                tokio::time::sleep(hold.lease / 3).await;
                let token = lease.token();
                match store.renew(&holder.guard(token, ""), hold).await {
                    Ok(true) => lease.confirm(),
                    Ok(false) => {
                        // A token that we raised ourselves is no loss, and may be known here a moment
                        // later than there.
                        tokio::time::sleep(hold.lease / 10).await;
                        if lease.token() == token {
                            return lease.lose();
                        }
                    }
                    // The store may be back before the lease is over; if not, the fence decides.
                    Err(_) => {}
                }
            }
        }))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What runs in this process, so that a shutdown can wait for it.
pub(crate) struct Running {
    closing: watch::Sender<bool>,
    requests: watch::Sender<usize>,
}

impl Default for Running {
    fn default() -> Self {
        Self { closing: watch::Sender::new(false), requests: watch::Sender::new(0) }
    }
}

impl Running {
    /// Counts a request in, unless the engine is closing.
    pub(super) fn enter(&self) -> Option<Entered> {
        // First in, then look: a close() that misses this request sees the count.
        self.requests.send_modify(|requests| *requests += 1);
        let entered = Entered(self.requests.clone());
        (!self.is_closing()).then_some(entered)
    }

    pub(super) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    pub(super) async fn close(&self) {
        self.closing.send_replace(true);
        // The sender lives in self, so this ends only at zero.
        let _ = self.requests.subscribe().wait_for(|requests| *requests == 0).await;
    }
}

/// A request that is counted; dropped, it is not.
pub(super) struct Entered(watch::Sender<usize>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.send_modify(|requests| *requests -= 1);
    }
}
