//! An option that does not exist, one of the wrong kind, an empty name and a version 0.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1, state = App)]
impl CreateRide {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.create", version = "1")]
impl Ride {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "", version = 1)]
impl Charge {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.create", version = 0)]
impl Ticket {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[derive(Serialize, Deserialize)]
struct Lookup;

#[atomic_phases(name = "rides.create", version = 1, crate = "atomic_phases")]
impl Lookup {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
