//! The statement of crash tests that both have.

use diesel::sql_types;

use super::InMillis;
use crate::store::statement::statement;

statement! {
    /// The row's lease and its back-off are over.
    PassTime in D: InMillis, rows sql_types::Untyped,
    { scope: String, key: String },
    "UPDATE atomic_phases_keys SET \
     locked_until = CASE WHEN locked_until IS NOT NULL THEN created_at END, \
     run_after = CASE WHEN run_after IS NOT NULL THEN created_at END \
     WHERE scope = ", scope, " AND idempotency_key = ", key
}
