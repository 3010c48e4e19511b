//! [`Plan`]: what a task is to meet at which point, and what it has passed. The engine's hooks end
//! here.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::Mutant;
use super::mode::{Fault, Mode};
use super::points::{Place, Point, STORE};
use crate::definition::Definition;
use crate::error::DbError;
use crate::lock::lock;
use crate::store::{Commit, StoreError};

/// The environment variable by which a process that was built with the feature `fault-injection`
/// fails by itself: `ATOMIC_PHASES_FAULT='charge_created/after_call#0=abort'`. Visits are counted
/// over all its requests. Every mode works that needs no help from outside of the process: not `drop`, `stall`,
/// `duplicate`, `out_of_touch`, `outrun`, `replicated` and `row_lost`.
///
/// What is not such a text ends the process, with an error on standard error, as soon as an engine is built. A phase
/// that the engine does not have, and a mode that cannot happen at the point, are reported there too. An abort is
/// reported as it happens.
///
/// `ATOMIC_PHASES_FAULT=list` writes each point that the process passes to standard error.
pub const ENV: &str = "ATOMIC_PHASES_FAULT";

/// What one attempt is to meet.
#[derive(Default)]
pub(crate) struct Orders {
    /// In the order in which they happen.
    pub(crate) faults: Vec<Fault>,
    pub(crate) mutant: Option<Mutant>,
    /// The id of a row that it creates.
    pub(crate) request_id: Option<Uuid>,
    /// Whether it stands still at each point until the script lets it continue.
    pub(crate) step_by_step: bool,
    /// How far its clock continues while it stands still: longer than its lease.
    pub(crate) stall: Duration,
}

/// What one attempt is to meet, and what it has passed.
pub(crate) struct Plan {
    orders: Orders,
    passed: Mutex<Vec<Point>>,
    reads: Mutex<Vec<Read>>,
    visits: Mutex<HashMap<Point, u32>>,
    /// How many of the faults have happened.
    fired: AtomicUsize,
    /// For how long it stood still so far.
    stood_still: Mutex<Duration>,
    overtaken: AtomicBool,
    /// What the database said to the phase that failed last.
    said: Mutex<Option<String>>,
    signal: mpsc::UnboundedSender<Signal>,
}

/// A read of the store. It is not a point: nothing is changed by it, so a crash there is one at the next point.
#[derive(Clone)]
pub(crate) struct Read {
    /// How many points were passed before it.
    pub(crate) behind: usize,
    pub(crate) point: Point,
}

/// What a point tells the explorer. Who stands still waits for an answer.
pub(crate) enum Signal {
    /// Drop me.
    Drop,
    /// I stand still for longer than my lease.
    Stall(oneshot::Sender<()>),
    /// I stand still for a moment.
    Duplicate(oneshot::Sender<()>),
    /// My commit got no answer, and I have not asked yet.
    OutOfTouch(oneshot::Sender<()>),
    /// A standby has what is committed, and receives nothing from here on.
    Replicated(oneshot::Sender<()>),
    /// The standby takes the database's place, and my connections end with the database.
    RowLost,
    /// I am at this point, at this visit.
    Stands(Point, u32, oneshot::Sender<()>),
}

tokio::task_local! {
    static PLAN: Arc<Plan>;
    /// The phase whose body runs.
    static PHASE: &'static str;
}

impl Plan {
    pub(crate) fn new(orders: Orders) -> (Arc<Self>, mpsc::UnboundedReceiver<Signal>) {
        let (signal, signals) = mpsc::unbounded_channel();
        let (passed, visits, fired, stood_still) = Default::default();
        let (reads, overtaken, said) = Default::default();
        let plan =
            Self { orders, passed, reads, visits, fired, stood_still, overtaken, said, signal };
        (Arc::new(plan), signals)
    }

    /// Runs `future`, and what it spawns, under this plan.
    pub(crate) fn around<F: Future>(self: Arc<Self>, future: F) -> impl Future<Output = F::Output> {
        // Boxed: the futures of a debug build are large, and the stacks of a runtime's threads are not.
        PLAN.scope(self, Box::pin(future))
    }

    pub(crate) fn passed(&self) -> Vec<Point> {
        lock(&self.passed).clone()
    }

    pub(crate) fn reads(&self) -> Vec<Read> {
        lock(&self.reads).clone()
    }

    pub(crate) fn said(&self) -> Option<String> {
        lock(&self.said).clone()
    }

    /// The first of its faults that has not happened.
    pub(crate) fn unmet(&self) -> Option<&Fault> {
        self.orders.faults.get(self.fired.load(Ordering::Relaxed))
    }

    /// The clock went past each lease while the task stood still: this machine's too.
    pub(crate) fn mark_late(&self) {
        *lock(&self.stood_still) += self.orders.stall;
    }

    /// Another task has acquired the lease while this one stood still.
    pub(crate) fn mark_overtaken(&self) {
        self.overtaken.store(true, Ordering::Relaxed);
    }

    /// Notes the visit, and says which one it is and what is to happen.
    fn visit(&self, point: &Point) -> (u32, Option<Mode>) {
        let mut visits = lock(&self.visits);
        let before = visits.entry(point.clone()).or_default();
        let visit = *before;
        *before += 1;
        drop(visits);
        if point.place == Place::AfterTakeOver {
            self.overtaken.store(false, Ordering::Relaxed);
        }
        let due = self.unmet().filter(|fault| fault.point == *point && fault.visit == visit);
        let mode = due.map(|fault| fault.mode);
        if mode.is_some() {
            self.fired.fetch_add(1, Ordering::Relaxed);
        }
        (visit, mode)
    }

    /// Stands still until the script lets it continue.
    async fn stand(&self, signal: impl FnOnce(oneshot::Sender<()>) -> Signal) {
        let (go_on, gone_on) = oneshot::channel();
        let _ = self.signal.send(signal(go_on));
        let _ = gone_on.await;
    }
}

/// What the environment says about the points of this process.
enum OfTheProcess {
    Nothing,
    List,
    Plan(Arc<Plan>),
}

fn of_the_process() -> &'static OfTheProcess {
    static OF_THE_PROCESS: OnceLock<OfTheProcess> = OnceLock::new();
    OF_THE_PROCESS.get_or_init(|| {
        let Ok(text) = std::env::var(ENV) else { return OfTheProcess::Nothing };
        if text == "list" {
            return OfTheProcess::List;
        }
        let wrong = match text.parse::<Fault>() {
            Ok(fault) if fault.mode.needs_an_explorer() => {
                format!("{} needs an explorer", fault.mode.as_str())
            }
            Ok(fault) => {
                let orders = Orders { faults: vec![fault], ..Orders::default() };
                return OfTheProcess::Plan(Plan::new(orders).0);
            }
            Err(error) => format!("{error}. The modes are {}", Mode::names_for_a_process()),
        };
        // A test that asks for a crash must not continue without one.
        eprintln!("{ENV}: {wrong}");
        std::process::exit(2)
    })
}

/// Reports what the environment asks for and an engine with these definitions may never meet: a test that asks for a crash
/// must not continue silently without one.
pub(crate) fn verify_env(definitions: &[Definition], concurrent: bool) {
    let OfTheProcess::Plan(plan) = of_the_process() else { return };
    for fault in &plan.orders.faults {
        if let Some(why) = fault.why_in_vain(definitions, concurrent) {
            eprintln!("{ENV}: {fault} may never happen with this engine: {why}");
        }
    }
}

/// Takes the plan of this task along.
pub(crate) fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let plan = PLAN.try_with(Clone::clone).ok();
    let future = Box::pin(future);
    async move {
        match plan {
            Some(plan) => PLAN.scope(plan, future).await,
            None => future.await,
        }
    }
}

/// Runs the body of a phase, in which the phase's author may have points.
pub(crate) fn inside<F: Future>(
    phase: &'static str,
    body: F,
) -> impl Future<Output = F::Output> + Unpin {
    Box::pin(PHASE.scope(phase, body))
}

fn of_the_plan<T>(question: impl FnOnce(&Plan) -> T) -> Option<T> {
    PLAN.try_with(|plan| question(plan)).ok()
}

/// For how long this task stood still at its points: its clock has gone on by so much.
pub(crate) fn stood_still_for() -> Duration {
    of_the_plan(|plan| *lock(&plan.stood_still)).unwrap_or_default()
}

/// Whether another task has acquired the lease since this task did.
pub(crate) fn is_overtaken() -> bool {
    of_the_plan(|plan| plan.overtaken.load(Ordering::Relaxed)).unwrap_or(false)
}

/// The database's own words, which only a test may see.
pub(crate) fn note(error: &DbError) {
    of_the_plan(|plan| *lock(&plan.said) = Some(error.0.to_string()));
}

pub(crate) fn mutated(mutant: Mutant) -> bool {
    #[cfg(feature = "simulation")]
    if crate::simulation::mutates(mutant) {
        return true;
    }
    of_the_plan(|plan| plan.orders.mutant == Some(mutant)).unwrap_or(false)
}

/// The id of a row that is created under a plan: the same in each case, so that what phases derive
/// from it can be compared.
pub(crate) fn request_id() -> Option<Uuid> {
    of_the_plan(|plan| plan.orders.request_id).flatten()
}

/// The engine is here. Returns what the caller itself has to bring about.
pub(crate) async fn at(phase: &str, place: Place) -> Option<Mode> {
    crate::observe::crash_point(phase, place.as_str());
    #[cfg(feature = "simulation")]
    if crate::simulation::is_simulated() {
        crate::simulation::pass(&format!("point: {}", place.as_str()));
        if PLAN.try_with(|_| ()).is_err() {
            return None;
        }
    }
    let plan = match (PLAN.try_with(Clone::clone), of_the_process()) {
        (Ok(plan), _) => {
            lock(&plan.passed).push(Point::new(phase, place.clone()));
            plan
        }
        (Err(_), OfTheProcess::Plan(plan)) => plan.clone(),
        (Err(_), OfTheProcess::List) => {
            eprintln!("{ENV}: {}", Point::new(phase, place));
            return None;
        }
        (Err(_), OfTheProcess::Nothing) => return None,
    };
    let point = Point::new(phase, place);
    let (visit, mode) = plan.visit(&point);
    if plan.orders.step_by_step {
        plan.stand(|go_on| Signal::Stands(point.clone(), visit, go_on)).await;
    }
    bring_about(&plan, mode?, (&point, visit)).await
}

/// Brings about what the plan asks for at a visit of a point. Returns what the caller itself has to.
async fn bring_about(plan: &Plan, mode: Mode, (point, visit): (&Point, u32)) -> Option<Mode> {
    match mode {
        // Not panic!(): the hook would print a backtrace for each of some thousand cases.
        Mode::Panic => std::panic::resume_unwind(Box::new("a panic that was asked for")),
        Mode::Abort => {
            eprintln!("{ENV}: the process aborts at {point}#{visit}");
            std::process::abort()
        }
        Mode::Stop => {
            stop_the_process();
            None
        }
        Mode::Drop => {
            let _ = plan.signal.send(Signal::Drop);
            std::future::pending().await
        }
        Mode::Stall => {
            plan.stand(Signal::Stall).await;
            plan.mark_late();
            None
        }
        Mode::Duplicate => {
            plan.stand(Signal::Duplicate).await;
            None
        }
        Mode::Replicated => {
            plan.stand(Signal::Replicated).await;
            None
        }
        Mode::RowLost => {
            let _ = plan.signal.send(Signal::RowLost);
            std::future::pending().await
        }
        mode => Some(mode),
    }
}

/// Returns when the process continues. A shell does it, because this crate forbids the unsafe code that a
/// signal needs. This thread waits for it, and so passes nothing meanwhile: the shell ends when it has seen
/// that the process is stopped.
fn stop_the_process() {
    const STOP: &str =
        r#"kill -s STOP "$PPID"; until ps -o state= -p "$PPID" | grep -q T; do :; done"#;
    let stopped = std::process::Command::new("sh").args(["-c", STOP]).status();
    if !stopped.is_ok_and(|status| status.success()) {
        // A test that asks for it must not continue without.
        eprintln!("{ENV}: this process could not stop itself");
        std::process::exit(2)
    }
}

/// As [`at`], where nothing is left for the caller to bring about.
pub(crate) async fn reach(phase: &str, place: Place) {
    at(phase, place).await;
}

/// What `crash_point!` is made of.
#[doc(hidden)]
pub async fn __crash_point(name: &'static str) {
    if let Ok(phase) = PHASE.try_with(|phase| *phase) {
        reach(phase, Place::Own(name.to_owned())).await;
        // The body has waited: where its clock continued meanwhile, the engine looks at the lease before it
        // polls the body again.
        tokio::task::yield_now().await;
    }
}

/// A read of the store, which may be made to fail.
pub(crate) async fn reading<T>(
    what: &'static str,
    read: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let point = Point::new(STORE, Place::Own(what.to_owned()));
    let mode = match (PLAN.try_with(Clone::clone), of_the_process()) {
        (Ok(plan), _) => {
            let behind = lock(&plan.passed).len();
            lock(&plan.reads).push(Read { behind, point: point.clone() });
            plan.visit(&point).1
        }
        (Err(_), OfTheProcess::Plan(plan)) => plan.visit(&point).1,
        (Err(_), OfTheProcess::List | OfTheProcess::Nothing) => None,
    };
    if mode == Some(Mode::ReadFails) {
        return Err(StoreError::NoConnection("no connection, as asked for".to_owned()));
    }
    read.await
}

/// A commit with what may happen to it.
pub(crate) async fn committing<T>(
    phase: &str,
    (before, after): (Place, Place),
    commit: impl Future<Output = Commit<T>>,
) -> Commit<T> {
    use diesel::result::{DatabaseErrorKind, Error};
    let error = |kind, text: &str| {
        StoreError::database("commit", Error::DatabaseError(kind, Box::new(text.to_owned())))
    };
    let no_answer = || error(DatabaseErrorKind::ClosedConnection, "no answer, as asked for");
    let commit = Box::pin(commit);
    let commit = match at(phase, before).await {
        // Dropped before it is polled: the transaction's guard undoes it.
        Some(Mode::NotSent) => return Commit::Unknown(no_answer()),
        Some(mode @ (Mode::OutOfTouch | Mode::Outrun)) => {
            drop(commit);
            unanswered(mode).await;
            return Commit::Unknown(no_answer());
        }
        Some(Mode::Serialization) => {
            let kind = DatabaseErrorKind::SerializationFailure;
            return Commit::Failed(error(kind, "could not serialize access, as asked for"));
        }
        Some(Mode::Deadlock) => {
            return Commit::Failed(error(DatabaseErrorKind::Unknown, "deadlock detected"));
        }
        _ => commit.await,
    };
    if !matches!(commit, Commit::Done(_)) {
        return commit;
    }
    match at(phase, after).await {
        Some(Mode::AckLost) => Commit::Unknown(no_answer()),
        Some(mode @ (Mode::OutOfTouch | Mode::Outrun)) => {
            unanswered(mode).await;
            Commit::Unknown(no_answer())
        }
        _ => commit,
    }
}

/// Stands still until another holds the key, or has run to the end.
async fn unanswered(mode: Mode) {
    if let Ok(plan) = PLAN.try_with(Clone::clone) {
        match mode {
            Mode::Outrun => plan.stand(Signal::Stall).await,
            _ => plan.stand(Signal::OutOfTouch).await,
        }
        plan.mark_late();
    }
}
