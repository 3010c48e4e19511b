//! A batch answers nothing: what waits for an answer takes a transaction.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

use diesel::QueryDsl;
use diesel_async::RunQueryDsl;

diesel::table! { rides (id) { id -> BigInt, user_id -> BigInt, } }

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Sqlite>) -> PhaseResult<Reply> {
        let rides: i64 = rides::table.count().get_result(batch).await?;
        Ok(Reply::new(200))
    }
}

fn main() {}
