//! [`UnconfirmedTombstones`]: the erasures whose tombstones the cache has not confirmed yet.

use std::collections::VecDeque;

use tokio::task::JoinHandle;

use crate::moment::Moment;

/// How many there may be: two megabytes.
const MAX_TOMBSTONES: usize = if cfg!(test) { 100 } else { 10_000 };

/// What hides an answer from now on, or all answers of a scope.
pub(super) struct Tombstone {
    pub(super) name: String,
    /// The name of the answer, if it is of one key.
    pub(super) answer: Option<String>,
    /// The name of the tombstone of the whole scope.
    pub(super) of_scope: String,
}

impl Tombstone {
    fn of_whole_scope(self) -> Self {
        Self { name: self.of_scope.clone(), answer: None, ..self }
    }

    fn hides_all_of(&self, other: &Self) -> bool {
        self.name == other.name || self.name == other.of_scope
    }
}

#[derive(Default)]
pub(super) struct UnconfirmedTombstones {
    /// The next one in front, and until when it is of use.
    open: VecDeque<(Tombstone, Moment)>,
    /// The task that sees to them.
    pub(super) task: Option<JoinHandle<()>>,
}

impl UnconfirmedTombstones {
    /// Where there are too many, one for the whole scope replaces those of its keys: for a while, the row answers for the
    /// other keys, too. Where they are of too many scopes, the oldest is given up.
    pub(super) fn add(&mut self, tombstone: Tombstone, until: Moment) {
        let is_full = self.open.len() >= MAX_TOMBSTONES;
        let is_hidden = self.open.iter().any(|(open, _)| open.name == tombstone.of_scope);
        let tombstone = if is_full || is_hidden { tombstone.of_whole_scope() } else { tombstone };
        let hidden = self.open.iter().filter(|(open, _)| tombstone.hides_all_of(open));
        let until = hidden.map(|(_, until)| *until).fold(until, Moment::max);
        self.open.retain(|(open, _)| !tombstone.hides_all_of(open));
        if self.open.len() >= MAX_TOMBSTONES {
            self.open.pop_front();
        }
        self.open.push_back((tombstone, until));
    }

    /// Takes the next one that is of use. After the last one, its task ends.
    pub(super) fn next(&mut self, now: Moment) -> Option<(Tombstone, Moment)> {
        while let Some((tombstone, until)) = self.open.pop_front() {
            if now < until {
                return Some((tombstone, until));
            }
        }
        self.task = None;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of_key(scope: usize, key: usize) -> Tombstone {
        Tombstone {
            name: format!("key {key} of {scope}"),
            answer: Some(format!("answer to {key} of {scope}")),
            of_scope: format!("scope {scope}"),
        }
    }

    fn tombstones(unconfirmed: &mut UnconfirmedTombstones) -> Vec<String> {
        let next = std::iter::from_fn(|| unconfirmed.next(Moment::now()));
        next.map(|(tombstone, _)| tombstone.name).collect()
    }

    fn later() -> Moment {
        Moment::now().after(Duration::from_secs(600))
    }

    #[test]
    fn each_is_there_once_until_its_time_is_over() {
        let mut unconfirmed = UnconfirmedTombstones::default();
        for key in [1, 2, 1] {
            unconfirmed.add(of_key(1, key), later());
        }
        unconfirmed.add(of_key(1, 3), Moment::now());
        assert_eq!(tombstones(&mut unconfirmed), ["key 2 of 1", "key 1 of 1"]);
    }

    #[test]
    fn one_that_is_put_back_does_not_end_sooner_than_the_same_of_a_later_erasure() {
        let (mut unconfirmed, until) = (UnconfirmedTombstones::default(), later());
        unconfirmed.add(of_key(1, 1), until);
        unconfirmed.add(of_key(1, 1), Moment::now());
        assert_eq!(unconfirmed.next(Moment::now()).map(|(_, until)| until), Some(until));
    }

    #[test]
    fn that_of_a_scope_is_also_for_its_keys() {
        let mut unconfirmed = UnconfirmedTombstones::default();
        unconfirmed.add(of_key(1, 1), later());
        unconfirmed.add(of_key(2, 1), later());
        unconfirmed.add(of_key(1, 2).of_whole_scope(), later());
        unconfirmed.add(of_key(1, 3), later());
        assert_eq!(tombstones(&mut unconfirmed), ["key 1 of 2", "scope 1"]);
    }

    #[test]
    fn g17_where_there_are_too_many_those_of_a_scope_become_one() {
        let mut unconfirmed = UnconfirmedTombstones::default();
        for key in 0..MAX_TOMBSTONES - 1 {
            unconfirmed.add(of_key(1, key), later());
        }
        unconfirmed.add(of_key(2, 1), later());
        unconfirmed.add(of_key(1, MAX_TOMBSTONES), later());
        let (last, _) = unconfirmed.open.back().unwrap();
        assert!(last.answer.is_none(), "the answers of the scope stay where they are");
        assert_eq!(tombstones(&mut unconfirmed), ["key 1 of 2", "scope 1"]);
    }

    #[test]
    fn g17_where_they_are_of_too_many_scopes_the_oldest_is_given_up() {
        let mut unconfirmed = UnconfirmedTombstones::default();
        for scope in 0..=MAX_TOMBSTONES {
            unconfirmed.add(of_key(scope, 1), later());
        }
        let left = tombstones(&mut unconfirmed);
        assert_eq!(left.len(), MAX_TOMBSTONES);
        assert_eq!(left[0], "key 1 of 1");
        assert_eq!(left[MAX_TOMBSTONES - 1], format!("scope {MAX_TOMBSTONES}"));
    }
}
