//! What `#[atomic_phases]` expands to: a request type with its definition, and its phases behind one
//! object-safe trait, so that the engine can run a row whose Rust type it only knows by name. And
//! [`assert_sound`], a test of such a type.
//!
//! This module decides nothing and touches no database.

mod sound;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

pub use self::sound::assert_sound;
use crate::definition::Definition;
use crate::phase::{
    Batch, ForeignCall, ForeignError, PhaseError, PhaseInputs, Reconciled, Reply, Tx,
};
use crate::probe::ValueType;
use crate::store::Store;

/// The result of the body of one phase, as the engine stores it.
#[doc(hidden)]
pub enum Step {
    /// Continue, with this output, serialized.
    Output(Box<RawValue>),
    /// Finish with this reply, and keep the phase's writes.
    Reply(Reply),
}

/// Without the output (G19).
impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(output) => write!(f, "Output({} bytes)", output.get().len()),
            Self::Reply(reply) => write!(f, "{reply:?}"),
        }
    }
}

/// The boxed future of one phase.
#[doc(hidden)]
pub type PhaseFuture<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// The phases of one request value, by index. Implemented by `#[atomic_phases]`.
///
/// An index that is out of range or of the other kind is a defect of the caller and answered with
/// an error, never with a panic.
#[doc(hidden)]
pub trait Phases<S: Store, A>: Send + Sync + 'static {
    /// Runs the local phase `index` in `tx`.
    fn run_local<'a>(
        &'a self,
        index: usize,
        tx: &'a mut Tx<'_, S>,
        app: &'a A,
        inputs: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, PhaseError>;

    /// Runs the local phase `index`, which adds its statements to a `Batch`.
    fn run_batch<'a>(
        &'a self,
        index: usize,
        batch: &'a mut Batch<'_, S>,
        app: &'a A,
        inputs: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, PhaseError>;

    /// Runs the foreign phase `index`, which may use `call` once.
    fn run_foreign<'a>(
        &'a self,
        index: usize,
        call: ForeignCall,
        app: &'a A,
        inputs: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, ForeignError>;

    /// Calls the phase's `#[reconcile]` function.
    fn reconcile<'a>(
        &'a self,
        index: usize,
        app: &'a A,
        inputs: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Reconciled<Step>, PhaseError>;

    /// Decodes `output` as the output of phase `index`, for each phase from `from` on that asks for it.
    ///
    /// # Errors
    /// It does not decode.
    fn reads(&self, index: usize, output: &RawValue, from: usize) -> Result<(), serde_json::Error>;
}

/// A request type with its definition. Implemented by `#[atomic_phases]`; `S` is the store, `A` the
/// application's shared state.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a request definition for this store and application state",
    label = "not a request definition for `{S}` and `{A}`",
    note = "annotate its impl block with `#[atomic_phases(name = \"…\", version = 1)]`; its local phases must take `&mut Tx<'_, {S}>` and its `&App` must be `{A}`; a request for several stores asks for them by a trait of your own, `impl<Db: RidesDb> {Self}`",
    note = "see https://docs.rs/atomic-phases/latest/atomic_phases/attr.atomic_phases.html#several-stores"
)]
pub trait RequestDefinition<S: Store, A>: Phases<S, A> + Serialize + DeserializeOwned {
    /// Name, version and phases.
    const DEFINITION: Definition;

    /// The types of the outputs, one for each phase but the last. Empty if they are not known: then no change
    /// of them is found.
    #[must_use]
    fn outputs() -> Vec<ValueType> {
        Vec::new()
    }

    /// For each output, the indices of the phases that ask for it, or whose `#[reconcile]` function does.
    /// `None` if that is not known: then each later phase may.
    #[must_use]
    fn asked() -> Option<&'static [&'static [usize]]> {
        None
    }

    /// The names of the jobs that its phases stage, as far as they are known.
    #[must_use]
    fn jobs() -> &'static [&'static str] {
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g19_a_step_shows_no_output() {
        let output = RawValue::from_string(r#""canary""#.to_owned()).unwrap();
        assert_eq!(format!("{:?}", Step::Output(output)), "Output(8 bytes)");
    }
}
