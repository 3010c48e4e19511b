//! [`Halving`]: how many rows are written, some of which the server may refuse.

use super::StoreError;

/// The parts in which rows are written. What the server refuses is halved until it is one row.
pub(crate) struct Halving<'r, R> {
    /// What is left, the next part last.
    parts: Vec<&'r [R]>,
}

/// What becomes of a part that was not written.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It has several rows, one of which may be the reason: the next parts are its halves.
    Halved,
    /// It has several rows, and no answer came in time: the server may still be writing them.
    TooSlow(StoreError),
    /// It has one row, which the server refuses.
    One(StoreError),
}

impl<'r, R> Halving<'r, R> {
    pub(crate) fn of(rows: &'r [R]) -> Self {
        Self { parts: vec![rows] }
    }

    /// The next part to write: empty only where there are no rows.
    pub(crate) fn next_part(&mut self) -> Option<&'r [R]> {
        self.parts.pop()
    }

    /// Judges a part that was not written because of this error. The error itself, if its reason is not in the rows.
    pub(crate) fn refused(
        &mut self,
        part: &'r [R],
        error: StoreError,
    ) -> Result<Refused, StoreError> {
        match error {
            error if !error.may_be_of_one() && !error.is_unanswered() => Err(error),
            error if part.len() < 2 => Ok(Refused::One(error)),
            error if error.is_unanswered() => Ok(Refused::TooSlow(error)),
            _ => {
                let (first, others) = part.split_at(part.len() / 2);
                self.parts.extend([others, first]);
                Ok(Refused::Halved)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use diesel::result::{DatabaseErrorKind, Error};

    use super::*;

    fn failed(kind: DatabaseErrorKind) -> StoreError {
        let error = Error::DatabaseError(kind, Box::new("no".to_owned()));
        StoreError::database("write the rows", error)
    }

    #[test]
    fn each_row_that_is_refused_is_found_and_all_others_are_written_in_their_order() {
        let rows: Vec<u32> = (0..11).collect();
        for bad in [vec![], vec![0], vec![3, 10], rows.clone()] {
            let (mut written, mut refused) = (Vec::<u32>::new(), Vec::<u32>::new());
            let mut halving = Halving::of(&rows);
            while let Some(part) = halving.next_part() {
                if !part.iter().any(|row| bad.contains(row)) {
                    written.extend(part);
                    continue;
                }
                let error = failed(DatabaseErrorKind::ForeignKeyViolation);
                match halving.refused(part, error).unwrap() {
                    Refused::Halved => assert!(part.len() > 1),
                    other => {
                        assert!(matches!(other, Refused::One(_)), "{other:?}");
                        refused.extend(part);
                    }
                }
            }
            assert_eq!(refused, bad);
            let good: Vec<u32> = rows.iter().copied().filter(|row| !bad.contains(row)).collect();
            assert_eq!(written, good);
        }
    }

    #[test]
    fn what_took_too_long_or_has_nothing_to_do_with_the_rows_is_not_halved() {
        let mut halving = Halving::of(&[1, 2]);
        let part = halving.next_part().unwrap();
        let unanswered = || failed(DatabaseErrorKind::ClosedConnection);
        assert!(matches!(halving.refused(part, unanswered()), Ok(Refused::TooSlow(_))));
        assert!(matches!(halving.refused(&part[1..], unanswered()), Ok(Refused::One(_))));
        let lost = failed(DatabaseErrorKind::UnableToSendCommand);
        assert!(halving.refused(part, lost).is_err());
        assert!(halving.next_part().is_none());
    }

    #[test]
    fn of_no_rows_there_is_one_empty_part() {
        let mut halving = Halving::<u8>::of(&[]);
        assert_eq!(halving.next_part().map(<[u8]>::len), Some(0));
        assert!(halving.next_part().is_none());
    }
}
