//! One connection, on the client's side, and the pool of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel::QueryResult;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task;
use tokio::time::Instant;

use super::database::Database;
use super::error::connection_lost;
use super::network::Network;
use super::session::{Message, Session, Work};
use crate::lock::lock;
use crate::store::StoreError;

/// As in the other store: how long it waits for the server's answer. Past it, the connection is
/// destroyed, and a commit's outcome counts as unknown.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// How long a request waits for a connection of the pool.
const POOL_WAIT: Duration = Duration::from_secs(5);

/// The client's end of a connection. Dropped, the server hears it.
pub(super) struct Link {
    messages: mpsc::UnboundedSender<Message>,
    _alive: watch::Sender<()>,
    network: Arc<dyn Network>,
}

impl Link {
    fn open(db: &Database, network: &Arc<dyn Network>) -> Self {
        let (messages, queue) = mpsc::unbounded_channel();
        let (alive, client) = watch::channel(());
        Session::start(db, network, queue, client);
        Self { messages, _alive: alive, network: network.clone() }
    }

    /// Sends a statement, or several that travel together, and waits for the answer.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, QueryResult<T>> + Send + 'static,
    ) -> QueryResult<T> {
        let passage = self.network.passage(what);
        let (tell, told) = oneshot::channel::<(QueryResult<T>, Instant)>();
        let work: Work = Box::new(move |session| {
            async move {
                let answer = work(session).await;
                if session.is_answer_lost() {
                    session.withhold(tell);
                } else {
                    let _ = tell.send((answer, Instant::now() + passage.back));
                }
            }
            .boxed()
        });
        let arrives = Instant::now() + passage.there;
        let message = Message { arrives, sender: task::try_id(), passage, work };
        self.messages.send(message).map_err(|_| connection_lost())?;
        let answered = async {
            // That the connection has ended takes as long to be heard as an answer.
            let (answer, arrives) = told
                .await
                .unwrap_or_else(|_| (Err(connection_lost()), Instant::now() + passage.back));
            tokio::time::sleep_until(arrives).await;
            answer
        };
        tokio::time::timeout(ANSWER_WITHIN, answered)
            .await
            .unwrap_or_else(|_| Err(connection_lost()))
    }
}

/// The connections of one client.
pub(super) struct Pool {
    db: Database,
    network: Arc<dyn Network>,
    idle: Mutex<Vec<Link>>,
    permits: Arc<Semaphore>,
    /// Who has a connection.
    holders: Mutex<Vec<Option<task::Id>>>,
}

impl Pool {
    pub(super) fn new(db: Database, network: Arc<dyn Network>, size: usize) -> Self {
        let permits = Arc::new(Semaphore::new(size));
        Self { db, network, idle: Mutex::default(), permits, holders: Mutex::default() }
    }

    pub(super) fn database(&self) -> &Database {
        &self.db
    }

    pub(super) async fn get(self: &Arc<Self>) -> Result<ConnectionGuard, StoreError> {
        let permit = tokio::time::timeout(POOL_WAIT, self.permits.clone().acquire_owned());
        let permit = match permit.await {
            Ok(Ok(permit)) => permit,
            _ => return Err(StoreError::NoConnection("the pool is exhausted".to_owned())),
        };
        let idle = lock(&self.idle).pop();
        let link = match idle {
            Some(link) => link,
            None => self.open().await?,
        };
        let holder = task::try_id();
        lock(&self.holders).push(holder);
        Ok(ConnectionGuard { pool: self.clone(), link: Some(link), holder, _permit: permit })
    }

    /// How many connections this task has.
    pub(super) fn held_here(&self) -> usize {
        let here = task::try_id();
        lock(&self.holders).iter().filter(|holder| **holder == here).count()
    }

    async fn open(&self) -> Result<Link, StoreError> {
        let refused = |error: diesel::result::Error| StoreError::NoConnection(error.to_string());
        if self.db.state().down {
            let passage = self.network.passage("connect");
            tokio::time::sleep(passage.there + passage.back).await;
            return Err(refused(connection_lost()));
        }
        let link = Link::open(&self.db, &self.network);
        link.ask("connect", |session| async { session.hello() }.boxed()).await.map_err(refused)?;
        Ok(link)
    }

    /// The idle connections are dead: the server was away.
    pub(super) fn forget_idle(&self) {
        lock(&self.idle).clear();
    }
}

/// A connection of the pool, closed unless it is given back.
pub(super) struct ConnectionGuard {
    pool: Arc<Pool>,
    link: Option<Link>,
    holder: Option<task::Id>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionGuard {
    /// Boxed: the futures of a request are nested deeply as it is.
    pub(super) fn ask<'l, T: Send + 'static>(
        &'l self,
        what: &'static str,
        work: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, QueryResult<T>> + Send + 'static,
    ) -> BoxFuture<'l, QueryResult<T>> {
        async move {
            match &self.link {
                Some(link) => link.ask(what, work).await,
                None => Err(connection_lost()),
            }
        }
        .boxed()
    }

    /// Returns the connection to its pool. No transaction is open on it any more.
    pub(super) fn give_back(mut self) {
        if let Some(link) = self.link.take() {
            lock(&self.pool.idle).push(link);
        }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut holders = lock(&self.pool.holders);
        if let Some(at) = holders.iter().position(|holder| *holder == self.holder) {
            holders.swap_remove(at);
        }
    }
}
