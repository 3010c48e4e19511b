//! How the body of a phase ended, and what that means for the request.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::definition::Phase;
use crate::engine::outcome::FailureCause;
use crate::error::{CHANGES_CONNECTION, DbError, is_of_reading_only};
use crate::phase::{ForeignError, ForeignFailure, PhaseError, PhaseFailure, Reply};
use crate::request::Step;
use crate::store::{Refusal, StoreError};

/// How the body of a phase ended.
pub(super) enum Body<F> {
    Output(Box<RawValue>),
    Reply(Reply),
    Failed(F),
    Panicked,
    /// It took longer than the phase's time limit, and was dropped.
    TimedOut,
}

impl<F> Body<F> {
    pub(super) fn of<E: Into<BodyError<F>>>(ended: Option<Result<Step, E>>) -> Self {
        match ended {
            Some(Ok(Step::Output(output))) => Self::Output(output),
            Some(Ok(Step::Reply(reply))) => Self::Reply(reply),
            Some(Err(error)) => Self::Failed(error.into().0),
            None => Self::Panicked,
        }
    }
}

impl Body<PhaseFailure> {
    /// Whether a statement of the phase was refused because its session can only read.
    pub(super) fn is_of_reading_only(&self) -> bool {
        matches!(self, Self::Failed(PhaseFailure::Database(error)) if is_of_reading_only(&error.0))
    }
}

pub(super) struct BodyError<F>(F);

impl From<PhaseError> for BodyError<PhaseFailure> {
    fn from(error: PhaseError) -> Self {
        Self(error.0)
    }
}

impl From<ForeignError> for BodyError<ForeignFailure> {
    fn from(error: ForeignError) -> Self {
        Self(error.0)
    }
}

pub(in crate::engine) fn timed_out(phase: &Phase) -> FailureCause {
    let limit = phase.time_limit().unwrap_or(Duration::ZERO);
    FailureCause::TimeLimit { phase: phase.name, limit }
}

pub(super) fn database_failed(phase: &Phase, error: &DbError) -> FailureCause {
    noted!(error);
    FailureCause::Database { phase: phase.name, kind: error.kind(), about: error.about() }
}

pub(super) fn store_failed(phase: &Phase, error: &StoreError) -> FailureCause {
    if let StoreError::Database { error, .. } = error {
        noted!(error);
    }
    FailureCause::Database { phase: phase.name, kind: error.kind(), about: error.about() }
}

pub(super) fn refused(phase: &Phase, refusal: Refusal) -> FailureCause {
    let rule = match refusal {
        Refusal::SwallowedError => {
            "a statement failed and the phase went on: return the error, or use a savepoint"
        }
        Refusal::LeftTransaction => {
            "the phase ended the transaction (a raw COMMIT or ROLLBACK) or forgot its settings \
             (RESET ALL): the engine commits, and knows its transaction by a setting"
        }
        Refusal::OpenSavepoint => {
            "a nested transaction() was dropped half-way (by a timeout or select!) and the phase went \
             on: return an error then, or put the time limit around statements that only read"
        }
        Refusal::SeveralStatements => {
            "a statement's text holds several statements, and only the first would be executed: add \
             each by itself"
        }
        Refusal::ChangesConnection => CHANGES_CONNECTION,
        Refusal::OutOfReach => {
            "at the end of the phase the engine cannot reach its tables: the phase changed the role or \
             the search_path; change it back before the phase returns (RESET ROLE, RESET search_path)"
        }
    };
    FailureCause::Misuse { phase: phase.name, rule }
}
