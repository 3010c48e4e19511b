//! A key whose row another transaction is about to create: how a reservation waits for its twin.
//!
//! PostgreSQL lets the second `INSERT` wait for the first one's transaction. A statement that waits keeps a connection of the
//! pool, which all scopes share (G16). So it waits [`ROW_LOCK_WAIT`] at most. The rest of the time, the reservation waits in
//! memory, and [asks](sql::AskTwin) in between.
//!
//! | at a time | may wait in the database for a key's row |
//! |---|---|
//! | one of this process | for each key |
//! | its [share](crate::store::shares) of the pool's connections | for each scope |
//! | of these, one | for each scope, to ask again |
//! | a quarter of the pool's connections | for all scopes, to ask again |

use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel::result::Error;
use diesel_async::RunQueryDsl;
use futures_util::future::join5;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::transaction::PgTransaction;
use super::{Pool, Postgres, answered, session, sql};
use crate::definition::Isolation;
use crate::key::{IdempotencyKey, Scope};
use crate::store::keyed_limit::{KeyPermit, KeyedLimit, KeyedPermit, acquired};
pub(super) use crate::store::patience::Patience;
use crate::store::{NewRow, StoreError, Transaction};

/// How long a statement waits for a key's row while it holds a connection. Long enough for a twin that
/// is just committing; short enough that a pool survives a thousand duplicates.
pub(super) const ROW_LOCK_WAIT: Duration = Duration::from_millis(20);

/// Which requests of this process may create a key.
#[derive(Debug)]
pub(super) struct Waits {
    keys: KeyedLimit<(Scope, IdempotencyKey)>,
    asking: KeyedLimit<Scope>,
    asking_in_all: Arc<Semaphore>,
}

/// The right to ask: its place among all scopes, in its scope's share, and in its scope.
type TurnToAsk = (OwnedSemaphorePermit, KeyedPermit<Scope>, KeyedPermit<Scope>);

/// What became of the transaction that was about to create the key's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Twin {
    /// It committed: the key has a row.
    Exists,
    /// It is still open.
    Open,
    /// There was no turn to ask in time.
    NotAsked,
    /// It was open, and was rolled back.
    Gone,
    /// There is none: what a statement failed for was something else.
    None,
}

impl Waits {
    /// Of a pool with so many connections.
    pub(super) fn new(connections: usize) -> Self {
        Self {
            keys: KeyedLimit::new(1),
            asking: KeyedLimit::new(1),
            asking_in_all: Arc::new(Semaphore::new((connections / 4).max(1))),
        }
    }

    /// Waits for the others of this process that are about to create the same key. `None` where one of
    /// them still is, past the bound or when the caller has given up.
    pub(super) async fn for_the_key(&self, row: &NewRow<'_>, until: Instant) -> Option<KeyPermit> {
        let key = (row.scope.clone(), row.key.clone());
        row.caller.unless_gone(self.keys.take(&key, until)).await.flatten()
    }
}

impl<P: Pool> Postgres<P> {
    /// Finds out, and waits until `until` or until the caller gives up for, what becomes of the key's twin:
    /// after an error that a twin may be the cause of, and something else too. Asked with a statement of the
    /// engine's alone.
    pub(super) async fn twin(&self, row: &NewRow<'_>, until: Instant) -> Result<Twin, StoreError> {
        let mut patience = Patience::new(until.saturating_duration_since(Instant::now()));
        let mut was_open = false;
        loop {
            let told = match row.caller.unless_gone(self.turn_to_ask(row, until)).await.flatten() {
                Some(_turn) => self.ask_twin(row).await?,
                None if was_open => return Ok(Twin::Open),
                None => return Ok(Twin::NotAsked),
            };
            match told {
                Twin::None if was_open => return Ok(Twin::Gone),
                Twin::Open if row.caller.unless_gone(patience.pause()).await == Some(true) => {
                    was_open = true;
                }
                told => return Ok(told),
            }
        }
    }

    /// Waits until a question for the key may take a connection. `None` past the bound.
    async fn turn_to_ask(&self, row: &NewRow<'_>, until: Instant) -> Option<TurnToAsk> {
        let of_the_scope = self.waits.asking.take(row.scope, until).await?;
        let place = self.shares.for_a_statement(row.scope, until).await?;
        let of_all = acquired(self.waits.asking_in_all.clone(), until).await?;
        Some((of_all, place, of_the_scope))
    }

    async fn ask_twin(&self, row: &NewRow<'_>) -> Result<Twin, StoreError> {
        let tx = PgTransaction::begin(&self.pool).await?;
        let conn = tx.connection.shared()?;
        let replaces = row.replaces.map(|id| id.to_string()).unwrap_or_default();
        let (scope, key) = (row.scope.as_str(), row.key.as_str());
        let asked = answered(async {
            let (begun, set, about, asked, told) = join5(
                sql::Begin(Isolation::ReadCommitted).execute(&mut &*conn),
                session::Settings::new(Some(ROW_LOCK_WAIT)).execute(&mut &*conn),
                sql::AboutTwin { scope, key, replaces }.execute(&mut &*conn),
                sql::AskTwin {}.execute(&mut &*conn),
                sql::ToldTwin {}.load::<String>(&mut &*conn),
            )
            .await;
            begun.and(set).and(about).and(asked)?;
            told?.into_iter().next().ok_or(Error::NotFound)
        });
        let asked = asked.await;
        let (tx, told) = tx.unless_refused("ask for the key", asked).await?;
        tx.rollback().await;
        match told.as_str() {
            "exists" => Ok(Twin::Exists),
            "open" => Ok(Twin::Open),
            "none" => Ok(Twin::None),
            _ => Err(StoreError::database("ask for the key", Error::NotFound)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;
    use uuid::Uuid;

    use super::super::pool;
    use super::*;
    use crate::caller::Caller;
    use crate::store::{Birth, PoolSettings};

    /// What this asks fails, because no server listens there. `None` where it waits for long.
    async fn asks(store: &Postgres, caller: &Caller, wait: Duration) -> Option<Result<Twin, ()>> {
        let (scope, key) = (Scope::new("s").unwrap(), IdempotencyKey::new("k").unwrap());
        let row = NewRow {
            scope: &scope,
            key: &key,
            request_id: Uuid::nil(),
            definition: "d",
            version: 1,
            phases: "a",
            fingerprint: "v1:f",
            params: b"{}",
            context: None,
            trace: None,
            birth: Birth::Pending,
            retention: wait,
            creation_wait: wait,
            caller,
            replaces: None,
        };
        let told = timeout(Duration::from_secs(10), store.twin(&row, Instant::now() + wait)).await;
        told.ok().map(|told| told.map_err(drop))
    }

    /// Whatever it is that others have: a call does not ask without it, and waits for it within its own bound.
    #[tokio::test]
    async fn g16_g17_a_wait_to_ask_ends_with_its_bound_and_with_its_caller() {
        let settings = PoolSettings::default().max_size(4);
        let url = "postgres://ada@127.0.0.1:1/rides";
        let store = Postgres::with_pool(pool::open(url, settings).unwrap());
        let scope = Scope::new("s").unwrap();
        let (moment, hour) = (Duration::from_millis(20), Duration::from_secs(3600));
        let is_not_asked = async || {
            let (present, caller) = Caller::elsewhere();
            let by_its_bound = asks(&store, &caller, moment).await;
            let leaves = async { drop(present) };
            let (by_its_caller, ()) = tokio::join!(asks(&store, &caller, hour), leaves);
            (by_its_bound, by_its_caller) == (Some(Ok(Twin::NotAsked)), Some(Ok(Twin::NotAsked)))
        };
        let of_all = store.waits.asking_in_all.clone().try_acquire_owned().unwrap();
        assert!(is_not_asked().await, "the one place to ask is another scope's");
        drop(of_all);
        let of_the_scope = store.waits.asking.take(&scope, Instant::now()).await;
        assert!(is_not_asked().await, "another call of the scope asks");
        drop(of_the_scope);
        let one = store.shares.for_a_phase(&scope).await;
        let two = store.shares.for_a_phase(&scope).await;
        assert!(is_not_asked().await, "phases have the share of the scope");
        drop((one, two));
        let asked = asks(&store, &Caller::here(), moment).await;
        assert_eq!(asked, Some(Err(())), "it asks, also where its bound is short");
    }
}
