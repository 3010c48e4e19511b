//! [`Graves`]: the erasures whose tombstones the cache has not confirmed yet.

use std::collections::VecDeque;

use tokio::task::JoinHandle;

use crate::moment::Moment;

/// How many there may be: two megabytes.
const MAX_GRAVES: usize = if cfg!(test) { 100 } else { 10_000 };

/// What hides an answer from now on, or all answers of a scope.
pub(super) struct Grave {
    pub(super) tombstone: String,
    /// Where the answer is, if it is of one key.
    pub(super) name: Option<String>,
    /// The tombstone of the whole scope.
    pub(super) of_scope: String,
}

impl Grave {
    fn of_whole_scope(self) -> Self {
        Self { tombstone: self.of_scope.clone(), name: None, ..self }
    }

    fn hides_all_of(&self, other: &Self) -> bool {
        self.tombstone == other.tombstone || self.tombstone == other.of_scope
    }
}

#[derive(Default)]
pub(super) struct Graves {
    /// The next one in front, and until when it is of use.
    open: VecDeque<(Grave, Moment)>,
    /// The task that sees to them.
    pub(super) task: Option<JoinHandle<()>>,
}

impl Graves {
    /// Where there are too many, one for the whole scope replaces those of its keys: for a while, the row answers for the
    /// other keys, too. Where they are of too many scopes, the oldest is given up.
    pub(super) fn add(&mut self, grave: Grave, until: Moment) {
        let is_full = self.open.len() >= MAX_GRAVES;
        let is_hidden = self.open.iter().any(|(open, _)| open.tombstone == grave.of_scope);
        let grave = if is_full || is_hidden { grave.of_whole_scope() } else { grave };
        let hidden = self.open.iter().filter(|(open, _)| grave.hides_all_of(open));
        let until = hidden.map(|(_, until)| *until).fold(until, Moment::max);
        self.open.retain(|(open, _)| !grave.hides_all_of(open));
        if self.open.len() >= MAX_GRAVES {
            self.open.pop_front();
        }
        self.open.push_back((grave, until));
    }

    /// Takes the next one that is of use. After the last one, its task ends.
    pub(super) fn next(&mut self, now: Moment) -> Option<(Grave, Moment)> {
        while let Some((grave, until)) = self.open.pop_front() {
            if now < until {
                return Some((grave, until));
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

    fn of_key(scope: usize, key: usize) -> Grave {
        Grave {
            tombstone: format!("key {key} of {scope}"),
            name: Some(format!("answer to {key} of {scope}")),
            of_scope: format!("scope {scope}"),
        }
    }

    fn tombstones(graves: &mut Graves) -> Vec<String> {
        let next = std::iter::from_fn(|| graves.next(Moment::now()));
        next.map(|(grave, _)| grave.tombstone).collect()
    }

    fn later() -> Moment {
        Moment::now().after(Duration::from_secs(600))
    }

    #[test]
    fn each_is_there_once_until_its_time_is_over() {
        let mut graves = Graves::default();
        for key in [1, 2, 1] {
            graves.add(of_key(1, key), later());
        }
        graves.add(of_key(1, 3), Moment::now());
        assert_eq!(tombstones(&mut graves), ["key 2 of 1", "key 1 of 1"]);
    }

    #[test]
    fn one_that_is_put_back_does_not_end_sooner_than_the_same_of_a_later_erasure() {
        let (mut graves, until) = (Graves::default(), later());
        graves.add(of_key(1, 1), until);
        graves.add(of_key(1, 1), Moment::now());
        assert_eq!(graves.next(Moment::now()).map(|(_, until)| until), Some(until));
    }

    #[test]
    fn that_of_a_scope_is_also_for_its_keys() {
        let mut graves = Graves::default();
        graves.add(of_key(1, 1), later());
        graves.add(of_key(2, 1), later());
        graves.add(of_key(1, 2).of_whole_scope(), later());
        graves.add(of_key(1, 3), later());
        assert_eq!(tombstones(&mut graves), ["key 1 of 2", "scope 1"]);
    }

    #[test]
    fn g17_where_there_are_too_many_those_of_a_scope_become_one() {
        let mut graves = Graves::default();
        for key in 0..MAX_GRAVES - 1 {
            graves.add(of_key(1, key), later());
        }
        graves.add(of_key(2, 1), later());
        graves.add(of_key(1, MAX_GRAVES), later());
        let (last, _) = graves.open.back().unwrap();
        assert!(last.name.is_none(), "the answers of the scope stay where they are");
        assert_eq!(tombstones(&mut graves), ["key 1 of 2", "scope 1"]);
    }

    #[test]
    fn g17_where_they_are_of_too_many_scopes_the_oldest_is_given_up() {
        let mut graves = Graves::default();
        for scope in 0..=MAX_GRAVES {
            graves.add(of_key(scope, 1), later());
        }
        let left = tombstones(&mut graves);
        assert_eq!(left.len(), MAX_GRAVES);
        assert_eq!(left[0], "key 1 of 1");
        assert_eq!(left[MAX_GRAVES - 1], format!("scope {MAX_GRAVES}"));
    }
}
