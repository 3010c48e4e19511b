//! [`RedisConnection`]: the one connection to Redis that all calls share, replaced as soon as it is of no more use.
//!
//! The next call opens another one where a connection was lost; where what is sent on it is not answered any more,
//! although TCP knows of no fault; and where its server says that it does not take writes, as a primary that was demoted:
//! the same name may lead to the new one. Calls that are under way on the old one go on, and close it with the last of
//! them.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline, RedisError,
    Value,
};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::lock::lock;
use crate::moment::Moment;
use crate::task;

/// How long connecting may take. A call may wait for less than that: a task connects.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long the answer to a `PING` may take, behind a call that was given up.
const PING_LIMIT: Duration = Duration::from_secs(1);

/// How often a connection is replaced because of what its server says, at most: the name may lead to the same server for
/// a while.
const NOT_THE_PRIMARY_PAUSE: Duration = Duration::from_secs(1);

/// What a server answers that does not take writes: a replica, one that reads its data from its disk, a primary that has
/// lost its replicas.
const NOT_THE_PRIMARY: [&str; 4] = ["READONLY", "MASTERDOWN", "LOADING", "NOREPLICAS"];

/// Why Redis did not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDone {
    /// There is no connection.
    NotConnected,
    /// Its server does not take writes.
    NotThePrimary,
    Refused,
    /// The connection was lost. It may have been done, or not.
    Lost,
}

#[derive(Clone)]
pub(crate) struct RedisConnection(Arc<Inner>);

struct Inner {
    client: redis::Client,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    /// Counts the connections.
    number: u64,
    /// `None` until a call needs it.
    connecting: Option<Connecting>,
    /// Finds out whether it is still answered.
    check: Option<JoinHandle<()>>,
    /// When one was replaced because of what its server said.
    not_the_primary: Option<Moment>,
}

impl Current {
    fn leave(&mut self) {
        self.number += 1;
        self.connecting = None;
        self.check = None;
    }
}

type Connecting = Shared<BoxFuture<'static, Result<MultiplexedConnection, RedisError>>>;

impl RedisConnection {
    /// The first call connects.
    pub(crate) fn new(url: &str) -> Result<Self, RedisError> {
        let tcp = TcpSettings::default().set_nodelay(true);
        // A peer that vanished silently is noticed when it does not acknowledge what was sent.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let tcp = tcp.set_user_timeout(Duration::from_secs(5));
        let client = redis::Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
        Ok(Self(Arc::new(Inner { client, current: Mutex::default() })))
    }

    /// Connects, unless it is connected.
    pub(crate) async fn connect(&self) -> Result<(), RedisError> {
        self.connected().await.map(drop)
    }

    /// Sends these commands, and waits for their answers without a limit. May be given up at any time: then Redis may
    /// have done it, or not.
    pub(crate) async fn send<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, NotDone> {
        let Ok((mut connection, number)) = self.connected().await else {
            return Err(NotDone::NotConnected);
        };
        let unanswered = Unanswered { on: self, number };
        let answer = commands.query_async(&mut connection).await;
        std::mem::forget(unanswered);
        let not_done = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => why(error),
        };
        match not_done {
            NotDone::NotThePrimary => self.look_for_the_primary(number),
            NotDone::Lost | NotDone::NotConnected => self.leave(number),
            NotDone::Refused => {}
        }
        Err(not_done)
    }

    async fn connected(&self) -> Result<(MultiplexedConnection, u64), RedisError> {
        let (connecting, number) = {
            let mut current = lock(&self.0.current);
            let number = current.number;
            (current.connecting.get_or_insert_with(|| self.open(number)).clone(), number)
        };
        match connecting.await {
            Ok(connection) => Ok((connection, number)),
            Err(error) => {
                // Its task may have ended with its runtime.
                self.leave(number);
                Err(error)
            }
        }
    }

    /// On a task of its own, which continues where each call that waits for it is given up. If it fails then, it is left
    /// here: the next call connects, and is not told of a server that was away.
    fn open(&self, number: u64) -> Connecting {
        let this = self.clone();
        let connecting = task::spawn(async move {
            // Without a time limit for answers: the callers have theirs.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT_LIMIT))
                .set_response_timeout(None);
            let client = &this.0.client;
            let connected = client.get_multiplexed_async_connection_with_config(&config).await;
            connected.inspect_err(|_| this.leave(number))
        });
        let connected = async move {
            connecting
                .await
                .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::NotConnected).into()))
        };
        connected.boxed().shared()
    }

    /// Unless it was replaced already.
    fn leave(&self, number: u64) {
        let mut current = lock(&self.0.current);
        if current.number == number {
            current.leave();
        }
    }

    fn look_for_the_primary(&self, number: u64) {
        let mut current = lock(&self.0.current);
        let last = current.not_the_primary;
        let may_look = last.is_none_or(|last| last.elapsed() >= NOT_THE_PRIMARY_PAUSE);
        if current.number == number && may_look {
            current.not_the_primary = Some(Moment::now());
            current.leave();
        }
    }

    /// A call was given up before its answer came. It may be that its client hung up, or that there are no answers any
    /// more: a `PING` behind it tells. One at a time, however many hang up.
    fn doubt(&self, number: u64) {
        let mut current = lock(&self.0.current);
        let is_checked = current.check.as_ref().is_some_and(|check| !check.is_finished());
        if current.number != number || is_checked {
            return;
        }
        let connected = current.connecting.as_ref().and_then(Shared::peek);
        let Some(Ok(connection)) = connected.cloned() else { return };
        if Handle::try_current().is_err() {
            // Dropped outside of a runtime: nothing can wait there.
            current.leave();
            return;
        }
        current.check = Some(task::spawn(self.clone().check(number, connection)));
    }

    async fn check(self, number: u64, mut connection: MultiplexedConnection) {
        let ping = redis::cmd("PING");
        let answer = ping.query_async::<Value>(&mut connection);
        let answer = tokio::time::timeout(PING_LIMIT, answer).await;
        // A refusal is an answer, too.
        let is_answer = |answer: Result<Value, RedisError>| {
            answer.map_or_else(|error| why(error) != NotDone::Lost, |_| true)
        };
        if !answer.is_ok_and(is_answer) {
            self.leave(number);
        }
    }
}

fn why(error: RedisError) -> NotDone {
    let kind = error.kind();
    match error.into_server_errors() {
        Some(errors) => {
            let mut codes = errors.iter().map(|(_, error)| error.code());
            match codes.any(|code| NOT_THE_PRIMARY.contains(&code)) {
                true => NotDone::NotThePrimary,
                false => NotDone::Refused,
            }
        }
        None if kind == ErrorKind::UnexpectedReturnType => NotDone::Refused,
        None => NotDone::Lost,
    }
}

/// A call that was sent, until it is answered.
struct Unanswered<'a> {
    on: &'a RedisConnection,
    number: u64,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.on.doubt(self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// As in a cache whose calls are given up after milliseconds. The next call connects: it is not told of a server that
    /// was away when no call waited.
    #[tokio::test]
    async fn a_connection_that_fails_while_no_call_waits_for_it_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let redis = RedisConnection::new(&url).unwrap();
        let (server, _) = tokio::select! {
            accepted = listener.accept() => accepted.unwrap(),
            connected = redis.connect() => panic!("nothing has answered: {connected:?}"),
        };
        assert!(lock(&redis.0.current).connecting.is_some(), "a task connects");
        drop(server);
        let left = async {
            while lock(&redis.0.current).connecting.is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), left).await.expect("it is kept");
    }
}
