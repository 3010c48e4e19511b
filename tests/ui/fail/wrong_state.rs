//! A request is registered with an engine of another state than its phases ask for.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, app: &App) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

struct Other;

fn register(store: Sqlite) {
    let engine = atomic_phases::Engine::builder(store).app(Other).register::<CreateRide>();
}

fn main() {}
