//! Errors that do not say what they mean for the request.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: ForeignCall) -> Result<Charge, std::fmt::Error> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply, ForeignError> {
        Ok(Reply::new(200))
    }
}

fn main() {}
