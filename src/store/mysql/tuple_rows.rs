//! `rows` on this store's connection, see [`in_millis::tuple_rows`](crate::store::in_millis::tuple_rows).

use diesel::QueryResult;
use diesel_async::RunQueryDsl;
use diesel_async::methods::LoadQuery;
use futures_util::TryFutureExt;

use super::MysqlConn;
use crate::store::in_millis::tuple_rows::{TupleRow, rows};

pub(super) trait RowsAwaited: Sized {
    /// As diesel's `load`.
    fn rows<'q, T: Send + 'q>(
        self,
        conn: &mut MysqlConn,
    ) -> impl Future<Output = QueryResult<Vec<T>>> + Send
    where
        Self: LoadQuery<'q, MysqlConn, TupleRow<T>> + 'q;
}

impl<Q: RunQueryDsl<MysqlConn>> RowsAwaited for Q {
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
