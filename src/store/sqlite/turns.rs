//! [`ConnectionLock`]: which task has the connection, and which has it next.
//!
//! Several tokio runtimes may share a store, and a runtime may come to a halt: a task of it to which a
//! lock was handed is never polled again, and keeps it from all others. So a turn is *offered*, in the
//! order in which the tasks came, and is a task's only once the task takes it. What is not taken in time
//! is offered to the next, by the store's own thread.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as ConnectionMutex, Notify, OwnedMutexGuard};

use super::SqliteConn;
use crate::lock::lock;
use crate::observe;

/// How long an offer holds. A task that comes later waits again, behind the others.
const OFFER: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct OfferQueue {
    state: Mutex<State>,
    /// Passes offers on. It parks while it has nothing to do.
    thread: OnceLock<Thread>,
}

#[derive(Default)]
struct State {
    is_taken: bool,
    offer: Option<(Arc<Notify>, Instant)>,
    waiting: VecDeque<Arc<Notify>>,
}

/// The right to use the connection; dropped, it is the next one's.
pub(super) struct OfferedTurn(Arc<OfferQueue>);

impl OfferQueue {
    /// The thread that calls [`pass_on`](Self::pass_on), whenever it is unparked.
    pub(super) fn watched_by(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    pub(super) async fn take(self: Arc<Self>) -> OfferedTurn {
        let began = Instant::now();
        let place = QueuePlace { queue: &self, notify: Arc::default() };
        while !self.try_take(&place.notify) {
            place.notify.notified().await;
        }
        drop(place);
        observe::connected(began);
        OfferedTurn(self)
    }

    /// Takes the turn if it is free and is not offered to another task. Otherwise waits in the queue.
    fn try_take(&self, own: &Arc<Notify>) -> bool {
        let mut state = lock(&self.state);
        let is_others = matches!(&state.offer, Some((whose, _)) if !Arc::ptr_eq(whose, own));
        if !state.is_taken && !is_others {
            state.offer = None;
            state.is_taken = true;
            return true;
        }
        if !state.waiting.iter().any(|waiting| Arc::ptr_eq(waiting, own)) {
            state.waiting.push_back(own.clone());
            self.watch(&state);
        }
        false
    }

    fn offer_next(&self, state: &mut State) {
        state.offer = state.waiting.pop_front().map(|next| {
            next.notify_one();
            (next, Instant::now())
        });
        self.watch(state);
    }

    /// Only an offer behind which another task waits can be passed on.
    fn watch(&self, state: &State) {
        if let (Some(thread), Some(_)) = (self.thread.get(), &state.offer)
            && !state.waiting.is_empty()
        {
            thread.unpark();
        }
    }

    /// Passes on what was not taken in time, and says when to look again; `None`: when unparked.
    pub(super) fn pass_on(&self) -> Option<Duration> {
        let mut state = lock(&self.state);
        let (_, since) = state.offer.as_ref().filter(|_| !state.waiting.is_empty())?;
        let left = OFFER.saturating_sub(since.elapsed());
        if left.is_zero() {
            self.offer_next(&mut state);
            return Some(OFFER);
        }
        Some(left)
    }
}

impl Drop for OfferedTurn {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_taken = false;
        self.0.offer_next(&mut state);
    }
}

/// A place in the queue, which a future leaves also where it is dropped.
struct QueuePlace<'a> {
    queue: &'a OfferQueue,
    notify: Arc<Notify>,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        state.waiting.retain(|waiting| !Arc::ptr_eq(waiting, &self.notify));
        if matches!(&state.offer, Some((whose, _)) if Arc::ptr_eq(whose, &self.notify)) {
            self.queue.offer_next(&mut state);
        }
    }
}

/// The connection, and whose turn it is.
#[derive(Clone)]
pub(super) struct ConnectionLock {
    conn: Arc<ConnectionMutex<SqliteConn>>,
    queue: Arc<OfferQueue>,
}

impl ConnectionLock {
    pub(super) fn new(conn: SqliteConn, queue: Arc<OfferQueue>) -> Self {
        Self { conn: Arc::new(ConnectionMutex::new(conn)), queue }
    }

    pub(super) async fn acquire(self) -> ConnectionGuard {
        let turn = self.queue.take().await;
        // Whose turn it is finds it free.
        ConnectionGuard { conn: self.conn.lock_owned().await, _turn: turn }
    }
}

/// The connection of a [`Sqlite`](crate::store::Sqlite) store, returned when it is dropped.
pub struct ConnectionGuard {
    // In this order: the connection is free before it is the next one's turn.
    conn: OwnedMutexGuard<SqliteConn>,
    _turn: OfferedTurn,
}

impl fmt::Debug for ConnectionGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionGuard").finish_non_exhaustive()
    }
}

impl Deref for ConnectionGuard {
    type Target = SqliteConn;

    fn deref(&self) -> &SqliteConn {
        &self.conn
    }
}

impl DerefMut for ConnectionGuard {
    fn deref_mut(&mut self) -> &mut SqliteConn {
        &mut self.conn
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    use std::thread;

    use super::*;

    type Taking = Pin<Box<dyn Future<Output = OfferedTurn>>>;

    fn poll(taking: &mut Taking) -> Option<OfferedTurn> {
        match taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    fn taking(queue: &Arc<OfferQueue>) -> Taking {
        Box::pin(queue.clone().take())
    }

    #[test]
    fn turns_are_taken_in_the_order_of_the_queue_and_a_place_can_be_left() {
        let queue = Arc::default();
        let held = poll(&mut taking(&queue)).unwrap();
        let [mut one, mut two, mut three] = [(); 3].map(|()| taking(&queue));
        assert!([&mut one, &mut two, &mut three].map(poll).iter().all(Option::is_none));
        drop(held);
        assert!(poll(&mut two).is_none(), "it is offered to the first");
        assert!(poll(&mut taking(&queue)).is_none(), "nor is it a newcomer's");
        // Dropped with the offer in its hands.
        drop(one);
        let held = poll(&mut two).unwrap();
        assert!(poll(&mut three).is_none());
        drop(held);
        drop(poll(&mut three).unwrap());
        assert!(poll(&mut taking(&queue)).is_some());
    }

    #[test]
    fn a_task_that_is_polled_no_more_is_passed_over_and_may_come_again() {
        let queue: Arc<OfferQueue> = Arc::default();
        let held = poll(&mut taking(&queue)).unwrap();
        let (mut halted, mut alive) = (taking(&queue), taking(&queue));
        assert!(poll(&mut halted).is_none() && poll(&mut alive).is_none());
        drop(held);
        assert!(poll(&mut alive).is_none());
        while let Some(left) = queue.pass_on() {
            thread::sleep(left);
        }
        let held = poll(&mut alive).unwrap();
        assert!(poll(&mut halted).is_none(), "it waits again");
        drop(held);
        assert!(poll(&mut halted).is_some());
    }
}
