//! The state comes before the definitions, which are registered for it.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn register(store: Sqlite) {
    let builder = atomic_phases::Engine::builder(store).register::<CreateRide>().app(App);
}

fn main() {}
