//! [`Scopes`]: which scopes have series of their own, where an operator wants that.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use super::OTHER;
use crate::key::{Scope, ShortHash};
use crate::lock::lock;

/// How many duplicates earn a scope its series.
const EARNED_BY: u64 = 100;

/// How many scopes are watched for each that may have series.
const WATCHED: usize = 8;

/// Gives at most `most` scopes a label of their own, and all others one together: a series that began is there as long
/// as the process, so a place is never given to another. That it is the busy ones that have them, and not the first
/// that came, a scope earns its place by a hundred duplicates.
///
/// Those are counted in bounded space, of eight times as many scopes: one that is not among them takes the place of the
/// one with the fewest, and begins behind its count (*Space-Saving*, Metwally and others, 2005), which is taken off again
/// when the hundred are looked for. So scopes that come once, however many they are, take no place, and one that sends
/// clearly more than an eighth of a place's share of the duplicates is not lost among them.
#[derive(Debug)]
pub(crate) struct Scopes {
    most: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    labels: HashMap<Scope, String>,
    watched: HashMap<Scope, Count>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    duplicates: u64,
    /// As many of them may be others'.
    before: u64,
}

impl Scopes {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, seen: Mutex::default() }
    }

    /// The first eight digits of the scope's hash, as in logs; `other`, where it has no series of its own.
    pub(crate) fn label(&self, scope: &Scope) -> Cow<'static, str> {
        lock(&self.seen).label(scope).unwrap_or(OTHER.into())
    }

    /// The same for a duplicate call, by which a scope may come to have a series.
    pub(crate) fn label_of_duplicate(&self, scope: &Scope) -> Cow<'static, str> {
        let mut seen = lock(&self.seen);
        if let Some(label) = seen.label(scope) {
            return label;
        }
        if seen.labels.len() >= self.most {
            return OTHER.into();
        }
        if seen.count(scope, self.most * WATCHED) < EARNED_BY {
            return OTHER.into();
        }
        seen.watched.remove(scope);
        let label = ShortHash(scope.as_str()).to_string();
        seen.labels.insert(scope.clone(), label.clone());
        if seen.labels.len() >= self.most {
            seen.watched = HashMap::new();
        }
        label.into()
    }
}

impl Seen {
    fn label(&self, scope: &Scope) -> Option<Cow<'static, str>> {
        self.labels.get(scope).map(|label| label.clone().into())
    }

    /// How many duplicates are certainly the scope's, with this one.
    fn count(&mut self, scope: &Scope, most: usize) -> u64 {
        let is_full = self.watched.len() >= most;
        if let Entry::Occupied(mut known) = self.watched.entry(scope.clone()) {
            let count = known.get_mut();
            count.duplicates += 1;
            return count.duplicates - count.before;
        }
        let mut before = 0;
        if is_full {
            let fewest = self.watched.iter().min_by_key(|(_, count)| count.duplicates);
            let Some((scope, count)) = fewest.map(|(scope, count)| (scope.clone(), *count)) else {
                return 0;
            };
            self.watched.remove(&scope);
            before = count.duplicates;
        }
        self.watched.insert(scope.clone(), Count { duplicates: before + 1, before });
        1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn scope(name: &str) -> Scope {
        Scope::new(name).unwrap()
    }

    #[test]
    fn busy_scopes_have_labels_and_ten_thousand_others_have_one() {
        let scopes = Scopes::new(3);
        let mut labels = BTreeSet::new();
        for round in 0..10_000 {
            labels.insert(scopes.label_of_duplicate(&scope(&format!("once-{round}"))));
            labels.insert(scopes.label(&scope(&format!("new-{round}"))));
            // Each of them sends a tenth of the duplicates.
            labels.insert(scopes.label_of_duplicate(&scope(&format!("busy-{}", round % 5))));
        }
        // Five are busy, and three places there are.
        assert_eq!(labels.len(), 4, "{labels:?}");
        assert!(labels.contains(OTHER));
        let busy: Vec<_> = (0..5).map(|number| scope(&format!("busy-{number}"))).collect();
        let own = busy.iter().filter(|scope| scopes.label(scope) != OTHER);
        assert_eq!(own.count(), 3);
        let seen = scopes.seen.lock().unwrap();
        assert_eq!((seen.labels.len(), seen.watched.len()), (3, 0));
    }

    #[test]
    fn what_came_once_earns_nothing_from_those_whose_place_it_took() {
        let scopes = Scopes::new(2);
        for number in 0..100_000 {
            assert_eq!(scopes.label_of_duplicate(&scope(&format!("once-{number}"))), OTHER);
        }
        assert_eq!(scopes.seen.lock().unwrap().watched.len(), 16);
        let label = ShortHash("busy").to_string();
        let given = (1..=100).find(|_| scopes.label_of_duplicate(&scope("busy")) == label);
        assert_eq!(given, Some(100));
    }
}
