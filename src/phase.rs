//! What a phase sees and what it answers: [`Tx`], [`Batch`], [`ForeignCall`], [`RequestContext`],
//! [`PhaseResult`], [`Reply`].
//!
//! The types carry the rules: a local phase is given a transaction and no call, a foreign phase a
//! call and no connection, and a call can be made once.

mod batch;
mod call;
mod context;
mod outcome;
mod tx;

pub use batch::Batch;
pub(crate) use call::CallState;
pub use call::ForeignCall;
pub(crate) use context::Outputs;
pub use context::{PhaseInputs, RequestContext};
pub use outcome::{
    Flow, ForeignError, Output, PhaseError, PhaseResult, Reconciled, Reply, ReplyNotJson,
};
pub(crate) use outcome::{ForeignFailure, PhaseFailure};
pub(crate) use tx::Staging;
pub use tx::Tx;

pub use crate::derived_key::DerivedKey;
pub use crate::job::JobId;
