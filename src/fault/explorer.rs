//! [`Explorer`]: one request, crashed at every point, and driven to its end each time.

use std::fmt::Debug;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use futures_util::FutureExt;
use tokio::sync::mpsc::UnboundedReceiver;
use uuid::Uuid;

use super::Mutant;
use super::plan::{Fault, Mode, Plan, Signal};
use super::points::Point;
use super::report::{Case, Driver, Failure, Report};
use crate::definition::RequestDefinition;
use crate::engine::{Engine, ExecuteError, Outcome};
use crate::key::{IdempotencyKey, Scope};
use crate::phase::Reply;
use crate::store::{Right, Status, Store};

/// How often a request may be driven on before it counts as stuck. Each case has two faults at most,
/// and a reconcile function may have to be asked in between.
const MOST_ATTEMPTS: usize = 12;

type Check<W> = Box<dyn for<'w> Fn(&'w W) -> Pin<Box<dyn Future<Output = ()> + 'w>>>;
type Effects<W> = Box<dyn for<'w> Fn(&'w W) -> Pin<Box<dyn Future<Output = String> + 'w>>>;

/// Crashes a request at every point and drives it to its end; see the [module](crate::fault).
#[must_use = "an explorer does nothing until it is run"]
pub struct Explorer<F, R, W> {
    world: F,
    request: R,
    other: Option<R>,
    modes: Vec<Mode>,
    pairs: bool,
    always: Vec<(&'static str, Check<W>)>,
    finally: Vec<(&'static str, Check<W>)>,
    effects: Option<Effects<W>>,
    same_reply: bool,
    mutant: Option<Mutant>,
}

/// Explores `request`. `world` makes a fresh engine, and whatever the checks look at, for each case: a
/// new database, or an emptied one.
pub fn explore<F, S, A, R, W>(world: F, request: R) -> Explorer<F, R, W>
where
    F: AsyncFn() -> (Engine<S, A>, W),
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A> + Clone,
    W: 'static,
{
    Explorer {
        world,
        request,
        other: None,
        modes: Vec::new(),
        pairs: false,
        always: Vec::new(),
        finally: Vec::new(),
        effects: None,
        same_reply: true,
        mutant: None,
    }
}

fn boxed<W: 'static>(check: impl AsyncFn(&W) + 'static) -> Check<W> {
    let check = Rc::new(check);
    Box::new(move |world| {
        let check = check.clone();
        Box::pin(async move { check(world).await })
    })
}

impl<F, R, W: 'static> Explorer<F, R, W> {
    /// Every mode that is legal at a point, at every point: panic, drop, a lost commit, a lost answer,
    /// a serialization failure, a deadlock, a failed call, and one whose answer was lost.
    pub fn crash_at_every_point(self) -> Self {
        let modes = Mode::all();
        self.modes(modes.into_iter().filter(|mode| !matches!(mode, Mode::Stall | Mode::Duplicate)))
    }

    /// After each of them, another crash at every point that the recovery passes.
    pub fn and_at_every_pair(mut self) -> Self {
        self.pairs = true;
        self
    }

    /// At every point another worker as well: a duplicate that comes while the first stands still, and
    /// a takeover that runs to its end before the first, which lost its lease, goes on.
    pub fn with_competitor(self) -> Self {
        self.modes([Mode::Stall, Mode::Duplicate])
    }

    /// These modes too.
    pub fn modes(mut self, modes: impl IntoIterator<Item = Mode>) -> Self {
        self.modes.extend(modes);
        self
    }

    /// Another request, for the same key: refused at every point (G9).
    pub fn and_another(mut self, other: R) -> Self {
        self.other = Some(other);
        self
    }

    /// Checked after every attempt of every case. Fails where it panics: `assert_eq!` will do.
    pub fn always(mut self, name: &'static str, check: impl AsyncFn(&W) + 'static) -> Self {
        self.always.push((name, boxed(check)));
        self
    }

    /// Checked at the end of every case.
    pub fn check(mut self, name: &'static str, check: impl AsyncFn(&W) + 'static) -> Self {
        self.finally.push((name, boxed(check)));
        self
    }

    /// What the request has done to the world. Equal at the end of every case and of the clean run.
    pub fn effects<T: Debug>(mut self, effects: impl AsyncFn(&W) -> T + 'static) -> Self {
        let effects = Rc::new(effects);
        self.effects = Some(Box::new(move |world| {
            let effects = effects.clone();
            Box::pin(async move { format!("{:?}", effects(world).await) })
        }));
        self
    }

    /// The reply may differ from the clean run's: it holds a time, say. Each case still has one reply,
    /// for the first client and for every replay.
    pub fn replies_may_differ(mut self) -> Self {
        self.same_reply = false;
        self
    }

    /// Breaks a guarantee of the engine on purpose. For a test that the checks find it.
    pub fn with_mutant(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }
}

/// How one attempt ended.
enum Ended {
    Outcome(Outcome),
    Error(ExecuteError),
    Crashed,
    /// By a worker, whose report is not what counts: the row does.
    ByWorker,
}

/// What a case came to.
struct Ran {
    reply: Option<Reply>,
    effects: Option<String>,
    /// What each attempt passed.
    passed: Vec<Vec<Point>>,
}

/// What must not happen.
type Wrong = String;

struct Scene<'x, S: Store, A, R, W> {
    engine: Engine<S, A>,
    world: W,
    scope: Scope,
    key: IdempotencyKey,
    request: R,
    other: Option<R>,
    mutant: Option<Mutant>,
    always: &'x [(&'static str, Check<W>)],
    told: Vec<Reply>,
    /// Runs that answered as the one that finished the request.
    finishers: u32,
}

impl<F, S, A, R, W> Explorer<F, R, W>
where
    F: AsyncFn() -> (Engine<S, A>, W),
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A> + Clone,
    W: 'static,
{
    /// Runs the clean case, then every case until one fails. Set the environment variable
    /// `ATOMIC_PHASES_CASE` to the line that a failure prints, and only that case runs.
    pub async fn run(self) -> Report {
        let began = Instant::now();
        let mut report = Report::new(R::DEFINITION.name);
        let outcome = self.explore(&mut report).await;
        report.failure = outcome.err();
        report.took = began.elapsed();
        report
    }

    async fn explore(&self, report: &mut Report) -> Result<(), Failure> {
        let clean_case = Case { faults: Vec::new(), driver: Driver::Retry };
        let clean = self.case(&clean_case).await;
        let clean = clean.map_err(|wrong| Failure { case: clean_case.clone(), wrong })?;
        let passed = clean.passed.first().cloned().unwrap_or_default();
        let early = passed.len() < R::DEFINITION.points().len();
        if !early && passed != R::DEFINITION.points() {
            let wrong = format!("the clean run passed other points than declared: {passed:?}");
            return Err(Failure { case: clean_case, wrong });
        }
        report.points = passed.len();
        if let Some(case) = Case::of_the_environment() {
            return self.judge(case, &clean, report).await.map(drop);
        }
        for fault in self.faults(&passed) {
            for driver in [Driver::Retry, Driver::Workers] {
                let case = Case { faults: vec![fault.clone()], driver };
                let recovery = self.judge(case.clone(), &clean, report).await?;
                let pairs = self.pairs && !fault.mode.is_of_a_competitor();
                for second in recovery.iter().flat_map(|passed| self.faults(passed)) {
                    if pairs && !second.mode.is_of_a_competitor() {
                        let faults = vec![fault.clone(), second];
                        self.judge(Case { faults, driver }, &clean, report).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Each mode that is legal at each point that was passed.
    fn faults(&self, passed: &[Point]) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (index, point) in passed.iter().enumerate() {
            let visit = passed[..index].iter().filter(|earlier| *earlier == point).count() as u32;
            for mode in &self.modes {
                if mode.is_legal_at(point.place, S::CONCURRENT) {
                    faults.push(Fault { point: point.clone(), visit, mode: *mode });
                }
            }
        }
        faults
    }

    /// Runs the case and compares it with the clean run. Returns what the second attempt passed.
    async fn judge(
        &self,
        case: Case,
        clean: &Ran,
        report: &mut Report,
    ) -> Result<Option<Vec<Point>>, Failure> {
        report.count(&case);
        let ran = self.case(&case).await.and_then(|ran| {
            match (&ran.reply, &clean.reply) {
                (None, _) => report.unknown += 1,
                (Some(reply), Some(expected)) if self.same_reply && reply != expected => {
                    let body = |reply: &Reply| String::from_utf8_lossy(reply.bytes()).into_owned();
                    return Err(format!(
                        "the reply is {} {}, and in a clean run {} {}",
                        reply.status(),
                        body(reply),
                        expected.status(),
                        body(expected)
                    ));
                }
                (Some(_), _) if ran.effects != clean.effects => {
                    let shown = |effects: &Option<String>| effects.clone().unwrap_or_default();
                    return Err(format!(
                        "the effects are {}, and in a clean run {}",
                        shown(&ran.effects),
                        shown(&clean.effects)
                    ));
                }
                _ => {}
            }
            Ok(ran)
        });
        match ran {
            Ok(mut ran) => Ok((ran.passed.len() > 1).then(|| ran.passed.swap_remove(1))),
            Err(wrong) => Err(Failure { case, wrong }),
        }
    }

    async fn case(&self, case: &Case) -> Result<Ran, Wrong> {
        let (engine, world) = (self.world)().await;
        let broken = |_| "the explorer's own key is no key".to_owned();
        let mut scene = Scene {
            engine,
            world,
            scope: Scope::new("explorer").map_err(broken)?,
            key: IdempotencyKey::new("explored").map_err(broken)?,
            request: self.request.clone(),
            other: self.other.clone(),
            mutant: self.mutant,
            always: &self.always,
            told: Vec::new(),
            finishers: 0,
        };
        let mut passed = Vec::new();
        let mut settled = false;
        for attempt in 0..MOST_ATTEMPTS {
            let fault = case.faults.get(attempt).cloned();
            let by_workers = attempt > 0 && case.driver == Driver::Workers;
            passed.push(scene.attempt(fault, by_workers).await?);
            scene.hold(scene.always).await?;
            settled = scene.is_settled().await? && attempt + 1 >= case.faults.len();
            if settled {
                break;
            }
            scene.pass_time().await?;
        }
        let status = scene.status().await?;
        if !settled && status != Some(Status::Unknown) {
            return Err(format!("not settled after {MOST_ATTEMPTS} attempts: it is {status:?}"));
        }
        let reply = match status {
            Some(Status::Completed) => Some(scene.replay().await?),
            _ => None,
        };
        scene.probe().await?;
        scene.hold(&self.finally).await?;
        let effects = match &self.effects {
            Some(effects) => Some(effects(&scene.world).await),
            None => None,
        };
        Ok(Ran { reply, effects, passed })
    }
}

/// The row of every case has one id, so that all that phases derive from it can be compared.
const REQUEST_ID: Uuid = Uuid::from_u128(0x0e18_1de2_0000_4000_8000_0000_0000_0001);

impl<S, A, R, W> Scene<'_, S, A, R, W>
where
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A> + Clone,
{
    /// One attempt, with what is to go wrong in it; returns what it passed.
    async fn attempt(
        &mut self,
        fault: Option<Fault>,
        by_workers: bool,
    ) -> Result<Vec<Point>, Wrong> {
        let (plan, signals) = Plan::new(fault.clone(), self.mutant, Some(REQUEST_ID));
        let (engine, scope, key) = (self.engine.clone(), self.scope.clone(), self.key.clone());
        let unknown = self.status().await? == Some(Status::Unknown);
        let ended = if by_workers || unknown {
            let right = if unknown { Right::Reconcile } else { Right::Free };
            let driving = async move {
                engine.drive_in_place(scope, key, right).await;
                Ended::ByWorker
            };
            self.watched(plan.clone().around(driving), signals).await?
        } else {
            let call = engine.call(&scope, &key, self.request.clone());
            let calling = async move {
                match call.__execute_in_place().await {
                    Ok(outcome) => Ended::Outcome(outcome),
                    Err(error) => Ended::Error(error),
                }
            };
            self.watched(plan.clone().around(calling), signals).await?
        };
        match fault {
            Some(fault) if !plan.has_fired() => {
                return Err(format!(
                    "{fault} did not happen: the attempt passed {:?}",
                    plan.passed()
                ));
            }
            _ => self.note(ended)?,
        }
        Ok(plan.passed())
    }

    /// Runs it as a task, and does what its points ask for.
    async fn watched(
        &mut self,
        attempt: impl Future<Output = Ended> + Send + 'static,
        mut signals: UnboundedReceiver<Signal>,
    ) -> Result<Ended, Wrong> {
        let mut task = tokio::spawn(attempt);
        loop {
            tokio::select! {
                ended = &mut task => return Ok(ended.unwrap_or(Ended::Crashed)),
                Some(signal) = signals.recv() => match signal {
                    Signal::Drop => {
                        task.abort();
                        let _ = task.await;
                        return Ok(Ended::Crashed);
                    }
                    Signal::Stall(go_on) => {
                        self.pass_time().await?;
                        self.takeover().await?;
                        let _ = go_on.send(());
                    }
                    Signal::Duplicate(go_on) => {
                        self.duplicate().await?;
                        let _ = go_on.send(());
                    }
                },
            }
        }
    }

    fn note(&mut self, ended: Ended) -> Result<(), Wrong> {
        match ended {
            Ended::Outcome(Outcome::Finished(finished)) => {
                self.finishers += u32::from(!finished.replayed);
                self.told.push(finished.reply);
                if self.finishers > 1 {
                    return Err("G10: two runs finished the request".to_owned());
                }
            }
            Ended::Outcome(Outcome::Mismatch) => {
                return Err("G9: the same request was taken for another".to_owned());
            }
            Ended::Outcome(_) | Ended::Crashed | Ended::ByWorker => {}
            Ended::Error(ExecuteError::Unavailable(_) | ExecuteError::TaskLost) => {}
            Ended::Error(error) => return Err(format!("the engine refused the request: {error}")),
        }
        Ok(())
    }

    /// Another worker takes over and runs to the end, while the first believes that it holds the key.
    async fn takeover(&mut self) -> Result<(), Wrong> {
        for _ in 0..MOST_ATTEMPTS {
            Box::pin(self.attempt(None, false)).await?;
            self.hold(self.always).await?;
            // Where the first holds the reservation's transaction, there is nothing to take over.
            if self.is_settled().await? || self.status().await?.is_none() {
                return Ok(());
            }
            self.pass_time().await?;
        }
        Err("a second worker could not finish the request".to_owned())
    }

    /// A duplicate, and another request under the key, while the first stands still.
    async fn duplicate(&mut self) -> Result<(), Wrong> {
        let held = matches!(self.status().await?, Some(Status::InProgress));
        let finishers = self.finishers;
        Box::pin(self.attempt(None, false)).await?;
        if held && self.finishers > finishers {
            return Err("G10: a duplicate ran a request whose lease was alive".to_owned());
        }
        self.probe().await
    }

    /// Another request under the key is refused, whatever the row says (G9).
    async fn probe(&self) -> Result<(), Wrong> {
        let Some(other) = self.other.clone() else { return Ok(()) };
        if self.status().await?.is_none() {
            return Ok(());
        }
        let (plan, _signals) = Plan::new(None, self.mutant, None);
        let call = self.engine.call(&self.scope, &self.key, other);
        match plan.around(call.__execute_in_place()).await {
            Ok(Outcome::Mismatch) => Ok(()),
            other => Err(format!("G9: another request under the key was not refused: {other:?}")),
        }
    }

    /// The stored answer: a replay, equal to all that was told before.
    async fn replay(&self) -> Result<Reply, Wrong> {
        let (plan, _signals) = Plan::new(None, self.mutant, None);
        let call = self.engine.call(&self.scope, &self.key, self.request.clone());
        let replay = match plan.around(call.__execute_in_place()).await {
            Ok(Outcome::Finished(finished)) if finished.replayed => finished.reply,
            other => return Err(format!("G8: a finished request was not replayed: {other:?}")),
        };
        match self.told.iter().all(|told| *told == replay) {
            true => Ok(replay),
            false => {
                Err("G8: a client was told another reply than the one that is stored".to_owned())
            }
        }
    }

    async fn hold(&self, checks: &[(&'static str, Check<W>)]) -> Result<(), Wrong> {
        for (name, check) in checks {
            if let Err(panic) = AssertUnwindSafe(check(&self.world)).catch_unwind().await {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
                return Err(format!("{name}: {text}"));
            }
        }
        Ok(())
    }

    async fn status(&self) -> Result<Option<Status>, Wrong> {
        let status = self.engine.status(&self.scope, &self.key).await;
        Ok(status.map_err(|error| error.to_string())?.map(|status| status.status))
    }

    async fn is_settled(&self) -> Result<bool, Wrong> {
        let status = self.status().await?;
        // Told before it was durable: then it never ends.
        if status != Some(Status::Completed) && !self.told.is_empty() {
            return Err(format!("G8: a client was told a reply, and the row is {status:?}"));
        }
        Ok(matches!(status, Some(Status::Completed | Status::DeadLetter)))
    }

    async fn pass_time(&self) -> Result<(), Wrong> {
        let passed = self.engine.store().pass_time(&self.scope, &self.key).await;
        passed.map_err(|error| error.to_string())
    }
}
