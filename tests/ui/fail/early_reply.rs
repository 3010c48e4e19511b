//! A phase that is not the last returns the reply.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn greeted(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }

    #[phase]
    async fn flowed(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Flow<Reply>> {
        Ok(Flow::Finish(Reply::new(200)))
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
