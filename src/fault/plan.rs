//! [`Fault`] and the plan that a task carries: what is to happen at which point, and what was passed.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::Mutant;
use super::points::{NoSuchPoint, Place, Point};
use crate::store::{Commit, StoreError};

/// What happens at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Mode {
    /// A panic, as from a defect of the engine.
    Panic,
    /// The future is dropped, as by a runtime that goes away: what a crash leaves behind.
    Drop,
    /// The process ends at once. For a process of its own: see [`ENV`].
    Abort,
    /// The server closes the connection of the open transaction. PostgreSQL only.
    CutConnection,
    /// The commit is lost on its way, and the engine learns only that it got no answer.
    NotSent,
    /// The commit is done, and its answer is lost.
    AckLost,
    /// The database undoes the transaction: a serialization failure.
    Serialization,
    /// The database undoes the transaction: a deadlock.
    Deadlock,
    /// It stands still for longer than its lease. Another takes over and runs to the end; then it
    /// goes on, and believes that it still holds the key.
    Stall,
    /// It stands still for a moment, in which a duplicate comes.
    Duplicate,
    /// The foreign call fails, and the provider has done nothing.
    CallFails,
    /// The foreign call fails, and the provider has done it.
    AnswerLost,
}

const MODES: [(Mode, &str); 12] = [
    (Mode::Panic, "panic"),
    (Mode::Drop, "drop"),
    (Mode::Abort, "abort"),
    (Mode::CutConnection, "cut_connection"),
    (Mode::NotSent, "not_sent"),
    (Mode::AckLost, "ack_lost"),
    (Mode::Serialization, "serialization"),
    (Mode::Deadlock, "deadlock"),
    (Mode::Stall, "stall"),
    (Mode::Duplicate, "duplicate"),
    (Mode::CallFails, "call_fails"),
    (Mode::AnswerLost, "answer_lost"),
];

impl Mode {
    /// Every mode that the explorer uses: all but [`Abort`](Self::Abort), which needs a process.
    #[must_use]
    pub fn all() -> Vec<Self> {
        MODES.iter().map(|(mode, _)| *mode).filter(|mode| *mode != Self::Abort).collect()
    }

    /// Its name: `ack_lost`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        MODES.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    pub(super) fn is_of_a_competitor(self) -> bool {
        matches!(self, Self::Stall | Self::Duplicate)
    }

    /// Whether it can happen at this place. `concurrent`: whether others can work with the database
    /// while a transaction is open.
    #[must_use]
    pub fn is_legal_at(self, place: Place, concurrent: bool) -> bool {
        match self {
            Self::Panic | Self::Drop | Self::Abort => true,
            Self::CutConnection => concurrent && place == Place::BeforeBody,
            Self::NotSent => {
                matches!(place, Place::BeforeCommit | Place::BeforeIntent | Place::BeforeRelease)
            }
            Self::AckLost => {
                matches!(place, Place::AfterCommit | Place::AfterIntent | Place::AfterRelease)
            }
            Self::Serialization | Self::Deadlock => place == Place::BeforeCommit,
            Self::Stall | Self::Duplicate => concurrent || !place.is_in_transaction(),
            Self::CallFails => place == Place::BeforeCall,
            Self::AnswerLost => place == Place::AfterCall,
        }
    }
}

/// One thing that goes wrong once. Printed, and parsed, as `charge_created/after_call#0=drop`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Where.
    pub point: Point,
    /// At which visit, from 0: a phase that is run again passes its points again.
    pub visit: u32,
    /// What.
    pub mode: Mode,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}={}", self.point, self.visit, self.mode.as_str())
    }
}

impl FromStr for Fault {
    type Err = NoSuchPoint;

    fn from_str(text: &str) -> Result<Self, NoSuchPoint> {
        let parsed = || {
            let (point, mode) = text.rsplit_once('=')?;
            let (mode, _) = MODES.iter().find(|(_, name)| *name == mode)?;
            let (point, visit) = point.rsplit_once('#').unwrap_or((point, "0"));
            Some(Self { point: point.parse().ok()?, visit: visit.parse().ok()?, mode: *mode })
        };
        parsed().ok_or_else(|| NoSuchPoint(text.to_owned()))
    }
}

/// The environment variable by which a process that was built with the feature `fault-injection`
/// crashes by itself: `ATOMIC_PHASES_FAULT='charge_created/after_call#0=abort'`. Visits are counted
/// over all its requests. Only `abort` and `panic` work without an explorer.
pub const ENV: &str = "ATOMIC_PHASES_FAULT";

/// What one attempt is to meet, and what it has passed.
pub(crate) struct Plan {
    fault: Option<Fault>,
    mutant: Option<Mutant>,
    request_id: Option<Uuid>,
    passed: Mutex<Vec<Point>>,
    fired: Mutex<bool>,
    signal: mpsc::UnboundedSender<Signal>,
}

/// What a point tells the explorer.
pub(crate) enum Signal {
    /// Drop me.
    Drop,
    /// I stand still until this is answered.
    Stall(oneshot::Sender<()>),
    /// As `Stall`, but only for a moment.
    Duplicate(oneshot::Sender<()>),
}

tokio::task_local! {
    static PLAN: Arc<Plan>;
}

impl Plan {
    pub(crate) fn new(
        fault: Option<Fault>,
        mutant: Option<Mutant>,
        request_id: Option<Uuid>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Signal>) {
        let (signal, signals) = mpsc::unbounded_channel();
        let (passed, fired) = (Mutex::default(), Mutex::default());
        (Arc::new(Self { fault, mutant, request_id, passed, fired, signal }), signals)
    }

    /// Runs `future`, and what it spawns, under this plan.
    pub(crate) fn around<F: Future>(self: Arc<Self>, future: F) -> impl Future<Output = F::Output> {
        PLAN.scope(self, future)
    }

    pub(crate) fn passed(&self) -> Vec<Point> {
        locked(&self.passed).clone()
    }

    pub(crate) fn has_fired(&self) -> bool {
        *locked(&self.fired)
    }

    /// Notes the visit, and says what is to happen.
    fn visit(&self, phase: &str, place: Place) -> Option<Mode> {
        let point = Point::new(phase, place);
        let mut passed = locked(&self.passed);
        let before = passed.iter().filter(|earlier| **earlier == point).count();
        let now = self.fault.as_ref().filter(|fault| {
            fault.point == point && fault.visit as usize == before && !self.has_fired()
        });
        let mode = now.map(|fault| fault.mode);
        passed.push(point);
        if mode.is_some() {
            *locked(&self.fired) = true;
        }
        mode
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The plan of this task, or else that of the environment.
fn plan() -> Option<Arc<Plan>> {
    static OF_THE_PROCESS: OnceLock<Option<Arc<Plan>>> = OnceLock::new();
    PLAN.try_with(Clone::clone).ok().or_else(|| {
        OF_THE_PROCESS
            .get_or_init(|| {
                let fault = std::env::var(ENV).ok()?.parse().ok()?;
                Some(Plan::new(Some(fault), None, None).0)
            })
            .clone()
    })
}

/// Takes the plan of this task along.
pub(crate) fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let plan = PLAN.try_with(Clone::clone).ok();
    async move {
        match plan {
            Some(plan) => PLAN.scope(plan, future).await,
            None => future.await,
        }
    }
}

pub(crate) fn mutated(mutant: Mutant) -> bool {
    PLAN.try_with(|plan| plan.mutant == Some(mutant)).unwrap_or(false)
}

/// The id of a row that is created under a plan: the same in each case, so that what phases derive
/// from it can be compared.
pub(crate) fn request_id() -> Option<Uuid> {
    PLAN.try_with(|plan| plan.request_id).ok().flatten()
}

/// The engine is here. Returns what the caller itself has to bring about.
pub(crate) async fn at(phase: &str, place: Place) -> Option<Mode> {
    let plan = plan()?;
    let mode = plan.visit(phase, place)?;
    match mode {
        // Not panic!(): the hook would print a backtrace for each of some thousand cases.
        Mode::Panic => std::panic::resume_unwind(Box::new("a panic that was asked for")),
        Mode::Abort => std::process::abort(),
        Mode::Drop => {
            let _ = plan.signal.send(Signal::Drop);
            std::future::pending().await
        }
        Mode::Stall | Mode::Duplicate => {
            let (go_on, gone_on) = oneshot::channel();
            let _ = plan.signal.send(match mode {
                Mode::Stall => Signal::Stall(go_on),
                _ => Signal::Duplicate(go_on),
            });
            let _ = gone_on.await;
            None
        }
        mode => Some(mode),
    }
}

/// As [`at`], where nothing is left for the caller to bring about.
pub(crate) async fn reach(phase: &str, place: Place) {
    at(phase, place).await;
}

/// A commit with what may happen to it.
pub(crate) async fn committing(
    phase: &str,
    (before, after): (Place, Place),
    commit: impl Future<Output = Commit>,
) -> Commit {
    use diesel::result::{DatabaseErrorKind, Error};
    let error = |kind, text: &str| {
        StoreError::database("commit", Error::DatabaseError(kind, Box::new(text.to_owned())))
    };
    let no_answer = || error(DatabaseErrorKind::ClosedConnection, "no answer, as asked for");
    let commit = match at(phase, before).await {
        // Dropped before it is polled: the transaction's guard undoes it.
        Some(Mode::NotSent) => return Commit::Unknown(no_answer()),
        Some(Mode::Serialization) => {
            let kind = DatabaseErrorKind::SerializationFailure;
            return Commit::Failed(error(kind, "could not serialize access, as asked for"));
        }
        Some(Mode::Deadlock) => {
            return Commit::Failed(error(DatabaseErrorKind::Unknown, "deadlock detected"));
        }
        _ => commit.await,
    };
    if !matches!(commit, Commit::Done) {
        return commit;
    }
    match at(phase, after).await {
        Some(Mode::AckLost) => Commit::Unknown(no_answer()),
        _ => commit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_parsed_as_it_is_printed() {
        for (mode, _) in MODES {
            let fault = Fault { point: Point::new("a", Place::AfterCall), visit: 3, mode };
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        let short: Fault = "a/after_call=drop".parse().unwrap();
        assert_eq!(short.visit, 0);
        for bad in ["", "a/after_call", "a/after_call#x=drop", "a/after_call#0=dropp", "=drop"] {
            assert!(bad.parse::<Fault>().is_err(), "{bad}");
        }
    }
}
