//! [`Another`]: what failed because of its connection is done on another one.
//!
//! The connections that are idle are as old, so they are closed first. A server that prepares no more statements has the
//! room again when the sessions of closed connections have ended: the driver takes its leave in a task of its own, and
//! what a session keeps counts until its thread has ended. So behind that failure it is tried several times, with pauses.

use std::time::Duration;

use super::Mysql;
use super::error::{Failure, is_of_those_connections, is_of_too_many_statements};
use crate::store::{Store, StoreError};

/// In milliseconds: the pauses between the tries on a server that prepares no more statements.
const PAUSES: [u64; 5] = [50, 100, 200, 400, 800];

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
#[derive(Debug, Default)]
pub(super) struct Another {
    failures: usize,
}

impl Another {
    /// Closes the idle connections. Whether to try once more: then it is time to do so.
    pub(super) async fn is_to_be_tried(&mut self, store: &Mysql, reason: Reason) -> bool {
        store.forget_idle();
        let before = self.failures;
        self.failures += 1;
        match (reason, PAUSES.get(before)) {
            (Reason::Full, Some(pause)) => {
                tokio::time::sleep(Duration::from_millis(*pause)).await;
                true
            }
            (Reason::Full, None) => false,
            (Reason::Dead, _) => before == 0,
        }
    }
}

impl Mysql {
    /// Behind a failure: closes the idle connections, where others may do better.
    pub(super) fn leave_behind(&self, error: &StoreError) {
        if is_of_those_connections(error) {
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
}
