//! A phase's statements, its jobs and the recovery point as one SQL statement, which is a transaction
//! by itself: no `BEGIN`, no `COMMIT`, and one message each way.
//!
//! The phase's statements stand behind `WITH` as data-modifying parts, so each sees what was there
//! before the statement, and not the others' rows: right for one, and for several that are independent.
//! The engine's part raises where the row is not ours, which undoes the others.

use std::future::Future;
use std::time::{Duration, Instant};

use diesel::QueryResult;
use diesel::deserialize::FromSqlRow;
use diesel::pg::Pg;
use diesel::query_builder::{Query, QueryFragment, QueryId};
use diesel::result::Error;
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use futures_util::TryStreamExt;
use futures_util::future::{OptionFuture, join3};

use super::commit_statements::{MAX_PARTS, Made, Ready, Restore};
use super::error::{
    is_of_the_client, is_of_the_server, is_refused_by_server, may_be_refused_as_single_statement,
};
use super::numbered::{self, Shaped};
use super::statement::MergeAttempt;
use super::{Pool, PoolOrigin, Postgres, answered, answered_within, sql};
use crate::store::Writes;

/// Most binds in a single statement: PostgreSQL takes 65,535 at most.
const MAX_BINDS: usize = 10_000;

/// The result of a transaction that was sent in one message.
pub(super) enum Answer {
    /// Everything succeeded but `COMMIT`, which answered this.
    Commit(Made, QueryResult<usize>),
    /// The server refused a statement, so its `COMMIT` is a rollback.
    Refused { error: Error, reusable: bool },
    /// `COMMIT` was not sent.
    NotSent(Error),
    /// The outcome of `COMMIT` is unknown.
    Lost(Error),
}

impl<P: Pool> Postgres<P> {
    /// To send these writes as a single statement, if they can go so, as far as can be told without the server.
    pub(super) fn merge_attempt(&self, writes: &Writes<'_, Self>) -> Option<MergeAttempt> {
        let all = &writes.statements.all;
        let can = (all.len() < 2 || !writes.statements.in_order)
            && all.len() + writes.jobs.len() <= MAX_PARTS
            && all.iter().map(|statement| statement.about().binds).sum::<usize>() <= MAX_BINDS
            && all.iter().all(|statement| statement.about().merges);
        // What tells its text from others.
        can.then(|| self.registry.attempt(&(all, writes.jobs.len()))).flatten()
    }
}

/// Sends a single statement and waits for its one row. The server commits before it says that it is
/// ready for the next statement, and for that diesel-async waits.
/// `None` where the server does not take the writes as one statement: then nothing was executed.
pub(super) fn send<S, T>(
    mut conn: &AsyncPgConnection,
    origin: PoolOrigin,
    statement: S,
    within: Duration,
    made: impl FnOnce(T) -> Made + Send,
) -> impl Future<Output = Option<Answer>> + Send
where
    S: Shaped + QueryId + Query + QueryFragment<Pg>,
    T: FromSqlRow<S::SqlType, Pg> + Send,
{
    let began = Instant::now();
    let ready = origin.is_application().then(|| Ready {}.execute(&mut conn));
    let sent = numbered::send(conn, &statement);
    let restore = origin.is_application().then(|| Restore {}.execute(&mut conn));
    async move {
        let rows = async { sent.await?.try_collect::<Vec<_>>().await };
        // Polled, and so sent, in this order. What becomes of the writes, the second tells.
        let rows =
            async { join3(OptionFuture::from(ready), rows, OptionFuture::from(restore)).await.1 };
        let error = match answered_within(within, rows).await {
            Ok(rows) => {
                return Some(match rows.as_slice() {
                    [told] => T::build_from_row(told).map_or_else(
                        |error| Answer::Lost(Error::DeserializationError(error)),
                        |told| Answer::Commit(made(told), Ok(0)),
                    ),
                    _ => Answer::Lost(Error::NotFound),
                });
            }
            Err(error) => error,
        };
        if is_of_the_client(&error) {
            return Some(Answer::NotSent(error));
        }
        // An error undoes the statement, but for one that ends the connection: that may come behind
        // the commit. After such an error the connection is closed.
        let undone = is_of_the_server(&error)
            && (is_refused_by_server(&error)
                || answered(sql::Rollback {}.execute(&mut conn)).await.is_ok());
        match undone {
            // What took half of its time limit was executed, and there is no time left to do so once more.
            true if may_be_refused_as_single_statement(&error) && began.elapsed() < within / 2 => {
                None
            }
            true => Some(Answer::Refused { error, reusable: true }),
            false => Some(Answer::Lost(error)),
        }
    }
}
