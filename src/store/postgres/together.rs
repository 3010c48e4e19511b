//! [`Together`]: sends what many callers ask for at one moment as one statement.
//!
//! What comes while a statement is under way goes together with the next: nothing waits for company, and the
//! busier the process, the fewer statements and commits each caller takes. Where the answer to one takes long, the next does
//! not wait for it.
//!
//! Those of one runtime go together, by a task of that runtime: one that is blocked keeps those of no other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::lock::lock;
use crate::task::{self, UnlessEnded};

/// How many go together at most: about as many as a worker has under way.
const MAX_TOGETHER: usize = 128;

/// For how long a statement keeps the next one from going. Its answer may be large, the line slow, or the connection dead, and
/// none of that is of those that wait (G16): theirs goes on another connection.
const KEEPS_NEXT: Duration = Duration::from_secs(1);

pub(super) struct Together<Q, A>(Arc<Mutex<HashMap<runtime::Id, Waiting<Q, A>>>>);

/// Those that wait on a runtime on which a statement is under way.
type Waiting<Q, A> = Vec<(Q, oneshot::Sender<A>)>;

impl<Q, A> Clone for Together<Q, A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Q, A> std::fmt::Debug for Together<Q, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Together").finish_non_exhaustive()
    }
}

impl<Q: Send + 'static, A: Send + 'static> Together<Q, A> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// The answer, if the statement that this one went with has one for it; else it is to be asked alone.
    /// `send` asks for all that wait, and says what it was told of each.
    pub(super) async fn ask<F>(
        &self,
        asked: Q,
        send: impl Fn(Vec<Q>) -> F + Send + 'static,
    ) -> Option<A>
    where
        F: Future<Output = Vec<Option<A>>> + Send + 'static,
    {
        let (tell, told) = oneshot::channel();
        let here = runtime::Handle::current().id();
        let is_first = match lock(&self.0).entry(here) {
            Entry::Occupied(waiting) => {
                waiting.into_mut().push((asked, tell));
                false
            }
            Entry::Vacant(none) => {
                none.insert(vec![(asked, tell)]);
                true
            }
        };
        if is_first {
            let (sender, lost) = (self.clone(), self.clone());
            // If the task does not end, the waiting callers ask alone. Made before it: a runtime that is gone drops
            // the task without polling it.
            let lost = UnlessEnded::new(move || drop(lock(&lost.0).remove(&here)));
            // On a task of its own: the first of them may be dropped, and the others are not.
            task::spawn(async move {
                sender.send_all(here, send).await;
                lost.ended();
            });
        }
        told.await.ok()
    }

    /// Sends for as long as any wait.
    async fn send_all<F>(self, here: runtime::Id, send: impl Fn(Vec<Q>) -> F)
    where
        F: Future<Output = Vec<Option<A>>> + Send + 'static,
    {
        while let Some(next) = self.next(here) {
            let (asked, tell): (Vec<_>, Vec<_>) = next.into_iter().unzip();
            let answer = send(asked);
            let mut telling = boxed!(async move {
                for (tell, told) in tell.into_iter().zip(answer.await) {
                    if let Some(told) = told {
                        let _ = tell.send(told);
                    }
                }
            });
            if timeout(KEEPS_NEXT, &mut telling).await.is_err() {
                task::spawn(telling);
            }
        }
    }

    /// Those that go next. `None` where none waits: the next to come begins another task.
    fn next(&self, here: runtime::Id) -> Option<Waiting<Q, A>> {
        let mut all = lock(&self.0);
        let waiting = all.get_mut(&here)?;
        // They gave up.
        waiting.retain(|(_, tell)| !tell.is_closed());
        let most = waiting.len().min(MAX_TOGETHER);
        if most == 0 {
            all.remove(&here);
            return None;
        }
        Some(waiting.drain(..most).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::{join, join_all};
    use tokio::time::{Instant, sleep};

    type Sent = Arc<Mutex<Vec<Vec<u32>>>>;

    type Answers = std::pin::Pin<Box<dyn Future<Output = Vec<Option<u32>>> + Send>>;

    fn twice(sent: &Sent) -> impl Fn(Vec<u32>) -> Answers + Send + use<> {
        let sent = sent.clone();
        move |asked| {
            sent.lock().unwrap().push(asked.clone());
            Box::pin(async move {
                tokio::task::yield_now().await;
                assert!(!asked.contains(&13), "asked for");
                if asked.contains(&60) {
                    sleep(Duration::from_secs(60)).await;
                }
                asked.into_iter().map(|number| (number != 7).then_some(2 * number)).collect()
            })
        }
    }

    #[tokio::test]
    async fn what_comes_while_a_statement_is_under_way_goes_together_with_the_next() {
        let (together, sent) = (Together::new(), Sent::default());
        let first = together.ask(1, twice(&sent));
        let others = async {
            while sent.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            join_all([2, 7, 3].map(|number| together.ask(number, twice(&sent)))).await
        };
        let (first, others) = join(first, others).await;
        assert_eq!((first, others), (Some(2), vec![Some(4), None, Some(6)]));
        assert_eq!(*sent.lock().unwrap(), [vec![1], vec![2, 7, 3]]);
    }

    #[tokio::test]
    async fn where_the_statement_comes_to_no_end_each_asks_alone() {
        let (together, sent) = (Together::new(), Sent::default());
        let both = join(together.ask(13, twice(&sent)), together.ask(2, twice(&sent))).await;
        assert_eq!(both, (None, None));
        assert_eq!(together.ask(3, twice(&sent)).await, Some(6));
    }

    #[tokio::test(start_paused = true)]
    async fn g16_g17_a_statement_whose_answer_takes_long_keeps_no_other_waiting() {
        let (together, sent) = (Together::new(), Sent::default());
        let began = Instant::now();
        let slow = together.ask(60, twice(&sent));
        let other = async {
            while sent.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            (together.ask(2, twice(&sent)).await, began.elapsed().as_secs())
        };
        assert_eq!(join(slow, other).await, (Some(120), (Some(4), 1)));
        assert_eq!(*sent.lock().unwrap(), [vec![60], vec![2]]);
    }

    #[tokio::test]
    async fn g16_g17_a_runtime_that_is_blocked_keeps_those_of_no_other() {
        let (together, sent) = (Together::new(), Sent::default());
        let blocked = runtime::Builder::new_current_thread().build().unwrap();
        let mut there = Box::pin(together.ask(1, twice(&sent)));
        {
            let _there = blocked.enter();
            assert_eq!(there.as_mut().now_or_never(), None);
        }
        assert_eq!(together.ask(2, twice(&sent)).await, Some(4));
        assert_eq!(*sent.lock().unwrap(), [vec![2]]);
        blocked.shutdown_background();
        assert_eq!(there.await, None, "its task is gone: it asks alone");
        assert!(lock(&together.0).is_empty());
    }
}
