//! [`Repeats`]: keeps a log from saying one thing many times.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::moment::Moment;

/// How many things are remembered. Past that the log may repeat itself, and memory stays bounded.
const REMEMBERED: usize = 4096;

/// What was said lately, as hashes.
pub(crate) struct Repeats {
    hashes: LazyLock<RandomState>,
    said: Mutex<Option<HashMap<u64, Said>>>,
}

struct Said {
    at: Moment,
    suppressed: u64,
}

impl Repeats {
    pub(crate) const fn new() -> Self {
        Self { hashes: LazyLock::new(RandomState::new), said: Mutex::new(None) }
    }

    /// Whether `what` may be said again: not if it was said less than `every` ago. Returns how often it
    /// was held back since then.
    pub(crate) fn admits(&self, what: impl Hash, every: Duration) -> Option<u64> {
        let what = self.hashes.hash_one(what);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.get_or_insert_default();
        if let Some(known) = said.get_mut(&what)
            && known.at.elapsed() < every
        {
            known.suppressed += 1;
            return None;
        }
        if said.len() >= REMEMBERED {
            said.clear();
        }
        let known = said.insert(what, Said { at: Moment::now(), suppressed: 0 });
        Some(known.map_or(0, |known| known.suppressed))
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
    fn its_memory_is_bounded() {
        let repeats = Repeats::new();
        for n in 0..3 * REMEMBERED {
            assert_eq!(repeats.admits(n, Duration::MAX), Some(0));
        }
        let said = repeats.said.lock().unwrap();
        assert!(said.as_ref().unwrap().len() <= REMEMBERED);
    }
}
