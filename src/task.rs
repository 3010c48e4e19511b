//! [`spawn`]: how the engine and its workers start every task of theirs; [`UnlessEnded`], for one that is lost; and
//! `boxed!`, for futures that are large.
//!
//! In a simulation a task belongs to the node that spawns it: it stands still, and dies, with it.

/// A future in a box, made there. `Box::pin` takes it as a value: it is made on the stack and copied, with all the
/// room that it has for what it awaits later. Of a whole request that is 15 kB.
macro_rules! boxed {
    ($future:expr) => {{
        let boxed = Box::write(Box::new_uninit(), $future);
        Box::into_pin(boxed)
    }};
}

use std::future::Future;

use tokio::task::JoinHandle;

use crate::movable_task::MovableTask;

pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    simulated! {
        if let Some(node) = crate::simulation::Node::current() {
            return node.spawn(future);
        }
    }
    tokio::spawn(future)
}

/// Spawns a task that can be moved to another thread, and returns its output. `None`: it panicked, or its runtime is gone.
pub(crate) fn spawn_movable<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = Option<T>> {
    let task = spawn(MovableTask::new(future));
    async move { task.await.ok().and_then(Result::ok) }
}

/// Held by a task: calls the function if it is dropped before [`ended`](Self::ended), because the task panicked or its
/// runtime is gone.
pub(crate) struct UnlessEnded<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> UnlessEnded<F> {
    pub(crate) fn new(lost: F) -> Self {
        Self(Some(lost))
    }

    pub(crate) fn ended(mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for UnlessEnded<F> {
    fn drop(&mut self) {
        if let Some(lost) = self.0.take() {
            lost();
        }
    }
}
