//! [`spawn`]: how the engine and its workers start every task of theirs.
//!
//! In a simulation a task belongs to the node that spawns it: it stands still, and dies, with it.

use std::future::Future;

use tokio::task::JoinHandle;

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
