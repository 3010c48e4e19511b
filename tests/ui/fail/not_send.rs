//! A phase holds what cannot move between threads.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

use diesel_async::SimpleAsyncConnection;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        let count = std::rc::Rc::new(1);
        tx.batch_execute("SELECT 1").await?;
        Ok(Ride { id: *count })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
