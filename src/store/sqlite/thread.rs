//! [`Worker`]: the thread that a SQLite connection lives on.
//!
//! diesel-async would run each statement on tokio's blocking pool and, where its future is dropped,
//! block until the statement ends: a panic on a current-thread runtime (H10). A thread of our own
//! takes statements in order, finishes each that it was handed, and lets a dropped future go.
//!
//! A statement that is handed over wakes this thread, and its answer another. So a task with a whole
//! transaction is moved here ([`movable_task`](crate::movable_task)): for it a statement is a call.

use std::cell::RefCell;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

use diesel_async::sync_connection_wrapper::SpawnBlocking;
use futures_util::StreamExt;
use futures_util::future::{self, BoxFuture};
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use super::WRITER_WAIT;
use super::turns::OfferQueue;
use crate::movable_task::{MovedTask, PollingThread};
use crate::panics::catch;

/// A thread that runs what it is sent, in order, until its last sender is dropped.
#[derive(Clone, Debug)]
pub struct Worker(Option<Running>);

#[derive(Clone, Debug)]
struct Running {
    jobs: mpsc::UnboundedSender<Job>,
    thread: ThreadId,
    handed_over: HandedOver,
}

type Job = Box<dyn FnOnce() + Send>;

/// As large as that of a process's main thread: whatever a phase needs on a runtime's thread, it finds here.
const STACK: usize = 8 << 20;

/// How often something was handed to the thread: a statement, or a task.
#[derive(Clone, Debug, Default)]
pub(super) struct HandedOver(Arc<AtomicU64>);

impl HandedOver {
    pub(super) fn note(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// What this thread was sent, if it is a worker's.
    static QUEUE: RefCell<Option<mpsc::UnboundedReceiver<Job>>> = const { RefCell::new(None) };
}

impl Worker {
    /// Starts the thread. It runs `beside`, too, in between, and sees to it that `offers` go on.
    pub(super) fn start(
        beside: impl Future<Output = ()> + Send + 'static,
        offers: Arc<OfferQueue>,
        handed_over: HandedOver,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::unbounded_channel::<Job>();
        let thread = thread::Builder::new()
            .name("atomic-phases-sqlite".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                QUEUE.set(Some(queue));
                block_on(future::join(serve(), beside), &offers);
            })?;
        Ok(Self(Some(Running { jobs, thread: thread.thread().id(), handed_over })))
    }

    /// Hands `task` over, now, and returns its answer to come. On the thread itself it is run, after what was
    /// handed over before.
    pub(super) fn run<'a, R: Send + 'static>(
        &mut self,
        task: impl FnOnce() -> R + Send + 'static,
    ) -> BoxFuture<'a, Result<R, Box<dyn Error + Send + Sync>>> {
        let Some(Running { jobs, thread, handed_over }) = &self.0 else {
            return Box::pin(future::ready(Err(GONE.into())));
        };
        if *thread == thread::current().id() {
            while let Some(job) = next_job() {
                run(job);
            }
            let answer = catch(task).ok_or_else(|| GONE.into());
            return Box::pin(future::ready(answer));
        }
        let (answer, answered) = oneshot::channel();
        handed_over.note();
        // Where the thread is gone, the answer's sender is dropped with the job.
        let _ = jobs.send(Box::new(move || drop(answer.send(task()))));
        Box::pin(async move { answered.await.map_err(|_| GONE.into()) })
    }
}

const GONE: &str = "the database thread is gone";

/// Runs what the thread is sent.
async fn serve() {
    poll_fn(|context| {
        loop {
            let received = QUEUE.with_borrow_mut(|queue| match queue {
                Some(queue) => queue.poll_recv(context),
                None => Poll::Ready(None),
            });
            match received {
                Poll::Ready(Some(job)) => run(job),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

/// The first of those that wait.
fn next_job() -> Option<Job> {
    QUEUE.with_borrow_mut(|queue| queue.as_mut()?.try_recv().ok())
}

/// A job that panics drops its answer's sender, which its caller sees as an error.
fn run(job: Job) {
    let _ = catch(job);
}

/// Through which tasks are moved to the thread.
pub(super) struct TaskQueue {
    arrivals: mpsc::UnboundedSender<MovedTask>,
    handed_over: HandedOver,
}

impl TaskQueue {
    /// The queue, and the future that the thread is to poll for its tasks.
    pub(super) fn open(handed_over: HandedOver) -> (Self, impl Future<Output = ()> + Send) {
        let (arrivals, arriving) = mpsc::unbounded_channel();
        (Self { arrivals, handed_over }, poll_moved_tasks(arriving))
    }
}

impl PollingThread for TaskQueue {
    fn poll_until_ready(&self, task: MovedTask) {
        self.handed_over.note();
        // If the thread has ended, the task is dropped.
        let _ = self.arrivals.send(task);
    }

    fn patience(&self) -> Duration {
        WRITER_WAIT
    }
}

/// Polls the moved tasks, each when it was woken.
async fn poll_moved_tasks(mut arriving: mpsc::UnboundedReceiver<MovedTask>) {
    let mut moved = FuturesUnordered::new();
    poll_fn(|context| {
        let is_open = loop {
            match arriving.poll_recv(context) {
                Poll::Ready(Some(task)) => moved.push(task),
                Poll::Ready(None) => break false,
                Poll::Pending => break true,
            }
        };
        while let Poll::Ready(Some(())) = moved.poll_next_unpin(context) {}
        if is_open || !moved.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

impl SpawnBlocking for Worker {
    fn spawn_blocking<'a, R: Send + 'static>(
        &mut self,
        task: impl FnOnce() -> R + Send + 'static,
    ) -> BoxFuture<'a, Result<R, Box<dyn Error + Send + Sync + 'static>>> {
        self.run(task)
    }

    fn get_runtime() -> Self {
        // A system that has no thread to give answers each statement with an error.
        Self::start(future::ready(()), Arc::default(), HandedOver::default()).unwrap_or(Self(None))
    }
}

/// Drives `work` on this thread, which is none of a runtime's: what runs on it may block.
fn block_on(work: impl Future, offers: &OfferQueue) {
    offers.watched_by(thread::current());
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    while work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        // Returns immediately, if it was woken since the poll.
        match offers.pass_on() {
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}

struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_task_on_the_thread_comes_behind_what_was_handed_over_before() {
        let worker = Worker::start(future::ready(()), Arc::default(), HandedOver::default());
        let worker = Arc::new(Mutex::new(worker.unwrap()));
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let note = |name| {
            let order = order.clone();
            move || order.lock().unwrap().push(name)
        };
        let (tell, told) = std::sync::mpsc::channel();
        let on_the_thread = {
            let (worker, second) = (worker.clone(), note("on the thread"));
            move || {
                told.recv().unwrap();
                let ran = worker.lock().unwrap().run(second);
                ran.now_or_never().unwrap().is_ok()
            }
        };
        let running = worker.lock().unwrap().run(on_the_thread);
        let waiting = worker.lock().unwrap().run(note("handed over"));
        tell.send(()).unwrap();
        assert!(running.await.unwrap());
        waiting.await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["handed over", "on the thread"]);
    }
}
