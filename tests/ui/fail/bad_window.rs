//! Windows that are none, and one where the provider honors no key.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(idempotent, window = "24 hours"))]
    async fn one(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(idempotent, window = "0h"))]
    async fn two(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(idempotent, window = 24))]
    async fn three(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(at_most_once, window = "24h"))]
    async fn four(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
