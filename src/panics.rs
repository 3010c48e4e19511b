//! [`catch`] and [`catch_async`]: where a panic of the application's code ends.
//!
//! What it panicked with went to the panic hook, and is forgotten here: it may hold anything (G19), and dropping it is the
//! application's code, too, which may panic once more where nothing catches it (G17).

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;

/// What the code returns; `None` if it panicked.
pub(crate) fn catch<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).map_err(std::mem::forget).ok()
}

/// The same of a future.
pub(crate) fn catch_async<F: Future>(future: F) -> impl Future<Output = Option<F::Output>> {
    AssertUnwindSafe(future).catch_unwind().map(|ended| ended.map_err(std::mem::forget).ok())
}
