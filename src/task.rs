//! [`spawn`]: how the engine and its workers start every task of theirs; and `boxed!`, for futures that are large.
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
