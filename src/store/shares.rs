//! [`Shares`]: how many of the pool's connections the transactions of phases hold at a time (G16).
//!
//! A local phase keeps its connection for as long as it takes. The pool's own queue knows no scopes: in it,
//! the slow phases of one scope are served before the replays and heartbeats of all others. So a phase
//! gets a [`PhaseSlot`] first, waited for in memory, and asks the pool only then.
//!
//! | pool | phases of one scope | phases of all scopes | left for statements by themselves |
//! |---|---|---|---|
//! | 1 or 2 | 1 | 1 | 0 or 1 |
//! | 4 | 2 | 3 | 1 |
//! | 8 | 6 | 7 | 1 |
//! | 16 | 12 | 14 | 2 |
//!
//! Three quarters for one scope: most applications have one that is most of their load, or only one, and
//! a server is busy with fewer connections than a pool has. Slow phases cannot be interrupted, so what
//! other scopes need has to be free before they come: lending them the rest would be too late.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::keyed_limit::{KeyedLimit, KeyedPermit};
use crate::key::Scope;
use crate::setting::HOUR;
use crate::store::StoreError;

/// Which phases of this process may hold a connection.
#[derive(Debug)]
pub(super) struct Shares {
    /// Most connections of the pool, of a scope's phases, and of all phases.
    pool: usize,
    per_scope: usize,
    in_all: usize,
    chosen: Option<usize>,
    wait: Duration,
    scopes: KeyedLimit<Scope>,
    all: Arc<Semaphore>,
}

/// The right of a phase to hold one connection. Dropped after the connection went back.
pub(super) struct PhaseSlot {
    _of_the_scope: KeyedPermit<Scope>,
    _of_all: OwnedSemaphorePermit,
}

impl Shares {
    /// Of a pool with so many connections, for which a request waits so long. `chosen`: what the
    /// application wants for each scope.
    pub(super) fn new(pool: usize, wait: Duration, chosen: Option<usize>) -> Self {
        let in_all = pool.saturating_sub((pool / 8).max(1)).max(1);
        let per_scope = match chosen {
            Some(most) => most.clamp(1, in_all),
            None => (pool - pool / 4).min(in_all - 1).max(1),
        };
        Self {
            pool,
            per_scope,
            in_all,
            chosen,
            // Beyond that, the end of the wait may be a time that the clock does not know.
            wait: wait.min(HOUR),
            scopes: KeyedLimit::new(per_scope),
            all: Arc::new(Semaphore::new(in_all)),
        }
    }

    pub(super) fn pool_size(&self) -> usize {
        self.pool
    }

    /// What the application wants for each scope.
    pub(super) fn chosen(&self) -> Option<usize> {
        self.chosen
    }

    /// Waits until a phase of the scope may hold a connection.
    pub(super) async fn for_a_phase(&self, scope: &Scope) -> Result<PhaseSlot, StoreError> {
        let until = Instant::now() + self.wait;
        let of_the_scope = self.of_the_scope(scope, until).await?;
        let of_all = tokio::time::timeout_at(until.into(), self.all.clone().acquire_owned());
        match of_all.await {
            Ok(Ok(of_all)) => Ok(PhaseSlot { _of_the_scope: of_the_scope, _of_all: of_all }),
            _ => Err(self.busy("all scopes hold", self.in_all)),
        }
    }

    /// Waits for the share of the scope only: for a statement whose wait in the database is bounded.
    pub(super) async fn for_a_statement(
        &self,
        scope: &Scope,
    ) -> Result<KeyedPermit<Scope>, StoreError> {
        self.of_the_scope(scope, Instant::now() + self.wait).await
    }

    async fn of_the_scope(
        &self,
        scope: &Scope,
        until: Instant,
    ) -> Result<KeyedPermit<Scope>, StoreError> {
        let turn = self.scopes.take(scope, until).await;
        turn.ok_or_else(|| self.busy("this scope hold", self.per_scope))
    }

    fn busy(&self, of_whom: &str, most: usize) -> StoreError {
        StoreError::NoConnection(format!(
            "phases of {of_whom} {most} of the pool's {} connections, which is their share, and none of \
             them ended within {:?}",
            self.pool, self.wait
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_something_to_others_where_there_is_something() {
        let wait = Duration::from_secs(5);
        let shares = [1, 2, 3, 4, 8, 10, 16, 64].map(|size| {
            let shares = Shares::new(size, wait, None);
            (size, shares.per_scope, shares.in_all)
        });
        assert_eq!(
            shares,
            [
                (1, 1, 1),
                (2, 1, 1),
                (3, 1, 2),
                (4, 2, 3),
                (8, 6, 7),
                (10, 8, 9),
                (16, 12, 14),
                (64, 48, 56)
            ]
        );
        let chosen = [1, 14, 16].map(|most| Shares::new(16, wait, Some(most)).per_scope);
        assert_eq!(chosen, [1, 14, 14]);
    }

    #[tokio::test]
    async fn who_waits_too_long_hears_for_what() {
        let shares = Shares::new(4, Duration::from_millis(1), None);
        let [bad, good] = ["bad", "good"].map(|name| Scope::new(name).unwrap());
        let one = shares.for_a_phase(&bad).await.ok().unwrap();
        let _two = shares.for_a_phase(&bad).await.ok().unwrap();
        let told = |error: Option<StoreError>| error.unwrap().to_string();
        assert_eq!(
            told(shares.for_a_phase(&bad).await.err()),
            "no database connection: phases of this scope hold 2 of the pool's 4 connections, which is \
             their share, and none of them ended within 1ms"
        );
        let _three = shares.for_a_phase(&good).await.ok().unwrap();
        assert!(
            told(shares.for_a_phase(&good).await.err()).contains("phases of all scopes hold 3")
        );
        drop(one);
        assert!(shares.for_a_phase(&good).await.is_ok());
    }
}
