//! The engine on each store, compiled in this crate.
//!
//! A build without optimization takes from here what an application uses of it, and does not compile it once more for the
//! application and for each of its test programs.

use std::hint::black_box;

use super::WorkerConfig;
use crate::engine::{self, Engine};
use crate::store::operators::OperatorStore;

/// Names what an application runs of the engine.
fn used<S: OperatorStore>(engine: &Engine<S>) {
    engine::compiled::attempts::<S>();
    let _ = black_box(engine.spawn_workers(WorkerConfig::default()));
}

/// Not called: it is here to be compiled.
#[cfg(feature = "postgres")]
pub fn postgres(engine: &Engine<crate::store::Postgres>) {
    used(engine);
}

/// As that of PostgreSQL.
#[cfg(feature = "sqlite")]
pub fn sqlite(engine: &Engine<crate::store::Sqlite>) {
    used(engine);
}

/// As that of PostgreSQL.
#[cfg(feature = "mysql")]
pub fn mysql(engine: &Engine<crate::store::Mysql>) {
    used(engine);
}
