//! The only names that generated code uses.

pub use crate::definition::{Definition, EffectClass, Isolation, Phase, PhaseKind};
pub use crate::phase::{
    Batch, DerivedKey, Flow, ForeignCall, ForeignError, Output, PhaseError, PhaseInputs,
    Reconciled, Reply, RequestContext, Tx,
};
pub use crate::probe::ValueType;
pub use crate::request::{PhaseFuture, Phases, RequestDefinition, Step};
pub use crate::store::Store;

pub use serde_json::Error as JsonError;
pub use serde_json::value::RawValue;

use crate::roundtrip;

/// The type of an output, for what records it. It is asked for where it may be none: then
/// [`NotAnOutput`] answers, so that the compiler tells the mistake once, at the phase's step.
#[derive(Debug)]
pub struct OutputType<T>(std::marker::PhantomData<T>);

impl<T: Output> OutputType<T> {
    /// As it is.
    #[must_use]
    pub fn value_type() -> ValueType {
        ValueType::of::<T>()
    }
}

/// What is found of [`OutputType`] where the type is not an output: this code does not compile.
pub trait NotAnOutput {
    /// Of no type.
    #[must_use]
    fn value_type() -> ValueType {
        ValueType::of::<()>()
    }
}

impl<T> NotAnOutput for OutputType<T> {}

/// What a local phase or a reconcile function may fail with.
// As `Output`, it is told of in these words.
#[diagnostic::on_unimplemented(
    message = "a local phase or a reconcile function cannot fail with `{Self}`",
    label = "does not convert into `PhaseError`",
    note = "return an error type of your own crate that has `impl From<..> for PhaseError`, which says which failures reject the request and which may be retried; a type of another crate (`anyhow::Error`) says too little, so map it first; `ForeignError` is for foreign phases only",
    note = "see https://docs.rs/atomic-phases/latest/atomic_phases/attr.phase.html#how-it-fails"
)]
pub trait LocalFailure: Into<PhaseError> {}

#[diagnostic::do_not_recommend]
impl<E: Into<PhaseError>> LocalFailure for E {}

/// What a foreign phase may fail with.
#[diagnostic::on_unimplemented(
    message = "a foreign phase cannot fail with `{Self}`",
    label = "does not convert into `ForeignError`",
    note = "return an error type of your own crate that has `impl From<..> for ForeignError`, which says which failures reject the request, which may be retried and which leave the outcome unknown; a type of another crate (`anyhow::Error`) says too little, so map it first",
    note = "see https://docs.rs/atomic-phases/latest/atomic_phases/attr.phase.html#how-it-fails"
)]
pub trait ForeignFailure: Into<ForeignError> {}

#[diagnostic::do_not_recommend]
impl<E: Into<ForeignError>> ForeignFailure for E {}

/// What the method of a local phase, or a reconcile function, came to.
pub fn local<T, E: LocalFailure>(ended: Result<T, E>) -> Result<T, PhaseError> {
    ended.map_err(E::into)
}

/// What the method of a foreign phase came to.
pub fn foreign<T, E: ForeignFailure>(ended: Result<T, E>) -> Result<T, ForeignError> {
    ended.map_err(E::into)
}

/// The step of a phase that continues `output`: refused here, before the commit, where later phases
/// would not read it as it is.
pub fn output<T: Output, E: From<PhaseError>>(output: T) -> Result<Step, E> {
    let stored = roundtrip::stored(&output).map(Step::Output);
    stored.map_err(|loss| PhaseError::retryable(loss.reason()).into())
}

/// The step of a phase that may finish early.
pub fn flow<T: Output, E: From<PhaseError>>(flow: Flow<T>) -> Result<Step, E> {
    match flow {
        Flow::Continue(value) => output(value),
        Flow::Finish(reply) => Ok(Step::Reply(reply)),
    }
}

/// The step of the last phase.
pub fn reply<E>(reply: Reply) -> Result<Step, E> {
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
pub fn no_such_phase<'a, T: Send + 'a, E: From<PhaseError> + Send + 'a>() -> PhaseFuture<'a, T, E> {
    let error =
        PhaseError::retryable("the engine asked for a phase that the definition does not have");
    Box::pin(std::future::ready(Err(error.into())))
}

/// Reads a stored output as a `T`.
///
/// # Errors
/// It is none.
pub fn reads<T: Output>(output: &RawValue) -> Result<(), serde_json::Error> {
    serde_json::from_str::<T>(output.get()).map(drop)
}
