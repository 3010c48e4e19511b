//! A statement that is sent after the phase has returned cannot borrow from it.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

use diesel::{ExpressionMethods, QueryDsl};

diesel::table! { rides (id) { id -> Text, user_id -> BigInt, } }

#[derive(Serialize, Deserialize)]
pub struct Named {
    id: String,
}

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(
        &self,
        batch: &mut Batch<'_, Sqlite>,
        ctx: &RequestContext,
    ) -> PhaseResult<Named> {
        let id = ctx.uuid(0).to_string();
        batch.add(diesel::insert_into(rides::table).values(rides::id.eq(&id)));
        Ok(Named { id })
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Sqlite>, ride: &Named) -> PhaseResult<Reply> {
        batch.add(diesel::delete(rides::table.find(&ride.id)));
        Ok(Reply::new(200))
    }
}

fn main() {}
