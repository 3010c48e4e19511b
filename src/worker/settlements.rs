//! [`Settlements`]: what was delivered, written down by one statement for all jobs that wait for it.
//!
//! A statement costs as much for many as for one, nearly. So a job that was delivered waits for the others that
//! are under way, but not for long; and while a statement is under way, the next ones gather. What it does not
//! delete, each delivery deletes by a statement of its own: one job whose row is locked blocks no other.
//!
//! They are of one enqueuer, and so of one runtime: where that is blocked, all that wait here wait with it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use diesel::result::{DatabaseErrorKind, Error};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::lock::lock;
use crate::store::{JobAt, Store, StoreError};

/// How long a job that was delivered waits for others at most.
pub(super) const GATHERS: Duration = Duration::from_millis(5);

/// How many go together at most.
const MAX_TOGETHER: usize = 500;

/// What the statement for many came to, for one of them.
pub(super) enum Deleted {
    Yes,
    /// It has not deleted this one: a statement of its own says why.
    No,
    /// No answer came.
    Failed(Arc<StoreError>),
}

#[derive(Clone)]
pub(super) struct Settlements<S> {
    store: S,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    waiting: Vec<(JobAt, oneshot::Sender<Deleted>)>,
    /// Deliveries that have not ended, or wait here.
    under_way: usize,
    is_written: bool,
}

/// A delivery that may come to be written down.
pub(super) struct UnderWay(Arc<Shared>);

/// The task that writes.
struct Writer {
    shared: Arc<Shared>,
    has_ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl<S: Store> Settlements<S> {
    pub(super) fn new(store: &S) -> Self {
        Self { store: store.clone(), shared: Arc::default() }
    }

    pub(super) fn store(&self) -> &S {
        &self.store
    }

    /// Counts a delivery, for as long as this lives.
    pub(super) fn under_way(&self) -> UnderWay {
        self.shared.state().under_way += 1;
        UnderWay(self.shared.clone())
    }

    /// Deletes a job that was delivered, with others.
    pub(super) async fn delivered(&self, at: &JobAt) -> Deleted {
        let (tell, told) = oneshot::channel();
        let is_first = {
            let mut state = self.shared.state();
            state.waiting.push((at.clone(), tell));
            !std::mem::replace(&mut state.is_written, true)
        };
        self.shared.changed.notify_one();
        if is_first {
            let writer = Writer { shared: self.shared.clone(), has_ended: false };
            let store = self.store.clone();
            crate::task::spawn(async move { writer.write(&store).await });
        }
        // Where the task that writes is gone, its statement may be deleting the job.
        told.await.unwrap_or_else(|_| {
            let gone = Box::new("the task that deletes jobs is gone".to_owned());
            let gone = Error::DatabaseError(DatabaseErrorKind::ClosedConnection, gone);
            Deleted::Failed(Arc::new(StoreError::database("delete delivered jobs", gone)))
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state().under_way -= 1;
        self.0.changed.notify_one();
    }
}

impl Writer {
    async fn write<S: Store>(mut self, store: &S) {
        loop {
            self.gather().await;
            let all = {
                let mut state = self.shared.state();
                let most = state.waiting.len().min(MAX_TOGETHER);
                state.waiting.drain(..most).collect::<Vec<_>>()
            };
            write(store, all).await;
            let mut state = self.shared.state();
            if state.waiting.is_empty() {
                state.is_written = false;
                drop(state);
                self.has_ended = true;
                return;
            }
        }
    }

    /// Waits until all that are under way wait here, or for as long as may be.
    async fn gather(&self) {
        let until = Instant::now() + GATHERS;
        loop {
            {
                let state = self.shared.state();
                if state.waiting.len() >= state.under_way.min(MAX_TOGETHER) {
                    return;
                }
            }
            tokio::select! {
                biased;
                () = self.shared.changed.notified() => {}
                () = sleep_until(until) => return,
            }
        }
    }
}

/// If it did not come to its end, the waiting callers hear of it, and the next one begins another.
impl Drop for Writer {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut state = self.shared.state();
            state.waiting.clear();
            state.is_written = false;
        }
    }
}

async fn write<S: Store>(store: &S, all: Vec<(JobAt, oneshot::Sender<Deleted>)>) {
    let (at, tell): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let deleted = match at.len() {
        1 => Ok(vec![false]),
        _ => store.jobs_delivered(&at).await,
    };
    let deleted = match deleted {
        Ok(deleted) => deleted,
        // Perhaps for one of them.
        Err(error) if error.may_be_of_one() => vec![false; at.len()],
        Err(error) => {
            let error = Arc::new(error);
            for tell in tell {
                let _ = tell.send(Deleted::Failed(error.clone()));
            }
            return;
        }
    };
    for (tell, is_deleted) in tell.into_iter().zip(deleted) {
        // The delivery that waited may be gone.
        let _ = tell.send(if is_deleted { Deleted::Yes } else { Deleted::No });
    }
}
