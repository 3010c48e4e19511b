//! [`CaseRunner`]: runs one case, attempt by attempt, from a fresh database to its end.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Mutant;
use super::case::{Case, Driver, Stop};
use super::mode::{Fault, Mode};
use super::plan::{Orders, Plan, Read, Signal};
use super::points::{Point, listed};
use super::verdict::{CaseEnd, Ended, Expectations, Lost, Observed, Wrong, refused};
use crate::engine::{Call, CallError, Engine, Outcome};
use crate::error::Causes;
use crate::key::{IdempotencyKey, Scope};
use crate::observe::Subject;
use crate::phase::Reply;
use crate::request::RequestDefinition;
use crate::store::{KeyRow, Right, Status, Store, StoreError};

/// After how long without an answer a case is given up: by then something hangs.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(60);

/// How often a request may be driven on before it counts as stuck. Each case has two faults at most,
/// and a reconcile function may have to be asked in between.
pub(super) const MAX_ATTEMPTS: usize = 12;

/// The row of every case has one id, so that all that phases derive from it can be compared.
const REQUEST_ID: Uuid = Uuid::from_u128(0x0e18_1de2_0000_4000_8000_0000_0000_0001);

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
    pub(super) expected: &'x Expectations<W>,
    pub(super) observed: Observed,
    /// What a failover has lost.
    pub(super) lost: Option<Lost>,
    /// What each attempt has read.
    pub(super) reads: Vec<Vec<Read>>,
}

/// An attempt on a task of its own.
pub(super) struct Begun {
    pub(super) plan: Arc<Plan>,
    pub(super) signals: UnboundedReceiver<Signal>,
    pub(super) task: JoinHandle<Ended>,
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
    /// Runs the case to its end, with what the user checks after each attempt and there.
    pub(super) async fn run(mut self, case: &Case) -> Result<CaseEnd, Wrong> {
        if self.status().await?.is_some() {
            return Err("the database is not fresh: each case needs an empty one".to_owned());
        }
        let (passed, stops) = match case {
            Case::Crashes { faults, driver } => {
                let settled = false;
                (self.attempts(faults, *driver, settled).await?, Vec::new())
            }
            Case::Turns { turns, second } => {
                let stops = self.take_turns(turns, *second).await?;
                let settled = self.is_settled().await?;
                self.pass_time().await?;
                (self.attempts(&[], Driver::Retry, settled).await?, stops)
            }
        };
        self.end(passed, stops).await
    }

    /// Attempt after attempt, until the request is settled.
    async fn attempts(
        &mut self,
        faults: &[Vec<Fault>],
        driver: Driver,
        mut settled: bool,
    ) -> Result<Vec<Vec<Point>>, Wrong> {
        let mut passed = Vec::new();
        while !settled && passed.len() < MAX_ATTEMPTS {
            // Of the first attempt there is no row yet, of which workers could know.
            let of_it = faults.get(passed.len()).map(Vec::as_slice).unwrap_or_default();
            passed.push(self.attempt(of_it, driver).await?);
            // What the database lacks now, a provider may have.
            if !of_it.iter().any(|fault| fault.mode == Mode::RowLost) {
                self.expected.check_attempt(&self.world).await?;
            }
            settled = self.is_settled().await? && passed.len() >= faults.len();
            if !settled {
                self.pass_time().await?;
            }
        }
        let status = self.status().await?;
        if !settled && status != Some(Status::Unknown) {
            return Err(format!(
                "not settled after {MAX_ATTEMPTS} attempts: it {}; {}",
                describe(status),
                self.observed.last()
            ));
        }
        Ok(passed)
    }

    /// Reads what the case came to: the reply as a replay has it, and the user's effects.
    async fn end(self, passed: Vec<Vec<Point>>, stops: Vec<Stop>) -> Result<CaseEnd, Wrong> {
        let row = self.row().await?;
        let is_of_the_first = row.as_ref().is_some_and(|row| row.request_id == REQUEST_ID);
        let reply = match row.map(|row| row.status) {
            Some(Status::Completed) => Some(self.replay().await?),
            _ => None,
        };
        self.probe().await?;
        self.expected.check_end(&self.world).await?;
        let effects = self.expected.read_effects(&self.world).await;
        let reason = self.row().await?.and_then(|row| row.reason);
        let (lost, reads) = (self.lost, self.reads);
        Ok(CaseEnd { reply, effects, passed, reads, stops, is_of_the_first, lost, reason })
    }

    /// One attempt, with what is to go wrong in it; returns what it passed.
    async fn attempt(&mut self, faults: &[Fault], driver: Driver) -> Result<Vec<Point>, Wrong> {
        let orders = Orders { faults: faults.to_vec(), ..self.orders(Who::First) };
        let begun = self.begin(orders, driver).await?;
        let plan = begun.plan.clone();
        let ended = self.watch(begun).await?;
        self.observed.said = plan.said();
        self.reads.push(plan.reads());
        match plan.unmet() {
            Some(fault) => Err(format!(
                "{fault} did not happen: the attempt passed {}",
                listed(&plan.passed())
            )),
            None => self.observed.note(ended).map(|()| plan.passed()),
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

    /// Begins an attempt, by a call or by a worker. No worker knows of a request that was never reserved, and only a
    /// worker looks into an unknown outcome.
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

    /// Another request under the key is refused, whatever the row says.
    pub(super) async fn probe(&self) -> Result<(), Wrong> {
        let Some(other) = self.other else { return Ok(()) };
        if self.status().await?.is_none() {
            return Ok(());
        }
        refused(self.ask(other).await?)
    }

    /// The stored answer.
    async fn replay(&self) -> Result<Reply, Wrong> {
        self.observed.replay(self.ask(self.request).await?)
    }

    /// A call to which nothing happens.
    async fn ask(&self, request: &R) -> Result<Result<Outcome, CallError>, Wrong> {
        let (plan, _signals) = Plan::new(self.orders(Who::Another));
        Ok(plan.around(self.call(request)?.__call_in_place()).await)
    }

    fn call(&self, request: &R) -> Result<Call<S, A, R>, Wrong> {
        let call = self.engine.call(&self.scope, &self.key, copy(request)?);
        Ok(if self.expects_new { call.expect_new() } else { call })
    }

    pub(super) async fn row(&self) -> Result<Option<KeyRow>, Wrong> {
        let row = self.engine.store().read_key(&self.scope, &self.key);
        match tokio::time::timeout(MAX_SILENCE, row).await {
            Ok(row) => row.map_err(|error| Causes(&error).to_string()),
            Err(_) => Err("the database has not answered for a minute".to_owned()),
        }
    }

    pub(super) async fn status(&self) -> Result<Option<Status>, Wrong> {
        Ok(self.row().await?.map(|row| row.status))
    }

    pub(super) async fn token(&self) -> Result<Option<i64>, Wrong> {
        Ok(self.row().await?.map(|row| row.lease_token))
    }

    pub(super) async fn is_settled(&mut self) -> Result<bool, Wrong> {
        let row = self.row().await?;
        self.observed.is_settled(row.as_ref())
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

/// The state of a request, as the end of a sentence about it.
pub(super) fn describe(status: Option<Status>) -> String {
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
