//! [`Watched`]: rows that are held, until their lease ends.

use std::collections::{BTreeMap, HashSet};

use uuid::Uuid;

use crate::moment::Moment;
use crate::store::HeldKey;

/// How many rows are watched before no more are read: some ten megabytes. A page may bring a few more.
const MAX_WATCHED: usize = 50_000;

/// Where a row stands among them: the end of its lease, and a number.
pub(super) type WatchKey = (Moment, u64);

/// Rows by the end of their lease, each once.
#[derive(Default)]
pub(super) struct Watched {
    rows: BTreeMap<WatchKey, HeldKey>,
    known: HashSet<(Uuid, i64)>,
    inserted: u64,
}

impl Watched {
    pub(super) fn has_room(&self) -> bool {
        self.rows.len() < MAX_WATCHED
    }

    /// Watches it until then, unless it is watched already.
    pub(super) fn insert(&mut self, row: HeldKey, until: Moment) {
        if self.known.insert((row.request_id, row.lease_token)) {
            self.inserted += 1;
            self.rows.insert((until, self.inserted), row);
        }
    }

    /// Up to `most` rows whose lease has ended, the longest ended first. They are watched on until it is known what
    /// came of them: a poll that is given up loses none.
    pub(super) fn ended(&self, most: usize) -> Vec<(WatchKey, HeldKey)> {
        let ended = self.rows.range(..=(Moment::now(), u64::MAX)).take(most);
        ended.map(|(place, row)| (*place, row.clone())).collect()
    }

    pub(super) fn count_ended(&self) -> usize {
        self.rows.range(..=(Moment::now(), u64::MAX)).count()
    }

    pub(super) fn forget(&mut self, place: WatchKey) {
        self.take(place);
    }

    /// Watches it until then; behind those whose lease has ended by now.
    pub(super) fn watch_on(&mut self, place: WatchKey, until: Moment) {
        if let Some(row) = self.take(place) {
            self.insert(row, until);
        }
    }

    fn take(&mut self, place: WatchKey) -> Option<HeldKey> {
        let row = self.rows.remove(&place)?;
        self.known.remove(&(row.request_id, row.lease_token));
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::{IdempotencyKey, Scope};

    fn row(id: u128) -> HeldKey {
        HeldKey {
            scope: Scope::new("s").unwrap(),
            key: IdempotencyKey::new("k").unwrap(),
            request_id: Uuid::from_u128(id),
            lease_token: 1,
            lease_left: Duration::ZERO,
        }
    }

    #[test]
    fn g17_a_row_is_watched_once_and_comes_when_its_lease_has_ended() {
        let (now, mut watched) = (Moment::now(), Watched::default());
        watched.insert(row(1), now.after(Duration::from_secs(3600)));
        watched.insert(row(2), now);
        watched.insert(row(3), now);
        watched.insert(row(1), now);
        let ids = |rows: &[(WatchKey, HeldKey)]| {
            rows.iter().map(|(_, row)| row.request_id.as_u128()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&watched.ended(1)), [2], "no more than it is asked for");
        let ended = watched.ended(9);
        assert_eq!(ids(&ended), [2, 3], "its lease has not ended, whatever came later");
        watched.watch_on(ended[0].0, now);
        assert_eq!(ids(&watched.ended(9)), [3, 2], "behind the other");
        watched.forget(ended[1].0);
        assert_eq!(ids(&watched.ended(9)), [2]);
        watched.insert(row(3), now);
        assert_eq!(ids(&watched.ended(9)), [2, 3], "it may be watched again");
    }
}
