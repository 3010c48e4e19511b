//! A phase asks for what a later phase, or it itself, returns.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(
        &self,
        tx: &mut Tx<'_, Sqlite>,
        charge: &Charge,
        ride: &Ride,
    ) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    // There is an earlier `Ride`, but this asks for another one by name.
    #[phase]
    async fn announced(&self, tx: &mut Tx<'_, Sqlite>, homeward: &Ride) -> PhaseResult<()> {
        Ok(())
    }

    #[phase]
    async fn homeward(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
