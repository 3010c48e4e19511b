//! An output and a parameter have the same name, and are two types.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

mod outs {
    #[derive(super::Serialize, super::Deserialize)]
    pub struct Ride;
}

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<outs::Ride> {
        Ok(outs::Ride)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, ride: &Ride) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
