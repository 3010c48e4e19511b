//! [`Workers`]: all background workers of a process, restarted if one panics, and stopped together.

use std::future::Future;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::enqueuer::report_unhandled;
use super::{Announcer, BulkRunner, Census, Completer, Enqueuer, Reaper, Reconciler, WorkerConfig};
use crate::engine::Engine;
use crate::observe;
use crate::setting::SettingError;
use crate::store::operators::OperatorStore;
use crate::task;

/// How long a worker that panicked rests before it is started again, at first and at last: twice as long each time.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

/// The running workers of one engine. When this is dropped, they stop at their next step; [`shutdown`](Self::shutdown)
/// waits for that.
#[must_use = "the workers stop when this is dropped"]
pub struct Workers {
    stop: watch::Sender<bool>,
    supervised: Vec<JoinHandle<()>>,
}

impl<S: OperatorStore, A: Send + Sync + 'static> Engine<S, A> {
    /// Runs completer, reconciler, reaper, the runner of bulk acts and the announcer on this node; if
    /// `config` has a sink, also the enqueuer; with the cargo feature `metrics`, also the census. Any number
    /// of nodes may run workers; one is enough to finish every node's requests (G17).
    ///
    /// A worker that panics is restarted, after a second at first and longer each time. If the sink does not
    /// [handle](crate::worker::JobSink::handles) a job that the engine's requests are known to stage, a warning in the log names
    /// it.
    ///
    /// # Errors
    /// [`SettingError`] names a setting of `config` that cannot work; then nothing is started.
    pub fn spawn_workers(&self, config: WorkerConfig) -> Result<Workers, SettingError> {
        self.without_app().supervised(config)
    }
}

impl<S: OperatorStore> Engine<S> {
    fn supervised(self, config: WorkerConfig) -> Result<Workers, SettingError> {
        config.check()?;
        let stop = watch::Sender::new(false);
        let (store, engine) = (self.store().clone(), self);
        let mut supervised = vec![
            supervise("completer", &stop, {
                let (engine, config) = (engine.clone(), config.clone());
                move |stopped| Completer::new(&engine, config.clone()).run(stopped)
            }),
            supervise("reconciler", &stop, {
                let (engine, config) = (engine.clone(), config.clone());
                move |stopped| Reconciler::new(&engine, config.clone()).run(stopped)
            }),
            supervise("bulk runner", &stop, {
                let (engine, config) = (engine.clone(), config.clone());
                move |stopped| BulkRunner::new(&engine, config.clone()).run(stopped)
            }),
            supervise("announcer", &stop, {
                let (engine, config) = (engine.clone(), config.clone());
                move |stopped| Announcer::new(&engine, config.clone()).run(stopped)
            }),
            supervise("reaper", &stop, {
                let config = config.clone();
                move |stopped| Reaper::new(&store, config.clone()).run(stopped)
            }),
        ];
        if cfg!(feature = "metrics") {
            let (engine, config) = (engine.clone(), config.clone());
            let census = move |stopped| Census::new(&engine, config.clone()).run(stopped);
            supervised.push(supervise("census", &stop, census));
        }
        if let Some(sink) = config.sink.clone() {
            report_unhandled(&engine, sink.as_ref());
            supervised.push(supervise("enqueuer", &stop, move |stopped| {
                Enqueuer::with(&engine, sink.clone(), config.clone()).run(stopped)
            }));
        }
        Ok(Workers { stop, supervised })
    }
}

type Stopped = Pin<Box<dyn Future<Output = ()> + Send>>;

fn supervise<W: Future<Output = ()> + Send + 'static>(
    name: &'static str,
    stop: &watch::Sender<bool>,
    start: impl Fn(Stopped) -> W + Send + Sync + 'static,
) -> JoinHandle<()> {
    let (stopped, start) = (stop.subscribe(), Arc::new(start));
    observe::worker_started(name);
    task::spawn(async move {
        let mut rest = FIRST_REST;
        // A task of its own, in which the worker is made, too: its panic ends it and not the supervisor.
        let begin = || {
            let (stopped, start) = (until(stopped.clone()), start.clone());
            task::spawn(async move { start(Box::pin(stopped)).await })
        };
        while begin().await.is_err() {
            observe::worker_panicked(name);
            tokio::select! {
                biased;
                () = until(stopped.clone()) => return,
                () = tokio::time::sleep(rest) => {}
            }
            rest = (rest * 2).min(LONGEST_REST);
        }
    })
}

/// Until it is set, or its sender is gone.
async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

impl Workers {
    /// Stops them: they begin nothing new, and finish what they have begun. [`Engine::shutdown`](crate::Engine::shutdown)
    /// stops the requests that they run sooner, at their next phase. Returns when
    /// all have stopped, or when `within` has passed.
    ///
    /// # Errors
    /// [`StillWorking`]: a request or a job takes longer. If the process ends, it is left as after a crash:
    /// its lease expires, and another node continues.
    pub async fn shutdown(mut self, within: Duration) -> Result<(), StillWorking> {
        self.stop.send_replace(true);
        let deadline = tokio::time::sleep(within);
        let mut deadline = pin!(deadline);
        while let Some(supervised) = self.supervised.last_mut() {
            tokio::select! {
                biased;
                // It was not aborted, and it does not panic.
                _ = supervised => drop(self.supervised.pop()),
                () = deadline.as_mut() => {
                    let is_working = |task: &&JoinHandle<()>| !task.is_finished();
                    let workers = self.supervised.iter().filter(is_working).count();
                    return Err(StillWorking { workers, within });
                }
            }
        }
        Ok(())
    }
}

/// Why [`Workers::shutdown`] returned before all of them had stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{workers} workers have a request or a job under way after {within:?}; another node continues it when its lease has expired"
)]
#[non_exhaustive]
pub struct StillWorking {
    /// How many workers.
    pub workers: usize,
    /// How long the call waited for them.
    pub within: Duration,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").field("running", &self.supervised.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::super::{More, Stop, Worker, poll_until_stopped, until_shutdown};
    use super::*;
    use crate::store::StoreError;

    struct Fails {
        starts: Arc<AtomicU32>,
        polls: Arc<AtomicU32>,
    }

    impl Worker for Fails {
        const NAME: &'static str = "fails";

        fn pace(&self) -> Duration {
            Duration::from_millis(1)
        }

        async fn poll_once(&mut self, _: &Stop) -> Result<More, StoreError> {
            match self.starts.load(Ordering::SeqCst) {
                1 => std::panic::resume_unwind(Box::new("asked for")),
                // A worker is not restarted because its store is unavailable.
                2 if self.polls.fetch_add(1, Ordering::SeqCst) < 3 => {
                    Err(StoreError::NoConnection("asked for".to_owned()))
                }
                _ => Ok(More::No),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn g17_a_worker_that_panics_is_started_again_and_one_that_fails_goes_on() {
        let (starts, seen) = <(Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        let stop = watch::Sender::new(false);
        let supervised = supervise("fails", &stop, {
            let (starts, seen) = (starts.clone(), seen.clone());
            move |stopped| {
                starts.fetch_add(1, Ordering::SeqCst);
                let mut worker = Fails { starts: starts.clone(), polls: seen.clone() };
                async move {
                    let stop = Stop::default();
                    until_shutdown(&stop, poll_until_stopped(&mut worker, &stop), stopped).await;
                }
            }
        });
        while seen.load(Ordering::SeqCst) < 10 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(starts.load(Ordering::SeqCst), 2);
        let workers = Workers { stop, supervised: vec![supervised] };
        workers.shutdown(Duration::from_secs(60)).await.unwrap();
    }

    struct Paceless(u32);

    impl Worker for Paceless {
        const NAME: &'static str = "paceless";

        fn pace(&self) -> Duration {
            Duration::ZERO
        }

        async fn poll_once(&mut self, _: &Stop) -> Result<More, StoreError> {
            self.0 += 1;
            assert!(self.0 <= 1100, "without a pause");
            Ok(More::No)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn g17_no_pace_makes_a_loop_without_a_pause() {
        let (mut worker, stop) = (Paceless(0), Stop::default());
        let polling = poll_until_stopped(&mut worker, &stop);
        until_shutdown(&stop, polling, tokio::time::sleep(Duration::from_secs(1))).await;
        assert!(worker.0 <= 1100, "{}", worker.0);
    }
}
