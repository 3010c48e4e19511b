//! The only names that generated code uses.

pub use crate::definition::{
    Definition, EffectClass, Isolation, Phase, PhaseFuture, PhaseKind, Phases, RequestDefinition,
    Step,
};
pub use crate::phase::{
    DerivedKey, Flow, ForeignCall, ForeignError, PhaseError, Reconciled, Reply, RequestContext,
    Scene, Tx,
};
pub use crate::store::Store;

use serde::Serialize;

/// The step of a phase that goes on with `output`.
pub fn output<T: Serialize>(output: &T) -> Result<Step, PhaseError> {
    serde_json::value::to_raw_value(output)
        .map(Step::Output)
        .map_err(|_| PhaseError::retryable("the output of a phase does not serialise to JSON"))
}

/// The step of a phase that may finish early.
pub fn flow<T: Serialize>(flow: Flow<T>) -> Result<Step, PhaseError> {
    match flow {
        Flow::Continue(value) => output(&value),
        Flow::Finish(reply) => Ok(Step::Reply(reply)),
    }
}

/// The step of the last phase.
pub fn reply(reply: Reply) -> Result<Step, PhaseError> {
    Ok(Step::Reply(reply))
}

/// The step that a reconcile function vouches for.
pub fn reconciled<T>(
    found: Reconciled<T>,
    step: impl FnOnce(T) -> Result<Step, PhaseError>,
) -> Result<Reconciled<Step>, PhaseError> {
    Ok(match found {
        Reconciled::Executed(value) => Reconciled::Executed(step(value)?),
        Reconciled::NotExecuted => Reconciled::NotExecuted,
        Reconciled::StillUnknown => Reconciled::StillUnknown,
    })
}

/// What a call of a phase by an index that it does not have comes to.
pub fn no_such_phase() -> PhaseError {
    PhaseError::retryable("the engine asked for a phase that the definition does not have")
}
