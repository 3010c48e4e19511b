//! [`Claims`]: the right to deliver, acquired for all jobs that begin at one moment by one statement.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::moment::Moment;
use crate::store::{JobAt, JobRow, Store, StoreError};

/// What became of a claim.
pub(super) struct Claimed {
    /// A moment before it was sent: from then on it counts.
    pub(super) sent: Moment,
    /// The job, if it was won.
    pub(super) row: Result<Option<JobRow>, NotClaimed>,
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

    /// Sends what was added, on a task of its own.
    pub(super) fn send<S: Store>(&mut self, store: &S, lease: Duration) {
        let asked = std::mem::take(&mut self.0);
        if !asked.is_empty() {
            let store = store.clone();
            crate::task::spawn(async move { claim(&store, lease, asked).await });
        }
    }
}

async fn claim<S: Store>(store: &S, lease: Duration, asked: Vec<Asked>) {
    let at: Vec<_> = asked.iter().map(|(at, _)| at.clone()).collect();
    let sent = Moment::now();
    let rows = if at.len() == 1 { None } else { Some(store.claim_jobs(&at, lease).await) };
    match rows {
        Some(Ok(rows)) => {
            let mut won: HashMap<_, _> =
                rows.into_iter().map(|row| ((row.at.request_id, row.at.position), row)).collect();
            for (at, tell) in asked {
                let row = won.remove(&(at.request_id, at.position));
                // Whoever asked may be gone; the claim then runs out.
                let _ = tell.send(Claimed { sent, row: Ok(row) });
            }
        }
        Some(Err(error)) if !error.is_from_server() => {
            for (_, tell) in asked {
                let _ = tell.send(Claimed { sent, row: Err(NotClaimed(error.kind())) });
            }
        }
        // One alone, or the database refused the statement, perhaps for one of them.
        None | Some(Err(_)) => {
            for (at, tell) in asked {
                let sent = Moment::now();
                let row = store.claim_job(&at, lease).await;
                let row = row.map_err(|error: StoreError| NotClaimed(error.kind()));
                let _ = tell.send(Claimed { sent, row });
            }
        }
    }
}
