//! What a file with phases imports.
//!
//! ```
//! use atomic_phases::prelude::*;
//! ```

pub use crate::definition::Isolation;
pub use crate::phase::{
    Batch, DerivedKey, Flow, ForeignCall, ForeignError, PhaseError, PhaseResult, Reconciled, Reply,
    RequestContext, Tx,
};
pub use crate::{atomic_phases, phase, reconcile};
