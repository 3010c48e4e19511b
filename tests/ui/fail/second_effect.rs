//! Two effects in one phase.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: ForeignCall) -> PhaseResult<Charge> {
        let first = call.make(async |_key| Ok::<_, PhaseError>(1)).await?;
        let second = call.make(async |_key| Ok::<_, PhaseError>(2)).await?;
        Ok(Charge { id: first + second })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
