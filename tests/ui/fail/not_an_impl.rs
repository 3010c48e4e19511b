//! On a type, and on the impl of a trait.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
struct Booking {
    id: i64,
}

trait Create {
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply>;
}

#[atomic_phases(name = "rides.create", version = 1)]
impl Create for CreateRide {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
