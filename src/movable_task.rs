//! [`MovableTask`]: a task that can be polled by another thread for a while.
//!
//! An embedded database has a thread of its own. A transaction that sends each of its statements to that thread, and
//! waits for each answer, wakes two threads for each statement. So the task itself is moved there instead, with
//! everything that it has under way, and is moved back when it has to wait for something else. One thread at a time
//! polls a task. Spawned tasks, timers and sockets remain those of its runtime.
//!
//! The other thread may be kept busy, by one task, for longer than the others have patience: these are taken back, and
//! continue where they came from.

use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::mem::replace;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};
use tracing::Dispatch;
use tracing::dispatcher::{get_default, set_default};

use crate::lock::lock;
use crate::panics::catch;

/// A thread that polls tasks of a runtime.
pub(crate) trait PollingThread: Send + Sync {
    /// Polls the task until it is ready: it moves back by itself. A thread that has ended drops it.
    fn poll_until_ready(&self, task: MovedTask);

    /// How long a task is left to a thread that does not poll it.
    fn patience(&self) -> Duration;
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

/// Moves this task to `thread`. A task that cannot be moved, is there already, or was taken back because the thread is
/// busy, continues where it is. It moves back when the guard is dropped, and then only if it has to wait.
pub(crate) async fn move_to(thread: &Arc<dyn PollingThread>) -> MovedGuard {
    let (guard, mut is_asked) = (MovedGuard(()), false);
    poll_fn(|_| {
        with_place(|place| match place.is_moved || is_asked {
            true => {
                place.next = None;
                Poll::Ready(())
            }
            false => {
                is_asked = true;
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

type Task<T> = BoxFuture<'static, T>;

enum Polled<T> {
    Here(Task<T>),
    Elsewhere(TaskElsewhere<T>),
}

/// A task on another thread, as its owner knows it.
struct TaskElsewhere<T> {
    task: Shared<T>,
    returned: oneshot::Receiver<Returned<T>>,
    /// When to look whether the thread polls it. Without a runtime there is no timer.
    patience: Option<(Duration, Pin<Box<Sleep>>)>,
}

/// How a task is moved back.
enum Returned<T> {
    Unfinished,
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
                    let (shared, (owner, returned)) = (Shared::default(), oneshot::channel());
                    let runtime = Handle::try_current().ok();
                    let patience = runtime.as_ref().map(|_| {
                        let patience = thread.patience();
                        (patience, Box::pin(sleep(patience)))
                    });
                    let elsewhere = TaskElsewhere { task: shared.clone(), returned, patience };
                    if let Polled::Here(task) = replace(&mut self.0, Polled::Elsewhere(elsewhere)) {
                        *lock(&shared) = Some(task);
                    }
                    thread.poll_until_ready(Box::pin(Moved {
                        task: shared,
                        owner: Some(owner),
                        runtime,
                        log: get_default(Dispatch::clone),
                    }));
                }
                Polled::Elsewhere(elsewhere) => match elsewhere.returned.poll_unpin(context) {
                    Poll::Ready(Ok(Returned::Ended(ended))) => return Poll::Ready(Ok(ended)),
                    Poll::Ready(Ok(Returned::Panicked(panic))) => resume_unwind(panic),
                    Poll::Ready(Ok(Returned::Unfinished)) => match taken(&elsewhere.task) {
                        Some(task) => self.0 = Polled::Here(task),
                        None => return Poll::Ready(Err(Lost)),
                    },
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Lost)),
                    Poll::Pending => {
                        if let Some(task) = ready!(elsewhere.taken_back(context)) {
                            self.0 = Polled::Here(task);
                        }
                    }
                },
            }
        }
    }
}

impl<T> TaskElsewhere<T> {
    /// The task, once its thread has not polled it for too long. `None`: it polls it just now.
    fn taken_back(&mut self, context: &mut Context<'_>) -> Poll<Option<Task<T>>> {
        let Some((patience, timer)) = &mut self.patience else { return Poll::Pending };
        ready!(timer.poll_unpin(context));
        timer.as_mut().reset(Instant::now() + *patience);
        Poll::Ready(self.task.try_lock().ok().and_then(|mut task| task.take()))
    }
}

/// A task that its thread polls, and its owner may take back in between. The thread or owner that has the lock polls it.
type Shared<T> = Arc<Mutex<Option<Task<T>>>>;

fn taken<T>(task: &Shared<T>) -> Option<Task<T>> {
    lock(task).take()
}

/// A task on another thread, as that one knows it.
struct Moved<T> {
    task: Shared<T>,
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
        let Some(owner) = self.owner.as_mut() else { return Poll::Ready(()) };
        // Or it has taken the task back.
        if owner.poll_closed(context).is_ready() {
            self.end();
            return Poll::Ready(());
        }
        let mut task = lock(&self.task);
        let Some(moved) = task.as_mut() else { return Poll::Ready(()) };
        let polled = catch_unwind(AssertUnwindSafe(|| polled(moved, true, context)));
        let back = match polled {
            Ok((Poll::Pending, Some(Next::Runtime))) => Returned::Unfinished,
            Ok((Poll::Pending, _)) => return Poll::Pending,
            Ok((Poll::Ready(ended), _)) => Returned::Ended(ended),
            Err(panic) => Returned::Panicked(panic),
        };
        // Before its owner hears of it: what it held is free then.
        if !matches!(back, Returned::Unfinished) {
            dropped(task.take());
        }
        drop(task);
        if let Some(Err(unwanted)) = self.owner.take().map(|owner| owner.send(back)) {
            dropped(unwanted);
            self.end();
        }
        Poll::Ready(())
    }
}

impl<T> Moved<T> {
    /// Drops what is left of the task, on its runtime.
    fn end(&mut self) {
        let _runtime = self.runtime.as_ref().map(Handle::enter);
        let _logged = set_default(&self.log);
        dropped(taken(&self.task));
    }
}

impl<T> Drop for Moved<T> {
    fn drop(&mut self) {
        // Moved back, it is its owner's.
        if self.owner.is_some() {
            self.end();
        }
    }
}

/// What panics while it is dropped must not end the thread.
fn dropped(value: impl Sized) {
    let _ = catch(|| drop(value));
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;

    /// In which nothing of these tests is taken back.
    const LONG: Duration = Duration::from_secs(60);

    /// Each task on a thread of its own.
    struct Threads;

    impl PollingThread for Threads {
        fn poll_until_ready(&self, task: MovedTask) {
            thread::spawn(|| {
                tokio::runtime::Builder::new_current_thread().build().map(|own| own.block_on(task))
            });
        }

        fn patience(&self) -> Duration {
            LONG
        }
    }

    /// One that has ended.
    struct Ended;

    impl PollingThread for Ended {
        fn poll_until_ready(&self, _: MovedTask) {}

        fn patience(&self) -> Duration {
            LONG
        }
    }

    /// One that is busy: it keeps what it is sent, and polls each once, if at all.
    struct Busy {
        polls: bool,
        kept: Mutex<Vec<MovedTask>>,
    }

    impl Busy {
        fn new(polls: bool) -> Arc<Self> {
            Arc::new(Self { polls, kept: Mutex::default() })
        }

        fn poll_all(&self) -> Vec<Poll<()>> {
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut kept = self.kept.lock().unwrap();
            kept.iter_mut().map(|task| task.poll_unpin(&mut context)).collect()
        }
    }

    impl PollingThread for Busy {
        fn poll_until_ready(&self, task: MovedTask) {
            self.kept.lock().unwrap().push(task);
            if self.polls {
                self.poll_all();
            }
        }

        fn patience(&self) -> Duration {
            Duration::from_millis(1)
        }
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

    #[tokio::test]
    async fn g17_a_task_that_its_thread_does_not_poll_is_taken_back() {
        for polls in [false, true] {
            let busy = Busy::new(polls);
            let other: Arc<dyn PollingThread> = busy.clone();
            let (tell, told) = oneshot::channel();
            let task = MovableTask::new(async move {
                let _moved = move_to(&other).await;
                told.await
            });
            let task = tokio::spawn(task);
            while busy.kept.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            tell.send("no longer busy").unwrap();
            assert_eq!(task.await.unwrap().unwrap(), Ok("no longer busy"), "polled once: {polls}");
            assert_eq!(busy.poll_all(), [Poll::Ready(())], "the thread forgets it");
        }
    }
}
