//! [`Repeats`]: keeps a log from saying one thing many times.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use crate::lock::lock;
use crate::moment::Moment;

/// How many things are remembered, each until it may be said again.
const REMEMBERED: usize = 4096;

/// Of what is new while so many are remembered, one thing is said in this time: memory and the log stay bounded.
const OF_MORE: Duration = Duration::from_secs(1);

/// What was said lately, as hashes.
pub(crate) struct Repeats {
    hashes: LazyLock<RandomState>,
    said: Mutex<Option<Memory>>,
}

#[derive(Default)]
struct Memory {
    said: HashMap<u64, Said>,
    /// Of those that there was no room for, the last that was said.
    more: Option<Said>,
}

struct Said {
    at: Moment,
    every: Duration,
    suppressed: u64,
}

impl Said {
    fn new(every: Duration) -> Self {
        Self { at: Moment::now(), every, suppressed: 0 }
    }

    /// Whether it is too early to say it again, which is counted.
    fn suppresses(&mut self, every: Duration) -> bool {
        let suppresses = self.at.elapsed() < every;
        self.suppressed += u64::from(suppresses);
        suppresses
    }
}

impl Repeats {
    pub(crate) const fn new() -> Self {
        Self { hashes: LazyLock::new(RandomState::new), said: Mutex::new(None) }
    }

    /// Whether `what` may be said again: not if it was said less than `every` ago. Returns how often it
    /// was held back since then.
    pub(crate) fn admits(&self, what: impl Hash, every: Duration) -> Option<u64> {
        let what = self.hashes.hash_one(what);
        let mut memory = lock(&self.said);
        let Memory { said, more } = memory.get_or_insert_default();
        if said.get_mut(&what).is_some_and(|known| known.suppresses(every)) {
            return None;
        }
        if said.len() >= REMEMBERED && !said.contains_key(&what) {
            said.retain(|_, known| known.at.elapsed() < known.every);
        }
        let before = if said.len() < REMEMBERED || said.contains_key(&what) {
            said.insert(what, Said::new(every))
        } else if more.as_mut().is_some_and(|last| last.suppresses(OF_MORE)) {
            return None;
        } else {
            more.replace(Said::new(OF_MORE))
        };
        Some(before.map_or(0, |before| before.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_said_once_and_counted() {
        let repeats = Repeats::new();
        assert_eq!(repeats.admits("a", Duration::MAX), Some(0));
        assert_eq!(repeats.admits("a", Duration::MAX), None);
        assert_eq!(repeats.admits("a", Duration::MAX), None);
        assert_eq!(repeats.admits("b", Duration::MAX), Some(0));
        assert_eq!(repeats.admits("a", Duration::ZERO), Some(2));
    }

    #[test]
    fn its_memory_is_bounded_and_so_is_the_log() {
        let repeats = Repeats::new();
        let began = Moment::now();
        let said = (0..3 * REMEMBERED).filter(|n| repeats.admits(n, Duration::MAX).is_some());
        let said = said.count() as u64;
        assert!(said > REMEMBERED as u64, "{said}");
        assert!(said <= REMEMBERED as u64 + 1 + began.elapsed().as_secs(), "{said}");
        assert_eq!(
            repeats.admits(0_usize, Duration::MAX),
            None,
            "what is remembered is not forgotten"
        );
        assert!(repeats.said.lock().unwrap().as_ref().unwrap().said.len() <= REMEMBERED);
        // What was said long enough ago makes room.
        let repeats = Repeats::new();
        for n in 0..3 * REMEMBERED {
            assert_eq!(repeats.admits(n, Duration::ZERO), Some(0));
        }
    }
}
