//! A syntax error in a signature hides no other error behind a missing definition.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        let id = 1;
        Ok(Ride { id: 1 })
    }

    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: ForeignCall ride: &Ride) -> PhaseResult<Charge> {
        call.make(async |_key| Ok(Charge { id: ride.id })).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, charge: &Charge) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {
    phases::<Sqlite, App, CreateRide>();
}
