//! [`Statement`]: what a phase hands over, to be executed on the connection's thread.

use diesel::query_builder::{QueryBuilder, QueryFragment, QueryId};
use diesel::result::Error;
use diesel::sqlite::SqliteQueryBuilder;
use diesel::{Connection, QueryResult, RunQueryDsl, SqliteConnection};

use super::error::TimeLimitPassed;
use super::{Sqlite, statements as sql};
use crate::moment::Moment;
use crate::store::tokenizer::{
    Dialect, changes_connection, controls_transaction, first_words, holds_several,
};
use crate::store::{Guard, Refusal, Writes};

/// A statement of a phase, to be executed later.
pub struct Statement {
    run: Box<Execution>,
    /// The rule that its text breaks.
    refusal: Option<Refusal>,
    sharing: Sharing,
}

type Execution = dyn Fn(&mut SqliteConnection) -> QueryResult<usize> + Send;

impl Statement {
    pub(super) fn of<Q>(query: Q) -> Self
    where
        Q: QueryFragment<diesel::sqlite::Sqlite> + QueryId + Send + 'static,
    {
        let mut text = SqliteQueryBuilder::new();
        // If diesel cannot make its text, the execution of the statement fails with the same error.
        let _ = query.to_sql(&mut text, &diesel::sqlite::Sqlite);
        let text = text.finish();
        let refusal = if controls_transaction(&text, Dialect::Sqlite) {
            Some(Refusal::LeftTransaction)
        } else if changes_connection(&text) {
            Some(Refusal::ChangesConnection)
        } else if holds_several(&text, Dialect::Sqlite) {
            Some(Refusal::SeveralStatements)
        } else {
            None
        };
        let sharing = match only_touches_rows(&text) {
            true => Sharing::WithOthers,
            false => Sharing::Alone,
        };
        Self { refusal, sharing, run: Box::new(move |conn| conn.execute_returning_count(&query)) }
    }
}

/// Whether a statement reads or writes rows and does nothing else. Any other may change what becomes of those before it in
/// the same transaction: `PRAGMA defer_foreign_keys = OFF` forgets the violations that were deferred.
fn only_touches_rows(text: &str) -> bool {
    const KNOWN: [&str; 7] = ["INSERT", "UPDATE", "DELETE", "REPLACE", "SELECT", "WITH", "VALUES"];
    let first = first_words(text, Dialect::Sqlite).next();
    first.is_some_and(|word| KNOWN.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// Whether what a phase hands over may share a commit.
pub(super) fn sharing(writes: &Writes<'_, Sqlite>) -> Sharing {
    match writes.statements.all.iter().all(|statement| statement.sharing == Sharing::WithOthers) {
        true => Sharing::WithOthers,
        false => Sharing::Alone,
    }
}

/// With what a transaction shares its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    WithOthers,
    Alone,
}

/// The rule that a phase breaks by what it hands over.
pub(super) fn refusal(writes: &Writes<'_, Sqlite>) -> Option<Refusal> {
    writes.statements.all.iter().find_map(|statement| statement.refusal)
}

/// What a phase hands over, to be executed on the connection's thread.
pub(super) fn writing(
    guard: &Guard<'_>,
    writes: Writes<'_, Sqlite>,
) -> impl Fn(&mut SqliteConnection) -> QueryResult<()> + Send + 'static {
    let Writes { statements, jobs, within } = writes;
    let jobs: Vec<_> = jobs.iter().map(|job| sql::InsertJob::new(guard, job)).collect();
    move |conn| {
        let began = Moment::now();
        for statement in &statements.all {
            (statement.run)(conn)?;
            // One that is under way is not interrupted: diesel has no word for it.
            if began.elapsed() > within {
                return Err(Error::QueryBuilderError(Box::new(TimeLimitPassed)));
            }
        }
        for job in &jobs {
            stage(conn, job)?;
        }
        Ok(())
    }
}

/// Stages a job. That it was not inserted, without an error, is one: a trigger of the application's may have said
/// `RAISE(IGNORE)`.
pub(super) fn stage(conn: &mut SqliteConnection, job: &sql::InsertJob) -> QueryResult<()> {
    match job.execute(conn)? {
        1 => Ok(()),
        _ => Err(Error::NotFound),
    }
}

opaque! {
    [] Statement;
}
