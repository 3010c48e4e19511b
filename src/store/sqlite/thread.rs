//! [`Worker`]: the thread that a SQLite connection lives on.
//!
//! diesel-async would run each statement on tokio's blocking pool and, where its future is dropped,
//! block until the statement ends: a panic on a current-thread runtime (H10). A thread of our own
//! takes statements in order, finishes each that it was handed, and lets a dropped future go.

use std::error::Error;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};

use diesel_async::sync_connection_wrapper::SpawnBlocking;
use futures_util::future::{self, BoxFuture};
use tokio::sync::{mpsc, oneshot};

use super::turns::Turns;

/// A thread that runs what it is sent, in order, until its last sender is dropped.
#[derive(Clone, Debug)]
pub struct Worker {
    jobs: Option<mpsc::UnboundedSender<Job>>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Worker {
    /// Starts the thread. It runs `beside`, too, in between, and sees to it that `turns` go on.
    pub(super) fn start(
        beside: impl Future<Output = ()> + Send + 'static,
        turns: Arc<Turns>,
    ) -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::unbounded_channel::<Job>();
        let serve = async move {
            while let Some(job) = queue.recv().await {
                // A job that panics drops its answer's sender, which its caller sees as an error.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        };
        thread::Builder::new()
            .name("atomic-phases-sqlite".to_owned())
            .spawn(move || block_on(future::join(serve, beside), &turns))?;
        Ok(Self { jobs: Some(jobs) })
    }

    /// Hands `task` over, now, and returns its answer to come.
    pub(super) fn run<'a, R: Send + 'static>(
        &mut self,
        task: impl FnOnce() -> R + Send + 'static,
    ) -> BoxFuture<'a, Result<R, Box<dyn Error + Send + Sync>>> {
        let (answer, answered) = oneshot::channel();
        if let Some(jobs) = &self.jobs {
            // Where the thread is gone, the answer's sender is dropped with the job.
            let _ = jobs.send(Box::new(move || drop(answer.send(task()))));
        }
        Box::pin(async move { answered.await.map_err(|_| "the database thread is gone".into()) })
    }
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
        Self::start(future::ready(()), Arc::default()).unwrap_or(Self { jobs: None })
    }
}

/// Drives `work` on this thread, which is none of a runtime's: what runs on it may block.
fn block_on(work: impl Future, turns: &Turns) {
    turns.watched_by(thread::current());
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    while work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        // Returns at once, if it was woken since the poll.
        match turns.pass_on() {
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
