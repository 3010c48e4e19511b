//! A batch names another database than the transaction before it.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

type Embedded = Sqlite;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Embedded>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
