//! A method that has two attributes, each of which says what it is.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(idempotent))]
    #[phase(commit)]
    async fn charge_created(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    #[reconcile(charge_created)]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
