//! An output cannot be stored.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

struct Unstorable;

/// Written, and not read back.
#[derive(Serialize)]
struct Written;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Unstorable> {
        Ok(Unstorable)
    }

    #[phase]
    async fn two(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Flow<Unstorable>> {
        Ok(Flow::Continue(Unstorable))
    }

    #[phase]
    async fn three(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Written> {
        Ok(Written)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, written: &Written) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
