//! [`Claims`]: the right to deliver, acquired for all jobs that begin at one moment by one statement.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// How many go together now. Jobs whose arguments do not arrive in time as one answer come again together: half as many then,
/// and twice as many behind each answer.
#[derive(Debug)]
struct GroupSize(AtomicUsize);

impl Default for GroupSize {
    fn default() -> Self {
        Self(AtomicUsize::new(MAX_TOGETHER))
    }
}

impl GroupSize {
    fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// So many went together, and there was no answer.
    fn unanswered(&self, claims: usize) {
        self.0.fetch_min((claims / 2).max(1), Ordering::Relaxed);
    }

    /// So many went together, and there was one.
    fn answered(&self, claims: usize) {
        let next = claims.saturating_mul(2).min(MAX_TOGETHER);
        self.0.fetch_max(next, Ordering::Relaxed);
    }
}

/// Claims that are to go together.
#[derive(Default)]
pub(super) struct Claims {
    next: Vec<Asked>,
    size: Arc<GroupSize>,
}

impl Claims {
    /// Adds a claim to those that go next.
    pub(super) fn add(&mut self, at: JobAt) -> oneshot::Receiver<Claimed> {
        let (tell, claimed) = oneshot::channel();
        self.next.push((at, tell));
        claimed
    }

    /// Sends what was added, on tasks of its own.
    pub(super) fn send<S: Store>(&mut self, settlements: &Settlements<S>, lease: Duration) {
        while !self.next.is_empty() {
            let rest = self.next.split_off(self.next.len().min(self.size.now()));
            let asked = std::mem::replace(&mut self.next, rest);
            let (settlements, size) = (settlements.clone(), self.size.clone());
            crate::task::spawn(async move { claim(&settlements, lease, asked, &size).await });
        }
    }
}

async fn claim<S: Store>(
    settlements: &Settlements<S>,
    lease: Duration,
    asked: Vec<Asked>,
    size: &GroupSize,
) {
    let together = asked.len();
    if together == 1 {
        return claim_each(settlements, lease, asked, size).await;
    }
    let (at, tell): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let sent = Moment::now();
    let answers: Vec<_> = match settlements.store().claim_jobs(&at, lease).await {
        Ok(rows) => {
            size.answered(together);
            rows.into_iter()
                .map(|row| row.map_err(|error| NotClaimed(error.kind())))
                .map(|row| row.map(|row| row.map(|row| won(settlements, row))))
                .collect()
        }
        Err(error) if error.may_be_of_one() => {
            return claim_each(settlements, lease, at.into_iter().zip(tell).collect(), size).await;
        }
        Err(error) => {
            if error.is_unanswered() {
                size.unanswered(together);
            }
            at.iter().map(|_| Err(NotClaimed(error.kind()))).collect()
        }
    };
    let sent = if mutated!(ClaimWhenRead) { Moment::now() } else { sent };
    for (tell, row) in tell.into_iter().zip(answers) {
        // The delivery may be gone; the claim then runs out.
        let _ = tell.send(Claimed { sent, row });
    }
}

async fn claim_each<S: Store>(
    settlements: &Settlements<S>,
    lease: Duration,
    asked: Vec<Asked>,
    size: &GroupSize,
) {
    for (at, tell) in asked {
        let sent = Moment::now();
        let row = settlements.store().claim_job(&at, lease).await;
        if row.is_ok() {
            size.answered(1);
        }
        let row = row.map_err(|error| NotClaimed(error.kind()));
        let row = row.map(|row| row.map(|row| won(settlements, row)));
        let sent = if mutated!(ClaimWhenRead) { Moment::now() } else { sent };
        let _ = tell.send(Claimed { sent, row });
    }
}

fn won<S: Store>(settlements: &Settlements<S>, row: JobRow) -> Won {
    Won { row, counted: settlements.under_way() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a server far away, whose answer with so many arguments takes longer than it is waited for.
    #[test]
    fn g17_claims_whose_answer_takes_too_long_go_in_smaller_groups_until_there_is_one() {
        let size = GroupSize::default();
        let mut sent = Vec::new();
        for _ in 0..7 {
            let together = size.now().min(100);
            sent.push(together);
            match together > 20 {
                true => size.unanswered(together),
                false => size.answered(together),
            }
        }
        assert_eq!(sent, [100, 50, 25, 12, 24, 12, 24]);
        size.unanswered(1);
        assert_eq!(size.now(), 1);
        for _ in 0..10 {
            size.answered(size.now());
        }
        assert_eq!(size.now(), MAX_TOGETHER);
    }
}
