//! The last phase does not answer, or only perhaps.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }
}

#[atomic_phases(name = "rides.create", version = 1)]
impl Ride {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Flow<Reply>> {
        Ok(Flow::Finish(Reply::new(200)))
    }
}

fn main() {}
