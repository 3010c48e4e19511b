//! Time limits that are none, and one that bounds nothing.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(idempotent), timeout = "10 seconds")]
    async fn one(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(idempotent), timeout = "0s")]
    async fn two(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(idempotent), timeout = "25h")]
    async fn three(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(timeout = 10)]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
