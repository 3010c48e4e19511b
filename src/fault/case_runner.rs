//! [`CaseRunner`]: runs the attempts of one case, and checks what must hold between them.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Mutant;
use super::case::Driver;
use super::mode::Fault;
use super::plan::{Orders, Plan, Read, Signal};
use super::points::Point;
use crate::engine::{Call, CallError, Engine, Outcome};
use crate::error::Causes;
use crate::key::{IdempotencyKey, Scope};
use crate::observe::Subject;
use crate::phase::Reply;
use crate::request::RequestDefinition;
use crate::store::{KeyRow, Right, Status, Store, StoreError};

/// How often a request may be driven on before it counts as stuck. Each case has two faults at most,
/// and a reconcile function may have to be asked in between.
pub(super) const MAX_ATTEMPTS: usize = 12;

/// How long a second worker may take beside one that stands still, until it counts as waiting for it.
/// If it is too short, both run for a while, which does no harm.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a lease is for.
pub(super) const TAKEN: &str = "G10: a request was taken from a worker whose lease was alive";

/// The row of every case has one id, so that all that phases derive from it can be compared.
const REQUEST_ID: Uuid = Uuid::from_u128(0x0e18_1de2_0000_4000_8000_0000_0000_0001);

/// A user's check. It holds unless it panics.
pub(super) type Assertion<W> = Box<dyn for<'w> Fn(&'w W) -> Pin<Box<dyn Future<Output = ()> + 'w>>>;

/// A check, with the name to tell it by.
pub(super) type Check<W> = (&'static str, Assertion<W>);

/// What must not happen.
pub(super) type Wrong = String;

/// How one attempt ended.
#[derive(Debug)]
pub(super) enum Ended {
    Outcome(Outcome),
    Error(CallError),
    Crashed,
    /// By a worker, whose report is not what counts: the row does.
    ByWorker,
}

/// What a failover has lost of the commits that were acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// All of the request's: its row does not exist.
    Row,
    /// The last ones. The row is back at an earlier recovery point.
    LaterCommits,
}

/// Whose attempt it is. Another's row has an id of its own: by its id the engine knows its own row
/// again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    First,
    Another,
}

pub(super) struct CaseRunner<'x, S: Store, A, R, W> {
    pub(super) engine: Engine<S, A>,
    pub(super) world: W,
    pub(super) scope: Scope,
    pub(super) key: IdempotencyKey,
    pub(super) request: &'x R,
    pub(super) other: Option<&'x R>,
    pub(super) expects_new: bool,
    pub(super) accepts: bool,
    pub(super) mutant: Option<Mutant>,
    pub(super) always: &'x [Check<W>],
    /// What clients received.
    pub(super) told: Vec<Reply>,
    /// Runs that answered as the one that finished the request.
    pub(super) finishers: u32,
    pub(super) was_unknown: bool,
    /// What a failover has lost.
    pub(super) lost: Option<Lost>,
    pub(super) last: Option<Ended>,
    /// What each attempt has read.
    pub(super) reads: Vec<Vec<Read>>,
    /// What the database said to a phase of the last attempt.
    pub(super) said: Option<String>,
}

/// An attempt on a task of its own.
pub(super) struct Begun {
    pub(super) plan: Arc<Plan>,
    pub(super) signals: UnboundedReceiver<Signal>,
    pub(super) task: JoinHandle<Ended>,
}

/// A second worker beside one that stands still.
struct Rival {
    begun: Begun,
    holds: Option<Holds>,
}

/// It stands still and holds the key, under this token; answered, it continues.
struct Holds {
    token: i64,
    go_on: oneshot::Sender<()>,
}

impl Begun {
    /// Nothing of it may reach into the next case.
    pub(super) async fn drop_it(self) {
        // One that has ended was awaited already.
        if !self.task.is_finished() {
            self.task.abort();
            let _ = self.task.await;
        }
    }
}

impl<S, A, R, W> CaseRunner<'_, S, A, R, W>
where
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A>,
{
    /// One attempt, with what is to go wrong in it; returns what it passed.
    pub(super) async fn attempt(
        &mut self,
        faults: &[Fault],
        driver: Driver,
        who: Who,
    ) -> Result<Vec<Point>, Wrong> {
        let orders = Orders { faults: faults.to_vec(), ..self.orders(who) };
        let begun = self.begin(orders, driver).await?;
        let plan = begun.plan.clone();
        let ended = self.watch(begun).await?;
        self.said = plan.said();
        self.reads.push(plan.reads());
        match plan.unmet() {
            Some(fault) => Err(format!(
                "{fault} did not happen: the attempt passed {}",
                listed(&plan.passed())
            )),
            None => self.note(ended).map(|()| plan.passed()),
        }
    }

    /// The database is a standby's from now on. A client that retries does so at another time.
    async fn fail_over(&mut self) -> Result<(), Wrong> {
        self.engine.store().fail_over().await.map_err(not_lost)?;
        let row = self.status().await?;
        self.lost = Some(if row.is_none() { Lost::Row } else { Lost::LaterCommits });
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(())
    }

    pub(super) fn orders(&self, who: Who) -> Orders {
        let is_the_first = who == Who::First && self.lost != Some(Lost::Row);
        let request_id = is_the_first.then_some(REQUEST_ID);
        // Longer than the lease, as the database's clock continues by more than that (`pass_time`).
        let stall = self.engine.settings().lease + Duration::from_secs(1);
        Orders { mutant: self.mutant, request_id, stall, ..Orders::default() }
    }

    /// Begins an attempt. Of a request that was never reserved no worker knows, and one that is
    /// unknown is a worker's alone.
    pub(super) async fn begin(&self, orders: Orders, driver: Driver) -> Result<Begun, Wrong> {
        let is_first = orders.request_id.is_some();
        let (plan, signals) = Plan::new(orders);
        let (engine, scope, key) = (self.engine.clone(), self.scope.clone(), self.key.clone());
        let status = self.status().await?;
        let accepts = self.accepts && is_first && status.is_none();
        let right = match status {
            Some(Status::Unknown) => Some(Right::Reconcile),
            Some(_) if driver == Driver::Workers => Some(Right::Free),
            _ => None,
        };
        let task = match right {
            Some(right) => tokio::spawn(plan.clone().around(async move {
                let (definition, request_id) = ("", Uuid::nil());
                let found = Subject { definition, request_id, scope: &scope, key: &key };
                engine.drive_in_place(found, right).await;
                Ended::ByWorker
            })),
            None => {
                let call = self.call(self.request)?;
                tokio::spawn(plan.clone().around(async move {
                    let called = match accepts {
                        true => call.__accept_in_place().await,
                        false => call.__call_in_place().await,
                    };
                    match called {
                        Ok(outcome) => Ended::Outcome(outcome),
                        Err(error) => Ended::Error(error),
                    }
                }))
            }
        };
        Ok(Begun { plan, signals, task })
    }

    /// Does what its points ask for, until it ends.
    async fn watch(&mut self, mut begun: Begun) -> Result<Ended, Wrong> {
        let (mut rival, mut fails_over) = (None, false);
        let ended = loop {
            tokio::select! {
                ended = &mut begun.task => {
                    if let Some(rival) = rival {
                        self.wait_for(rival).await?;
                    }
                    return Ok(ended.unwrap_or(Ended::Crashed));
                }
                Some(signal) = begun.signals.recv() => {
                    let (competed, go_on) = match signal {
                        Signal::Drop => break Ok(Ended::Crashed),
                        Signal::RowLost => {
                            fails_over = true;
                            break Ok(Ended::Crashed);
                        }
                        Signal::Replicated(go_on) => {
                            let replicated = self.engine.store().replicate().await;
                            (replicated.map(|()| None).map_err(not_lost), go_on)
                        }
                        Signal::Stall(go_on) => (self.takeover(&begun.plan).await, go_on),
                        Signal::Duplicate(go_on) => (self.duplicate().await, go_on),
                        Signal::OutOfTouch(go_on) => (self.overtake(&begun.plan).await, go_on),
                        Signal::Stands(.., go_on) => (Ok(None), go_on),
                    };
                    match competed {
                        Ok(waits) => rival = waits,
                        Err(wrong) => break Err(wrong),
                    }
                    let _ = go_on.send(());
                }
            }
        };
        begun.drop_it().await;
        if fails_over {
            self.fail_over().await?;
        }
        ended
    }

    /// Runs another beside one that stands still. Returns it if it waits, for a row that the first has
    /// locked in its open transaction: then the first has to continue.
    async fn compete(&mut self) -> Result<Option<Rival>, Wrong> {
        let mut rival = self.begin(self.orders(Who::Another), Driver::Retry).await?;
        match tokio::time::timeout(PATIENCE, &mut rival.task).await {
            Ok(ended) => self.note(ended.unwrap_or(Ended::Crashed)).map(|()| None),
            Err(_) => Ok(Some(Rival { begun: rival, holds: None })),
        }
    }

    /// To the end of one that had to wait, or that stood still: then the key is still its own.
    async fn wait_for(&mut self, rival: Rival) -> Result<(), Wrong> {
        let Rival { begun: mut rival, holds } = rival;
        if let Some(Holds { token, go_on }) = holds {
            let row = self.row().await?;
            let kept = |row: KeyRow| row.status == Status::InProgress && row.lease_token == token;
            if !row.is_some_and(kept) {
                rival.drop_it().await;
                return Err(TAKEN.to_owned());
            }
            // The receiver is gone: the task stops standing still.
            rival.signals.close();
            let _ = go_on.send(());
        }
        match tokio::time::timeout(Duration::from_secs(60), &mut rival.task).await {
            Ok(ended) => self.note(ended.unwrap_or(Ended::Crashed)),
            Err(_) => {
                let passed = listed(&rival.plan.passed());
                rival.drop_it().await;
                Err(format!(
                    "a second worker hangs, though the first has ended; it passed {passed}"
                ))
            }
        }
    }

    pub(super) fn note(&mut self, ended: Ended) -> Result<(), Wrong> {
        match &ended {
            Ended::Outcome(Outcome::Finished(finished)) => {
                self.finishers += u32::from(!finished.replayed);
                self.told.push(finished.reply.clone());
                if self.finishers > 1 {
                    return Err("G10: two runs finished the request".to_owned());
                }
            }
            Ended::Outcome(Outcome::Mismatch) => {
                return Err("G9: the same request was taken for another".to_owned());
            }
            Ended::Outcome(_) | Ended::Crashed | Ended::ByWorker => {}
            Ended::Error(CallError::Unavailable(_) | CallError::TaskLost) => {}
            Ended::Error(error) => return Err(format!("the engine refused the request: {error}")),
        }
        self.last = Some(ended);
        Ok(())
    }

    /// How the last attempt ended, for the developer who looks for the cause.
    pub(super) fn last(&self) -> String {
        let ended = match &self.last {
            None => "there was no attempt".to_owned(),
            Some(Ended::Outcome(Outcome::Finished(_))) => "the last attempt finished".to_owned(),
            Some(Ended::Outcome(outcome)) => format!("the last attempt ended with {outcome:?}"),
            Some(Ended::Error(error)) => {
                format!("the last attempt ended with an error: {}", Causes(error))
            }
            Some(Ended::Crashed) => "the last attempt crashed".to_owned(),
            Some(Ended::ByWorker) => "a background worker drove it last".to_owned(),
        };
        match &self.said {
            Some(said) => format!("{ended}; the database said: {said}"),
            None => ended,
        }
    }

    /// Another worker takes over and runs to the end, while the first believes that it holds the key.
    async fn takeover(&mut self, first: &Plan) -> Result<Option<Rival>, Wrong> {
        self.pass_time().await?;
        let held = self.token().await?;
        for _ in 0..MAX_ATTEMPTS {
            let waits = self.compete().await?;
            self.hold(self.always).await?;
            if held.is_some() && self.token().await? != held {
                first.mark_overtaken();
            }
            // Where the first holds the reservation's transaction, there is nothing to take over.
            if waits.is_some() || self.is_settled().await? || self.status().await?.is_none() {
                return Ok(waits);
            }
            self.pass_time().await?;
        }
        match self.status().await? {
            Some(Status::Unknown) => Ok(None),
            status => Err(format!(
                "a second worker could not finish the request: it {}; {}",
                told(status),
                self.last()
            )),
        }
    }

    /// Another worker takes over and stands still as soon as it holds the key, while the first has to
    /// ask yet for the outcome of its commit. `None` where that commit has settled the request.
    async fn overtake(&mut self, first: &Plan) -> Result<Option<Rival>, Wrong> {
        let held = self.token().await?;
        for _ in 0..MAX_ATTEMPTS {
            self.pass_time().await?;
            let orders = Orders { step_by_step: true, ..self.orders(Who::Another) };
            let mut rival = self.begin(orders, Driver::Retry).await?;
            let ended = loop {
                let (point, go_on) = match stood(&mut rival).await {
                    Ok(stands) => stands,
                    Err(ended) => break ended,
                };
                if S::CONCURRENT || !R::DEFINITION.is_in_transaction(&point) {
                    let row = self.row().await?.filter(|row| Some(row.lease_token) != held);
                    let row = row.filter(|row| row.status == Status::InProgress);
                    if let Some(row) = row.filter(|row| !row.lease_left.is_zero()) {
                        first.mark_overtaken();
                        let holds = Some(Holds { token: row.lease_token, go_on });
                        return Ok(Some(Rival { begun: rival, holds }));
                    }
                }
                let _ = go_on.send(());
            };
            self.note(ended)?;
            self.hold(self.always).await?;
            if self.is_settled().await? {
                return Ok(None);
            }
        }
        let status = self.status().await?;
        let (is, last) = (told(status), self.last());
        Err(format!("a second worker could not take over: the request {is}; {last}"))
    }

    /// A duplicate, and another request under the key, while the first stands still.
    async fn duplicate(&mut self) -> Result<Option<Rival>, Wrong> {
        let held = matches!(self.status().await?, Some(Status::InProgress));
        let finishers = self.finishers;
        let waits = self.compete().await?;
        if held && self.finishers > finishers {
            return Err("G10: a duplicate ran a request whose lease was alive".to_owned());
        }
        self.probe().await.map(|()| waits)
    }

    /// Another request under the key is refused, whatever the row says (G9).
    pub(super) async fn probe(&self) -> Result<(), Wrong> {
        let Some(other) = self.other else { return Ok(()) };
        if self.status().await?.is_none() {
            return Ok(());
        }
        match self.asked(other).await? {
            Ok(Outcome::Mismatch) => Ok(()),
            other => Err(format!("G9: another request under the key was not refused: {other:?}")),
        }
    }

    /// The stored answer: a replay, equal to each answer before.
    pub(super) async fn replay(&self) -> Result<Reply, Wrong> {
        let replay = match self.asked(self.request).await? {
            Ok(Outcome::Finished(finished)) if finished.replayed => finished.reply,
            other => return Err(format!("G8: a finished request was not replayed: {other:?}")),
        };
        match self.told.iter().find(|told| **told != replay) {
            None => Ok(replay),
            Some(told) => Err(format!(
                "G8: a client received {}, and the stored reply is {}",
                shown(told),
                shown(&replay)
            )),
        }
    }

    /// A call to which nothing happens.
    async fn asked(&self, request: &R) -> Result<Result<Outcome, CallError>, Wrong> {
        let (plan, _signals) = Plan::new(self.orders(Who::Another));
        Ok(plan.around(self.call(request)?.__call_in_place()).await)
    }

    fn call(&self, request: &R) -> Result<Call<S, A, R>, Wrong> {
        let call = self.engine.call(&self.scope, &self.key, copy(request)?);
        Ok(if self.expects_new { call.expect_new() } else { call })
    }

    pub(super) async fn hold(&self, checks: &[Check<W>]) -> Result<(), Wrong> {
        for (name, check) in checks {
            if let Err(panic) = AssertUnwindSafe(check(&self.world)).catch_unwind().await {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
                return Err(format!("{name}: {text}"));
            }
        }
        Ok(())
    }

    pub(super) async fn row(&self) -> Result<Option<KeyRow>, Wrong> {
        let row = self.engine.store().read_key(&self.scope, &self.key);
        match tokio::time::timeout(Duration::from_secs(60), row).await {
            Ok(row) => row.map_err(|error| Causes(&error).to_string()),
            Err(_) => Err("the database has not answered for a minute".to_owned()),
        }
    }

    pub(super) async fn status(&self) -> Result<Option<Status>, Wrong> {
        Ok(self.row().await?.map(|row| row.status))
    }

    async fn token(&self) -> Result<Option<i64>, Wrong> {
        Ok(self.row().await?.map(|row| row.lease_token))
    }

    /// Whether the row is the first worker's, so that what derives from its id can be compared.
    pub(super) async fn is_begun_by_the_first(&self) -> Result<bool, Wrong> {
        Ok(self.row().await?.is_some_and(|row| row.request_id == REQUEST_ID))
    }

    pub(super) async fn is_settled(&mut self) -> Result<bool, Wrong> {
        let status = self.status().await?;
        self.was_unknown |= status == Some(Status::Unknown);
        // It was reported before it was durable: then it never ends.
        if status != Some(Status::Completed) && !self.told.is_empty() {
            return Err(format!("G8: a client received a reply, and the row is {status:?}"));
        }
        match status {
            Some(Status::Completed) => Ok(true),
            // Of a phase without a reconcile function: the same.
            Some(Status::Unknown) => Ok(self.row().await?.is_some_and(|row| !row.for_workers)),
            // The cap was reached before the outcome was found: an operator settles it. That is a correct end.
            Some(Status::DeadLetter) if self.was_unknown => Ok(true),
            Some(Status::DeadLetter) => {
                Err(format!("the request became a dead letter; {}", self.last()))
            }
            _ => Ok(false),
        }
    }

    /// The database's clock goes past each lease and each back-off.
    pub(super) async fn pass_time(&self) -> Result<(), Wrong> {
        let passed = self.engine.store().pass_time(&self.scope, &self.key).await;
        passed.map_err(|error| Causes(&error).to_string())
    }
}

/// Commits could not be lost, so nothing is known of what that would lead to. In the database's own words.
fn not_lost(error: StoreError) -> Wrong {
    let said = match &error {
        StoreError::Database { error, .. } => error.0.to_string(),
        other => Causes(other).to_string(),
    };
    format!(
        "no commit could be lost, because the tables could not be copied and brought back: {said} \
         (what that needs on each store: Explorer::and_lost_rows)"
    )
}

/// The next point at which it stands still; or how it ended.
async fn stood(begun: &mut Begun) -> Result<(Point, oneshot::Sender<()>), Ended> {
    loop {
        tokio::select! {
            biased;
            Some(signal) = begun.signals.recv() => {
                // Nothing else is ordered.
                if let Signal::Stands(point, _, go_on) = signal {
                    return Ok((point, go_on));
                }
            }
            ended = &mut begun.task => return Err(ended.unwrap_or(Ended::Crashed)),
        }
    }
}

/// The state of a request, as the end of a sentence about it.
pub(super) fn told(status: Option<Status>) -> String {
    match status {
        Some(status) => format!("is {status:?}"),
        None => "has no row: nothing of it was committed".to_owned(),
    }
}

/// A request once more, by way of its stored form, as the engine runs it.
fn copy<R: Serialize + DeserializeOwned>(request: &R) -> Result<R, Wrong> {
    let copied = serde_json::to_vec(request).and_then(|bytes| serde_json::from_slice(&bytes));
    copied.map_err(|error| format!("the request does not come back from its stored form: {error}"))
}

/// A reply as a reader wants it.
pub(super) fn shown(reply: &Reply) -> String {
    format!("{} `{}`", reply.status(), String::from_utf8_lossy(reply.bytes()))
}

/// Points as a reader wants them.
pub(super) fn listed(points: &[Point]) -> String {
    match points {
        [] => "no point".to_owned(),
        points => points.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
