//! A second worker, or a duplicate, beside an attempt that stands still at a point.

use std::time::Duration;

use tokio::sync::oneshot;

use super::case::Driver;
use super::case_runner::{Begun, CaseRunner, MAX_ATTEMPTS, MAX_SILENCE, Who, describe};
use super::plan::{Orders, Plan, Signal};
use super::points::{Point, listed};
use super::verdict::{Ended, TAKEN, Wrong};
use crate::request::RequestDefinition;
use crate::store::{KeyRow, Status, Store};

/// How long a second worker may take beside one that stands still, until it counts as waiting for it.
/// If it is too short, both run for a while, which does no harm.
const PATIENCE: Duration = Duration::from_secs(1);

/// A second worker beside one that stands still.
pub(super) struct Rival {
    begun: Begun,
    holds: Option<Holds>,
}

/// It stands still and holds the key, under this token; answered, it continues.
struct Holds {
    token: i64,
    go_on: oneshot::Sender<()>,
}

impl<S, A, R, W> CaseRunner<'_, S, A, R, W>
where
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A>,
{
    /// Runs another beside one that stands still. Returns it if it waits, for a row that the first has
    /// locked in its open transaction: then the first has to continue.
    async fn compete(&mut self) -> Result<Option<Rival>, Wrong> {
        let mut rival = self.begin(self.orders(Who::Another), Driver::Retry).await?;
        match tokio::time::timeout(PATIENCE, &mut rival.task).await {
            Ok(ended) => self.observed.note(ended.unwrap_or(Ended::Crashed)).map(|()| None),
            Err(_) => Ok(Some(Rival { begun: rival, holds: None })),
        }
    }

    /// Runs a rival that had to wait, or that stood still, to its end. One that stood still must still hold the key.
    pub(super) async fn wait_for(&mut self, rival: Rival) -> Result<(), Wrong> {
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
        match tokio::time::timeout(MAX_SILENCE, &mut rival.task).await {
            Ok(ended) => self.observed.note(ended.unwrap_or(Ended::Crashed)),
            Err(_) => {
                let passed = listed(&rival.plan.passed());
                rival.drop_it().await;
                Err(format!(
                    "a second worker hangs, though the first has ended; it passed {passed}"
                ))
            }
        }
    }

    /// Another worker takes over and runs to the end, while the first believes that it holds the key.
    pub(super) async fn takeover(&mut self, first: &Plan) -> Result<Option<Rival>, Wrong> {
        self.pass_time().await?;
        let held = self.token().await?;
        for _ in 0..MAX_ATTEMPTS {
            let waits = self.compete().await?;
            self.expected.check_attempt(&self.world).await?;
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
                describe(status),
                self.observed.last()
            )),
        }
    }

    /// Another worker takes over and stands still as soon as it holds the key, while the first has yet
    /// to ask for the outcome of its commit. `None` where that commit has settled the request.
    pub(super) async fn overtake(&mut self, first: &Plan) -> Result<Option<Rival>, Wrong> {
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
            self.observed.note(ended)?;
            self.expected.check_attempt(&self.world).await?;
            if self.is_settled().await? {
                return Ok(None);
            }
        }
        let status = self.status().await?;
        let (is, last) = (describe(status), self.observed.last());
        Err(format!("a second worker could not take over: the request {is}; {last}"))
    }

    /// A duplicate, and another request under the key, while the first stands still.
    pub(super) async fn duplicate(&mut self) -> Result<Option<Rival>, Wrong> {
        let held = matches!(self.status().await?, Some(Status::InProgress));
        let finishers = self.observed.finishers;
        let waits = self.compete().await?;
        if held && self.observed.finishers > finishers {
            return Err("G10: a duplicate ran a request whose lease was alive".to_owned());
        }
        self.probe().await.map(|()| waits)
    }
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
