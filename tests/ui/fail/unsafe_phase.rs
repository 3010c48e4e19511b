//! A phase that only some callers may call.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async unsafe fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
