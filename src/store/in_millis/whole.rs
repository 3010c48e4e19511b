//! `rows` reads the rows of a statement as tuples of tuples. It replaces diesel's `load`.
//!
//! With `load`, the compiler considers two of diesel's implementations for each tuple, and again two for each tuple inside
//! it. For a key's row inside of a tuple this took six minutes (rustc 1.95, diesel 2.3.14). For a type that is not a tuple,
//! one implementation fits.

use diesel::Queryable;
use diesel::backend::Backend;
use diesel::deserialize::{self, FromStaticSqlRow};

/// A row of any shape.
pub(in crate::store) struct Whole<T>(T);

impl<T: FromStaticSqlRow<ST, DB>, ST, DB: Backend> Queryable<ST, DB> for Whole<T> {
    type Row = T;

    fn build(row: T) -> deserialize::Result<Self> {
        Ok(Self(row))
    }
}

fn rows<T>(whole: Vec<Whole<T>>) -> Vec<T> {
    whole.into_iter().map(|Whole(row)| row).collect()
}

#[cfg(feature = "sqlite")]
mod at_once {
    use diesel::query_dsl::methods::LoadQuery;
    use diesel::{QueryResult, RunQueryDsl, SqliteConnection};

    use super::{Whole, rows};

    pub(in crate::store) trait Rows: Sized {
        /// As diesel's `load`.
        fn rows<'q, T>(self, conn: &mut SqliteConnection) -> QueryResult<Vec<T>>
        where
            Self: LoadQuery<'q, SqliteConnection, Whole<T>>;
    }

    impl<Q: RunQueryDsl<SqliteConnection>> Rows for Q {
        fn rows<'q, T>(self, conn: &mut SqliteConnection) -> QueryResult<Vec<T>>
        where
            Self: LoadQuery<'q, SqliteConnection, Whole<T>>,
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

    use super::{Whole, rows};
    use crate::store::mysql::MysqlConn;

    pub(in crate::store) trait Rows: Sized {
        /// As diesel's `load`.
        fn rows<'q, T: Send + 'q>(
            self,
            conn: &mut MysqlConn,
        ) -> impl Future<Output = QueryResult<Vec<T>>> + Send
        where
            Self: LoadQuery<'q, MysqlConn, Whole<T>> + 'q;
    }

    impl<Q: RunQueryDsl<MysqlConn>> Rows for Q {
        fn rows<'q, T: Send + 'q>(
            self,
            conn: &mut MysqlConn,
        ) -> impl Future<Output = QueryResult<Vec<T>>> + Send
        where
            Self: LoadQuery<'q, MysqlConn, Whole<T>> + 'q,
        {
            RunQueryDsl::load(self, conn).map_ok(rows)
        }
    }
}

#[cfg(feature = "sqlite")]
pub(in crate::store) use self::at_once::Rows as RowsAtOnce;
#[cfg(feature = "mysql")]
pub(in crate::store) use self::awaited::Rows as RowsAwaited;
