//! Phases return no result, nothing, or what only a reconcile function returns.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> Ride {
        Ride { id: 1 }
    }

    #[phase]
    async fn nothing(&self, tx: &mut Tx<'_, Sqlite>) {}

    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: ForeignCall) -> PhaseResult<Reconciled<Charge>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
