//! A crash test keeps its other attributes, and the explorer's type need not be written.

use std::cell::Cell;

use atomic_phases::fault::{Explore, crash_test, explore};
use atomic_phases::{Engine, PhaseResult, Reply, Sqlite, Tx, atomic_phases, crash_point};

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Ping {}

#[atomic_phases(name = "ping", version = 1)]
impl Ping {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        let _ = tx;
        crash_point!("before_the_answer");
        Ok(Reply::new(204))
    }
}

/// Documented.
#[crash_test]
#[ignore = "run by main"]
async fn a_ping_survives() -> impl Explore {
    let worlds = Cell::new(0);
    let world = async move || {
        worlds.set(worlds.get() + 1);
        let store = Sqlite::open(":memory:").await.unwrap();
        atomic_phases::Store::migrate(&store).await.unwrap();
        (Engine::builder(store).app(()).register::<Ping>().build().unwrap(), worlds.get())
    };
    explore(world, Ping {}).crash_at_every_point().check("a world each", async |world| {
        assert!(*world > 0);
    })
}

fn main() {}
