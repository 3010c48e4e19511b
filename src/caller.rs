//! [`Caller`]: whether the caller still waits for the answer of a call.
//!
//! What a call has begun continues without its caller (G13). What it only waits for is for its caller alone,
//! and ends with them.

use std::future::pending;
use std::sync::Arc;

use crate::latch::Latch;

/// Kept by the future that the caller awaits, and dropped with it.
pub(crate) struct Present {
    gone: Arc<Latch>,
}

impl Drop for Present {
    fn drop(&mut self) {
        self.gone.set();
    }
}

/// Who waits for the answer of a call.
#[derive(Clone)]
pub(crate) struct Caller(Option<Arc<Latch>>);

impl Caller {
    /// One that awaits the answer in another task than that which works for it.
    pub(crate) fn elsewhere() -> (Present, Self) {
        let gone = Arc::<Latch>::default();
        (Present { gone: gone.clone() }, Self(Some(gone)))
    }

    /// One in whose own task the work is done: nothing outlives it.
    pub(crate) const fn here() -> Self {
        Self(None)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|gone| gone.is_set())
    }

    /// When the caller has given up.
    pub(crate) async fn gone(&self) {
        match &self.0 {
            Some(gone) => gone.reached().await,
            None => pending().await,
        }
    }

    /// What `waited` comes to; `None` where the caller has given up before.
    pub(crate) async fn unless_gone<T>(&self, waited: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            ended = waited => Some(ended),
            () = self.gone() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_ends_with_its_caller_and_not_before() {
        let (present, caller) = Caller::elsewhere();
        assert_eq!(caller.unless_gone(async { 1 }).await, Some(1));
        assert!(!caller.is_gone());
        let waits = caller.unless_gone(pending::<()>());
        let ((), ended) = tokio::join!(async { drop(present) }, waits);
        assert_eq!((ended, caller.is_gone()), (None, true));
        assert!(!Caller::here().is_gone());
    }
}
