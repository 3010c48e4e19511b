//! What SQLite and MySQL have in common: times are milliseconds since 1970, and ids are bytes. Statements that are the
//! same for both but for a word are here, once; the words are those of [`InMillis`].
//!
//! A page begins behind a place of an index, by a comparison of rows. SQLite searches the index by it. MySQL does not, so the
//! statement repeats the bound of the first column, behind the comparison. Of two bounds SQLite takes the first: by the bound
//! of one column, it would read all rows of one moment again for each page (`store::sqlite::plans`).

pub(super) mod audit;
pub(super) mod births;
pub(super) mod bulk;
pub(super) mod census;
pub(super) mod deliveries;
pub(super) mod erasure;
#[cfg(feature = "fault-injection")]
pub(super) mod fault;
pub(super) mod health;
pub(super) mod jobs;
pub(super) mod nodes;
pub(super) mod pauses;
pub(super) mod requests;
mod rows;
pub(super) mod searches;
pub(super) mod statements;
pub(super) mod tuple_rows;

use diesel::backend::Backend;
use diesel::sql_types::{self, BigInt, Binary, Bool, Integer, Nullable, SmallInt, Text};

pub(super) use self::rows::*;
use super::operators::{ScopeLimits, Walk};
use super::statement::{Bind, statement};

/// A database whose times are milliseconds since 1970.
pub(super) trait InMillis: Backend {
    /// That time, when the value is assigned.
    const NOW: &'static str;

    /// The same, when the statement began: one value, by which an index can be searched.
    const CLOCK: &'static str;

    /// The same for a row that is only looked at, in whatever form the store reads it.
    const LOOKED_AT: &'static str;

    /// The greatest, and the least, of several values.
    const GREATEST: &'static str;
    const LEAST: &'static str;

    /// The end of a text that is put together: what stands before its parts, between them, and behind them.
    const LAST_4000: [&'static str; 3];

    /// Whether a text is in a list: what stands before the text, between both, and behind the list.
    const AMONG: [&'static str; 3];

    /// `paused until` and a time: what stands before the milliseconds, and behind them. `NULL` of `NULL`.
    const PAUSED_UNTIL: [&'static str; 2];

    /// The values of a row that is inserted: what stands before them, the time of all of them, and what stands behind.
    const VALUES: [&'static str; 3];

    /// Behind the values of an INSERT, what becomes of the row that is there already: of a process that announces itself, of
    /// a phase that is paused, and of one that is about to be paused. The last one stays as it is.
    const UPDATES_NODE: &'static str;
    const UPDATES_PAUSE: &'static str;
    const HOLDS_PAUSE: &'static str;

    /// Behind the table's name in a statement that names the whole key of a request's row: goes by the primary key, and weighs
    /// no other index.
    const BY_KEY: &'static str;

    /// The same for a search among the rows that have expired, which goes by the index of expiry.
    const BY_EXPIRY: &'static str;

    /// Behind the jobs' table, goes by the index of due ones: it has the order, and the search ends early.
    const BY_DUE_JOBS: &'static str;

    /// Behind the table's name, what makes the server go by the walk's index.
    fn by_index(walk: Walk) -> &'static str;

    /// A list of texts as one that is bound.
    fn list(texts: &[String]) -> String;
}

macro_rules! bind {
    ($($type:ty => $sql:ty),* $(,)?) => {
        $(impl<D: InMillis> Bind<D> for $type { type Sql = $sql; })*
    };
}

bind! {
    String => Text,
    Option<String> => Nullable<Text>,
    bool => Bool,
    i64 => BigInt,
    Option<i64> => Nullable<BigInt>,
    i32 => Integer,
    Option<i16> => Nullable<SmallInt>,
    Vec<u8> => Binary,
    Option<Vec<u8>> => Nullable<Binary>,
}

statement! {
    /// Whether the operator may see the row's scope.
    Allowed in D: InMillis, rows sql_types::Untyped, { only: Option<String>, prefix: String },
    "(", only, " IS NULL OR ", (D::AMONG[0]), "scope", (D::AMONG[1]), only, (D::AMONG[2]),
    ") AND substr(scope, 1, length(", prefix, ")) = ", prefix
}

impl Allowed {
    pub(super) fn by<D: InMillis>(limits: &ScopeLimits) -> Self {
        Self { only: limits.only.as_deref().map(D::list), prefix: limits.prefix.clone() }
    }
}
