//! A foreign phase asks for no call, or for two.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(idempotent))]
    async fn charge_created(&self, app: &App) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(idempotent))]
    async fn answered(&self, charge: ForeignCall, mail: ForeignCall) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
