//! What a file with phases imports.
//!
//! ```
//! use atomic_phases::prelude::*;
//! ```
//!
//! Of `phase`, which is also a module, it has the attribute only:
//!
//! ```compile_fail,E0433
//! use atomic_phases::prelude::*;
//!
//! type Why = phase::ReplyNotJson;
//! ```

// Not through the root, whose modules and whose name for itself would come along.
pub use atomic_phases_macros::{atomic_phases, phase, reconcile};

pub use crate::definition::Isolation;
pub use crate::phase::{
    Batch, DerivedKey, Flow, ForeignCall, ForeignError, PhaseError, PhaseResult, Reconciled, Reply,
    RequestContext, Tx,
};
