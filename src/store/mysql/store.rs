//! What the engine and the workers ask for. A statement by itself commits by itself.

use std::future::Future;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::Error;
use diesel_async::RunQueryDsl;
use mysql_async::Row;
use tokio::time::timeout;
use uuid::Uuid;

use super::batch::{Created, refusal, row_times};
use super::block::Block;
use super::error::{failure_of, is_of_a_deadlock};
use super::literal::BoundStatement;
use super::ops_statements::InsertAudit;
use super::pool::{ConnectionGuard, Taken};
use super::server::Server;
use super::transaction::{EachTold, MysqlTransaction, each_in_one_go, in_one_go};
use super::waits::{LOCKED_WAIT, patiently};
use super::{
    ANSWER_WITHIN, MIGRATION_TERMS, MIGRATIONS, Mysql, MysqlConn, Statement, statements as sql,
};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::store::audit::AuditEntry;
use crate::store::in_millis::tuple_rows::RowsAwaited;
use crate::store::migrations::{name_missing, revert_migrations, run_migrations};
use crate::store::operators::OperatorStore;
use crate::store::patience::Patience;
use crate::store::row::{MAX_EXPIRED, count, key_row};
use crate::store::{
    Change, Claim, Commit, Guard, Hold, JobAt, KeyRow, KeySummary, NewRow, ParamsAndContext,
    Reserved, RowTimes, Store, StoreError, TransactionId, Writes,
};

/// The server's answer to a statement of the engine's, if one comes in time.
pub(super) async fn answered<R>(
    doing: &'static str,
    answer: impl Future<Output = QueryResult<R>>,
) -> Result<R, StoreError> {
    answered_within(ANSWER_WITHIN, doing, answer).await
}

pub(super) async fn answered_within<R>(
    bound: Duration,
    doing: &'static str,
    answer: impl Future<Output = QueryResult<R>>,
) -> Result<R, StoreError> {
    let error = match timeout(bound, answer).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => error,
        Err(_) => return Err(StoreError::database(doing, super::Failure::Unanswered)),
    };
    match failure_of(&error) {
        Some(failure) if failure.is_of_a_lock() => Err(StoreError::Locked),
        _ => Err(StoreError::database(doing, error)),
    }
}

/// Sends one statement, `ask!(pool, "do this", |conn| query)`: again, without a connection in between, while another
/// transaction, a backup or an `ALTER TABLE` has locked what it needs. Nothing is left of one that was answered so.
macro_rules! ask {
    ($pool:expr, $doing:expr, |$conn:ident| $query:expr) => {
        $crate::store::mysql::waits::patiently(|| async {
            let mut connection = $crate::store::mysql::pool::ConnectionGuard::of(&$pool).await?;
            let $conn: &mut $crate::store::mysql::MysqlConn = &mut connection;
            $crate::store::mysql::store::answered($doing, $query).await
        })
        .await
    };
}
pub(super) use ask;

/// As `ask!` for a statement that is safe to send twice: after a restart of the server each idle
/// connection of the pool is dead, and the first to use one finds out.
macro_rules! ask_again {
    ($store:expr, $doing:literal, |$conn:ident| $query:expr) => {
        $store
            .on_another(|| async {
                $crate::store::mysql::store::ask!($store.pool, $doing, |$conn| $query)
            })
            .await
    };
}
pub(super) use ask_again;

/// Reads what the statement before has written, on its connection: again while a backup or an `ALTER TABLE` has locked the
/// table since then, because the one before is not to be sent again.
macro_rules! read_back {
    ($doing:expr, $query:expr) => {{
        let mut patience =
            $crate::store::patience::Patience::new($crate::store::mysql::waits::LOCKED_WAIT);
        loop {
            match $crate::store::mysql::store::answered($doing, $query).await {
                Err($crate::store::StoreError::Locked) if patience.pause().await => {}
                answer => break answer,
            }
        }
    }};
}
pub(super) use read_back;

/// Makes a statement, anew each time that it is sent.
type Make<'a> = dyn Fn() -> QueryResult<BoundStatement> + Sync + 'a;

fn made(doing: &'static str, each: &[&Make<'_>]) -> Result<Vec<BoundStatement>, StoreError> {
    let made = each.iter().map(|make| make()).collect::<QueryResult<Vec<_>>>();
    made.map_err(|error| StoreError::database(doing, error))
}

fn bound(
    doing: &'static str,
    query: &impl QueryFragment<Db>,
) -> Result<BoundStatement, StoreError> {
    BoundStatement::of(query).map_err(|error| StoreError::database(doing, error))
}

impl Mysql {
    /// Begins a transaction of a phase. One that keeps what it saw at its beginning locks the row there.
    pub(super) async fn begin_guarded(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MysqlTransaction>, StoreError> {
        patiently(|| self.on_another(|| self.try_begin(isolation, guard))).await
    }

    async fn try_begin(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MysqlTransaction>, StoreError> {
        const DOING: &str = "begin a transaction";
        let pins = isolation != Isolation::ReadCommitted;
        let pin = pins.then(|| bound(DOING, &sql::Pin::new(guard))).transpose()?;
        let place = self.shares.for_a_phase(guard.scope).await?;
        let mut tx = MysqlTransaction::on(&self.pool).await?;
        let pinned = match tx.open(isolation, pin).await {
            Ok(rows) => rows,
            Err(failure) => {
                tx.undo().await;
                return Err(match failure.is_of_a_lock() {
                    true => StoreError::Locked,
                    false => StoreError::database(DOING, failure),
                });
            }
        };
        if pins && pinned.is_empty() {
            tx.undo().await;
            return Ok(None);
        }
        tx.place = Some(place);
        Ok(Some(tx))
    }

    /// Whether a transaction's session is there. A connection that leads to another server cannot tell.
    async fn has_session(&self, transaction: &TransactionId) -> Result<bool, StoreError> {
        const DOING: &str = "search for a transaction";
        let unknown = || StoreError::database(DOING, Error::NotFound);
        let (number, server) = transaction.0.split_once(' ').ok_or_else(unknown)?;
        let (number, server) =
            (number.parse::<i64>().map_err(|_| unknown())?, Server::named(server));
        let mut connection = ConnectionGuard::of(&self.pool).await?;
        match connection.server() {
            Some(here) if *here == server => {}
            Some(here) if here.is_restarted(&server) => return Ok(false),
            _ => return Err(unknown()),
        }
        let conn: &mut MysqlConn = &mut connection;
        let told = sql::Sessions { number }.rows::<(i64, i64)>(conn);
        match answered(DOING, told).await?.as_slice().first() {
            Some((sessions, 1)) => Ok(*sessions > 0),
            _ => Err(unknown()),
        }
    }

    /// The guarded update of a takeover, and the row that it has left. If the update was executed and its answer lost, a
    /// second try finds the token one higher and returns `None`, as if another process had been faster. That is left so:
    /// nothing in the row tells this process's takeover from another's, and the key is free again after a lease.
    async fn try_take_over(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<sql::StoredRow>, StoreError> {
        const DOING: &str = "take over the key";
        let mut connection = ConnectionGuard::of(&self.pool).await?;
        let conn: &mut MysqlConn = &mut connection;
        if answered(DOING, sql::TakeOver::new(claim, hold).execute(conn)).await? != 1 {
            return Ok(None);
        }
        let read = || sql::Read::of(claim.scope, claim.key);
        let rows = read_back!(DOING, read().rows::<sql::StoredRow>(conn))?;
        // A holder that took it over since then has a higher token.
        let is_ours = |row: &sql::StoredRow| {
            row.0.0 == claim.request_id.as_bytes() && row.1.3 == claim.lease_token + 1
        };
        Ok(rows.into_iter().find(is_ours))
    }

    async fn write_once(&self, guard: &Guard<'_>, change: &Change<'_>) -> Commit {
        const DOING: &str = "write the key";
        let write = sql::Write::new(guard, change);
        let mut connection = match ConnectionGuard::of(&self.pool).await {
            Ok(connection) => connection,
            Err(error) => return Commit::Failed(error),
        };
        let conn: &mut MysqlConn = &mut connection;
        match timeout(ANSWER_WITHIN, write.execute(conn)).await {
            Ok(Ok(1)) => Commit::Done(()),
            Ok(Ok(_)) => Commit::Fenced,
            Err(_) => Commit::Unknown(StoreError::database(DOING, super::Failure::Unanswered)),
            Ok(Err(error)) => match failure_of(&error) {
                Some(failure) if failure.is_of_a_lock() => Commit::Failed(StoreError::Locked),
                Some(failure) if !failure.is_certain_of_a_statement() => {
                    Commit::Unknown(StoreError::database(DOING, error))
                }
                _ => Commit::Failed(StoreError::database(DOING, error)),
            },
        }
    }

    /// Writes until no other transaction has the row locked any more, for [`LOCKED_WAIT`] at most. Idle connections are
    /// closed behind a failure, where others may do better.
    async fn until_written<F>(&self, write: impl Fn() -> F) -> Commit
    where
        F: Future<Output = Commit>,
    {
        let mut patience = Patience::new(LOCKED_WAIT);
        loop {
            match write().await {
                Commit::Failed(StoreError::Locked) if patience.pause().await => {}
                written => {
                    if let Commit::Failed(error) | Commit::Unknown(error) = &written {
                        self.leave_behind(error);
                    }
                    return written;
                }
            }
        }
    }

    async fn write_with_notice(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: &StagedJob,
    ) -> Commit {
        const DOING: &str = "write the key";
        let bounds = || {
            let write = bound(DOING, &sql::Write::new(guard, change))?;
            Ok::<_, StoreError>((write, bound(DOING, &sql::InsertJob::new(guard, notice))?))
        };
        match bounds() {
            Ok((write, notice)) => {
                in_one_go(&self.pool, Taken::AsItIs, vec![write], vec![notice]).await
            }
            Err(error) => Commit::Failed(error),
        }
    }

    /// The same about many jobs, in one transaction and one round trip: what was told of each.
    pub(super) async fn of_each_job(
        &self,
        doing: &'static str,
        at: &[JobAt],
        each: impl Fn(&JobAt) -> QueryResult<EachTold>,
    ) -> Result<Vec<Option<Row>>, StoreError> {
        let ordered = in_lock_order(at);
        let script = ordered.iter().map(|(_, at)| each(at)).collect();
        let told = self.of_each(doing, script).await?;
        let mut of_each: Vec<_> = at.iter().map(|_| None).collect();
        for ((number, _), row) in ordered.into_iter().zip(told) {
            if let Some(of) = of_each.get_mut(number) {
                *of = row;
            }
        }
        Ok(of_each)
    }

    /// The same about rows of any kind, in this order.
    pub(super) async fn of_each(
        &self,
        doing: &'static str,
        script: QueryResult<Vec<EachTold>>,
    ) -> Result<Vec<Option<Row>>, StoreError> {
        let script = script.map_err(|error| StoreError::database(doing, error))?;
        let (commit, told) = each_in_one_go(&self.pool, script).await;
        let error = match commit {
            Commit::Done(()) => {
                return Ok(told.into_iter().map(|rows| rows.into_iter().next()).collect());
            }
            Commit::Failed(error) | Commit::Unknown(error) => error,
            Commit::Fenced | Commit::Refused(_) => StoreError::database(doing, Error::NotFound),
        };
        self.leave_behind(&error);
        Err(error)
    }

    /// A guarded statement, and what follows from it, in one transaction. `false` where the row is not as it
    /// says. A deadlock undoes all of it, so it is tried again.
    pub(super) async fn together(
        &self,
        doing: &'static str,
        guarded: &(impl QueryFragment<Db> + Sync),
        then: &[&Make<'_>],
    ) -> Result<bool, StoreError> {
        self.together_on(Taken::AsItIs, None, doing, guarded, then).await
    }

    /// The same for an operator: on a dead connection its outcome would not be known, and it is not sent again.
    pub(super) async fn by_an_operator(
        &self,
        doing: &'static str,
        guarded: &(impl QueryFragment<Db> + Sync),
        then: &[&Make<'_>],
    ) -> Result<bool, StoreError> {
        self.together_on(Taken::Asked, None, doing, guarded, then).await
    }

    /// The same behind a statement that locks the row which the guarded one reads.
    pub(super) async fn by_an_operator_behind(
        &self,
        lock: &Make<'_>,
        doing: &'static str,
        guarded: &(impl QueryFragment<Db> + Sync),
        then: &[&Make<'_>],
    ) -> Result<bool, StoreError> {
        self.together_on(Taken::Asked, Some(lock), doing, guarded, then).await
    }

    async fn together_on(
        &self,
        taken: Taken,
        lock: Option<&Make<'_>>,
        doing: &'static str,
        guarded: &(impl QueryFragment<Db> + Sync),
        then: &[&Make<'_>],
    ) -> Result<bool, StoreError> {
        let (mut tries, mut patience) = (0, Patience::new(LOCKED_WAIT));
        loop {
            tries += 1;
            let mut up_to_guarded = made(doing, lock.as_slice())?;
            up_to_guarded.push(bound(doing, guarded)?);
            let then = made(doing, then)?;
            match in_one_go(&self.pool, taken, up_to_guarded, then).await {
                Commit::Done(()) => return Ok(true),
                Commit::Fenced => return Ok(false),
                Commit::Failed(error)
                    if is_of_a_deadlock(&error) && tries < super::batch::TRIES => {}
                Commit::Failed(StoreError::Locked) if patience.pause().await => {}
                Commit::Failed(error) | Commit::Unknown(error) => {
                    self.leave_behind(&error);
                    return Err(error);
                }
                Commit::Refused(_) => return Err(StoreError::database(doing, Error::NotFound)),
            }
        }
    }
}

/// The jobs and their numbers in the order in which their rows are locked: two nodes that claim the same jobs, or
/// one that deletes jobs which another may claim by now, wait for each other, and lose no deadlock.
fn in_lock_order(at: &[JobAt]) -> Vec<(usize, &JobAt)> {
    let mut at: Vec<_> = at.iter().enumerate().collect();
    at.sort_by_key(|(_, at)| (at.scope.as_str(), at.request_id.into_bytes(), at.position));
    at
}

pub(super) fn as_u32(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

impl Store for Mysql {
    type Connection = MysqlConn;
    type Transaction = MysqlTransaction;
    type Statement = Statement;

    fn statement<Q>(query: Q) -> Statement
    where
        Q: QueryFragment<Db> + QueryId + Send + 'static,
    {
        Statement::of(&query)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        // diesel creates its table before it reads it, also where it is there: not everyone may.
        if self.unapplied_migrations().await.is_ok_and(|missing| missing.is_empty()) {
            return Ok(());
        }
        self.with_migrations(run_migrations(MIGRATIONS, MIGRATION_TERMS)).await
    }

    async fn missing_migrations(&self) -> Result<Vec<String>, StoreError> {
        match self.unapplied_migrations().await {
            Ok(missing) => Ok(missing),
            Err(_) => self.with_migrations(name_missing(MIGRATIONS)).await,
        }
    }

    async fn revert_migrations(&self) -> Result<(), StoreError> {
        self.with_migrations(revert_migrations(MIGRATIONS, MIGRATION_TERMS)).await
    }

    async fn look_up_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeySummary>, StoreError> {
        let rows = ask_again!(self, "read the key", |conn| async {
            conn.rows_of(BoundStatement::of(&sql::Look::at(scope, key))?).await
        })?;
        let row = rows.into_iter().next();
        row.map(|row| sql::key_summary(sql::taken_apart(row)?)).transpose()
    }

    async fn read_key(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<KeyRow>, StoreError> {
        let rows = ask_again!(self, "read the key", |conn| {
            sql::Read::of(scope, key).rows::<sql::StoredRow>(conn)
        })?;
        rows.into_iter().next().map(|row| key_row(sql::row(row)?)).transpose()
    }

    async fn reserve_key(
        &self,
        row: &NewRow<'_>,
    ) -> Result<Reserved<MysqlTransaction>, StoreError> {
        let until = Instant::now() + row.creation_wait;
        let Some(turn) = self.turn(row, until).await else { return Ok(Reserved::Busy) };
        let insert = || BoundStatement::of(&sql::Insert::new(row));
        match self.create_when_free(row, until, insert).await? {
            Created::Yes { mut tx, at } => {
                tx.turn = Some(turn);
                let RowTimes { written_at, expires_at } = row_times(row, at)?;
                Ok(Reserved::Fresh { tx, created_at: written_at, expires_at })
            }
            Created::Exists => Ok(Reserved::Exists(self.look_up_key(row.scope, row.key).await?)),
            Created::Busy => Ok(Reserved::Busy),
        }
    }

    async fn create_key(
        &self,
        row: &NewRow<'_>,
        created_at: DateTime<Utc>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit<RowTimes> {
        if let Some(refusal) = refusal(&writes) {
            return Commit::Refused(refusal);
        }
        let until = Instant::now() + row.creation_wait;
        let Some(_turn) = self.turn(row, until).await else {
            return Commit::Failed(StoreError::Locked);
        };
        let insert = || BoundStatement::of(&sql::Create::new(row, created_at, change));
        match Block::takes(&self.session, &writes.statements.all, writes.jobs) {
            true => self.create_as_block(row, until, insert, writes).await,
            false => self.try_create(row, until, insert, writes).await,
        }
    }

    async fn advance_key(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
        change: &Change<'_>,
        writes: Writes<'_, Self>,
    ) -> Commit {
        if let Some(refusal) = refusal(&writes) {
            return Commit::Refused(refusal);
        }
        // In any other level the row is locked in front of the phase.
        let is_block = isolation == Isolation::ReadCommitted
            && Block::takes(&self.session, &writes.statements.all, writes.jobs);
        match is_block {
            true => self.advance_as_block(guard, change, writes).await,
            false => self.try_advance(isolation, guard, change, writes).await,
        }
    }

    async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows = ask_again!(self, "tell the time", |conn| sql::Now {}.rows::<i64>(conn))?;
        sql::time(rows.into_iter().next().unwrap_or(i64::MAX), "now")
    }

    /// After a restart of the server, each of them is dead; and those that are not keep statements prepared, of which the
    /// server has no more than a number. A clone that searches for health checks or workers closes those of all pools, too.
    fn forget_idle(&self) {
        for pool in [&self.pool, &self.operators, &self.probes, &self.workers] {
            pool.retain(|_, _| false);
        }
    }

    async fn begin_transaction(
        &self,
        isolation: Isolation,
        guard: &Guard<'_>,
    ) -> Result<Option<MysqlTransaction>, StoreError> {
        self.begin_guarded(isolation, guard).await
    }

    async fn is_transaction_open(&self, transaction: &TransactionId) -> Result<bool, StoreError> {
        self.on_another(|| self.has_session(transaction)).await
    }

    async fn take_over_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
    ) -> Result<Option<KeyRow>, StoreError> {
        let taken = patiently(|| self.on_another(|| self.try_take_over(claim, hold)));
        taken.await?.map(|row| key_row(sql::row(row)?)).transpose()
    }

    async fn write_change(
        &self,
        guard: &Guard<'_>,
        change: &Change<'_>,
        notice: Option<&StagedJob>,
    ) -> Commit {
        self.until_written(|| async {
            match notice {
                None => self.write_once(guard, change).await,
                Some(notice) => self.write_with_notice(guard, change, notice).await,
            }
        })
        .await
    }

    async fn settle_key(
        &self,
        claim: &Claim<'_>,
        hold: Hold,
        change: &Change<'_>,
        audit: Option<&AuditEntry>,
    ) -> Commit {
        const DOING: &str = "settle the key";
        let bounds = || {
            let take_over = bound(DOING, &sql::TakeOver::new(claim, hold))?;
            let mut then = vec![bound(DOING, &sql::Write::new(&claim.behind(), change))?];
            if let Some(entry) = audit {
                then.push(bound(DOING, &InsertAudit::of(entry))?);
            }
            Ok::<_, StoreError>((take_over, then))
        };
        self.until_written(|| async {
            match bounds() {
                // Mostly an operator's, who may be the first behind a quiet night.
                Ok((take_over, then)) => {
                    in_one_go(&self.pool, Taken::Asked, vec![take_over], then).await
                }
                Err(error) => Commit::Failed(error),
            }
        })
        .await
    }

    async fn renew_lease(&self, guard: &Guard<'_>, hold: Hold) -> Result<bool, StoreError> {
        let renewed = ask_again!(self, "renew the lease", |conn| {
            sql::Renew::new(guard, hold).execute(conn)
        })?;
        Ok(renewed == 1)
    }

    async fn read_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let rows = ask_again!(self, "read the outputs", |conn| {
            sql::Outputs { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
                .rows::<Option<Vec<u8>>>(conn)
        })?;
        Ok(rows.into_iter().next().flatten())
    }

    async fn read_params(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request_id: Uuid,
    ) -> Result<Option<ParamsAndContext>, StoreError> {
        let rows = ask_again!(self, "read what was given", |conn| {
            sql::ParamsAndContext {
                scope: scope.as_str().to_owned(),
                key: key.as_str().to_owned(),
                request_id: request_id.as_bytes().to_vec(),
            }
            .rows::<(Vec<u8>, Option<Vec<u8>>)>(conn)
        })?;
        Ok(rows.into_iter().next())
    }

    async fn count_keys(&self, scope: &Scope, cap: u32) -> Result<u32, StoreError> {
        let rows = ask_again!(self, "count the keys", |conn| {
            sql::CountKeys {
                scope: scope.as_str().to_owned(),
                most: i64::from(cap) + MAX_EXPIRED,
                cap: cap.into(),
            }
            .rows::<i64>(conn)
        })?;
        Ok(count(rows))
    }

    #[cfg(feature = "fault-injection")]
    const CONCURRENT: bool = true;

    #[cfg(feature = "fault-injection")]
    async fn pass_time(&self, scope: &Scope, key: &IdempotencyKey) -> Result<(), StoreError> {
        let passed = self.on_another(|| async {
            let mut connection = ConnectionGuard::of(&self.pool).await?;
            let conn: &mut MysqlConn = &mut connection;
            let (scope, key) = (scope.as_str().to_owned(), key.as_str().to_owned());
            answered("pass time", sql::PassTime { scope, key }.execute(conn)).await
        });
        match passed.await {
            // An update finds a row that is not committed yet, and is not to wait for its transaction.
            Ok(_) | Err(StoreError::Locked) => Ok(()),
            Err(error) => Err(error),
        }
    }

    #[cfg(feature = "fault-injection")]
    async fn replicate(&self) -> Result<(), StoreError> {
        self.copy_tables().await
    }

    #[cfg(feature = "fault-injection")]
    async fn fail_over(&self) -> Result<(), StoreError> {
        self.bring_tables_back().await
    }

    #[cfg(feature = "fault-injection")]
    async fn cut(&self, tx: &mut MysqlTransaction) {
        let _ = tx.connection.texts("KILL CONNECTION_ID()").await;
    }
}
