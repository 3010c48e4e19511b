//! What the files of `tests/ui` declare requests with.

#![allow(dead_code, unused_imports)]

pub use atomic_phases::request::RequestDefinition;
pub use atomic_phases::phase::{DerivedKey, Flow, ForeignError, Reconciled};
pub use atomic_phases::store::Sqlite;
pub use atomic_phases::{Batch, ForeignCall, IdempotencyKey, PhaseError, PhaseResult, Reply, RequestContext, Tx, atomic_phases, Store};
pub use serde::{Deserialize, Serialize};

/// The application's state, under the name that the macro knows.
pub struct App;

#[derive(Serialize, Deserialize)]
pub struct CreateRide {
    pub user_id: i64,
}

#[derive(Serialize, Deserialize)]
pub struct Ride {
    pub id: i64,
}

#[derive(Serialize, Deserialize)]
pub struct Charge {
    pub id: i64,
}

#[derive(Serialize, Deserialize)]
pub struct Ticket;

/// The length of a request's phase list: a proof that it is a request for this store and state.
pub fn phases<S: Store, A, R: RequestDefinition<S, A>>() -> usize {
    R::DEFINITION.phases.len()
}
