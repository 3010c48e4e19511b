//! [`MysqlConn`]: what a phase's diesel statements run on.
//!
//! diesel-async has a connection of its own. This one knows what that one cannot tell: the code of an
//! error, that an answer is still on its way, and that a statement of the phase has failed.
//!
//! A future that is dropped in the middle of a statement leaves the answer in the socket, where the next statement, another
//! tenant's perhaps, would take it for its own. So such a connection answers nothing any more, and when it is dropped, the
//! engine kills its session at the server. Otherwise the session would continue to wait for a lock, and keep the locks that it
//! has (G3, G7, G13, G16).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use diesel::QueryResult;
use diesel::connection::{
    CacheSize, DynInstrumentation, Instrumentation, InstrumentationEvent, StrQueryHelper,
    TransactionManagerStatus,
};
use diesel::mysql::Mysql;
use diesel::query_builder::{AsQuery, QueryFragment, QueryId};
use diesel::result::{ConnectionError, ConnectionResult, Error};
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncConnectionCore, AsyncMysqlConnection,
    SimpleAsyncConnection, TransactionManager,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, Iter};
use mysql_async::consts::StatusFlags;
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Params, Row, Statement, Value};
use tokio::time::timeout;

use super::ANSWER_WITHIN;
use super::error::Failure;
use super::killer::Killer;
use super::literal::{BoundStatement, size_of};
use super::named_statements::{Name, NamedStatements};
use super::opener::SessionOpener;
use super::place::preparing_settings;
use super::prepared_cache::PreparedCache;
use super::rewritten::may_be_rewritten;
use super::server::Server;
use super::session::{self, Purpose, Session};
use super::statement::Statement as PhaseStatement;
use super::statement_registry::StatementRegistry;
use super::watch::{Admission, Watch, leaves_its_session_alone, only_begins_or_commits};
use crate::error::TOO_LARGE;
use crate::store::swallowed::PhaseState;

/// diesel-async's form of a row.
pub(super) type DieselRow = <AsyncMysqlConnection as AsyncConnectionCore>::Row<'static, 'static>;

/// A phase's own statement takes as long as it takes: the phase has a time limit.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// A connection to MySQL or MariaDB, on which a phase's diesel statements run.
///
/// Once a statement of a phase has failed, the connection refuses the others until the phase rolls back to
/// a savepoint, as PostgreSQL does. Once the future of a statement was dropped before its answer came, it
/// refuses everything: return an error.
pub struct MysqlConn {
    conn: Option<Conn>,
    session: Session,
    /// `None` behind a proxy: its session ends with its statement.
    killer: Option<Arc<Killer>>,
    registry: Arc<StatementRegistry>,
    prepared: PreparedCache<Statement>,
    named: NamedStatements,
    /// An answer is on its way, or will never come.
    in_flight: bool,
    watch: Watch,
    /// The application had it, and may have changed its settings.
    was_with_application: bool,
    /// A statement was sent that may have changed its session, or was executed that may be stale: it is used no more, behind
    /// the commit.
    has_strayed: bool,
    /// A statement that was prepared for an earlier execution may be stale: other connections may have it, too.
    has_stale_statement: bool,
    transactions: AnsiTransactionManager,
    instrumentation: DynInstrumentation,
}

// The session and its server are not printed: their settings name the database and the user.
impl fmt::Debug for MysqlConn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlConn")
            .field("watch", &self.watch)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

/// What the statements of one text came to: the rows of those that were answered, and the first failure.
pub(super) struct Answers {
    pub(super) rows: Vec<Vec<Row>>,
    /// The failure of the statement behind those.
    pub(super) failure: Option<Failure>,
}

/// A statement that is prepared.
pub(super) struct Prepared {
    statement: Statement,
    /// Whether it was so before.
    was_kept: bool,
    /// Whether it stays so. Otherwise it is to be [given back](MysqlConn::give_back).
    stays: bool,
}

impl MysqlConn {
    /// One whose session the killer of its server ends, if need be.
    pub(super) async fn open(opener: &SessionOpener) -> Result<Self, Failure> {
        let mut conn = Conn::new(opener.opts()).await.map_err(Failure::of)?;
        let (mut session, server) =
            session::set_up(&mut conn, opener.purpose, opener.blocks).await?;
        let (killer, registry) = (opener.killer_of(server), opener.registry());
        // Behind a proxy, the next command may go to another session; and a session that searches is sent no blocks.
        let is_sent_blocks = session.has_blocks && opener.purpose == Purpose::Requests;
        if is_sent_blocks && killer.is_some() && registry.names() {
            match conn.query_drop(preparing_settings(&session)).await.map_err(Failure::of) {
                Ok(()) => session.name_settings(),
                // A block can do without. In front of the next arm: for a statement, this counts as a lost connection.
                Err(failure) if failure.is_of_too_many_statements() => registry.name_no_more(),
                Err(failure) if failure.is_lost() => return Err(failure),
                Err(_) => {}
            }
        }
        let prepared = PreparedCache::new(conn.opts().stmt_cache_size());
        Ok(Self {
            conn: Some(conn),
            session,
            killer,
            registry,
            prepared,
            named: NamedStatements::default(),
            in_flight: false,
            watch: Watch::Off,
            was_with_application: false,
            has_strayed: false,
            has_stale_statement: false,
            transactions: AnsiTransactionManager::default(),
            instrumentation: DynInstrumentation::none(),
        })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn named(&self) -> &NamedStatements {
        &self.named
    }

    pub(super) fn killer(&self) -> Option<Arc<Killer>> {
        self.killer.clone()
    }

    /// Its server. `None` behind a proxy.
    pub(super) fn server(&self) -> Option<&Server> {
        self.killer.as_deref().map(Killer::server)
    }

    /// The number of its session, which is one of its server's.
    pub(super) fn session_number(&self) -> Option<u32> {
        self.conn.as_ref().map(Conn::id)
    }

    pub(super) fn watch(&self) -> Watch {
        self.watch
    }

    /// A phase begins: diesel is told that a transaction is open, so that its own are savepoints.
    pub(super) fn begin_watching(&mut self) -> QueryResult<()> {
        use diesel::connection::TransactionDepthChange::IncreaseDepth;
        self.watch = Watch::Phase(PhaseState::Sound);
        self.status().transaction_state()?.change_transaction_depth(IncreaseDepth)
    }

    /// The transaction has ended, and the session has its settings again.
    pub(super) fn stop_watching(&mut self) {
        self.watch = Watch::Off;
        *self.status() = TransactionManagerStatus::default();
    }

    pub(super) fn status(&mut self) -> &mut TransactionManagerStatus {
        AnsiTransactionManager::transaction_manager_status_mut(self)
    }

    /// Whether the engine's own statements may run on it next.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_usable() && self.watch == Watch::Off
    }

    pub(super) fn is_usable(&self) -> bool {
        self.conn.is_some() && !self.in_flight
    }

    /// Hands it to the application.
    pub(super) async fn lend(&mut self) -> Result<(), Failure> {
        self.was_with_application = true;
        let settings = self.session.server_lock_wait();
        self.texts(&settings).await.failure.map_or(Ok(()), Err)
    }

    pub(super) fn has_strayed(&self) -> bool {
        self.has_strayed
    }

    pub(super) fn has_stale_statement(&self) -> bool {
        self.has_stale_statement
    }

    pub(super) fn was_with_application(&self) -> bool {
        self.was_with_application
    }

    /// The application's settings are undone.
    pub(super) fn was_taken_back(&mut self) {
        self.was_with_application = false;
    }

    /// Whether the server said last that no transaction is open, and that none will be.
    pub(super) fn is_outside_of_transactions(&self) -> bool {
        let told = self.conn.as_ref().and_then(Conn::last_ok_packet).map(|ok| ok.status_flags());
        told.is_some_and(|flags| {
            flags.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT)
                && !flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
        })
    }

    /// Sends a text of the engine's: of several statements, of which the first that fails is the last.
    pub(super) async fn texts(&mut self, text: &str) -> Answers {
        self.texts_within(ANSWER_WITHIN, text).await
    }

    async fn texts_within(&mut self, within: Duration, text: &str) -> Answers {
        let mut rows = Vec::new();
        let done = match self.sent(text.len()) {
            Ok(conn) => match timeout(within, ask(conn, text, &mut rows)).await {
                Ok(done) => done.map_err(Failure::of),
                Err(_) => Err(Failure::Unanswered),
            },
            Err(failure) => Err(failure),
        };
        let failure = self.note_answer(done).err();
        Answers { rows, failure }
    }

    /// Asks the server for an answer. That is not a statement, and in no log of the server's.
    pub(super) async fn ping(&mut self, within: Duration) -> Result<(), Failure> {
        let answered = match self.sent(0) {
            Ok(conn) => match timeout(within, conn.ping()).await {
                Ok(answered) => answered.map_err(Failure::of),
                Err(_) => Err(Failure::Unanswered),
            },
            Err(failure) => Err(failure),
        };
        self.note_answer(answered)
    }

    /// Sends one statement of a batch, prepared.
    pub(super) async fn execute_one(&mut self, bound: BoundStatement) -> Result<u64, Failure> {
        self.has_strayed |= !leaves_its_session_alone(&bound.sql);
        Ok(self.run::<Row>(bound).await?.1)
    }

    /// The rows of a statement of the engine's, as the driver has them.
    pub(super) async fn rows_of(&mut self, bound: BoundStatement) -> QueryResult<Vec<Row>> {
        Ok(self.run::<Row>(bound).await?.0)
    }

    /// Prepares a statement, where this connection does not have it. `varying` bytes of its text may differ each time.
    pub(super) async fn prepare(
        &mut self,
        within: Duration,
        sql: String,
        varying: usize,
    ) -> Result<Prepared, Failure> {
        if let Some(statement) = self.prepared.find(&sql) {
            return Ok(Prepared { statement, was_kept: true, stays: true });
        }
        if may_be_rewritten(&sql) {
            return Err(Failure::Client(REWRITTEN.to_owned()));
        }
        let stays = self.registry.keeps(&sql, varying);
        self.prepared.ask_driver();
        let done = match self.sent(sql.len()) {
            Ok(conn) => match timeout(within, conn.prep(sql.as_str())).await {
                Ok(done) => done.map_err(Failure::of),
                Err(_) => Err(Failure::Unanswered),
            },
            Err(failure) => Err(failure),
        };
        let statement = self.note_answer(done)?;
        if stays {
            self.prepared.insert(sql, statement.clone());
        }
        Ok(Prepared { statement, was_kept: false, stays })
    }

    /// Gives the server back what does not stay prepared. There is no answer to that.
    pub(super) async fn give_back(&mut self, prepared: Prepared) {
        if prepared.stays {
            return;
        }
        let Ok(conn) = self.sent(0) else { return };
        let done = match timeout(ANSWER_WITHIN, conn.close(prepared.statement)).await {
            Ok(done) => done.map_err(Failure::of),
            Err(_) => Err(Failure::Unanswered),
        };
        // What failed is noted: the connection is of no use any more.
        let _ = self.note_answer(done);
    }

    /// Prepares statements that blocks may have as parts, where the store executes them by name and this connection does not
    /// have them. One that the server refuses to prepare has no name. An error says that the connection is of no use any more.
    pub(super) async fn name_statements(
        &mut self,
        statements: &[PhaseStatement],
    ) -> Result<(), Failure> {
        // Behind a proxy, the next command may go to another session.
        if self.killer.is_none() {
            return Ok(());
        }
        for statement in statements {
            let Some(text) = statement.sql() else { continue };
            if self.named.knows(text) {
                continue;
            }
            let Some(number) = self.registry.number(text) else { continue };
            // Nothing in it ends the quotes: it may be a part of a block.
            let prepare = format!("PREPARE {} FROM '{text}'", Name(number));
            let failure = self.texts(&prepare).await.failure;
            match failure {
                None => self.named.insert(text, Some(number)),
                Some(failure) if failure.is_lost() => return Err(failure),
                Some(_) => self.named.insert(text, None),
            }
        }
        Ok(())
    }

    /// Sends a block of statements that was prepared. The rows of the first of them that has any.
    pub(super) async fn execute_block(
        &mut self,
        prepared: &Prepared,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, Failure> {
        let done = self.execute_prepared::<Row>(prepared, values).await;
        // That the phase has left its transaction is said with the same code as that a function is not there.
        let is_stale =
            |failure: &Failure| failure.may_be_stale() && !failure.is_of_a_missing_savepoint();
        // A statement that the block executes by its name was kept, too.
        let was_kept = prepared.was_kept || !self.named.is_empty();
        self.has_stale_statement |= was_kept && done.as_ref().is_err_and(is_stale);
        Ok(done?.0)
    }

    /// Executes a statement, prepared: its rows, and how many rows it has affected.
    async fn run<R>(&mut self, bound: BoundStatement) -> Result<(Vec<R>, u64), Failure>
    where
        R: FromRow + Send + 'static,
    {
        self.fits_a_command(bound.size())?;
        let BoundStatement { sql, values, varying } = bound;
        let prepared = self.prepare(FOR_EVER, sql, varying).await?;
        let done = self.execute_prepared::<R>(&prepared, values).await;
        let is_stale = done.as_ref().is_err_and(Failure::may_be_stale);
        self.has_stale_statement |= prepared.was_kept && is_stale;
        self.give_back(prepared).await;
        done
    }

    async fn execute_prepared<R>(
        &mut self,
        prepared: &Prepared,
        values: Vec<Value>,
    ) -> Result<(Vec<R>, u64), Failure>
    where
        R: FromRow + Send + 'static,
    {
        let statement = &prepared.statement;
        fits(statement, &values)?;
        let done = match self.sent(values.iter().map(size_of).sum()) {
            Ok(conn) => executed::<R>(conn, statement, values).await.map_err(Failure::of),
            Err(failure) => Err(failure),
        };
        let done = self.note_answer(done);
        self.has_strayed |= done.as_ref().is_err_and(Failure::may_be_stale);
        done
    }

    /// Refuses what is larger than a command may be.
    fn fits_a_command(&self, size: usize) -> Result<(), Failure> {
        match size <= self.session.max_packet {
            true => Ok(()),
            false => Err(Failure::Client(TOO_LARGE.to_owned())),
        }
    }

    /// Notes that a command of so many bytes is under way. Behind one whose answer was not waited for, none is sent, whatever
    /// its size: that it is too large would count as an answer.
    fn sent(&mut self, size: usize) -> Result<&mut Conn, Failure> {
        let fits = self.fits_a_command(size);
        let Some(conn) = self.conn.as_mut().filter(|_| !self.in_flight) else {
            return Err(Failure::Lost(
                "an earlier statement's answer was not waited for".to_owned(),
            ));
        };
        fits?;
        self.in_flight = true;
        Ok(conn)
    }

    /// Notes that its last byte was read.
    fn note_answer<T>(&mut self, done: Result<T, Failure>) -> Result<T, Failure> {
        self.in_flight = done.as_ref().is_err_and(Failure::is_lost);
        if done.as_ref().is_err_and(Failure::is_of_too_many_statements) {
            self.registry.name_no_more();
        }
        done
    }

    fn bound<Q>(&self, query: &Q) -> QueryResult<BoundStatement>
    where
        Q: QueryFragment<Mysql> + QueryId,
    {
        match self.watch != Watch::Off || self.was_with_application {
            true => BoundStatement::of_application(query),
            // The engine's own, of which there are few, but for an erasure's.
            false => BoundStatement::of_any(query),
        }
    }

    /// Runs what a user's text is, if the phase may.
    async fn watched(
        &mut self,
        bound: QueryResult<BoundStatement>,
    ) -> QueryResult<(Vec<DieselRow>, u64)> {
        let bound = bound.inspect_err(|error| self.watch.note_unmade(error))?;
        if self.watch.admit(&bound.sql)? == Admission::Pretend {
            return Ok((Vec::new(), 0));
        }
        let sql = bound.sql.clone();
        self.has_strayed |= !self.leaves_its_session_alone(&sql);
        self.tell(InstrumentationEvent::start_query(&StrQueryHelper::new(&sql)));
        let done = self.run::<DieselRow>(bound).await;
        self.watch.note(&done);
        let done = done.map_err(Error::from);
        let error = done.as_ref().err();
        self.tell(InstrumentationEvent::finish_query(&StrQueryHelper::new(&sql), error));
        done
    }

    /// Whether a text of the application's, or of a phase's, does. A transaction of the application's ends before the
    /// connection goes back, or the connection is closed; one that a phase begins or commits is not its own.
    fn leaves_its_session_alone(&self, sql: &str) -> bool {
        let is_of_application = self.watch == Watch::Off;
        leaves_its_session_alone(sql) || (is_of_application && only_begins_or_commits(sql))
    }

    fn tell(&mut self, event: InstrumentationEvent<'_>) {
        self.instrumentation.on_connection_event(event);
    }
}

/// Each statement's rows. What is read of a result is read here, to its end: a failure in the middle of the
/// rows is one of the statement.
async fn ask(conn: &mut Conn, text: &str, rows: &mut Vec<Vec<Row>>) -> mysql_async::Result<()> {
    let mut result = conn.query_iter(text).await?;
    loop {
        rows.push(result.collect().await?);
        if result.is_empty() {
            // Of the last statement without rows, or of one that failed.
            return result.drop_result().await;
        }
    }
}

/// The first rows, and how many rows were affected by what told them. A failure behind them is one of the statement, which
/// may be a block.
async fn executed<R>(
    conn: &mut Conn,
    statement: &Statement,
    values: Vec<Value>,
) -> mysql_async::Result<(Vec<R>, u64)>
where
    R: FromRow + Send + 'static,
{
    let mut result = conn.exec_iter(statement, Params::Positional(values)).await?;
    let rows = result.collect::<R>().await?;
    let affected = result.affected_rows();
    result.drop_result().await?;
    Ok((rows, affected))
}

const REWRITTEN: &str = "the driver takes `:name` in this statement for a parameter of its own, and would send another \
    text: bind the value";

/// Whether a statement has as many values as it has places for them. The driver itself would close the connection,
/// and the phase's transaction with it, so that it could not roll back to a savepoint.
fn fits(statement: &Statement, values: &[Value]) -> Result<(), Failure> {
    let (places, bound) = (usize::from(statement.num_params()), values.len());
    match places == bound {
        true => Ok(()),
        false => Err(Failure::Client(format!("{bound} values for a statement with {places}"))),
    }
}

impl Drop for MysqlConn {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        let session = conn.id();
        // The driver takes its leave of the server in a task of its own: a session that waits for its client ends then.
        drop(conn);
        // One that executes does not look at its client: it would keep its locks until it is done.
        if self.in_flight
            && let Some(killer) = &self.killer
        {
            killer.end_soon(session);
        }
    }
}

impl SimpleAsyncConnection for MysqlConn {
    async fn batch_execute(&mut self, query: &str) -> QueryResult<()> {
        if self.watch.admit(query)? == Admission::Pretend {
            return Ok(());
        }
        self.has_strayed |= query.contains(';') || !self.leaves_its_session_alone(query);
        self.tell(InstrumentationEvent::start_query(&StrQueryHelper::new(query)));
        let done = self.texts_within(FOR_EVER, query).await.failure.map_or(Ok(()), Err);
        self.watch.note(&done);
        let done = done.map_err(Error::from);
        let error = done.as_ref().err();
        self.tell(InstrumentationEvent::finish_query(&StrQueryHelper::new(query), error));
        done
    }
}

impl AsyncConnectionCore for MysqlConn {
    type ExecuteFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<usize>>;
    type LoadFuture<'conn, 'query> = BoxFuture<'conn, QueryResult<Self::Stream<'conn, 'query>>>;
    type Stream<'conn, 'query> = Iter<std::vec::IntoIter<QueryResult<DieselRow>>>;
    type Row<'conn, 'query> = DieselRow;
    type Backend = Mysql;

    fn load<'conn, 'query, T>(&'conn mut self, source: T) -> Self::LoadFuture<'conn, 'query>
    where
        T: AsQuery + 'query,
        T::Query: QueryFragment<Mysql> + QueryId + 'query,
    {
        let bound = self.bound(&source.as_query());
        async move {
            let (rows, _) = self.watched(bound).await?;
            Ok(stream::iter(rows.into_iter().map(Ok).collect::<Vec<_>>()))
        }
        .boxed()
    }

    fn execute_returning_count<'conn, 'query, T>(
        &'conn mut self,
        source: T,
    ) -> Self::ExecuteFuture<'conn, 'query>
    where
        T: QueryFragment<Mysql> + QueryId + 'query,
    {
        let bound = self.bound(&source);
        async move {
            let (_, affected) = self.watched(bound).await?;
            usize::try_from(affected).map_err(|error| Error::DeserializationError(Box::new(error)))
        }
        .boxed()
    }
}

impl AsyncConnection for MysqlConn {
    type TransactionManager = AnsiTransactionManager;

    async fn establish(database_url: &str) -> ConnectionResult<Self> {
        let opts = session::options(database_url)
            .map_err(|error| ConnectionError::InvalidConnectionUrl(error.to_string()))?;
        let refused =
            |failure: Failure| ConnectionError::BadConnection(Error::from(failure).to_string());
        let mut conn = Self::open(&SessionOpener::new(opts)).await.map_err(refused)?;
        conn.lend().await.map_err(refused)?;
        Ok(conn)
    }

    fn transaction_state(&mut self) -> &mut AnsiTransactionManager {
        &mut self.transactions
    }

    fn instrumentation(&mut self) -> &mut dyn Instrumentation {
        &mut *self.instrumentation
    }

    fn set_instrumentation(&mut self, instrumentation: impl Instrumentation) {
        self.instrumentation = instrumentation.into();
    }

    /// The driver keeps as many as `stmt_cache_size` of the URL says, by their text.
    fn set_prepared_statement_cache_size(&mut self, _: CacheSize) {}
}
