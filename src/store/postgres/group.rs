//! Rows that are read and taken over at one moment, as by a completer: one statement and one commit for all of
//! them, each guarded as it is alone (G10).

use diesel_async::RunQueryDsl;

use super::connection::ConnectionGuard;
use super::group_statements::{FreeClaim, ReadMany, TakeOverMany};
use super::statements as sql;
use super::together::Together;
use super::{Pool, Postgres, ask_again, ask_for_many, ask_in_transaction};
use crate::definition::Isolation;
use crate::key::{IdempotencyKey, Scope};
use crate::store::row::Row;
use crate::store::{Claim, Hold, Right, StoreError};

/// What is said of a row: by a statement of its own, or by one for many that has found it.
type RowAnswer = Result<Option<Row>, StoreError>;

/// What waits to be asked.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    reads: Together<(Scope, IdempotencyKey), RowAnswer>,
    claims: Together<FreeClaim, RowAnswer>,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self { reads: Together::new(), claims: Together::new() }
    }
}

impl<P: Pool> Postgres<P> {
    /// Reads a row, with others that are read at this moment.
    pub(super) async fn read_in_group(&self, scope: &Scope, key: &IdempotencyKey) -> RowAnswer {
        let store = self.clone();
        let send = move |of: Vec<_>| {
            let store = store.clone();
            async move { store.read_all(of).await }
        };
        match self.groups.reads.ask((scope.clone(), key.clone()), send).await {
            Some(told) => told,
            None => self.read_alone(scope, key).await,
        }
    }

    /// Takes a row over, if it is a free one with others that are taken over at this moment.
    pub(super) async fn take_over_in_group(&self, claim: &Claim<'_>, hold: Hold) -> RowAnswer {
        if claim.right != Right::Free {
            return self.try_take_over(claim, hold).await;
        }
        let store = self.clone();
        let send = move |claims: Vec<_>| {
            let store = store.clone();
            async move { store.take_over_all(claims).await }
        };
        match self.groups.claims.ask(FreeClaim::new(claim, hold), send).await {
            Some(told) => told,
            None => self.try_take_over(claim, hold).await,
        }
    }

    async fn read_alone(&self, scope: &Scope, key: &IdempotencyKey) -> RowAnswer {
        let rows = ask_again!(self, "read the key", |conn| {
            sql::Read { scope: scope.as_str(), key: key.as_str() }.load::<Row>(&mut conn)
        })?;
        Ok(rows.into_iter().next())
    }

    async fn read_all(&self, of: Vec<(Scope, IdempotencyKey)>) -> Vec<Option<RowAnswer>> {
        if let [(scope, key)] = &of[..] {
            return vec![Some(self.read_alone(scope, key).await)];
        }
        let found = self.read_many(&of).await;
        told(of.len(), found)
    }

    /// In a transaction that writes nothing, so that its commit is not written either.
    async fn read_many(
        &self,
        of: &[(Scope, IdempotencyKey)],
    ) -> Result<Vec<(i64, Row)>, StoreError> {
        ask_in_transaction!(
            ConnectionGuard::of(&self.pool).await?.in_transaction()?,
            "read the keys",
            [sql::Begin(Isolation::ReadCommitted), sql::ByKey {}],
            |conn| ReadMany::new(of).load::<(i64, Row)>(&mut conn)
        )
    }

    async fn take_over_all(&self, claims: Vec<FreeClaim>) -> Vec<Option<RowAnswer>> {
        if let [one] = &claims[..] {
            return vec![Some(self.try_take_over(&one.alone(), one.hold).await)];
        }
        let many = claims.len();
        let take = async {
            ask_for_many!(self, "take over the keys", |conn| {
                TakeOverMany::new(claims).load::<(i64, Row)>(&mut conn)
            })
        };
        let taken: Result<Vec<(i64, Row)>, StoreError> = take.await;
        told(many, taken)
    }
}

/// Of those that a statement for so many has found. The others ask alone: why it has not found them is theirs.
fn told(many: usize, found: Result<Vec<(i64, Row)>, StoreError>) -> Vec<Option<RowAnswer>> {
    let mut all: Vec<_> = (0..many).map(|_| None).collect();
    for (number, row) in found.unwrap_or_default() {
        let nth = usize::try_from(number - 1).unwrap_or(usize::MAX);
        if let Some(told) = all.get_mut(nth) {
            *told = Some(Ok(Some(row)));
        }
    }
    all
}
