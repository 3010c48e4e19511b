//! [`ForeignCall`]: the single-use right to make one foreign side effect.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::key::IdempotencyKey;

/// The idempotency key for the foreign system: 32 characters of `[A-Za-z0-9_-]`.
///
/// Derived, never random and never per attempt: a retry, a takeover and a database restored from
/// yesterday all send the same key, so that the provider recognises the repetition (G1).
#[derive(Clone, PartialEq, Eq)]
pub struct DerivedKey(pub(crate) String);

impl DerivedKey {
    /// The key's text, for the provider's idempotency header.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for DerivedKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivedKey(…)")
    }
}

/// An application that calls a foreign system is that system's client: there the derived key is an
/// idempotency key like any other ([`client::KeyedCall`](crate::client::KeyedCall)).
impl From<DerivedKey> for IdempotencyKey {
    fn from(key: DerivedKey) -> Self {
        Self::made_here(key.0)
    }
}

/// The right of a foreign phase to make its one side effect. Neither `Clone` nor reusable:
/// [`make`](Self::make) consumes it, so a second effect in one phase does not compile.
///
/// ```compile_fail
/// # async fn f(call: atomic_phases::ForeignCall) {
/// let first = call.make(async |_key| Ok::<_, ()>(1)).await;
/// let second = call.make(async |_key| Ok::<_, ()>(2)).await; // use of moved value
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a foreign phase that does not make its call has no effect"]
pub struct ForeignCall {
    key: DerivedKey,
    made: CallMade,
}

/// Whether the call was begun: what the engine needs to know when the phase fails or is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallMade(Arc<AtomicBool>);

impl CallMade {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl ForeignCall {
    pub(crate) fn new(key: DerivedKey) -> (Self, CallMade) {
        let made = CallMade::default();
        (Self { key, made: made.clone() }, made)
    }

    /// Makes the call: hands the derived key to `effect` and returns what it returns.
    ///
    /// While it runs, the engine holds no connection, no transaction and no row lock (G20).
    ///
    /// # Errors
    /// Those of `effect`. With `?`, its error has to convert into the phase's error type: that
    /// conversion is where your code says, exhaustively, which failures are rejections, which may
    /// be retried and which leave the outcome unknown.
    pub async fn make<T, E, F>(self, effect: impl FnOnce(DerivedKey) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.made.0.store(true, Ordering::Release);
        effect(self.key).await
    }
}
