//! A condition of PostgreSQL's, in a phase on SQLite.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

use diesel::{PgTextExpressionMethods, QueryDsl};

diesel::table! { rides (id) { id -> BigInt, note -> Text, } }

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Sqlite>) -> PhaseResult<Reply> {
        batch.add(diesel::delete(rides::table.filter(rides::note.ilike("test%"))));
        Ok(Reply::new(200))
    }
}

fn main() {}
