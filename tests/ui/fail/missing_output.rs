//! Nothing returns what is asked for, where the state is not known and where it is.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

struct AppState;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: ForeignCall, state: &AppState) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, rides: &Vec<Ride>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.create", version = 1, app = AppState)]
impl Ride {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, charge: &Charge) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
