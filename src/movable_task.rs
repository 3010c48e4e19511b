//! [`MovableTask`]: a task that can be polled by another thread for a while.
//!
//! An embedded database has a thread of its own. A transaction that sends each of its statements to that thread, and
//! waits for each answer, wakes two threads for each statement. So the task itself is moved there instead, with
//! everything that it has under way, and is moved back when it has to wait for something else. One thread at a time
//! polls a task. Spawned tasks, timers and sockets remain those of its runtime.

use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Dispatch;
use tracing::dispatcher::{get_default, set_default};

/// A thread that polls tasks of a runtime.
pub(crate) trait PollingThread: Send + Sync {
    /// Polls the task until it is ready: it moves back by itself. A thread that has ended drops it.
    fn poll_until_ready(&self, task: MovedTask);
}

/// A task on another thread. When it is ready, it has moved back, or its owner has dropped it.
pub(crate) type MovedTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The other thread has ended, and the task with it.
#[derive(Debug)]
pub(crate) struct Lost;

thread_local! {
    /// Of the task that this thread polls, if it can be moved.
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

struct Place {
    is_moved: bool,
    next: Option<Next>,
}

/// Where a task is moved when it has to wait.
enum Next {
    Thread(Arc<dyn PollingThread>),
    Runtime,
}

/// Moves this task to `thread`. A task that cannot be moved, or is there already, continues where it is. It moves
/// back when the guard is dropped, and then only if it has to wait.
pub(crate) async fn move_to(thread: &Arc<dyn PollingThread>) -> MovedGuard {
    let guard = MovedGuard(());
    poll_fn(|_| {
        with_place(|place| match place.is_moved {
            true => {
                place.next = None;
                Poll::Ready(())
            }
            false => {
                place.next = Some(Next::Thread(thread.clone()));
                Poll::Pending
            }
        })
        .unwrap_or(Poll::Ready(()))
    })
    .await;
    guard
}

/// Moves this task back immediately: what follows may keep its thread busy.
pub(crate) async fn move_back() {
    poll_fn(|_| match with_place(Place::move_back) {
        Some(true) => Poll::Pending,
        _ => Poll::Ready(()),
    })
    .await;
}

/// While it lives, the task waits on the other thread.
#[derive(Debug)]
pub(crate) struct MovedGuard(());

impl Drop for MovedGuard {
    fn drop(&mut self) {
        with_place(Place::move_back);
    }
}

impl Place {
    /// Whether it was moved.
    fn move_back(&mut self) -> bool {
        self.next = self.is_moved.then_some(Next::Runtime);
        self.is_moved
    }
}

fn with_place<R>(ask: impl FnOnce(&mut Place) -> R) -> Option<R> {
    PLACE.with(|place| place.borrow_mut().as_mut().map(ask))
}

/// Polls a movable task, and returns where it is to be moved if it has to wait.
fn polled<T>(
    future: &mut BoxFuture<'static, T>,
    is_moved: bool,
    context: &mut Context<'_>,
) -> (Poll<T>, Option<Next>) {
    let _restore = Restore(PLACE.replace(Some(Place { is_moved, next: None })));
    let polled = future.poll_unpin(context);
    (polled, with_place(|place| place.next.take()).flatten())
}

/// A task may poll another one inside. Restores what was there before, also after a panic.
struct Restore(Option<Place>);

impl Drop for Restore {
    fn drop(&mut self) {
        drop(PLACE.replace(self.0.take()));
    }
}

/// A task that is polled where it asks to be. If it is dropped while it is moved, the other thread drops it as soon as
/// it has polled it.
pub(crate) struct MovableTask<T>(Polled<T>);

enum Polled<T> {
    Here(BoxFuture<'static, T>),
    Elsewhere(oneshot::Receiver<Returned<T>>),
}

/// How a task is moved back.
enum Returned<T> {
    Unfinished(BoxFuture<'static, T>),
    Ended(T),
    Panicked(Box<dyn Any + Send>),
}

impl<T: Send + 'static> MovableTask<T> {
    pub(crate) fn new(task: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Polled::Here(task.boxed()))
    }
}

impl<T: Send + 'static> Future for MovableTask<T> {
    type Output = Result<T, Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.0 {
                Polled::Here(task) => {
                    let thread = match polled(task, false, context) {
                        (Poll::Ready(ended), _) => return Poll::Ready(Ok(ended)),
                        (Poll::Pending, Some(Next::Thread(thread))) => thread,
                        (Poll::Pending, _) => return Poll::Pending,
                    };
                    let (owner, returned) = oneshot::channel();
                    if let Polled::Here(task) = replace(&mut self.0, Polled::Elsewhere(returned)) {
                        let runtime = Handle::try_current().ok();
                        thread.poll_until_ready(Box::pin(Moved {
                            task: Some(task),
                            owner: Some(owner),
                            runtime,
                            log: get_default(Dispatch::clone),
                        }));
                    }
                }
                Polled::Elsewhere(returned) => match ready!(returned.poll_unpin(context)) {
                    Ok(Returned::Unfinished(task)) => self.0 = Polled::Here(task),
                    Ok(Returned::Ended(ended)) => return Poll::Ready(Ok(ended)),
                    Ok(Returned::Panicked(panic)) => resume_unwind(panic),
                    Err(_) => return Poll::Ready(Err(Lost)),
                },
            }
        }
    }
}

/// A task on another thread.
struct Moved<T> {
    task: Option<BoxFuture<'static, T>>,
    owner: Option<oneshot::Sender<Returned<T>>>,
    /// Whose timers, sockets and tasks it uses.
    runtime: Option<Handle>,
    /// Who hears what it logs: a subscriber may be one of its runtime's thread only, as in tests.
    log: Dispatch,
}

impl<T> Future for Moved<T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let runtime = self.runtime.clone();
        let _entered = runtime.as_ref().map(Handle::enter);
        let _logged = set_default(&self.log);
        let Self { task, owner, .. } = &mut *self;
        let (Some(moved), Some(owner)) = (task.as_mut(), owner.as_mut()) else {
            return Poll::Ready(());
        };
        if owner.poll_closed(context).is_ready() {
            self.end();
            return Poll::Ready(());
        }
        let polled = catch_unwind(AssertUnwindSafe(|| polled(moved, true, context)));
        let back = match polled {
            Ok((Poll::Pending, Some(Next::Runtime))) => match task.take() {
                Some(task) => Returned::Unfinished(task),
                None => return Poll::Ready(()),
            },
            Ok((Poll::Pending, _)) => return Poll::Pending,
            Ok((Poll::Ready(ended), _)) => Returned::Ended(ended),
            Err(panic) => Returned::Panicked(panic),
        };
        // Before its owner hears of it: what it held is free then.
        self.end();
        if let Some(Err(unwanted)) = self.owner.take().map(|owner| owner.send(back)) {
            dropped(unwanted);
        }
        Poll::Ready(())
    }
}

impl<T> Moved<T> {
    /// Drops what is left of the task, on its runtime.
    fn end(&mut self) {
        let _runtime = self.runtime.as_ref().map(Handle::enter);
        let _logged = set_default(&self.log);
        dropped(self.task.take());
    }
}

impl<T> Drop for Moved<T> {
    fn drop(&mut self) {
        self.end();
    }
}

/// What panics while it is dropped must not end the thread.
fn dropped(value: impl Sized) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;

    /// Each task on a thread of its own.
    struct Threads;

    impl PollingThread for Threads {
        fn poll_until_ready(&self, task: MovedTask) {
            thread::spawn(|| {
                tokio::runtime::Builder::new_current_thread().build().map(|own| own.block_on(task))
            });
        }
    }

    /// One that has ended.
    struct Ended;

    impl PollingThread for Ended {
        fn poll_until_ready(&self, _: MovedTask) {}
    }

    fn thread_of(thread: impl PollingThread + 'static) -> Arc<dyn PollingThread> {
        Arc::new(thread)
    }

    fn here() -> ThreadId {
        thread::current().id()
    }

    #[tokio::test]
    async fn a_task_is_moved_and_moved_back_and_keeps_its_runtime() {
        let (before, other) = (here(), thread_of(Threads));
        let task = async move {
            let guard = move_to(&other).await;
            let moved = here();
            // A timer of the task's runtime.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(here(), moved, "it stays where it is while it has to");
            drop(guard);
            assert_eq!(here(), moved, "it is moved when it has to wait");
            let _moved = move_to(&other).await;
            assert_eq!(here(), moved, "or not at all, if it is to be there again");
            move_back().await;
            (moved, here())
        };
        let (moved, after) = MovableTask::new(task).await.unwrap();
        assert!(moved != before && after == before);
    }

    #[tokio::test]
    async fn a_task_that_waits_is_moved_back() {
        let (before, other) = (here(), thread_of(Threads));
        let task = async move {
            drop(move_to(&other).await);
            tokio::task::yield_now().await;
            here()
        };
        assert_eq!(MovableTask::new(task).await.unwrap(), before);
    }

    #[tokio::test]
    async fn a_task_that_cannot_be_moved_stays() {
        let (before, other) = (here(), thread_of(Threads));
        let _moved = move_to(&other).await;
        move_back().await;
        assert_eq!(here(), before);
    }

    #[tokio::test]
    async fn a_panic_reaches_the_runtime() {
        let other = thread_of(Threads);
        let panics = async move {
            let _moved = move_to(&other).await;
            std::panic::resume_unwind(Box::new("as asked for"))
        };
        let panics: MovableTask<()> = MovableTask::new(panics);
        let panicked = tokio::spawn(panics).await.unwrap_err();
        assert_eq!(panicked.into_panic().downcast_ref::<&str>(), Some(&"as asked for"));
    }

    #[tokio::test]
    async fn a_task_that_is_dropped_while_it_is_moved_is_dropped_by_the_other_thread() {
        let (other, (held, dropped)) = (thread_of(Threads), oneshot::channel::<()>());
        let (arrive, arrived) = oneshot::channel();
        let waits = async move {
            let _held = held;
            let _moved = move_to(&other).await;
            let _ = arrive.send(());
            std::future::pending::<()>().await;
        };
        let waits = tokio::spawn(MovableTask::new(waits));
        arrived.await.unwrap();
        waits.abort();
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    async fn a_thread_that_has_ended_loses_the_task() {
        let other = thread_of(Ended);
        let lost = MovableTask::new(async move { drop(move_to(&other).await) });
        assert!(matches!(lost.await, Err(Lost)));
    }
}
