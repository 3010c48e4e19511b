//! `rows` reads the rows of a statement as tuples of tuples. It replaces diesel's `load`.
//!
//! With `load`, the compiler considers two of diesel's implementations for each tuple, and again two for each tuple inside
//! it. For a key's row inside of a tuple this took six minutes (rustc 1.95, diesel 2.3.14). For a type that is not a tuple,
//! one implementation fits.

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

fn rows<T>(loaded: Vec<TupleRow<T>>) -> Vec<T> {
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

#[cfg(feature = "mysql")]
mod awaited {
    use diesel::QueryResult;
    use diesel_async::RunQueryDsl;
    use diesel_async::methods::LoadQuery;
    use futures_util::TryFutureExt;

    use super::{TupleRow, rows};
    use crate::store::mysql::MysqlConn;

    pub(in crate::store) trait Rows: Sized {
        /// As diesel's `load`.
        fn rows<'q, T: Send + 'q>(
            self,
            conn: &mut MysqlConn,
        ) -> impl Future<Output = QueryResult<Vec<T>>> + Send
        where
            Self: LoadQuery<'q, MysqlConn, TupleRow<T>> + 'q;
    }

    impl<Q: RunQueryDsl<MysqlConn>> Rows for Q {
        fn rows<'q, T: Send + 'q>(
            self,
            conn: &mut MysqlConn,
        ) -> impl Future<Output = QueryResult<Vec<T>>> + Send
        where
            Self: LoadQuery<'q, MysqlConn, TupleRow<T>> + 'q,
        {
            RunQueryDsl::load(self, conn).map_ok(rows)
        }
    }
}

#[cfg(feature = "mysql")]
pub(in crate::store) use self::awaited::Rows as RowsAwaited;
#[cfg(feature = "sqlite")]
pub(in crate::store) use self::blocking::Rows as BlockingRows;
