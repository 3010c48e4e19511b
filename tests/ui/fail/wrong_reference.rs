//! Everything is held in one way only.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: &ForeignCall, app: App) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Sqlite>,
        ride: Ride,
        charge: &mut Charge,
        ctx: RequestContext,
        key: &DerivedKey,
    ) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
