//! A phase has one transaction, and says one way to write into it.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(
        &self,
        tx: &mut Tx<'_, Sqlite>,
        batch: &mut Batch<'_, Sqlite>,
    ) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Sqlite>,
        audit: &mut Batch<'_, Sqlite>,
    ) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
