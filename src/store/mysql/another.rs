//! [`Another`]: repeats on another connection what failed because of its connection.
//!
//! The idle connections may be as old, so they are closed first. A server that prepares no more statements has room again only
//! when the sessions of the closed connections have ended: the driver disconnects in a task of its own, and the statements of a
//! session count until its thread has ended. So after that failure the store tries several times, with pauses.

use std::time::{Duration, Instant};

use super::Mysql;
use super::error::{Failure, is_of_too_many_statements};
use crate::caller::Caller;
use crate::error::is_of_reading_only;
use crate::store::StoreError;

/// In milliseconds: the pauses between the tries on a server that prepares no more statements.
const PAUSES: [u64; 5] = [50, 100, 200, 400, 800];

/// What is tried again by the engine, in whose transaction such a server prepared no statement: it does so five times.
pub(super) const PAUSE_OF_A_RERUN: Duration = Duration::from_millis(300);

/// Why another connection may do better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// This one is dead.
    Dead,
    /// The server prepares no more statements.
    Full,
}

impl Reason {
    /// Of a failure that is one of the connection.
    pub(super) fn of(failure: &Failure) -> Self {
        if failure.is_of_too_many_statements() { Self::Full } else { Self::Dead }
    }
}

/// How often something has failed because of its connection.
#[derive(Default)]
pub(super) struct Another<'a> {
    failures: usize,
    /// Until when it may pause, and the caller that waits for it.
    waits: Option<(Instant, &'a Caller)>,
}

impl<'a> Another<'a> {
    /// One that pauses until then at most, and only while the caller waits.
    pub(super) fn until(until: Instant, caller: &'a Caller) -> Self {
        Self { failures: 0, waits: Some((until, caller)) }
    }

    /// Closes the idle connections. Whether to try once more: then it is time to do so.
    pub(super) async fn is_to_be_tried(&mut self, store: &Mysql, reason: Reason) -> bool {
        store.forget_idle();
        let before = self.failures;
        self.failures += 1;
        match (reason, PAUSES.get(before)) {
            (Reason::Full, Some(pause)) => self.pauses(Duration::from_millis(*pause)).await,
            (Reason::Full, None) => false,
            (Reason::Dead, _) => before == 0,
        }
    }

    /// Pauses for so long, or until its bound. `false` where that has passed, or the caller has given up.
    async fn pauses(&self, pause: Duration) -> bool {
        let Some((until, caller)) = self.waits else {
            tokio::time::sleep(pause).await;
            return true;
        };
        let left = until.saturating_duration_since(Instant::now());
        let paused = caller.unless_gone(tokio::time::sleep(pause.min(left))).await;
        paused.is_some() && !left.is_zero()
    }
}

impl Mysql {
    /// Closes the idle connections. After a restart of the server, each of them is dead; and those that are not keep
    /// statements prepared, of which the server has no more than a number. A clone that searches for health checks or workers
    /// closes those of all pools, too.
    pub(super) fn forget_idle(&self) {
        for pool in [&self.pool, &self.operators, &self.probes, &self.workers] {
            pool.retain(|_, _| false);
        }
    }

    /// Behind a failure: closes the idle connections, where others may do better.
    pub(super) fn leave_behind(&self, error: &StoreError) {
        if error.is_of_the_connection() {
            self.forget_idle();
        } else if error.of_diesel().is_some_and(is_of_reading_only) {
            self.leave_read_only();
        }
    }

    /// Closes the connections to a server that is read only: the idle ones now, and those in use when they come back. It
    /// may be a primary of before, which keeps its sessions, while new ones reach the server that has its place (G12).
    pub(super) fn leave_read_only(&self) {
        if self.read_only.is_to_be_left(Instant::now()) {
            self.forget_idle();
        }
    }

    /// Asks what is safe to ask twice, on other connections where that may help.
    pub(super) async fn on_another<R, F>(&self, ask: impl Fn() -> F) -> Result<R, StoreError>
    where
        F: Future<Output = Result<R, StoreError>>,
    {
        let mut another = Another::default();
        loop {
            let error = match ask().await {
                Err(error) if error.is_of_the_connection() => error,
                Err(error) => {
                    self.leave_behind(&error);
                    return Err(error);
                }
                answer => return answer,
            };
            let reason =
                if is_of_too_many_statements(&error) { Reason::Full } else { Reason::Dead };
            if !another.is_to_be_tried(self, reason).await {
                return Err(error);
            }
        }
    }

    /// Asks what writes nothing: again where the server prepared no more statements, and once more where the connection was
    /// lost behind the question whether its server is there. Those that are idle are asked before they are used, and stay.
    /// Not again where no answer came: a search has its time limit once.
    pub(super) async fn searched<R, F>(&self, ask: impl Fn() -> F) -> Result<R, StoreError>
    where
        F: Future<Output = Result<R, StoreError>>,
    {
        let (mut another, mut was_lost) = (Another::default(), false);
        loop {
            match ask().await {
                Err(error) if is_of_too_many_statements(&error) => {
                    if !another.is_to_be_tried(self, Reason::Full).await {
                        return Err(error);
                    }
                }
                Err(error)
                    if error.is_of_the_connection() && !error.is_unanswered() && !was_lost =>
                {
                    was_lost = true;
                }
                answer => return answer,
            }
        }
    }

    /// Asks what may be asked once, and again only where the server prepared no more statements: that one has executed
    /// nothing.
    pub(super) async fn until_prepared<R, F>(&self, ask: impl Fn() -> F) -> Result<R, StoreError>
    where
        F: Future<Output = Result<R, StoreError>>,
    {
        let mut another = Another::default();
        loop {
            match ask().await {
                Err(error) if is_of_too_many_statements(&error) => {
                    if !another.is_to_be_tried(self, Reason::Full).await {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn g16_a_pause_ends_with_its_bound_and_with_its_caller() {
        let (present, caller) = Caller::elsewhere();
        let hour = Duration::from_secs(3600);
        assert!(Another::default().pauses(hour).await);
        let began = tokio::time::Instant::now();
        assert!(Another::until(Instant::now() + hour, &caller).pauses(hour / 60).await);
        assert!(Another::until(Instant::now() + hour / 60, &caller).pauses(hour).await);
        assert!(!Another::until(Instant::now(), &caller).pauses(hour).await);
        assert!(began.elapsed() < hour / 20, "{:?}", began.elapsed());
        drop(present);
        assert!(!Another::until(Instant::now() + hour, &caller).pauses(hour).await);
        assert!(began.elapsed() < hour / 20, "{:?}", began.elapsed());
    }
}
