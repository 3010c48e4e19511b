//! Aliases of the types that the macro knows by their names.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

type DbTx<'a> = Tx<'a, Sqlite>;
type Call = ForeignCall;
type Ends<T> = PhaseResult<T>;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut DbTx<'_>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: Call) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> Ends<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
