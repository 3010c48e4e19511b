//! A lifetime of the impl block, whatever it is called: it is the borrow of each method.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl<'a> CreateRide {
    #[phase]
    async fn ride_created(&'a self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: self.user_id })
    }

    #[phase]
    async fn answered(&'a self, _tx: &mut Tx<'_, Sqlite>, ride: &Ride) -> PhaseResult<Reply> {
        Ok(Reply::json(200, &ride.id)?)
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 2);
}
