//! A foreign phase, and its reconcile function, want to write.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(at_most_once))]
    async fn charge_created(
        &self,
        call: ForeignCall,
        batch: &mut Batch<'_, Sqlite>,
    ) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[reconcile(charge_created)]
    async fn charge_or_not(
        &self,
        batch: &mut Batch<'_, Sqlite>,
    ) -> PhaseResult<Reconciled<Charge>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
