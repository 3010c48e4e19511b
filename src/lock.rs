//! [`lock`]: the lock of a value that another thread may have left behind a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ignores poisoning: no holder of such a lock panics with the value half changed, and one request's panic must not
/// fail the others.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
