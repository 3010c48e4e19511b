//! [`lock`]: locks a mutex, also after a holder of it has panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ignores poisoning: no holder of such a lock panics with the value half changed, and one request's panic must not
/// fail the others.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
