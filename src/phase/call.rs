//! [`ForeignCall`]: the single-use right to make one foreign side effect.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::Poll;

use tokio::sync::Notify;

use crate::derived_key::DerivedKey;
use crate::latch::Latch;

/// The right of a foreign phase to make its one side effect. Neither `Clone` nor reusable:
/// [`make`](Self::make) consumes it, so a second effect in one phase does not compile.
///
/// ```compile_fail
/// # async fn f(call: atomic_phases::ForeignCall) {
/// let first = call.make(async |_key| Ok::<_, ()>(1)).await;
/// let second = call.make(async |_key| Ok::<_, ()>(2)).await; // use of moved value
/// # }
/// ```
///
/// A phase that has nothing to do calls [`skip`](Self::skip). A debug build logs a warning if a phase returns an
/// output after neither, or if its call did not read the derived key although its provider is `idempotent`: most
/// often that is a mistake.
///
/// It belongs to its phase. If it is moved into a task that outlives the phase, it counts as a call under way (at an
/// `at_most_once` provider the outcome is then unknown), and ends with the phase: what it awaits is dropped, it can
/// no longer begin, and its `make` never returns.
#[must_use = "a foreign phase that does not make its call has no effect"]
pub struct ForeignCall {
    key: DerivedKey,
    permit: Arc<Permit>,
    state: Arc<State>,
}

/// Whether the holder may begin a call, or continue with it, at this moment.
type Permit = dyn Fn() -> bool + Send + Sync;

#[derive(Default)]
struct State {
    stage: AtomicU8,
    refused: Notify,
    /// The call was begun, and may not continue until the engine has looked at the lease.
    held_back: Notify,
    /// The engine has looked at it.
    lease_checked: Notify,
    /// The phase has ended.
    over: Latch,
}

/// The stages of a call. It leaves `UNMADE` once.
const UNMADE: u8 = 0;
const BEGUN: u8 = 1;
/// The holder may not begin it; the engine looks into why.
const REFUSED: u8 = 2;
/// Its phase ended first.
const ENDED: u8 = 3;
/// Its phase does without it.
const SKIPPED: u8 = 4;

impl State {
    /// Whether the call was unmade, and now is at `stage`.
    fn enter(&self, stage: u8) -> bool {
        self.stage.compare_exchange(UNMADE, stage, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Polls the effect only while it is permitted. The engine polls no body under a lease that is over, but a call that
    /// a task makes may be woken before the engine is: by its socket, after the machine was suspended.
    async fn while_permitted<F: Future>(
        &self,
        permit: &Permit,
        mut effect: Pin<&mut F>,
    ) -> F::Output {
        loop {
            let polled = poll_fn(|context| match permit() {
                true => effect.as_mut().poll(context).map(Some),
                false => Poll::Ready(None),
            });
            if let Some(answer) = polled.await {
                return answer;
            }
            self.held_back.notify_one();
            self.lease_checked.notified().await;
        }
    }
}

/// What the engine knows of a call that it handed out.
pub(crate) struct CallState {
    state: Arc<State>,
    key_is_read: Arc<AtomicBool>,
}

impl CallState {
    /// Until the call is refused, which it may never be.
    pub(crate) async fn refused(&self) {
        self.state.refused.notified().await;
    }

    /// Until the call, which is under way, may not continue under the lease as it is known: which may never be.
    pub(crate) async fn held_back(&self) {
        self.state.held_back.notified().await;
    }

    /// The engine has looked at the lease: a call that was held back asks again whether it may continue.
    pub(crate) fn look_again(&self) {
        self.state.lease_checked.notify_one();
    }

    /// The phase has ended and its body is dropped: from here on the call cannot begin, and one that a task has
    /// begun is dropped at its next await. Returns whether it may be under way: it was begun, or it is still
    /// alive, in a task that the phase left behind.
    pub(crate) fn end(&self) -> bool {
        let is_alive = Arc::strong_count(&self.state) > 1;
        if mutated!(CallAfterPhase) {
            return self.state.stage.load(Ordering::Acquire) == BEGUN;
        }
        self.state.over.set();
        match self.state.enter(ENDED) {
            true => is_alive,
            false => self.state.stage.load(Ordering::Acquire) == BEGUN,
        }
    }

    /// Whether the phase ended before its call was begun.
    pub(crate) fn was_unmade(&self) -> bool {
        self.state.stage.load(Ordering::Acquire) == ENDED
    }

    /// Whether the phase did without its call.
    pub(crate) fn was_skipped(&self) -> bool {
        self.state.stage.load(Ordering::Acquire) == SKIPPED
    }

    /// Whether the call was begun and has not read its derived key.
    pub(crate) fn read_no_key(&self) -> bool {
        self.state.stage.load(Ordering::Acquire) == BEGUN
            && !self.key_is_read.load(Ordering::Relaxed)
    }
}

/// The call ends with its phase also if the request's future is dropped (G13), or a value of the phase panics in its
/// destructor.
impl Drop for CallState {
    fn drop(&mut self) {
        self.end();
    }
}

impl ForeignCall {
    pub(crate) fn new(key: DerivedKey, permit: Arc<Permit>) -> (Self, CallState) {
        let state = Arc::new(State::default());
        // The attempts of a phase have one key, and each call reads it for itself.
        let (key, key_is_read) = key.unread();
        let known = CallState { state: state.clone(), key_is_read };
        (Self { key, permit, state }, known)
    }

    /// Makes the call: hands the derived key to `effect` and returns what it returns.
    ///
    /// While it runs, the engine holds no connection, no transaction and no row lock (G20). If the
    /// process was frozen for longer than its lease, `effect` is not called: the future stays
    /// pending, and the engine renews the lease and runs the phase again, or drops it. If it was
    /// frozen while `effect` ran, also in a task, `effect` is not polled before the lease is renewed, and not any more
    /// past the provider's window.
    /// What `effect` itself spawns is not held back.
    ///
    /// # Errors
    /// Those of `effect`. With `?`, its error must convert into the phase's error type: in that
    /// conversion your code says, exhaustively, which failures are rejections, which may
    /// be retried and which leave the outcome unknown.
    pub async fn make<T, E, F>(self, effect: impl FnOnce(DerivedKey) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let begins = self.begins();
        let Self { key, permit, state } = self;
        if begins {
            let effect = pin!(effect(key));
            tokio::select! {
                biased;
                () = state.over.reached() => {}
                answer = state.while_permitted(&*permit, effect) => return answer,
            }
        }
        drop(permit);
        drop(state);
        // The engine drops the phase that waits here; a task that outlived its phase waits for ever.
        std::future::pending().await
    }

    /// Declares that this phase makes no call, for example because there is nothing to charge. The phase's output
    /// is committed like the result of a call, and later attempts do not run the phase again.
    ///
    /// ```
    /// # use atomic_phases::phase::DerivedKey;
    /// # use atomic_phases::{ForeignCall, PhaseResult};
    /// # #[derive(serde::Serialize)] struct Charge(Option<String>);
    /// # struct Bank; impl Bank { async fn charge(&self, key: DerivedKey, cents: u32) -> PhaseResult<Charge> {
    /// #     Ok(Charge(Some(format!("{key}: {cents}")))) } }
    /// # async fn charged(call: ForeignCall, bank: &Bank, cents: u32) -> PhaseResult<Charge> {
    /// if cents == 0 {
    ///     call.skip();
    ///     return Ok(Charge(None));
    /// }
    /// call.make(|key| bank.charge(key, cents)).await
    /// # }
    /// ```
    pub fn skip(self) {
        self.state.enter(SKIPPED);
    }

    fn begins(&self) -> bool {
        if (self.permit)() {
            return self.state.enter(BEGUN);
        }
        if self.state.enter(REFUSED) {
            self.state.refused.notify_one();
        }
        false
    }
}

impl fmt::Debug for ForeignCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignCall").finish_non_exhaustive()
    }
}
