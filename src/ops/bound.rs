//! How far a bounded search came, as `Page` shows it to an operator of some scopes. The row at which a search ends is
//! often one of another scope, and that operator must not learn its time or its id, also not by asking from many places: a
//! cursor is not signed, because the nodes share no secret.
//!
//! So a list is divided into cells: the rows of a minute. A search begins where the cell of its place begins, and ends
//! between two cells, so that its answer depends on how many rows are in a cell, and not on where in it they are. Only a cell
//! that has more rows than one search reads is divided further: into seconds, milliseconds, microseconds, and, for rows of
//! one moment, by the beginnings of their ids. Of a row whose cell has fewer, an operator can learn no more than the cell.

use std::ops::ControlFlow::{self, Break, Continue};

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

impl Goes {
    /// Whether a row at `one` is listed before a row at `other`.
    pub(super) fn is_before(self, one: At, other: At) -> bool {
        match self {
            Self::Up => one < other,
            Self::Down => one > other,
        }
    }
}

/// The length of a cell, the longest first: in microseconds, then by how many bytes of an id are known.
const MICROS: [i64; 4] = [60_000_000, 1_000_000, 1_000, 1];

/// The part of a list that has one place in it: behind `start`, and not behind `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    start: At,
    end: At,
}

/// `level`: how small it is.
fn cell(goes: Goes, level: usize, (time, id): At) -> Cell {
    match MICROS.get(level) {
        Some(length) => {
            let micros = time.timestamp_micros();
            let at =
                |micros: i64, id| (DateTime::from_timestamp_micros(micros).unwrap_or(time), id);
            let past = micros.rem_euclid(*length);
            match goes {
                Goes::Up => {
                    let start = micros - past;
                    // In front of the first id, and so of the next cell.
                    Cell { start: at(start, Uuid::nil()), end: at(start + length, Uuid::nil()) }
                }
                Goes::Down => {
                    let start = micros + (length - past) % length;
                    Cell { start: at(start, Uuid::max()), end: at(start - length, Uuid::max()) }
                }
            }
        }
        None => {
            // The bytes that are not known, each as far in front as it can be.
            let unknown = 8 * 16_usize.saturating_sub(level + 1 - MICROS.len());
            let rest = u128::MAX.checked_shr(128 - unknown as u32).unwrap_or(0);
            let (id, step) = (id.as_u128(), rest.saturating_add(1));
            let moment = cell(goes, MICROS.len() - 1, (time, Uuid::from_u128(id)));
            let (start, end) = match goes {
                Goes::Up => (id & !rest, (id & !rest).checked_add(step)),
                Goes::Down => (id | rest, (id | rest).checked_sub(step)),
            };
            let end = end.map_or(moment.end, |end| (time, Uuid::from_u128(end)));
            Cell { start: (time, Uuid::from_u128(start)), end }
        }
    }
}

/// One whole id.
const LEVELS: usize = MICROS.len() + 16;

/// A search for how far to read behind a place: from cell to smaller cell.
pub(super) struct CellSearch {
    goes: Goes,
    place: At,
    level: usize,
    /// The end of the cell around, which has more rows than a search reads.
    within: Option<At>,
}

impl CellSearch {
    pub(super) fn new(goes: Goes, place: At) -> Self {
        Self { goes, place, level: 0, within: None }
    }

    /// Behind which place to search next.
    pub(super) fn start(&self) -> At {
        cell(self.goes, self.level, self.place).start
    }

    /// `searched_to`: the last row that was read from there, if there are more. Continues with a smaller cell, if this one has
    /// more rows than a search reads. Ends with the place behind which to go on, if there is one: the rows up to it are shown,
    /// and no others.
    pub(super) fn narrow(&mut self, searched_to: Option<At>) -> ControlFlow<Option<At>> {
        let Some(searched_to) = searched_to else { return Break(None) };
        let (goes, here) = (self.goes, cell(self.goes, self.level, self.place));
        let end = cell(goes, self.level, searched_to).start;
        if !goes.is_before(end, here.end) {
            let is_without = |within: &At| goes.is_before(*within, end);
            return Break(Some(self.within.filter(is_without).unwrap_or(end)));
        }
        self.within = Some(here.end);
        self.level += 1;
        match self.level < LEVELS {
            true => Continue(()),
            // No two rows have one id.
            false => Break(self.within),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many rows a search of the tests reads.
    const MAX_ROWS: usize = 4;

    fn at(micros: i64, id: u128) -> At {
        (DateTime::from_timestamp_micros(micros).unwrap(), Uuid::from_u128(id))
    }

    /// What a store tells: the last row of those that are read behind a place.
    fn searched_to(goes: Goes, rows: &[At], behind: At) -> Option<At> {
        let mut rows: Vec<At> =
            rows.iter().copied().filter(|row| goes.is_before(behind, *row)).collect();
        rows.sort_by(|one, other| match goes {
            Goes::Up => one.cmp(other),
            Goes::Down => other.cmp(one),
        });
        rows.get(MAX_ROWS - 1).copied()
    }

    fn end_of_search(goes: Goes, rows: &[At], place: At) -> Option<At> {
        let mut bound = CellSearch::new(goes, place);
        loop {
            if let Break(end) = bound.narrow(searched_to(goes, rows, bound.start())) {
                return end;
            }
        }
    }

    struct Chance(u64);

    impl Chance {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % most
        }

        /// Rows close to each other and far apart, of one moment among them.
        fn place(&mut self) -> At {
            let scale = [1, 3, 900, 70_000, 5_000_000, 400_000_000][self.below(6) as usize];
            let micros = 1_764_000_000_000_000 + self.below(scale) as i64;
            let id = u128::from(self.below(4)) << 120 | u128::from(self.below(1 << 20)) << 60;
            at(micros, id)
        }
    }

    #[test]
    fn g16_a_place_that_is_told_is_between_two_minutes() {
        let rows: Vec<At> = (1..40).map(|n| at(n * 27_123_457, n.cast_unsigned().into())).collect();
        let up = end_of_search(Goes::Up, &rows, at(0, 0)).unwrap();
        assert_eq!((up.0.timestamp_micros() % 60_000_000, up.1), (0, Uuid::nil()));
        let down = end_of_search(Goes::Down, &rows, at(1_200_000_000, 9)).unwrap();
        assert_eq!((down.0.timestamp_micros() % 60_000_000, down.1), (0, Uuid::max()));
        assert_eq!(end_of_search(Goes::Up, &rows[..3], at(0, 0)), None, "there is no more");
    }

    #[test]
    fn a_list_comes_to_its_end_and_no_step_looks_at_more_than_it_may() {
        for seed in 0..300 {
            let mut chance = Chance(seed);
            let rows: Vec<At> = (0..40).map(|_| chance.place()).collect();
            for goes in [Goes::Up, Goes::Down] {
                let mut place = if goes == Goes::Up { at(0, 0) } else { at(1 << 52, u128::MAX) };
                let (mut steps, mut left) = (0, rows.clone());
                left.sort_unstable();
                left.dedup();
                while let Some(end) = end_of_search(goes, &rows, place) {
                    assert!(goes.is_before(place, end), "seed {seed}: {place:?} {end:?}");
                    let whole = left.len();
                    left.retain(|row| goes.is_before(end, *row));
                    assert!(whole - left.len() <= MAX_ROWS, "seed {seed}: {place:?} {end:?}");
                    (place, steps) = (end, steps + 1);
                    assert!(steps < 1_000, "seed {seed}");
                }
                assert!(left.len() < MAX_ROWS, "seed {seed}: {} rows are not told", left.len());
            }
        }
    }

    /// The smallest cell that a page shows of a row: the first that has fewer rows than a search reads.
    fn finest(goes: Goes, rows: &[At], row: At) -> Cell {
        let count = |cell: &Cell| {
            let is_in =
                |row: &&At| goes.is_before(cell.start, **row) && !goes.is_before(cell.end, **row);
            rows.iter().filter(is_in).count()
        };
        let mut cells = (0..LEVELS).map(|level| cell(goes, level, row));
        cells.find(|cell| count(cell) < MAX_ROWS).unwrap_or(cell(goes, LEVELS - 1, row))
    }

    #[test]
    fn g16_no_question_tells_where_in_its_cell_a_row_is() {
        let mut moved = 0;
        for seed in 0..150 {
            let mut chance = Chance(seed);
            let rows: Vec<At> = (0..30).map(|_| chance.place()).collect();
            for goes in [Goes::Up, Goes::Down] {
                // One row is elsewhere in its cell.
                let one = chance.below(30) as usize;
                let cell = finest(goes, &rows, rows[one]);
                let (low, high) = (cell.start.min(cell.end), cell.start.max(cell.end));
                let micros = (high.0 - low.0).num_microseconds().unwrap();
                let to = match micros {
                    0 => {
                        (low.0, Uuid::from_u128(u128::midpoint(low.1.as_u128(), high.1.as_u128())))
                    }
                    _ => at(low.0.timestamp_micros() + 1 + chance.below(micros as u64) as i64, 5),
                };
                if goes.is_before(cell.end, to) || !goes.is_before(cell.start, to) {
                    continue;
                }
                let mut others = rows.clone();
                others[one] = to;
                moved += usize::from(to != rows[one]);
                let near = [rows[one], to, cell.start, cell.end];
                let asked = (0..40).map(|_| chance.place()).chain(rows.iter().copied());
                for place in asked.chain(near) {
                    let answers = [&rows, &others].map(|rows| end_of_search(goes, rows, place));
                    assert_eq!(answers[0], answers[1], "seed {seed}: {goes:?} {place:?} {to:?}");
                }
            }
        }
        assert!(moved > 100, "{moved}");
    }
}
