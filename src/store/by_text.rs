//! [`ByText`]: a statement that a connection keeps prepared by its text.

use diesel::QueryResult;
use diesel::backend::Backend;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};

/// A statement that a connection's cache of prepared statements is to know by its text, because its type
/// does not tell it.
pub(crate) struct ByText<T> {
    pub(crate) query: T,
    /// Whether to keep it; else it is prepared anew each time.
    pub(crate) kept: bool,
}

impl<T> QueryId for ByText<T> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<T: Query> Query for ByText<T> {
    type SqlType = T::SqlType;
}

impl<DB, T> QueryFragment<DB> for ByText<T>
where
    DB: Backend,
    T: QueryFragment<DB>,
{
    fn walk_ast<'b>(&'b self, out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        self.query.walk_ast(out)
    }

    fn is_safe_to_cache_prepared(&self, _: &DB) -> QueryResult<bool> {
        Ok(self.kept)
    }
}
