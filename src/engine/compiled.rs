//! The engine on each store, compiled in this crate.
//!
//! A build without optimization takes from here what an application uses of it, and does not compile it once more for the
//! application and for each of its test programs.

use std::hint::black_box;
use std::pin::Pin;

use super::attempt::Attempt;
use super::{CallError, Engine, Outcome};
use crate::store::operators::OperatorStore;
use crate::worker::WorkerConfig;

type Answer = Pin<Box<dyn Future<Output = Result<Outcome, CallError>> + Send>>;

/// Names what an application runs of the engine.
fn used<S: OperatorStore>(engine: &Engine<S>) {
    let detached: fn(Attempt<S>) -> Answer = |attempt| Box::pin(attempt.detached());
    let in_place: fn(Attempt<S>) -> Answer = |attempt| Box::pin(attempt.in_place());
    let _ = black_box([detached, in_place]);
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
