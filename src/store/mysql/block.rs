//! On MariaDB: several statements as one prepared block, which is one round trip, and is parsed once for each connection.
//! MySQL has blocks in stored routines only.
//!
//! The statements stand in their order in one `BEGIN NOT ATOMIC … END`, with their binds. At the first error the block ends, so
//! that nothing behind one is executed (G4), and the error has its code. Afterwards, a variable of the session says which
//! statement it was: so an error at the `COMMIT` is not taken for that of another statement (G7).
//!
//! A phase that hands its statements over is one block, from begin to commit. A phase that executes them one by
//! one has a block in front of them and one behind: its transaction, and the mark in it, outlive a block.
//!
//! MariaDB prepares the statements of a block when the block is executed first, and not again: the block keeps the views,
//! triggers, functions and columns of that moment. For a user's statement that would be wrong (G4), so the block only executes
//! it: by the name under which its connection has prepared it (`EXECUTE`), or as a text, which the server prepares at each
//! execution (`EXECUTE IMMEDIATE`). The engine's own statements name columns of tables, which it finds anew. Behind another
//! trigger on such a table, or on one that a prepared statement writes to, the connections are left.
//!
//! Nothing in a text of a user's may end its statement: one with a `;`, a quote or a comment in it goes by itself, as
//! it does on MySQL.

use std::fmt::{Display, Write};
use std::ops::Range;

use diesel::QueryResult;
use mysql_async::{Row, from_row_opt};
use tokio::time::{Instant, timeout_at};

use super::ANSWER_WITHIN;
use super::connection::MysqlConn;
use super::error::Failure;
use super::literal::BoundStatement;
use super::named_statements::{Name, NamedStatements};
use super::place::{Place, Settings, come_to, come_to_with};
use super::session::Session;
use super::statement::Statement;
use super::statements as sql;
use super::waits::{LockWait, WAIT_A_SECOND_FOR_TABLES, WAIT_FOR_TABLES_AS_SERVER_SAYS};
use super::watch::{leaves_its_session_alone, only_touches_rows};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::store::{Commit, Guard, NewRow, Refusal, StoreError};

/// A block so far.
pub(super) struct Block {
    bound: BoundStatement,
    /// Where in its text the statements stand that a block may have several times.
    several: Vec<Range<usize>>,
}

/// Why a block failed, and where.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) at: Place,
    pub(super) failure: Failure,
}

/// A prepared statement has 65,535 at most, of which some are the engine's.
const MAX_VALUES: usize = 60_000;

/// What a user's statement has around it in a block, without its values: more bytes than a short statement itself. By its name,
/// it has fewer in all.
const AROUND_A_TEXT: usize = "; EXECUTE IMMEDIATE ''".len();

/// A block that leaves nothing of its transaction behind where it fails.
const WHOLE: &str = "BEGIN NOT ATOMIC DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN \
    ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END; \
    ROLLBACK AND NO CHAIN NO RELEASE; START TRANSACTION";

/// One behind whose failure the client rolls back.
const PART: &str = "BEGIN NOT ATOMIC ";

/// Ends the block where no row was as the guard says.
const UNLESS_ONE: &str = "IF ROW_COUNT() <> 1 THEN SET @atomic_phases = 4; SIGNAL SQLSTATE '45000' \
    SET MYSQL_ERRNO = 1242, MESSAGE_TEXT = 'atomic_phases'; END IF";

/// Behind the insert: its time, which is the first row of the block. The server describes each column at each execution.
const ITS_TIME: &str = " RETURNING advanced_at";

/// As long as most blocks are, in bytes: one that grows is copied.
const USUAL_LENGTH: usize = 4096;

impl Block {
    /// Whether these may be parts of a block on this server: as one command, with the engine's own.
    pub(super) fn takes(session: &Session, statements: &[Statement], jobs: &[StagedJob]) -> bool {
        let of_jobs: usize = jobs.iter().map(|job| job.name.len() + job.args.len()).sum();
        let in_a_block = |statement: &Statement| statement.size() + AROUND_A_TEXT;
        let of_statements: usize = statements.iter().map(in_a_block).sum();
        session.has_blocks
            && of_jobs + of_statements <= session.max_packet / 2
            && statements.iter().map(Statement::values).sum::<usize>() + 10 * jobs.len()
                <= MAX_VALUES
            && statements.iter().all(is_part_of_a_block)
    }

    fn whole() -> Self {
        Self::beginning(WHOLE, "")
    }

    /// One that begins with this statement.
    fn part(sql: &str) -> Self {
        Self::beginning(PART, sql)
    }

    fn beginning(with: &str, first: &str) -> Self {
        let mut sql = String::with_capacity(USUAL_LENGTH);
        sql.push_str(with);
        sql.push_str(first);
        let bound = BoundStatement { sql, values: Vec::new(), varying: 0 };
        Self { bound, several: Vec::new() }
    }

    fn push(&mut self, sql: impl Display) {
        // Writing to a String does not fail.
        let _ = write!(self.bound.sql, "; {sql}");
    }

    fn ended(mut self) -> Self {
        self.bound.sql.push_str("; END");
        self
    }

    fn push_bound(&mut self, bound: BoundStatement) {
        // One that is in it already was added by a loop: the next block has more of it, or fewer.
        let is_same = |at: &Range<usize>| self.bound.sql.get(at.clone()) == Some(&*bound.sql);
        let is_repeated = self.several.iter().any(is_same);
        let length = bound.sql.len();
        let varying = if is_repeated { length } else { bound.varying };
        self.push_once(BoundStatement { varying, ..bound });
        if !is_repeated {
            let end = self.bound.sql.len();
            self.several.push(end - length..end);
        }
    }

    /// The same of one that each block has once.
    fn push_once(&mut self, bound: BoundStatement) {
        self.bound.varying += bound.varying;
        self.push(bound.sql);
        self.bound.values.extend(bound.values);
    }

    fn set(&mut self, session: &Session, settings: Settings) {
        match session.has_named_settings() {
            true => self.push(format_args!("EXECUTE {}", settings.name())),
            false => self.push(settings.text(session)),
        }
    }

    /// The begin of a transaction whose phase executes its statements one by one.
    /// `pin` locks the row, where what is seen from here on stays as it is: the rows of the block are its rows.
    pub(super) fn opening(
        session: &Session,
        isolation: Isolation,
        pin: Option<BoundStatement>,
    ) -> Self {
        let waits = LockWait::of_a_begin(pin.as_ref());
        let mut block = Self::part(&session.begin(isolation, waits));
        if let Some(pin) = pin {
            block.push_once(pin);
            block.push(session.server_lock_wait());
        }
        block.ended()
    }

    /// The same, and the row that the phase is about. Its time is the first row.
    pub(super) fn reserving(
        session: &Session,
        row: &NewRow<'_>,
        insert: BoundStatement,
    ) -> QueryResult<Self> {
        let mut block = Self::part(&session.begin(Isolation::ReadCommitted, LockWait::Engine));
        block.insert(row, insert)?;
        block.push(session.server_lock_wait());
        Ok(block.ended())
    }

    /// The end of such a transaction: the mark, the engine's own writes, `COMMIT`.
    pub(super) fn concluding(
        session: &Session,
        guard: &Guard<'_>,
        jobs: &[StagedJob],
        write: Option<&sql::Write>,
    ) -> QueryResult<Self> {
        let mut block = Self::part(&come_to(Place::Mark).to_string());
        block.push(sql::RELEASE);
        block.end(session, guard, jobs, write)
    }

    /// Creates the row as its first phase leaves it, with what the phase writes. Its time is the first row.
    pub(super) fn creating(
        session: &Session,
        named: &NamedStatements,
        row: &NewRow<'_>,
        insert: BoundStatement,
        (statements, jobs): (&[Statement], &[StagedJob]),
    ) -> QueryResult<Self> {
        let mut block = Self::whole();
        block.push(come_to_with(Place::Reservation, WAIT_A_SECOND_FOR_TABLES));
        block.insert(row, insert)?;
        block.phase(session, named, statements)?;
        block.end(session, &row.guard(), jobs, None)
    }

    /// What a later phase writes, and its recovery point.
    pub(super) fn advancing(
        session: &Session,
        named: &NamedStatements,
        guard: &Guard<'_>,
        write: &sql::Write,
        (statements, jobs): (&[Statement], &[StagedJob]),
    ) -> QueryResult<Self> {
        let mut block = Self::whole();
        block.phase(session, named, statements)?;
        block.end(session, guard, jobs, Some(write))
    }

    fn insert(&mut self, row: &NewRow<'_>, insert: BoundStatement) -> QueryResult<()> {
        if let Some(request_id) = row.replaces {
            self.push_once(BoundStatement::of(&sql::DeleteExpired::of(row, request_id))?);
        }
        self.push_once(insert);
        self.bound.sql.push_str(ITS_TIME);
        Ok(())
    }

    fn phase(
        &mut self,
        session: &Session,
        named: &NamedStatements,
        statements: &[Statement],
    ) -> QueryResult<()> {
        self.set(session, Settings::Phase);
        for statement in statements {
            self.push_bound(executed(statement.bound()?, named));
        }
        Ok(())
    }

    /// The engine's own writes, and `COMMIT`. The session is at rest behind it, because `autocommit` would commit in front
    /// of it, and the `COMMIT` waits as long as the server says. A failure there counts as the `COMMIT`'s.
    fn end(
        mut self,
        session: &Session,
        guard: &Guard<'_>,
        jobs: &[StagedJob],
        write: Option<&sql::Write>,
    ) -> QueryResult<Self> {
        self.engine(session, guard, jobs, write)?;
        self.push(come_to_with(Place::Commit, WAIT_FOR_TABLES_AS_SERVER_SAYS));
        self.push(sql::COMMIT);
        self.set(session, Settings::Rest);
        Ok(self.ended())
    }

    fn engine(
        &mut self,
        session: &Session,
        guard: &Guard<'_>,
        jobs: &[StagedJob],
        write: Option<&sql::Write>,
    ) -> QueryResult<()> {
        if !jobs.is_empty() || write.is_some() {
            self.set(session, Settings::Engine);
        }
        for job in jobs {
            self.push_bound(BoundStatement::of(&sql::InsertJob::new(guard, job))?);
        }
        if let Some(write) = write {
            self.push_once(BoundStatement::of(write)?);
            self.push(UNLESS_ONE);
        }
        Ok(())
    }

    /// Sends it, and asks where it failed. The first rows that it told.
    pub(super) async fn send(
        self,
        conn: &mut MysqlConn,
        until: Instant,
    ) -> Result<Vec<Row>, Trouble> {
        let BoundStatement { sql, values, varying } = self.bound;
        let prepared = conn.prepare(ANSWER_WITHIN, sql, varying).await;
        let prepared = prepared.map_err(|failure| Trouble { at: Place::Nowhere, failure })?;
        let executed = timeout_at(until, conn.execute_block(&prepared, values)).await;
        conn.give_back(prepared).await;
        let failure = match executed {
            Ok(Ok(rows)) => return Ok(rows),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Unanswered,
        };
        if failure.is_lost() {
            return Err(Trouble { at: Place::Commit, failure });
        }
        let told = conn.texts("SELECT CAST(@atomic_phases AS SIGNED)").await.rows;
        let number = told.into_iter().flatten().next().and_then(|row| from_row_opt(row).ok());
        Err(Trouble { at: Place::of(number), failure })
    }
}

/// The same executed by its name, if it has one, and otherwise as a text that the server prepares at each execution of the
/// block. Such a text takes no place of `max_prepared_stmt_count`. Either way the values keep their types and character sets;
/// the rows, the counts behind it and the error are those of the statement itself. No text has a quote or a backslash
/// ([`is_one_statement`]).
fn executed(bound: &BoundStatement, named: &NamedStatements) -> BoundStatement {
    let BoundStatement { sql: text, values, varying } = bound;
    let mut sql =
        String::with_capacity(AROUND_A_TEXT + text.len() + " USING ?".len() * values.len());
    // Writing to a String does not fail.
    let _ = match named.number(text) {
        Some(number) => write!(sql, "EXECUTE {}", Name(number)),
        None => write!(sql, "EXECUTE IMMEDIATE '{text}'"),
    };
    for nth in 0..values.len() {
        sql.push_str(if nth == 0 { " USING ?" } else { ", ?" });
    }
    let varying = if *varying == 0 { 0 } else { sql.len() };
    BoundStatement { sql, values: values.clone(), varying }
}

impl Trouble {
    /// What became of the transaction.
    pub(super) fn judge<T>(self) -> Commit<T> {
        let Self { at, failure } = self;
        let doing = match at {
            Place::Nowhere | Place::Phase => "execute a statement of the phase",
            Place::Reservation => "reserve the key",
            Place::Mark | Place::Engine | Place::Guard => "write the recovery point",
            Place::Commit => "commit",
        };
        match at {
            Place::Mark if failure.is_of_a_missing_savepoint() => {
                Commit::Refused(Refusal::LeftTransaction)
            }
            Place::Guard if failure.is_raised() => Commit::Fenced,
            Place::Reservation if failure.is_of_a_unique_key() => Commit::Fenced,
            Place::Reservation | Place::Engine if failure.is_of_a_lock() => {
                Commit::Failed(StoreError::Locked)
            }
            Place::Commit if !failure.is_certain_at_commit() => {
                Commit::Unknown(StoreError::database(doing, failure))
            }
            _ => Commit::Failed(StoreError::database(doing, failure)),
        }
    }
}

/// Whether a statement may be a part. One with the wrong number of values is sent by itself, and fails.
fn is_part_of_a_block(statement: &Statement) -> bool {
    let has_its_values = |sql: &str| sql.matches('?').count() == statement.values();
    statement.sql().is_some_and(|sql| is_one_statement(sql) && has_its_values(sql))
}

/// Whether a text is one statement wherever it stands: nothing in it ends it, or hides what follows. Nor does anything end the
/// quotes around it, whatever `sql_mode` is.
fn is_one_statement(sql: &str) -> bool {
    let mut before = b' ';
    let ends_it = sql.bytes().any(|byte| {
        let pair = (std::mem::replace(&mut before, byte), byte);
        matches!(byte, b';' | b'@' | b'\'' | b'"' | b'\\' | b'#')
            || matches!(pair, (b'-', b'-') | (b'/', b'*'))
    });
    let touches_rows_alone = only_touches_rows(sql) && leaves_its_session_alone(sql);
    !ends_it && sql.matches('`').count().is_multiple_of(2) && touches_rows_alone
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::error::{NO_SAVEPOINT, RAISED};
    use super::super::place::preparing_settings;
    use super::*;
    use crate::key::{IdempotencyKey, Scope};

    #[test]
    fn g4_a_text_that_could_end_its_statement_is_no_part_of_a_block() {
        for one in [
            "INSERT INTO `rides` (`id`, `amount`) VALUES (?, ?)",
            "update `a``b` set n = n + 1 where id = ?",
            "UPDATE `rides` SET `amount` = ((`rides`.`amount` * ?) + ?)",
            "INSERT INTO t SELECT * FROM u",
        ] {
            assert!(is_one_statement(one), "{one}");
        }
        for other in [
            "INSERT INTO t VALUES (1); COMMIT",
            "INSERT INTO t VALUES ('a')",
            "INSERT INTO t VALUES (\"a\")",
            "INSERT INTO t VALUES (1) -- ",
            "INSERT INTO t VALUES (1) # ",
            "INSERT INTO t VALUES (1) /* ",
            "INSERT INTO `t VALUES (1)",
            "INSERT INTO t VALUES (1\\)",
            "SELECT 1 INTO @atomic_phases",
            "COMMIT",
            "",
        ] {
            assert!(!is_one_statement(other), "{other}");
        }
    }

    /// It fails by itself, also beside one that lacks as many values as it has too many.
    #[test]
    fn g4_a_statement_with_the_wrong_number_of_values_is_no_part_of_a_block() {
        let session = Session::of_mariadb();
        let takes = |numbers: &[usize]| {
            let statement = |number: &usize| {
                let values = vec![mysql_async::Value::Int(1); *number];
                let sql = "INSERT INTO t VALUES (?)".to_owned();
                Statement { bound: Ok(BoundStatement { sql, values, varying: 0 }) }
            };
            let statements: Vec<_> = numbers.iter().map(statement).collect();
            Block::takes(&session, &statements, &[])
        };
        assert!(takes(&[1]) && takes(&[1, 1]));
        assert!(!takes(&[0]) && !takes(&[2]) && !takes(&[0, 2]) && !takes(&[2, 0]));
    }

    /// Between the statement that notes the commit and the `COMMIT`, nothing can fail: so no error of the `COMMIT` is
    /// judged as another statement's. And a `COMMIT` that a backup holds back is not given up after a second.
    #[test]
    fn g7_each_block_notes_its_commit_right_before_it() {
        let (scope, key) = (Scope::new("one").unwrap(), IdempotencyKey::new("k").unwrap());
        let (request_id, lease_token, recovery_point) = (Uuid::nil(), 1, "started");
        let guard = Guard { scope: &scope, key: &key, request_id, lease_token, recovery_point };
        let session = Session::of_mariadb();
        for block in [
            Block::concluding(&session, &guard, &[], None),
            Block::whole().end(&session, &guard, &[], None),
        ] {
            let text = block.unwrap().bound.sql;
            let statements: Vec<&str> = text.split("; ").collect();
            let commit = statements.iter().position(|one| *one == sql::COMMIT).unwrap();
            let noted = format!(
                "SET @atomic_phases = {}, SESSION lock_wait_timeout = DEFAULT",
                Place::Commit.number()
            );
            assert_eq!(statements[commit - 1], noted, "{text}");
        }
    }

    /// What the phase waits for, as long as the server says, the engine does not.
    #[test]
    fn g16_what_the_engine_writes_at_the_end_of_a_phase_waits_for_a_lock_for_a_second() {
        let (scope, key) = (Scope::new("one").unwrap(), IdempotencyKey::new("k").unwrap());
        let (request_id, lease_token, recovery_point) = (Uuid::nil(), 1, "started");
        let guard = Guard { scope: &scope, key: &key, request_id, lease_token, recovery_point };
        let id = crate::job::job_id(request_id, 0);
        let (name, args) = ("receipt".to_owned(), Vec::new());
        let jobs = [StagedJob { id, name, position: 0, args, trace: None }];
        let session = Session::of_mariadb();
        for block in [
            Block::concluding(&session, &guard, &jobs, None),
            Block::whole().end(&session, &guard, &jobs, None),
        ] {
            let text = block.unwrap().bound.sql;
            let noted = "SET @atomic_phases = 3, SESSION innodb_lock_wait_timeout = 1, \
                SESSION lock_wait_timeout = 1; INSERT INTO";
            assert!(text.contains(noted), "{text}");
        }
    }

    /// In a block, a `SET` is as many statements as it has settings.
    #[test]
    fn a_block_executes_by_name_what_its_session_has_prepared_to_set() {
        let (scope, key) = (Scope::new("one").unwrap(), IdempotencyKey::new("k").unwrap());
        let (request_id, lease_token, recovery_point) = (Uuid::nil(), 1, "started");
        let guard = Guard { scope: &scope, key: &key, request_id, lease_token, recovery_point };
        let mut session = Session::of_mariadb();
        // With a job, which the engine inserts behind the phase, under settings of its own.
        let (id, name, args) = (Uuid::nil(), "receipt".to_owned(), vec![]);
        let jobs = [StagedJob { id, name, position: 1, args, trace: None }];
        let text = |session: &Session| {
            let mut block = Block::whole();
            block.phase(session, &NamedStatements::default(), &[]).unwrap();
            block.end(session, &guard, &jobs, None).unwrap().bound.sql
        };
        let whole = text(&session);
        let prepared = preparing_settings(&session);
        session.name_settings();
        let mut named = text(&session);
        for prepare in prepared.split("; ") {
            let (name, set) =
                prepare.strip_prefix("PREPARE ").and_then(|it| it.split_once(" FROM ")).unwrap();
            let set = set.trim_matches('\'').replace("''", "'");
            named = named.replace(&format!("EXECUTE {name}"), &set);
        }
        assert_eq!(named, whole);
        assert!(!named.contains("EXECUTE") && text(&session).matches("SET ").count() == 1);
    }

    /// The server prepares it at each execution of the block; or once, and again behind a change.
    #[test]
    fn g4_a_statement_of_a_phase_stands_in_a_block_as_a_text_or_a_name() {
        let statement = |sql: &str, values: usize, varying| {
            let values = vec![mysql_async::Value::Int(1); values];
            Statement { bound: Ok(BoundStatement { sql: sql.to_owned(), values, varying }) }
        };
        let statements =
            [statement("DELETE FROM t", 0, 0), statement("UPDATE t SET a = ?, b = ?", 2, 25)];
        let mut named = NamedStatements::default();
        let mut block = Block::whole();
        block.phase(&Session::of_mariadb(), &named, &statements).unwrap();
        let updates = "EXECUTE IMMEDIATE 'UPDATE t SET a = ?, b = ?' USING ?, ?";
        let texts = format!("; EXECUTE IMMEDIATE 'DELETE FROM t'; {updates}");
        assert!(block.bound.sql.ends_with(&texts), "{}", block.bound.sql);
        assert_eq!((block.bound.values.len(), block.bound.varying), (2, updates.len()));

        named.insert("DELETE FROM t", None);
        named.insert("UPDATE t SET a = ?, b = ?", Some(3));
        let mut block = Block::whole();
        block.phase(&Session::of_mariadb(), &named, &statements).unwrap();
        let updates = "EXECUTE atomic_phases_3 USING ?, ?";
        let executes = format!("; EXECUTE IMMEDIATE 'DELETE FROM t'; {updates}");
        assert!(block.bound.sql.ends_with(&executes), "{}", block.bound.sql);
        assert_eq!((block.bound.values.len(), block.bound.varying), (2, updates.len()));
    }

    #[test]
    fn a_block_differs_each_time_by_what_does_and_by_what_is_repeated() {
        let of = |sql: &str, varying| BoundStatement {
            sql: sql.to_owned(),
            values: Vec::new(),
            varying,
        };
        let mut block = Block::whole();
        for (bound, varying) in [
            (of("INSERT INTO a VALUES (?)", 0), 0),
            (of("UPDATE a SET b = ?", 18), 18),
            (of("INSERT INTO b VALUES (?)", 0), 18),
            (of("INSERT INTO a VALUES (?)", 0), 42),
            (of("INSERT INTO b VALUES (?)", 0), 66),
        ] {
            block.push_bound(bound);
            assert_eq!(block.bound.varying, varying);
        }
    }

    #[test]
    fn g7_a_place_that_cannot_be_told_is_the_commit() {
        let failure = || Failure::Server { code: 1205, message: String::new() };
        for number in [None, Some(5), Some(9), Some(-1)] {
            let at = Place::of(number);
            assert_eq!(at, Place::Commit);
            assert!(matches!(Trouble { at, failure: failure() }.judge::<()>(), Commit::Unknown(_)));
        }
        for at in [Place::Reservation, Place::Engine] {
            let told: Commit = Trouble { at, failure: failure() }.judge();
            assert!(matches!(told, Commit::Failed(StoreError::Locked)), "{at:?}");
        }
        let unmarked = || Failure::Server { code: NO_SAVEPOINT, message: String::new() };
        for (at, has_left) in [(Place::Mark, true), (Place::Engine, false)] {
            let told: Commit = Trouble { at, failure: unmarked() }.judge();
            assert_eq!(matches!(told, Commit::Refused(_)), has_left, "{at:?}");
        }
        let raised = || Failure::Server { code: RAISED, message: String::new() };
        for (at, is_fenced) in [(Place::Phase, false), (Place::Engine, false), (Place::Guard, true)]
        {
            let told: Commit = Trouble { at, failure: raised() }.judge();
            assert_eq!(matches!(told, Commit::Fenced), is_fenced, "{at:?}");
        }
    }
}
