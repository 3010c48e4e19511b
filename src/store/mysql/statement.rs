//! [`Statement`]: a statement of a phase, to be executed later.

use diesel::QueryResult;
use diesel::mysql::Mysql as Db;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::Error;

use super::literal::BoundStatement;
use super::watch::only_touches_rows;

/// A statement of a phase, to be executed later.
pub struct Statement {
    pub(super) bound: QueryResult<BoundStatement>,
}

impl Statement {
    pub(super) fn of(query: &(impl QueryFragment<Db> + QueryId)) -> Self {
        Self { bound: BoundStatement::of_application(query) }
    }

    pub(super) fn sql(&self) -> Option<&str> {
        self.bound.as_ref().ok().map(|bound| bound.sql.as_str())
    }

    pub(super) fn size(&self) -> usize {
        self.bound.as_ref().map_or(0, BoundStatement::size)
    }

    /// How many values are bound in it.
    pub(super) fn values(&self) -> usize {
        self.bound.as_ref().map_or(0, |bound| bound.values.len())
    }

    pub(super) fn bound(&self) -> QueryResult<&BoundStatement> {
        let unreadable = |error: &Error| Error::QueryBuilderError(error.to_string().into());
        self.bound.as_ref().map_err(unreadable)
    }

    pub(super) fn is_refused(&self) -> bool {
        self.bound.as_ref().is_ok_and(|bound| !only_touches_rows(&bound.sql))
    }
}

opaque! {
    [] Statement;
}
