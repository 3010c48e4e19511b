//! [`Pool`]: what the store asks of a connection pool, answered for deadpool and bb8. [`WritablePool`]: one that
//! leaves a server which can only be read, and sessions that may remember a former type.

use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::Object;
use diesel::{ConnectionError, ConnectionResult};
use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::{
    AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod,
};
#[cfg(feature = "bb8")]
use diesel_async::{AnsiTransactionManager, TransactionManager};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use tokio_postgres::config::Host;
use tokio_postgres::{Config, NoTls, SimpleQueryMessage, SimpleQueryRow};

use super::error::is_of_a_prepared_statement;
use super::numbered::{Shape, Shaped};
use super::session::SAY;
use crate::error::POOLER;
use crate::observe;
use crate::repeats::Repeats;
use crate::store::left_sessions::{LeftSessions, ReadOnlyServer};
use crate::store::{PoolSettings, StoreError};

type Manager = AsyncDieselConnectionManager<AsyncPgConnection>;

/// Who has made a store's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum PoolOrigin {
    /// The engine. Its connections begin with what a statement that is a transaction by itself cannot set.
    Engine,
    /// The application, which may leave a transaction open on a connection, or change its settings.
    Application,
}

impl Shaped for PoolOrigin {
    fn note(&self, shape: &mut Shape) {
        shape.note(self.is_application(), 2);
    }
}

impl PoolOrigin {
    pub(super) fn is_application(self) -> bool {
        self == Self::Application
    }
}

/// A pool of PostgreSQL connections: deadpool's (the default) or, with the feature `bb8`, bb8's.
pub trait Pool: Clone + Send + Sync + 'static {
    /// A connection that returns to the pool when it is dropped.
    type Handle: DerefMut<Target = AsyncPgConnection> + Send + Sync + 'static;

    /// Waits for a connection, within the pool's own time limits.
    ///
    /// # Errors
    /// [`StoreError::NoConnection`].
    fn get(&self) -> impl Future<Output = Result<Self::Handle, StoreError>> + Send;

    /// Closes the connection now, instead of returning it.
    fn close(handle: Self::Handle);

    /// Most connections at any time, or a guess where the pool does not tell.
    fn max_size(&self) -> usize {
        10
    }

    /// How long [`get`](Self::get) waits for a connection, or 5 s where the pool does not tell, or waits
    /// without a bound. A phase waits as long for its scope's share of the connections, but no longer than an hour.
    fn wait(&self) -> Duration {
        PoolSettings::default().wait
    }

    /// Closes the idle connections, where the pool can: one of them was found dead, and a restart of the server kills
    /// all; or its session can only read, and new ones may reach a server that can be written to.
    fn forget_idle(&self);
}

/// A pool for what is written too, and when a server was left that can only be read. It may be a standby that was taken for
/// the primary, or a session that began while the database was fenced off: those stay so for as long as they are (G12).
#[derive(Clone, Debug)]
pub(super) struct WritablePool<P> {
    pool: P,
    read_only: Arc<ReadOnlyServer>,
    types: Arc<ReplacedTypes>,
}

/// Sessions that may remember a type which a migration has replaced. A phase with a value of a wrong type, which is refused in
/// the same words, would have each of its runs on a connection of its own, if they were left each time.
type ReplacedTypes = LeftSessions<60>;

impl<P: Pool> WritablePool<P> {
    pub(super) fn of(pool: P) -> Self {
        Self { pool, read_only: Arc::default(), types: Arc::default() }
    }

    /// Closes the connections to a server that can only be read: the idle ones now, and those in use when they come back.
    /// Those of bb8 that are idle stay until a write has failed on each: of these, one is closed a second.
    pub(super) fn leave_read_only(&self) {
        if self.read_only.is_to_be_left(Instant::now()) {
            self.pool.forget_idle();
        }
    }

    /// Closes the connections that may remember a type which was replaced: the idle ones now, and those in use when they come
    /// back. Those of bb8 that are idle stay.
    pub(super) fn leave_types(&self) {
        if self.types.is_to_be_left(Instant::now()) {
            self.pool.forget_idle();
        }
    }

    /// Whether a connection that was taken then is one of those that were left since.
    pub(super) fn was_left_since(&self, taken: Instant) -> bool {
        self.read_only.was_left_since(taken) || self.types.was_left_since(taken)
    }
}

impl<P> Deref for WritablePool<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.pool
    }
}

/// deadpool's pool of diesel-async connections.
pub type DeadpoolPool = deadpool::managed::Pool<Manager>;

pub(super) fn open(url: &str, settings: PoolSettings) -> Result<DeadpoolPool, StoreError> {
    let mut config = ManagerConfig::default();
    // The default asks `SELECT 1` at each use, a round trip for every request. The store finds a
    // dead connection by using it.
    config.recycling_method = RecyclingMethod::Fast;
    config.custom_setup = Box::new(|url| establish(url).boxed());
    settings.pool_of(Manager::new_with_config(url, config))
}

/// Names what could not be connected to, without the password, and the cause, which diesel does not pass
/// on: the driver is asked once more.
pub(super) async fn unreachable(url: &str, error: StoreError) -> StoreError {
    let (StoreError::NoConnection(why), Ok(config)) = (&error, url.parse::<Config>()) else {
        return error;
    };
    let asked = tokio::time::timeout(PoolSettings::default().wait, config.connect(NoTls)).await;
    let cause = asked
        .ok()
        .and_then(Result::err)
        .and_then(|error| std::error::Error::source(&error).map(|cause| format!(": {cause}")));
    let cause = cause.unwrap_or_default();
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts = hosts.collect::<Vec<_>>().join(", ");
    let ports = config.get_ports().iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    let user = config.get_user().unwrap_or("of this process");
    StoreError::NoConnection(format!(
        "host {}, port {}, database {}, user {user}: {why}{cause}",
        if hosts.is_empty() { "not given" } else { &hosts },
        if ports.is_empty() { "5432" } else { &ports },
        config.get_dbname().unwrap_or(user),
    ))
}

/// When the client asks a silent server, by TCP, whether it is still there, and again if it does not say so.
const SILENT_FOR: Duration = Duration::from_secs(15);
const ASKED_AGAIN: Duration = Duration::from_secs(5);
const MAX_ASKED: u32 = 3;

/// How long the server may leave unacknowledged what the client sent, or asked: a machine or a network that
/// is gone without a word. As long as all the questions take.
const UNACKNOWLEDGED_FOR: Duration = Duration::from_secs(30);

/// The URL, with a connection's bounds for a peer that is gone, where it does not say its own (G17).
fn with_bounds(url: &str) -> ConnectionResult<Config> {
    let mut config: Config = url.parse().map_err(not_connected)?;
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(SILENT_FOR);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(ASKED_AGAIN);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(MAX_ASKED);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNACKNOWLEDGED_FOR);
    }
    Ok(config)
}

fn not_connected(error: tokio_postgres::Error) -> ConnectionError {
    let told = error.as_db_error().map(|error| error.message().to_owned());
    ConnectionError::BadConnection(told.unwrap_or_else(|| error.to_string()))
}

/// A connection that notices when its server is gone, and whose server notices when its client is (H13).
async fn establish(url: &str) -> ConnectionResult<AsyncPgConnection> {
    let (client, mut connection) = with_bounds(url)?.connect(NoTls).await.map_err(not_connected)?;
    let asked = format!("{SAY}, {DURABILITY}");
    let told = match select(pin!(client.simple_query(&asked)), &mut connection).await {
        Either::Left((told, _)) => told,
        Either::Right((Err(error), _)) => Err(error),
        Either::Right((Ok(()), told)) => told.await,
    };
    let told = told.map_err(not_connected)?;
    if is_shared(&told) && WARNINGS.admits(url, A_DAY).is_some() {
        observe::sessions_are_proxied(SHARED);
    }
    warn_of_losses(url, &told);
    AsyncPgConnection::try_from_client_and_connection(client, connection).await
}

/// Whether what is said to this session reaches others as well, and others' statements are executed in sessions that
/// it does not reach: a new connection was given a session that was told before. Only a pooler does that, one that
/// shares sessions between transactions: where it pools sessions, it resets them.
fn is_shared(told: &[SimpleQueryMessage]) -> bool {
    let is_true = |row: &SimpleQueryRow| row.get(0) == Some("t");
    told.iter().any(|message| matches!(message, SimpleQueryMessage::Row(row) if is_true(row)))
}

/// Behind [`SAY`]: by these settings, a server may lose a commit that it has acknowledged, and an answer with it (G8).
const DURABILITY: &str = "current_setting('fsync') AS fsync, \
    current_setting('synchronous_commit') AS synchronous_commit";

const LOSSES: [(&str, &str); 2] = [
    ("fsync", "a loss of power loses some, and may corrupt the database"),
    ("synchronous_commit", "a crash of the server loses the last ones"),
];

/// The store opens all the same: an operator may want that, on a machine for tests for example.
fn warn_of_losses(url: &str, told: &[SimpleQueryMessage]) {
    for message in told {
        let SimpleQueryMessage::Row(row) = message else { continue };
        for (setting, loss) in LOSSES {
            if matches!(row.try_get(setting), Ok(Some("off"))) {
                observe::commits_may_be_lost(url, setting, "off", "on", loss);
            }
        }
    }
}

const SHARED: &str = "a pooler shares its sessions between transactions, and does not bound how long the server \
    executes a statement for a client that is gone: a Batch whose process dies would keep its locks. Say \
    ALTER ROLE … SET client_connection_check_interval = '500ms' for the role that the pooler connects by, or set it \
    in the pooler's connect_query";

/// Said once a day of each database.
static WARNINGS: Repeats = Repeats::new();
const A_DAY: Duration = Duration::from_secs(24 * 3600);

impl Pool for DeadpoolPool {
    type Handle = Object<Manager>;

    async fn get(&self) -> Result<Self::Handle, StoreError> {
        deadpool::managed::Pool::get(self).await.map_err(no_connection)
    }

    fn close(handle: Self::Handle) {
        drop(Object::take(handle));
    }

    fn max_size(&self) -> usize {
        self.status().max_size
    }

    fn wait(&self) -> Duration {
        self.timeouts().wait.unwrap_or(PoolSettings::default().wait)
    }

    fn forget_idle(&self) {
        self.retain(|_, _| false);
    }
}

#[cfg(feature = "bb8")]
impl Pool for bb8::Pool<Manager> {
    type Handle = bb8::PooledConnection<'static, Manager>;

    async fn get(&self) -> Result<Self::Handle, StoreError> {
        self.get_owned().await.map_err(no_connection)
    }

    fn close(mut handle: Self::Handle) {
        // bb8 asks each connection that comes back whether it is broken, and closes it if so (H2).
        AnsiTransactionManager::transaction_manager_status_mut(&mut *handle).set_in_error();
    }

    // It has no way to. It asks each connection that it hands out whether it is alive.
    fn forget_idle(&self) {}
}

fn no_connection(error: impl std::fmt::Display) -> StoreError {
    let text = error.to_string();
    let is_of_a_pooler = is_of_a_prepared_statement(&text);
    StoreError::NoConnection(if is_of_a_pooler { POOLER.to_owned() } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g17_a_connection_asks_whether_its_server_is_there_as_often_as_its_url_says() {
        let bounds = |url| {
            let config = with_bounds(url).unwrap();
            let idle = config.get_keepalives_idle();
            let (again, most) = (config.get_keepalives_interval(), config.get_keepalives_retries());
            (
                idle.as_secs(),
                again.map(|d| d.as_secs()),
                most,
                config.get_tcp_user_timeout().copied(),
            )
        };
        let seconds = Duration::from_secs;
        let ours = (15, Some(5), Some(3), Some(seconds(30)));
        assert_eq!(bounds("postgres://ada@localhost/rides"), ours);
        assert_eq!(bounds("host=localhost user=ada"), ours);
        let asked = "postgres://ada@localhost/rides?keepalives_idle=7&keepalives_interval=2\
                     &keepalives_retries=9&tcp_user_timeout=11";
        assert_eq!(bounds(asked), (7, Some(2), Some(9), Some(seconds(11))));
    }
}
