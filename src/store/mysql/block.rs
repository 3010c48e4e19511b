//! On MariaDB: the transaction of a phase that hands its statements over, as one prepared block, which is one round
//! trip. MySQL has blocks in stored routines only.
//!
//! The engine's statements and the phase's stand in their order in one `BEGIN NOT ATOMIC … END`, with their binds. Its
//! handler rolls back at the first error, so that nothing behind one is executed (G4), and hands the error on with
//! its code. Which statement it was is asked of a variable of the session, afterwards: so an error at the
//! `COMMIT` is no other's (G7).
//!
//! Nothing in a text of a user's may end its statement: one with a `;`, a quote or a comment in it goes by itself, as
//! it does on MySQL.

use diesel::QueryResult;
use mysql_async::{Row, from_row_opt};
use tokio::time::{Instant, timeout_at};

use super::connection::MysqlConn;
use super::error::{Failure, RAISED};
use super::literal::Bound;
use super::session::Session;
use super::statement::Statement;
use super::statements as sql;
use super::transaction::COMMIT;
use super::watch::only_touches_rows;
use crate::job::StagedJob;
use crate::store::{Commit, Guard, NewRow, StoreError};

/// A block so far.
pub(super) struct Block {
    bound: Bound,
}

/// Where in the block the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has executed nothing.
    Nowhere,
    Reservation,
    Phase,
    Engine,
    /// The update was executed: was it one row?
    Guard,
    Commit,
}

/// Why a block failed, and where.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) at: Place,
    pub(super) failure: Failure,
}

/// A prepared statement has 65,535 at most, of which some are the engine's.
const MOST_VALUES: usize = 60_000;

const BEGIN: &str = "BEGIN NOT ATOMIC DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN \
    ROLLBACK AND NO CHAIN NO RELEASE; RESIGNAL; END; \
    ROLLBACK AND NO CHAIN NO RELEASE; START TRANSACTION";

/// Ends the block where no row was as the guard says.
const UNLESS_ONE: &str = "SET @atomic_phases_rows = ROW_COUNT(), @atomic_phases = 4; \
    IF @atomic_phases_rows <> 1 THEN SIGNAL SQLSTATE '45000' \
    SET MYSQL_ERRNO = 1242, MESSAGE_TEXT = 'atomic_phases'; END IF";

impl Place {
    /// As the block tells it. It is told in front of what it is about, and so never too late.
    const fn number(self) -> i64 {
        match self {
            Self::Nowhere => 0,
            Self::Reservation => 1,
            Self::Phase => 2,
            Self::Engine => 3,
            Self::Guard => 4,
            Self::Commit => 5,
        }
    }

    /// What cannot be told counts as the `COMMIT`.
    fn of(number: Option<i64>) -> Self {
        [Self::Nowhere, Self::Reservation, Self::Phase, Self::Engine, Self::Guard]
            .into_iter()
            .find(|place| Some(place.number()) == number)
            .unwrap_or(Self::Commit)
    }
}

impl Block {
    /// Whether these may be parts of a block on this server: as one command, with the engine's own.
    pub(super) fn takes(session: &Session, statements: &[Statement], jobs: &[StagedJob]) -> bool {
        let of_jobs: usize = jobs.iter().map(|job| job.name.len() + job.args.len()).sum();
        let of_statements: usize = statements.iter().map(Statement::size).sum();
        session.is_mariadb
            && of_jobs + of_statements <= session.max_packet / 2
            && statements.iter().map(Statement::values).sum::<usize>() + 10 * jobs.len()
                <= MOST_VALUES
            && statements.iter().all(|statement| statement.sql().is_some_and(is_one_statement))
    }

    fn begin() -> Self {
        Self { bound: Bound { sql: BEGIN.to_owned(), values: Vec::new() } }
    }

    fn push(&mut self, sql: &str) {
        self.bound.sql.push_str("; ");
        self.bound.sql.push_str(sql);
    }

    fn push_bound(&mut self, bound: Bound) {
        self.push(&bound.sql);
        self.bound.values.extend(bound.values);
    }

    fn come_to(&mut self, place: Place) {
        self.push(&format!("SET @atomic_phases = {}", place.number()));
    }

    /// And with the same statement to what a `SET` of the session's says: it cannot fail there.
    fn come_to_with(&mut self, place: Place, set: &str) {
        let settings = set.strip_prefix("SET ").unwrap_or(set);
        self.push(&format!("SET @atomic_phases = {}, {settings}", place.number()));
    }

    /// Creates the row as its first phase leaves it, with what the phase writes. Its times are the first rows.
    pub(super) fn creating(
        session: &Session,
        row: &NewRow<'_>,
        insert: Bound,
        (statements, jobs): (&[Statement], &[StagedJob]),
    ) -> QueryResult<Self> {
        let mut block = Self::begin();
        block.come_to(Place::Reservation);
        if let Some(request_id) = row.replaces {
            block.push_bound(Bound::of(&sql::DeleteExpired::of(row, request_id))?);
        }
        block.push_bound(insert);
        block.push_bound(Bound::of(&sql::Times::of(row.scope, row.key))?);
        block.phase(session, statements)?;
        block.end(session, &row.guard(), jobs, None)
    }

    /// What a later phase writes, and its recovery point.
    pub(super) fn advancing(
        session: &Session,
        guard: &Guard<'_>,
        write: &sql::Write,
        (statements, jobs): (&[Statement], &[StagedJob]),
    ) -> QueryResult<Self> {
        let mut block = Self::begin();
        block.phase(session, statements)?;
        block.end(session, guard, jobs, Some(write))
    }

    fn phase(&mut self, session: &Session, statements: &[Statement]) -> QueryResult<()> {
        self.come_to_with(Place::Phase, &session.lent());
        for statement in statements {
            self.push_bound(statement.bound()?);
        }
        Ok(())
    }

    /// The session is at rest before the `COMMIT`, so that nothing stands behind it that could fail.
    fn end(
        mut self,
        session: &Session,
        guard: &Guard<'_>,
        jobs: &[StagedJob],
        write: Option<&sql::Write>,
    ) -> QueryResult<Self> {
        self.come_to(Place::Engine);
        for job in jobs {
            self.push_bound(Bound::of(&sql::InsertJob::new(guard, job))?);
        }
        if let Some(write) = write {
            self.push_bound(Bound::of(write)?);
            self.push(UNLESS_ONE);
        }
        self.come_to_with(Place::Commit, session.at_rest());
        self.push(COMMIT);
        self.bound.sql.push_str("; END");
        Ok(self)
    }

    /// Sends it, and asks where it failed. The first rows that it told.
    pub(super) async fn send(
        self,
        conn: &mut MysqlConn,
        until: Instant,
    ) -> Result<Vec<Row>, Trouble> {
        if let Err(failure) = conn.prepare(&self.bound.sql).await {
            return Err(Trouble { at: Place::Nowhere, failure });
        }
        let failure = match timeout_at(until, conn.execute_block(self.bound)).await {
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

impl Trouble {
    /// What became of the transaction.
    pub(super) fn judge<T>(self) -> Commit<T> {
        let Self { at, failure } = self;
        let doing = match at {
            Place::Nowhere | Place::Phase => "execute a statement of the phase",
            Place::Reservation => "reserve the key",
            Place::Engine | Place::Guard => "write the recovery point",
            Place::Commit => "commit",
        };
        match at {
            Place::Guard if failure.code() == Some(RAISED) => Commit::Fenced,
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

/// Whether a text is one statement wherever it stands: nothing in it ends it, or hides what follows.
fn is_one_statement(sql: &str) -> bool {
    let ends_it =
        [";", "@", "'", "\"", "\\", "#", "--", "/*"].iter().any(|sign| sql.contains(sign));
    !ends_it && sql.matches('`').count().is_multiple_of(2) && only_touches_rows(sql)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g4_a_text_that_could_end_its_statement_is_no_part_of_a_block() {
        for one in [
            "INSERT INTO `rides` (`id`, `amount`) VALUES (?, ?)",
            "update `a``b` set n = n + 1 where id = ?",
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
        let raised = || Failure::Server { code: RAISED, message: String::new() };
        for (at, is_fenced) in [(Place::Phase, false), (Place::Engine, false), (Place::Guard, true)]
        {
            let told: Commit = Trouble { at, failure: raised() }.judge();
            assert_eq!(matches!(told, Commit::Fenced), is_fenced, "{at:?}");
        }
    }
}
