//! [`BoundRequest`]: a request together with the state that its phases ask for.
//!
//! Behind it nothing of the engine names a type of the application. So the engine is compiled once for each store, in this
//! crate, and not again for each application.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::phase::{Batch, ForeignCall, ForeignError, PhaseError, PhaseInputs, Reconciled, Tx};
use crate::request::{PhaseFuture, Phases, Step};
use crate::store::Store;

/// As [`Phases`], with the application's state. A method that is not overridden fails: see [`Undecodable`].
pub(super) trait BoundRequest<S: Store>: Send + Sync {
    fn run_local<'a>(
        &'a self,
        _: usize,
        _: &'a mut Tx<'_, S>,
        _: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, PhaseError> {
        Box::pin(async { Err(PhaseError::retryable(WHY)) })
    }

    fn run_batch<'a>(
        &'a self,
        _: usize,
        _: &'a mut Batch<'_, S>,
        _: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, PhaseError> {
        Box::pin(async { Err(PhaseError::retryable(WHY)) })
    }

    fn run_foreign<'a>(
        &'a self,
        _: usize,
        _: ForeignCall,
        _: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, ForeignError> {
        Box::pin(async { Err(ForeignError::retryable(WHY)) })
    }

    fn reconcile<'a>(
        &'a self,
        _: usize,
        _: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Reconciled<Step>, PhaseError> {
        Box::pin(async { Ok(Reconciled::StillUnknown) })
    }

    fn reads(&self, _: usize, _: &RawValue, _: usize) -> Result<(), serde_json::Error> {
        Err(serde::de::Error::custom(WHY))
    }
}

const WHY: &str = "the stored values of the request do not decode";

/// Stands in the place of a request whose parameters do not decode, so that its row can be released, finished or left.
/// Its phases only fail.
pub(super) struct Undecodable;

impl<S: Store> BoundRequest<S> for Undecodable {}

pub(super) struct WithApp<R, A> {
    pub(super) request: R,
    pub(super) app: Arc<A>,
}

impl<S: Store, A: Send + Sync + 'static, R: Phases<S, A>> BoundRequest<S> for WithApp<R, A> {
    fn run_local<'a>(
        &'a self,
        index: usize,
        tx: &'a mut Tx<'_, S>,
        inputs: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, PhaseError> {
        self.request.run_local(index, tx, &self.app, inputs)
    }

    fn run_batch<'a>(
        &'a self,
        index: usize,
        batch: &'a mut Batch<'_, S>,
        inputs: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, PhaseError> {
        self.request.run_batch(index, batch, &self.app, inputs)
    }

    fn run_foreign<'a>(
        &'a self,
        index: usize,
        call: ForeignCall,
        inputs: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Step, ForeignError> {
        self.request.run_foreign(index, call, &self.app, inputs)
    }

    fn reconcile<'a>(
        &'a self,
        index: usize,
        inputs: &'a PhaseInputs<'a>,
    ) -> PhaseFuture<'a, Reconciled<Step>, PhaseError> {
        self.request.reconcile(index, &self.app, inputs)
    }

    fn reads(&self, index: usize, output: &RawValue, from: usize) -> Result<(), serde_json::Error> {
        self.request.reads(index, output, from)
    }
}
