//! [`Undecodable`]: stands in the place of a request whose parameters do not decode, so that its row
//! can be released, finished or left. Its phases only fail.

use serde_json::value::RawValue;

use super::bound::Bound;
use crate::phase::{Batch, ForeignCall, ForeignError, PhaseError, PhaseInputs, Reconciled, Tx};
use crate::request::{PhaseFuture, Step};
use crate::store::Store;

pub(super) struct Undecodable;

const WHY: &str = "the stored values of the request do not decode";

impl<S: Store> Bound<S> for Undecodable {
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

    fn reads(&self, _: usize, _: &RawValue, _: usize) -> bool {
        false
    }
}
