//! Statements handed over by a request that does not know its store.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

use diesel::{ExpressionMethods, QueryDsl};

diesel::table! { rides (id) { id -> BigInt, user_id -> BigInt, } }

trait RidesDb: Store {
    fn add_ride(batch: &mut Batch<'_, Self>, id: i64, user_id: i64);

    fn add_removal(batch: &mut Batch<'_, Self>, id: i64);
}

impl RidesDb for Sqlite {
    fn add_ride(batch: &mut Batch<'_, Self>, id: i64, user_id: i64) {
        let ride = (rides::id.eq(id), rides::user_id.eq(user_id));
        batch.add(diesel::insert_into(rides::table).values(ride));
    }

    fn add_removal(batch: &mut Batch<'_, Self>, id: i64) {
        batch.add(diesel::delete(rides::table.find(id)));
    }
}

#[atomic_phases(name = "rides.create", version = 1)]
impl<Db: RidesDb> CreateRide {
    #[phase]
    async fn ride_created(&self, batch: &mut Batch<'_, Db>) -> PhaseResult<Ride> {
        Db::add_ride(batch, 1, self.user_id);
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn ride_seen(&self, _tx: &mut Tx<'_, Db>, ride: &Ride) -> PhaseResult<Charge> {
        Ok(Charge { id: ride.id })
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>, ride: &Ride) -> PhaseResult<Reply> {
        Db::add_removal(batch, ride.id);
        Ok(Reply::new(200))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 3);
}
