//! `rows` reads the rows of a statement as tuples of tuples. It replaces diesel's `load`.
//!
//! With `load`, the compiler considers two of diesel's implementations for each tuple, and again two for each tuple inside
//! it. For a key's row inside of a tuple this took six minutes (rustc 1.95, diesel 2.3.14). For a type that is not a tuple,
//! one implementation fits.
//!
//! SQLite's `rows` is here. MySQL's is in `mysql/tuple_rows.rs`, because it is for the connection of that store.

use diesel::Queryable;
use diesel::backend::Backend;
use diesel::deserialize::{self, FromStaticSqlRow};

/// A row that is a tuple, of any shape.
pub(in crate::store) struct TupleRow<T>(T);

impl<T: FromStaticSqlRow<ST, DB>, ST, DB: Backend> Queryable<ST, DB> for TupleRow<T> {
    type Row = T;

    fn build(row: T) -> deserialize::Result<Self> {
        Ok(Self(row))
    }
}

pub(in crate::store) fn rows<T>(loaded: Vec<TupleRow<T>>) -> Vec<T> {
    loaded.into_iter().map(|TupleRow(row)| row).collect()
}

#[cfg(feature = "sqlite")]
mod blocking {
    use diesel::query_dsl::methods::LoadQuery;
    use diesel::{QueryResult, RunQueryDsl, SqliteConnection};

    use super::{TupleRow, rows};

    pub(in crate::store) trait Rows: Sized {
        /// As diesel's `load`.
        fn rows<'q, T>(self, conn: &mut SqliteConnection) -> QueryResult<Vec<T>>
        where
            Self: LoadQuery<'q, SqliteConnection, TupleRow<T>>;
    }

    impl<Q: RunQueryDsl<SqliteConnection>> Rows for Q {
        fn rows<'q, T>(self, conn: &mut SqliteConnection) -> QueryResult<Vec<T>>
        where
            Self: LoadQuery<'q, SqliteConnection, TupleRow<T>>,
        {
            self.load(conn).map(rows)
        }
    }
}

#[cfg(feature = "sqlite")]
pub(in crate::store) use self::blocking::Rows as BlockingRows;
