//! A parameter is named after one phase and has the type of another's output.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn ticket(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ticket> {
        Ok(Ticket)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, ticket: &Ride) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
