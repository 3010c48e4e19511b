//! A batch is held in one way only, and names its store.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn by_value(&self, batch: Batch<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn shared(&self, batch: &Batch<'_, Sqlite>) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    async fn of_no_store(&self, batch: &mut Batch) -> PhaseResult<Ticket> {
        Ok(Ticket)
    }

    #[phase]
    async fn answered(&self, batch: Batch) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
