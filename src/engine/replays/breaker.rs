//! [`Breaker`]: leaves a cache alone that does not answer.

use std::sync::Mutex;
use std::time::Duration;

use crate::lock::lock;
use crate::moment::Moment;
use crate::observe;

/// So many failures one after another may be chance.
const MAX_FAILURES: u32 = 3;

/// How long the cache is left alone. Then one call in so much time asks it, until it answers.
const REST: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Breaker(Mutex<State>);

#[derive(Default)]
struct State {
    failures: u32,
    /// When the next may ask, while the cache is left alone.
    next: Option<Moment>,
}

impl Breaker {
    /// Whether the cache may be asked. While it is left alone, one caller for each pause may,
    /// whatever becomes of them.
    pub(super) fn admits(&self) -> bool {
        let mut state = lock(&self.0);
        let Some(next) = state.next else { return true };
        let now = Moment::now();
        if now < next {
            return false;
        }
        state.next = Some(now.after(REST));
        true
    }

    pub(super) fn answered(&self) {
        let mut state = lock(&self.0);
        state.failures = 0;
        if state.next.take().is_some() {
            drop(state);
            observe::replay_cache_is_back();
        }
    }

    pub(super) fn failed(&self) {
        let mut state = lock(&self.0);
        state.failures = state.failures.saturating_add(1);
        if state.failures < MAX_FAILURES {
            return;
        }
        // What fails while it is left alone puts nothing off: tombstones are sent all the time, and a cache that refuses
        // them may answer.
        if state.next.is_none() {
            state.next = Some(Moment::now().after(REST));
            drop(state);
            observe::replay_cache_left_alone(REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest_is_over(breaker: &Breaker) {
        lock(&breaker.0).next = Some(Moment::now());
    }

    #[test]
    fn it_opens_after_three_failures_in_a_row_and_closes_with_an_answer() {
        let breaker = Breaker::default();
        for _ in 0..2 {
            breaker.failed();
            breaker.failed();
            assert!(breaker.admits(), "two may be chance");
            breaker.answered();
        }
        (0..3).for_each(|_| breaker.failed());
        assert!(!breaker.admits());
        rest_is_over(&breaker);
        assert!(breaker.admits(), "one asks");
        assert!(!breaker.admits(), "and no other");
        breaker.failed();
        assert!(!breaker.admits());
        rest_is_over(&breaker);
        assert!(breaker.admits());
        breaker.answered();
        assert!(breaker.admits() && breaker.admits());
    }

    #[test]
    fn g13_what_fails_in_the_meantime_does_not_put_the_next_probe_off() {
        let breaker = Breaker::default();
        (0..3).for_each(|_| breaker.failed());
        rest_is_over(&breaker);
        breaker.failed();
        assert!(breaker.admits(), "a tombstone that fails each second");
    }

    #[test]
    fn g13_a_dropped_probe_does_not_keep_others_from_probing() {
        let breaker = Breaker::default();
        (0..3).for_each(|_| breaker.failed());
        for _ in 0..3 {
            rest_is_over(&breaker);
            assert!(breaker.admits());
        }
    }
}
