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
pub(crate) use batch::Statements;
pub(crate) use call::CallState;
pub use call::{DerivedKey, ForeignCall};
pub(crate) use context::Outputs;
pub use context::{PhaseInputs, RequestContext};
pub use outcome::{
    Flow, ForeignError, Output, PhaseError, PhaseResult, Reconciled, Reply, ReplyNotJson,
};
pub(crate) use outcome::{ForeignFailure, PhaseFailure};
pub(crate) use tx::{FIRST_NOTICE, StagedJob, Staging};
pub use tx::{JobId, Tx};
