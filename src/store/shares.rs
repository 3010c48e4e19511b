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

use super::keyed_limit::{KeyedLimit, KeyedPermit, acquired};
use crate::key::Scope;
use crate::setting::{HOUR, SettingError, number};
use crate::store::StoreError;

/// Which phases of this process may hold a connection.
#[derive(Debug)]
pub(super) struct Shares {
    /// Most connections of the pool, of a scope's phases, and of all phases.
    pool: usize,
    per_scope: usize,
    in_all: usize,
    /// What the application wants for each scope, and by which setting.
    chosen: Option<(&'static str, usize)>,
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
    /// Of a pool with so many connections, for which a request waits so long.
    pub(super) fn new(pool: usize, wait: Duration) -> Self {
        let in_all = in_all(pool);
        Self::of(pool, wait, (pool - pool / 4).min(in_all - 1).max(1))
    }

    fn of(pool: usize, wait: Duration, per_scope: usize) -> Self {
        let in_all = in_all(pool);
        Self {
            pool,
            per_scope,
            in_all,
            chosen: None,
            // An application's pool may wait for longer: the end may then be a time that the clock does not know.
            wait: wait.min(HOUR),
            scopes: KeyedLimit::new(per_scope),
            all: Arc::new(Semaphore::new(in_all)),
        }
    }

    /// The same with what the application wants for each scope, by this setting.
    pub(super) fn for_each_scope(
        &self,
        setting: &'static str,
        most: usize,
    ) -> Result<Self, SettingError> {
        number(setting, most, 1, self.in_all as u64)?;
        Ok(Self { chosen: Some((setting, most)), ..Self::of(self.pool, self.wait, most) })
    }

    /// The same of a pool with so many connections, if it has as many as the application wants for each scope.
    pub(super) fn resized(&self, pool: usize) -> Result<Self, SettingError> {
        let shares = Self::new(pool, self.wait);
        match self.chosen {
            Some((setting, most)) => shares.for_each_scope(setting, most),
            None => Ok(shares),
        }
    }

    /// Waits until a phase of the scope may hold a connection.
    pub(super) async fn for_a_phase(&self, scope: &Scope) -> Result<PhaseSlot, StoreError> {
        let until = Instant::now() + self.wait;
        let of_the_scope = self.of_the_scope(scope, until).await?;
        match acquired(self.all.clone(), until).await {
            Some(of_all) => Ok(PhaseSlot { _of_the_scope: of_the_scope, _of_all: of_all }),
            None => Err(self.busy("all scopes hold", self.in_all)),
        }
    }

    /// Waits for the share of the scope only: for a statement whose wait in the database is bounded. `None` where there is
    /// no place by `until`.
    pub(super) async fn for_a_statement(
        &self,
        scope: &Scope,
        until: Instant,
    ) -> Option<KeyedPermit<Scope>> {
        self.scopes.take(scope, until).await
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

/// How many of so many connections the phases of all scopes hold at most.
fn in_all(pool: usize) -> usize {
    pool.saturating_sub((pool / 8).max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_something_to_others_where_there_is_something() {
        let wait = Duration::from_secs(5);
        let shares = [1, 2, 3, 4, 8, 10, 16, 64].map(|size| {
            let shares = Shares::new(size, wait);
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
        let chosen = |most| Shares::new(16, wait).for_each_scope("each", most);
        assert_eq!([1, 14].map(|most| chosen(most).unwrap().per_scope), [1, 14]);
        for most in [0, 15, usize::MAX] {
            assert_eq!(chosen(most).unwrap_err().bound, "1 to 14", "{most}");
        }
    }

    #[test]
    fn a_pool_that_is_too_small_for_the_share_of_a_scope_is_refused() {
        let shares = Shares::new(16, Duration::from_secs(5)).for_each_scope("each", 12).unwrap();
        assert_eq!(shares.resized(32).unwrap().per_scope, 12);
        assert_eq!(shares.resized(8).unwrap_err().bound, "1 to 7");
    }

    #[tokio::test]
    async fn who_waits_too_long_hears_for_what() {
        let shares = Shares::new(4, Duration::from_millis(1));
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
