//! On which connections searches run, and how many at a time. Requests wait for none of them. Health checks and workers have a
//! turn each: an operator's search may take its five seconds, and they cannot wait for that. The engine reads the pauses in
//! the turn of the workers.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Postgres;
use super::connection::ConnectionGuard;
use super::pool::{Pool, WritablePool};
use crate::store::StoreError;

/// How many searches of operators run at a time, each on a connection.
const SEARCHES: usize = 2;

/// How many more there are: one of a health check, one of a worker.
const OTHERS: usize = 2;

/// How many connections all of them have.
pub(super) const CONNECTIONS: usize = SEARCHES + OTHERS;

/// Where searches run, and in whose slots.
#[derive(Clone, Debug)]
pub(super) struct Operators<P> {
    /// `None`: the requests' own, of which they take half at most.
    pool: Option<WritablePool<P>>,
    /// Of operators, or of those who ask in their place.
    slots: SearchSlots,
    pub(super) probes: SearchSlots,
    pub(super) workers: SearchSlots,
}

/// How many searches run at a time.
#[derive(Clone, Debug)]
pub(super) struct SearchSlots {
    free: Arc<Semaphore>,
    none_is_free: &'static str,
}

/// A connection for a search, and the right to have one.
pub(super) struct SearchConnection<P: Pool> {
    pub(super) connection: ConnectionGuard<P>,
    _permit: OwnedSemaphorePermit,
}

impl<P: Pool> Operators<P> {
    /// In a pool of their own.
    pub(super) fn on(pool: P) -> Self {
        let connections = pool.max_size();
        Self::with(Some(pool), connections)
    }

    /// In the pool of the requests, which has this size: half of it is left to them, whatever is slow to be found.
    pub(super) fn beside_requests(size: usize) -> Self {
        Self::with(None, size / 2)
    }

    /// The same where the size of the requests' pool is another.
    pub(super) fn resized(self, size: usize) -> Self {
        if self.pool.is_none() { Self::beside_requests(size) } else { self }
    }

    /// With so many connections at a time. Of fewer than they could use, operators leave one to each of the others; then
    /// those share one; and then all do.
    fn with(pool: Option<P>, connections: usize) -> Self {
        let semaphore = |number| Arc::new(Semaphore::new(number));
        let operators = semaphore(connections.saturating_sub(OTHERS).clamp(1, SEARCHES));
        let probes = if connections < OTHERS { operators.clone() } else { semaphore(1) };
        let workers = if connections <= OTHERS { probes.clone() } else { semaphore(1) };
        let of = |free, none_is_free| SearchSlots { free, none_is_free };
        Self {
            pool: pool.map(WritablePool::of),
            slots: of(operators, "each connection for operators' searches is in use: try again"),
            probes: of(probes, "the connection for health checks is in use: try again"),
            workers: of(workers, "the connection for workers' searches is in use: try again"),
        }
    }

    pub(super) fn in_slots(&self, slots: &SearchSlots) -> Self {
        Self { slots: slots.clone(), ..self.clone() }
    }
}

impl<P: Pool> Postgres<P> {
    /// A pool of its own for operators' searches, for health checks, and for the searches of workers and the engine's reads
    /// of the pauses. It must reach the same primary as the pool of the requests: on a standby, a pause would be read late. Give
    /// it four connections: two for the searches of operators, one for health checks, one for workers and the pauses. Of fewer,
    /// operators take one: of two, health checks and workers share the other; of one, they wait for operators' searches. (bb8's
    /// pool does not report its size: it needs four.)
    ///
    /// A pool that [`connect`](Postgres::connect) opens has another of this size beside it. A pool that the
    /// application has made has none, unless it sets one here. Without it, searches take half of the requests' connections at
    /// most, and four at most, and that half is divided by the rule above. So in a pool of fewer than four, health checks
    /// wait for operators' searches. (A pool of one is not divided.) They also wait for requests: while requests use all
    /// connections, `http::Health` cannot tell that from a database that does not answer.
    #[must_use]
    pub fn operators_pool(self, pool: P) -> Self {
        Self { operators: Operators::on(pool), ..self }
    }

    /// A connection in a transaction that is about to be begun.
    pub(super) async fn search_connection(&self) -> Result<SearchConnection<P>, StoreError> {
        let SearchConnection { connection, _permit: permit } =
            self.connection_for_reading().await?;
        Ok(SearchConnection { connection: connection.in_transaction()?, _permit: permit })
    }

    pub(super) async fn connection_for_reading(&self) -> Result<SearchConnection<P>, StoreError> {
        let SearchSlots { free, none_is_free } = &self.operators.slots;
        let permit = tokio::time::timeout(self.pool.wait(), free.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(StoreError::NoConnection((*none_is_free).to_owned()));
        };
        let connection = ConnectionGuard::of(self.pool_of_operators()).await?;
        Ok(SearchConnection { connection, _permit: permit })
    }

    pub(super) fn pool_of_operators(&self) -> &WritablePool<P> {
        self.operators.pool.as_ref().unwrap_or(&self.pool)
    }

    /// A probe has found that the database can only be read: requests and operators leave it, so that both can write as
    /// soon as a probe says that it can be written to.
    pub(super) fn leave_read_only(&self) {
        self.pool.leave_read_only();
        if let Some(pool) = &self.operators.pool {
            pool.leave_read_only();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DeadpoolPool;

    /// How many searches run at a time in the requests' pool of this size.
    fn taken_of(size: usize) -> usize {
        let Operators { slots, probes, workers, .. } =
            Operators::<DeadpoolPool>::beside_requests(size);
        let mut all = vec![slots.free];
        for free in [probes.free, workers.free] {
            if !all.iter().any(|known| Arc::ptr_eq(known, &free)) {
                all.push(free);
            }
        }
        all.iter().map(|free| free.available_permits()).sum()
    }

    #[test]
    fn g16_searches_leave_half_of_the_requests_connections() {
        let taken = [1, 2, 3, 4, 5, 6, 7, 8, 9, 100].map(taken_of);
        assert_eq!(taken, [1, 1, 1, 2, 2, 3, 3, 4, 4, 4]);
    }
}
