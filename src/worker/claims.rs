//! [`Claims`]: the right to deliver, acquired for all jobs that begin at one moment by one statement.

use std::time::Duration;

use tokio::sync::oneshot;

use super::settlements::{Settlements, UnderWay};
use crate::moment::Moment;
use crate::store::{JobAt, JobRow, Store};

/// How many go together at most: the locks of one statement, and the arguments that arrive together.
const MAX_TOGETHER: usize = 500;

/// The outcome of a claim.
pub(super) struct Claimed {
    /// A moment before it was sent: from then on it counts.
    pub(super) sent: Moment,
    /// The job, if it was won.
    pub(super) row: Result<Option<Won>, NotClaimed>,
}

pub(super) struct Won {
    pub(super) row: JobRow,
    /// From here on: those that were won together are to be deleted together.
    pub(super) counted: UnderWay,
}

/// The store could not say whether the job is ours: what kind of error it was.
pub(super) struct NotClaimed(pub(super) &'static str);

type Asked = (JobAt, oneshot::Sender<Claimed>);

/// Claims that are to go together.
#[derive(Default)]
pub(super) struct Claims(Vec<Asked>);

impl Claims {
    /// Adds a claim to those that go next.
    pub(super) fn add(&mut self, at: JobAt) -> oneshot::Receiver<Claimed> {
        let (tell, claimed) = oneshot::channel();
        self.0.push((at, tell));
        claimed
    }

    /// Sends what was added, on tasks of its own.
    pub(super) fn send<S: Store>(&mut self, settlements: &Settlements<S>, lease: Duration) {
        while !self.0.is_empty() {
            let rest = self.0.split_off(self.0.len().min(MAX_TOGETHER));
            let (asked, settlements) = (std::mem::replace(&mut self.0, rest), settlements.clone());
            crate::task::spawn(async move { claim(&settlements, lease, asked).await });
        }
    }
}

async fn claim<S: Store>(settlements: &Settlements<S>, lease: Duration, asked: Vec<Asked>) {
    if asked.len() == 1 {
        return claim_each(settlements, lease, asked).await;
    }
    let (at, tell): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let sent = Moment::now();
    let answers: Vec<_> = match settlements.store().claim_jobs(&at, lease).await {
        Ok(rows) => rows
            .into_iter()
            .map(|row| row.map_err(|error| NotClaimed(error.kind())))
            .map(|row| row.map(|row| row.map(|row| won(settlements, row))))
            .collect(),
        Err(error) if error.may_be_of_one() => {
            return claim_each(settlements, lease, at.into_iter().zip(tell).collect()).await;
        }
        Err(error) => at.iter().map(|_| Err(NotClaimed(error.kind()))).collect(),
    };
    let sent = if mutated!(ClaimWhenRead) { Moment::now() } else { sent };
    for (tell, row) in tell.into_iter().zip(answers) {
        // The delivery may be gone; the claim then runs out.
        let _ = tell.send(Claimed { sent, row });
    }
}

async fn claim_each<S: Store>(settlements: &Settlements<S>, lease: Duration, asked: Vec<Asked>) {
    for (at, tell) in asked {
        let sent = Moment::now();
        let row = settlements.store().claim_job(&at, lease).await;
        let row = row.map_err(|error| NotClaimed(error.kind()));
        let row = row.map(|row| row.map(|row| won(settlements, row)));
        let sent = if mutated!(ClaimWhenRead) { Moment::now() } else { sent };
        let _ = tell.send(Claimed { sent, row });
    }
}

fn won<S: Store>(settlements: &Settlements<S>, row: JobRow) -> Won {
    Won { row, counted: settlements.under_way() }
}
