//! How far a bounded search looked, as an actor of some scopes is told: where a search ended is a row of another scope
//! as often as not, and its moment and its id are nothing for that actor to know.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// A place in the order of a list.
pub(super) type At = (DateTime<Utc>, Uuid);

/// Which way a list goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goes {
    /// The oldest first.
    Up,
    /// The newest first.
    Down,
}

/// A minute, a second, a millisecond and a microsecond, in microseconds: the coarsest is told that leaves half of the way
/// behind it.
const UNITS: [i64; 4] = [60_000_000, 1_000_000, 1_000, 1];

/// A place behind `from`, which the actor knows, and not beyond `to`, where the search ended. It is a round moment, and
/// only where thousands of rows have one and the same moment that moment, with the beginning of an id. It is the less
/// round the closer to each other the rows are: within a second it is a millisecond, which is how exactly some stores keep
/// a row's time. What lies between it and `to` is looked at again.
pub(super) fn told(goes: Goes, from: At, to: At) -> At {
    let whole = to.0.timestamp_micros() - from.0.timestamp_micros();
    let round = UNITS.into_iter().find_map(|unit| {
        let micros = to.0.timestamp_micros();
        let round = match goes {
            Goes::Up => micros - micros.rem_euclid(unit),
            Goes::Down => micros + (-micros).rem_euclid(unit),
        };
        let way = round - from.0.timestamp_micros();
        let is_behind = way.signum() == whole.signum() && way.abs() >= whole.abs() / 2;
        DateTime::from_timestamp_micros(round).filter(|_| is_behind && way != 0)
    });
    match round {
        Some(moment) => (moment, goes.before_all()),
        None => (to.0, begins(goes, from.1, to.1)),
    }
}

impl Goes {
    /// The id in front of those of one moment.
    fn before_all(self) -> Uuid {
        match self {
            Self::Up => Uuid::nil(),
            Self::Down => Uuid::max(),
        }
    }
}

/// As little of `to` as is behind `from`.
fn begins(goes: Goes, from: Uuid, to: Uuid) -> Uuid {
    let of_bytes = |known: usize| {
        let mut bytes = goes.before_all().into_bytes();
        bytes[..known].copy_from_slice(&to.as_bytes()[..known]);
        Uuid::from_bytes(bytes)
    };
    let is_behind = |id: &Uuid| match goes {
        Goes::Up => *id > from,
        Goes::Down => *id < from,
    };
    (1..16).map(of_bytes).find(is_behind).unwrap_or(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str, id: u128) -> At {
        (time.parse().unwrap(), Uuid::from_u128(id))
    }

    const ID: u128 = 0x1234_5678_9abc_def0_1234_5678_9abc_def0;

    #[test]
    fn g16_a_place_that_is_told_is_a_round_moment_and_no_row() {
        let rows = at("2026-11-23T14:02:41.123456Z", ID);
        let up = |from: &str| told(Goes::Up, at(from, 7), rows).0.to_rfc3339();
        let down = |from: &str| told(Goes::Down, at(from, 7), rows).0.to_rfc3339();
        assert_eq!(up("1970-01-01T00:00:00Z"), "2026-11-23T14:02:00+00:00");
        assert_eq!(down("9999-01-01T00:00:00Z"), "2026-11-23T14:03:00+00:00");
        // Not back to where it was, nor close to it.
        assert_eq!(up("2026-11-23T14:01:59Z"), "2026-11-23T14:02:41+00:00");
        assert_eq!(up("2026-11-23T14:02:41Z"), "2026-11-23T14:02:41.123+00:00");
        assert_eq!(down("2026-11-23T14:02:42Z"), "2026-11-23T14:02:41.124+00:00");
        assert_eq!(told(Goes::Up, at("2026-11-23T14:00:00Z", 7), rows).1, Uuid::nil());
        assert_eq!(told(Goes::Down, at("2026-11-23T15:00:00Z", 7), rows).1, Uuid::max());
    }

    #[test]
    fn of_rows_of_one_moment_the_beginning_of_an_id_is_told() {
        let moment = "2026-11-23T14:02:41.123456Z";
        let of = |goes, from| told(goes, at(moment, from), at(moment, ID)).1.as_u128();
        assert_eq!(of(Goes::Up, 0), 0x12 << 120);
        assert_eq!(of(Goes::Up, 0x12 << 120), 0x1234 << 112);
        assert_eq!(of(Goes::Down, u128::MAX), (0x13 << 120) - 1);
        assert_eq!(of(Goes::Up, ID - 1), ID, "there is no other");
        assert_eq!(of(Goes::Down, ID + 1), ID);
    }

    #[test]
    fn a_place_that_is_told_is_behind_the_last_and_not_beyond_the_end() {
        // Small steps of all kinds, from and to places close to each other and far apart.
        let base = at("2026-11-23T14:02:41.123456Z", 0).0.timestamp_micros();
        let time = |micros: i64| DateTime::from_timestamp_micros(base + micros).unwrap();
        let mut chance = 1_u64;
        let mut next = |most: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (chance >> 33) % most
        };
        for round in 0..20_000_u64 {
            let scale = [1, 3, 1_000, 90_000, 2_000_000, 9_000_000_000][round as usize % 6];
            let (from, way) = (next(2_000_000) as i64, next(scale) as i64);
            let ids =
                [next(1 << 20), next(1 << 20)].map(|id| Uuid::from_u128(u128::from(id) << 100));
            let (from, to) = ((time(from), ids[0]), (time(from + way), ids[1]));
            let (from, to) = (from.min(to), from.max(to));
            if from == to {
                continue;
            }
            let up = told(Goes::Up, from, to);
            assert!(from < up && up <= to, "{from:?} {up:?} {to:?}");
            let down = told(Goes::Down, to, from);
            assert!(from <= down && down < to, "{from:?} {down:?} {to:?}");
        }
    }
}
