//! [`Write`]: what a phase writes to a table of its own, where a real database takes SQL.

use diesel::QueryResult;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::result::Error;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::backend::{MemoryBackend, text_of};

/// One write to a row of the application's own tables, in the phase's transaction.
///
/// A table is a map from an id to a JSON value; it needs no declaration. A `Write` is a diesel
/// statement: `write.execute(tx).await?` in a phase with a [`Tx`](crate::Tx), which answers how many
/// rows it changed, or `batch.add(write)` in one with a [`Batch`](crate::Batch).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use = "a write does nothing until it is executed or added to a batch"]
pub struct Write {
    pub(super) table: String,
    pub(super) act: Act,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Act {
    Insert { id: String, value: Value },
    Append { value: Value },
    Put { id: String, value: Value },
    Calculate { id: String, times: i64, plus: i64 },
    Delete { id: String },
}

impl Write {
    /// Inserts the row `id`. A unique violation where there is one; waits for another transaction that
    /// is about to insert or delete it.
    pub fn insert(
        table: impl Into<String>,
        id: impl Into<String>,
        value: impl Into<Value>,
    ) -> Self {
        Self::of(table, Act::Insert { id: id.into(), value: value.into() })
    }

    /// Inserts a row under an id that no other has.
    pub fn append(table: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::of(table, Act::Append { value: value.into() })
    }

    /// Inserts or replaces the row `id`.
    pub fn put(table: impl Into<String>, id: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::of(table, Act::Put { id: id.into(), value: value.into() })
    }

    /// Multiplies the number in the row `id`, then adds to it. Changes no row where there is none, or
    /// where its value is not an integer.
    pub fn calculate(
        table: impl Into<String>,
        id: impl Into<String>,
        times: i64,
        plus: i64,
    ) -> Self {
        Self::of(table, Act::Calculate { id: id.into(), times, plus })
    }

    /// Deletes the row `id`, if there is one.
    pub fn delete(table: impl Into<String>, id: impl Into<String>) -> Self {
        Self::of(table, Act::Delete { id: id.into() })
    }

    fn of(table: impl Into<String>, act: Act) -> Self {
        Self { table: table.into(), act }
    }

    /// The `Write` that a statement is.
    pub(super) fn from_query(query: &impl QueryFragment<MemoryBackend>) -> QueryResult<Self> {
        let text = text_of(query)?;
        serde_json::from_str(&text).map_err(|_| no_sql())
    }
}

/// What a statement in SQL is answered with.
pub(super) fn no_sql() -> Error {
    Error::QueryBuilderError(
        "the in-memory store executes `simulation::Write`s and no SQL".to_owned().into(),
    )
}

impl QueryFragment<MemoryBackend> for Write {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, MemoryBackend>) -> QueryResult<()> {
        let text =
            serde_json::to_string(self).map_err(|error| Error::SerializationError(error.into()))?;
        out.push_sql(&text);
        Ok(())
    }
}

impl QueryId for Write {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl Query for Write {
    type SqlType = diesel::sql_types::Untyped;
}
