//! [`Watched`]: rows that are held, until their lease ends.

use std::collections::{BTreeMap, HashSet};

use uuid::Uuid;

use crate::moment::Moment;
use crate::store::HeldKey;

/// How many rows are watched before no more are read: some ten megabytes. A page may bring a few more.
const MOST: usize = 50_000;

/// Rows by the end of their lease, each once.
#[derive(Default)]
pub(super) struct Watched {
    rows: BTreeMap<(Moment, u64), HeldKey>,
    known: HashSet<(Uuid, i64)>,
    inserted: u64,
}

impl Watched {
    pub(super) fn has_room(&self) -> bool {
        self.rows.len() < MOST
    }

    /// Watches it until then, unless it is watched already.
    pub(super) fn insert(&mut self, row: HeldKey, until: Moment) {
        if self.known.insert((row.request_id, row.lease_token)) {
            self.inserted += 1;
            self.rows.insert((until, self.inserted), row);
        }
    }

    /// The row whose lease ended first, if one has.
    pub(super) fn take_ended(&mut self) -> Option<HeldKey> {
        let first = self.rows.first_entry()?;
        if first.key().0 > Moment::now() {
            return None;
        }
        let row = first.remove();
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
        watched.insert(row(1), now);
        assert_eq!(watched.take_ended().map(|row| row.request_id.as_u128()), Some(2));
        assert!(watched.take_ended().is_none(), "its lease has not ended, whatever came later");
        watched.insert(row(2), now);
        assert!(watched.take_ended().is_some(), "it may be watched again");
    }
}
