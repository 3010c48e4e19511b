//! Guarded statements, and what follows from them, in one transaction and one round trip.

use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::QueryFragment;
use diesel::result::Error;
use mysql_async::Row;

use super::Mysql;
use super::ask::bound;
use super::batch::TRIES;
use super::error::is_of_a_deadlock;
use super::literal::BoundStatement;
use super::pool::Checkout;
use super::transaction::{EachTold, each_in_one_go, in_one_go};
use super::waits::LOCKED_WAIT;
use crate::store::patience::Patience;
use crate::store::{Commit, JobAt, StoreError};

/// Makes a statement, anew each time that it is sent.
type Make<'a> = dyn Fn() -> QueryResult<BoundStatement> + Sync + 'a;

fn make_all(doing: &'static str, each: &[&Make<'_>]) -> Result<Vec<BoundStatement>, StoreError> {
    let made = each.iter().map(|make| make()).collect::<QueryResult<Vec<_>>>();
    made.map_err(|error| StoreError::database(doing, error))
}

impl Mysql {
    /// What is written about many jobs, in one transaction and one round trip: what was told of each.
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
        self.together_on(Checkout::AsItIs, None, doing, guarded, then).await
    }

    /// The same for an operator: on a dead connection its outcome would not be known, and it is not sent again.
    pub(super) async fn by_an_operator(
        &self,
        doing: &'static str,
        guarded: &(impl QueryFragment<Db> + Sync),
        then: &[&Make<'_>],
    ) -> Result<bool, StoreError> {
        self.together_on(Checkout::Pinged, None, doing, guarded, then).await
    }

    /// The same behind a statement that locks the row which the guarded one reads.
    pub(super) async fn by_an_operator_behind(
        &self,
        lock: &Make<'_>,
        doing: &'static str,
        guarded: &(impl QueryFragment<Db> + Sync),
        then: &[&Make<'_>],
    ) -> Result<bool, StoreError> {
        self.together_on(Checkout::Pinged, Some(lock), doing, guarded, then).await
    }

    async fn together_on(
        &self,
        checkout: Checkout,
        lock: Option<&Make<'_>>,
        doing: &'static str,
        guarded: &(impl QueryFragment<Db> + Sync),
        then: &[&Make<'_>],
    ) -> Result<bool, StoreError> {
        let (mut tries, mut patience) = (0, Patience::new(LOCKED_WAIT));
        loop {
            tries += 1;
            let mut up_to_guarded = make_all(doing, lock.as_slice())?;
            up_to_guarded.push(bound(doing, guarded)?);
            let then = make_all(doing, then)?;
            match in_one_go(&self.pool, checkout, up_to_guarded, then).await {
                Commit::Done(()) => return Ok(true),
                Commit::Fenced => return Ok(false),
                Commit::Failed(error) if is_of_a_deadlock(&error) && tries < TRIES => {}
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
