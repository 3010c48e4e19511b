//! The lease of a running request and the heartbeats; and [`Running`], the count of what runs here.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::key::{IdempotencyKey, Scope};
use crate::latch::Latch;
use crate::lock::lock;
use crate::moment::Moment;
use crate::observe;
use crate::store::{Guard, Hold, Store, StoreError};

/// How often the heartbeats look, in the length of a lease, for leases that are to be renewed.
const BEATS_PER_LEASE: u32 = 12;

/// How often a lease is renewed in its length: one renewal may fail, and one may be late.
const RENEWALS_PER_LEASE: u32 = 3;

/// Within this part of a lease's length, a token that this process has raised is known here.
const RAISE_IS_KNOWN_WITHIN: u32 = 10;

/// The right to run one row, as its holder believes it. The database has the last word: each write
/// is guarded by the token (G3), so a wrong belief costs time and never an effect.
#[derive(Clone)]
pub(super) struct Lease(Arc<State>);

struct State {
    token: AtomicI64,
    lost: Latch,
    /// Before the last statement was sent by which the database said that the lease is ours: it holds
    /// for its length from then on at least, whenever the answer was read.
    confirmed: Mutex<Moment>,
    /// Before the statement was sent that acquired it, and set the key's expiry.
    acquired: Moment,
    length: Duration,
}

impl Lease {
    /// `sent`: a moment before the statement that acquired it was sent.
    pub(super) fn new(token: i64, length: Duration, sent: Moment) -> Self {
        let sent = if mutated!(AcquireWhenRead) { Moment::now() } else { sent };
        Self(Arc::new(State {
            token: AtomicI64::new(token),
            lost: Latch::default(),
            confirmed: Mutex::new(sent),
            acquired: sent,
            length,
        }))
    }

    pub(super) fn token(&self) -> i64 {
        self.0.token.load(Ordering::Acquire)
    }

    /// The token after we took our own row over, by a statement that was sent after `sent`.
    pub(super) fn raise(&self, token: i64, sent: Moment) {
        self.0.token.store(token, Ordering::Release);
        self.confirm(sent);
    }

    pub(super) fn lose(&self) {
        self.0.lost.set();
    }

    pub(super) fn is_lost(&self) -> bool {
        self.0.lost.is_set()
    }

    /// Until it is lost, which it may never be.
    pub(super) async fn lost(&self) {
        self.0.lost.reached().await;
    }

    /// The database said that the lease is ours, in answer to a statement that was sent after `sent`.
    pub(super) fn confirm(&self, sent: Moment) {
        let sent = if mutated!(ConfirmWhenRead) { Moment::now() } else { sent };
        let mut confirmed = lock(&self.0.confirmed);
        *confirmed = sent.max(*confirmed);
    }

    /// How long ago the database last said so, at most.
    pub(super) fn unconfirmed_for(&self) -> Duration {
        lock(&self.0.confirmed).elapsed()
    }

    /// Whether another process may hold the lease by now, as far as this process can tell by itself.
    pub(super) fn has_lapsed(&self) -> bool {
        self.unconfirmed_for() >= self.0.length
    }

    /// Whether a heartbeat was due since it was acquired.
    pub(super) fn is_old(&self) -> bool {
        self.0.acquired.elapsed() >= self.0.length / 3
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

/// The leases of this process that are kept alive. One task on each runtime looks after all of them, so that a
/// request which is faster than a third of its lease costs none, and one that blocks its thread does
/// not lose its own.
///
/// Dropped with its engine, it ends that task, which else would keep the store and its connections for a
/// while.
#[derive(Default)]
pub(crate) struct Heartbeats(Shared);

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Beating>>);

#[derive(Default)]
struct Beating {
    held: BTreeMap<u64, HeldLease>,
    next: u64,
    /// One on each runtime on which requests run: it ends when none of that runtime's is held, and with
    /// the runtime. So a runtime that is blocked, or gone, holds up the leases of its own requests only.
    tasks: HashMap<runtime::Id, JoinHandle<()>>,
}

struct HeldLease {
    holder: Holder,
    lease: Lease,
    /// Whose task renews it.
    runtime: runtime::Id,
    /// Whether a renewal is under way. One that fails is begun again at the next beat.
    renewing: Arc<AtomicBool>,
}

/// Renews the lease at a third of its length for as long as this value lives.
pub(super) struct Heartbeat {
    all: Shared,
    number: u64,
}

impl Heartbeats {
    pub(super) fn start<S: Store>(
        &self,
        store: &S,
        holder: Holder,
        lease: Lease,
        hold: Hold,
    ) -> Heartbeat {
        let mut beating = lock(&self.0.0);
        let number = beating.next;
        beating.next += 1;
        let runtime = runtime::Handle::current().id();
        beating.held.insert(number, HeldLease { holder, lease, runtime, renewing: Arc::default() });
        if beating.tasks.get(&runtime).is_none_or(JoinHandle::is_finished) {
            let beat = self.0.clone().beat(runtime, store.clone(), hold);
            beating.tasks.insert(runtime, crate::task::spawn(beat));
        }
        Heartbeat { all: self.0.clone(), number }
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        // Each running request holds the engine, so no lease is held any more.
        for (_, task) in lock(&self.0.0).tasks.drain() {
            task.abort();
        }
    }
}

impl Shared {
    async fn beat<S: Store>(self, runtime: runtime::Id, store: S, hold: Hold) {
        loop {
            tokio::time::sleep(hold.lease / BEATS_PER_LEASE).await;
            let Some(due) = self.due(runtime, hold.lease / RENEWALS_PER_LEASE) else { return };
            for Due { holder, lease, renewing } in due {
                // On a task of its own: one that has to wait for its row must not hold up the others.
                let store = store.clone();
                crate::task::spawn(async move {
                    let _renewing = renewing;
                    renew(store, holder, lease, hold).await;
                });
            }
        }
    }

    /// Those of the runtime that were not confirmed for so long; `None` where it has none.
    fn due(&self, runtime: runtime::Id, after: Duration) -> Option<Vec<Due>> {
        let mut beating = lock(&self.0);
        if !beating.held.values().any(|held| held.runtime == runtime) {
            beating.tasks.remove(&runtime);
            return None;
        }
        let held = beating.held.values().filter(|held| held.runtime == runtime);
        let due = held.filter(|held| held.lease.unconfirmed_for() >= after);
        Some(due.filter_map(Due::begin).collect())
    }
}

/// A lease whose renewal begins.
struct Due {
    holder: Holder,
    lease: Lease,
    renewing: Renewing,
}

/// While it lives, no other renewal of the lease begins.
struct Renewing(Arc<AtomicBool>);

impl Due {
    fn begin(held: &HeldLease) -> Option<Self> {
        let is_first = !held.renewing.swap(true, Ordering::AcqRel);
        is_first.then(|| Self {
            holder: held.holder.clone(),
            lease: held.lease.clone(),
            renewing: Renewing(held.renewing.clone()),
        })
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

async fn renew<S: Store>(store: S, holder: Holder, lease: Lease, hold: Hold) {
    let token = lease.token();
    let sent = Moment::now();
    match store.renew_lease(&holder.guard(token, ""), hold).await {
        Ok(true) => lease.confirm(sent),
        Ok(false) => {
            // A token that we raised ourselves is not a loss, and may be known here a moment later than
            // there.
            tokio::time::sleep(hold.lease / RAISE_IS_KNOWN_WITHIN).await;
            if lease.token() == token {
                lease.lose();
            }
        }
        // A phase's own transaction has its row.
        Err(StoreError::Locked) => {}
        // The store may be back before the lease is over; if not, the fence decides.
        Err(error) => observe::lease_not_renewed(error.kind()),
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        lock(&self.all.0).held.remove(&self.number);
    }
}

/// What runs in this process, so that a shutdown can wait for it.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Count>);

#[derive(Default)]
struct Count {
    closing: AtomicBool,
    requests: AtomicUsize,
    /// How many of them wait for another holder, for tests.
    waiting: AtomicUsize,
    /// Rung when the engine begins to close.
    closes: Notify,
    /// Rung when the last request goes while the engine is closing.
    gone: Notify,
}

impl Running {
    /// Counts a request in, unless the engine is closing.
    pub(super) fn enter(&self) -> Option<Entered> {
        // First in, then look: a close() that misses this request sees the count.
        self.0.requests.fetch_add(1, Ordering::SeqCst);
        let entered = Entered(self.clone());
        (!self.is_closing()).then_some(entered)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.0.closing.load(Ordering::SeqCst)
    }

    /// How many requests are counted in.
    pub(super) fn requests(&self) -> usize {
        self.0.requests.load(Ordering::SeqCst)
    }

    /// How many of them wait for another holder.
    pub(super) fn waiting(&self) -> usize {
        self.0.waiting.load(Ordering::SeqCst)
    }

    /// A request waits for another holder until it drops this.
    pub(super) fn waits(&self) -> Waits {
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        Waits(self.clone())
    }

    /// Ready when the engine begins to close.
    pub(super) async fn closing(&self) {
        let mut closes = pin!(self.0.closes.notified());
        // Listen first, then look, as `close` does.
        closes.as_mut().enable();
        if !self.is_closing() {
            closes.await;
        }
    }

    pub(super) async fn close(&self) {
        self.0.closing.store(true, Ordering::SeqCst);
        self.0.closes.notify_waiters();
        loop {
            let mut gone = pin!(self.0.gone.notified());
            // Listen first, then look: a run that ends in between notifies.
            gone.as_mut().enable();
            if self.0.requests.load(Ordering::SeqCst) == 0 {
                return;
            }
            gone.await;
        }
    }
}

/// A request that waits for another holder.
pub(super) struct Waits(Running);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request that is counted; dropped, it is not.
pub(super) struct Entered(Running);

impl Drop for Entered {
    fn drop(&mut self) {
        let left = self.0.0.requests.fetch_sub(1, Ordering::SeqCst) - 1;
        if left == 0 && self.0.is_closing() {
            self.0.0.gone.notify_waiters();
        }
    }
}

#[cfg(all(test, feature = "sqlite", feature = "fault-injection"))]
mod tests {
    use super::*;
    use crate::store::{
        Birth, Claim, Commit, NewRow, Reserved, Right, Status, TransactionUnderFaults,
    };

    /// A renewal that was under way while the holder raised its own token, after a commit that got no answer, is told
    /// that the lease is another's. It is not: what runs continues. Of another process' token it is.
    #[tokio::test]
    async fn g7_a_token_that_the_holder_raised_itself_is_no_loss() {
        let store = crate::store::Sqlite::connect(":memory:").await.unwrap();
        store.migrate().await.unwrap();
        let hold = Hold { lease: Duration::from_secs(10), retention: Duration::from_secs(60) };
        for is_own in [true, false] {
            let name = if is_own { "own" } else { "another's" };
            let (scope, key) = (Scope::new("s").unwrap(), IdempotencyKey::new(name).unwrap());
            let request_id = uuid::Uuid::new_v4();
            let row = NewRow {
                scope: &scope,
                key: &key,
                request_id,
                definition: "d",
                version: 1,
                phases: "a",
                fingerprint: "v1:f",
                params: b"{}",
                context: None,
                trace: None,
                birth: Birth::Held(hold.lease),
                retention: hold.retention,
                creation_wait: hold.lease,
                caller: &crate::caller::Caller::here(),
                replaces: None,
            };
            let Ok(Reserved::Fresh { tx, .. }) = store.reserve_key(&row).await else { panic!() };
            assert!(matches!(tx.commit_unguarded().await, Commit::Done(())));
            let claim = Claim {
                scope: &scope,
                key: &key,
                request_id,
                lease_token: 1,
                status: Status::InProgress,
                recovery_point: None,
                phases: None,
                right: Right::Own,
                opens_window: false,
                event: None,
                trace: None,
            };
            let sent = Moment::now();
            let raised = store.take_over_key(&claim, hold).await.unwrap().unwrap().lease_token;
            let lease = Lease::new(1, hold.lease, sent);
            let holder = Holder { scope: scope.clone(), key: key.clone(), request_id };
            // It was sent with token 1, and answered when the token was 2.
            let renewal = renew(store.clone(), holder, lease.clone(), hold);
            let raising = async {
                if is_own {
                    // The answer of the takeover is read later than that of the renewal.
                    tokio::time::sleep(hold.lease / 200).await;
                    lease.raise(raised, sent);
                }
            };
            tokio::join!(renewal, raising);
            assert_eq!(lease.is_lost(), !is_own, "{name}");
        }
    }
}
