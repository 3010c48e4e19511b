//! [`catch`] and [`catch_async`]: where a panic of the application's code ends.
//!
//! What it panicked with went to the panic hook, and is dropped here unseen: it may hold anything (G19). Dropping it is the
//! application's code, too, which may panic once more (G17).

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;

/// What the code returns; `None` if it panicked.
pub(crate) fn catch<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(discard).ok()
}

/// The same of a future.
pub(crate) fn catch_async<F: Future>(future: F) -> impl Future<Output = Option<F::Output>> {
    AssertUnwindSafe(future).catch_unwind().map(|ended| ended.map_err(discard).ok())
}

/// Only what the drop itself panics with is forgotten: there has to be an end.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
}
