//! The statements of health checks.

use diesel::sql_types;

use super::InMillis;
use crate::store::statement::statement;

statement! {
    /// Writes nothing, and is refused where nothing can be written. On MySQL it says so for this user: some users may write
    /// on a server that is read only.
    WriteNothing in D: InMillis, rows sql_types::Untyped, {}, "DELETE FROM atomic_phases_leases WHERE FALSE"
}
