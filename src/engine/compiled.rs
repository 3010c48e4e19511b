//! What [`worker::compiled`](crate::worker::compiled) names of the engine.

use std::hint::black_box;
use std::pin::Pin;

use super::attempt::Attempt;
use super::{CallError, Outcome};
use crate::store::Store;

type Answer = Pin<Box<dyn Future<Output = Result<Outcome, CallError>> + Send>>;

/// Names what runs an attempt.
pub(crate) fn attempts<S: Store>() {
    let detached: fn(Attempt<S>) -> Answer = |attempt| Box::pin(attempt.detached());
    let in_place: fn(Attempt<S>) -> Answer = |attempt| Box::pin(attempt.in_place());
    let _ = black_box([detached, in_place]);
}
