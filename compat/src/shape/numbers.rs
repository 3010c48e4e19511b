//! [`Float`] and [`Letter`]: which floats and characters a type takes, told by a set of trials.

use std::fmt;

/// The floats that a place is tried with.
pub const FLOATS: [(&str, f64); 11] = [
    ("0.5", 0.5),
    ("1.0", 1.0),
    ("0.0", 0.0),
    ("-0.5", -0.5),
    ("100.0", 100.0),
    ("-100.5", -100.5),
    ("1e10", 1e10),
    ("0.1", 0.1),
    ("1.234", 1.234),
    ("88.0", 88.0),
    ("150.0", 150.0),
];

/// The characters that a place is tried with.
pub const LETTERS: [(&str, char); 5] =
    [("a", 'a'), ("A", 'A'), ("1", '1'), ("space", ' '), ("not-ascii", '\u{eb}')];

/// A number of 32 or 64 bits, and which of [`FLOATS`] the type refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float {
    /// 32 or 64.
    pub bits: u8,
    refused: u32,
    changed: u32,
}

/// A string of one character, and which of [`LETTERS`] the type refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Letter {
    refused: u32,
}

impl Float {
    /// All of a width.
    #[must_use]
    pub const fn of(bits: u8) -> Self {
        Self { bits, refused: 0, changed: 0 }
    }

    /// But for these, by their places in [`FLOATS`].
    #[must_use]
    pub fn without(mut self, refused: impl IntoIterator<Item = usize>) -> Self {
        self.refused |= refused.into_iter().fold(0, |set, nth| set | 1 << nth);
        self
    }

    /// These, by their places in [`FLOATS`], are read, and written as another one.
    #[must_use]
    pub fn changing(mut self, changed: impl IntoIterator<Item = usize>) -> Self {
        self.changed |= changed.into_iter().fold(0, |set, nth| set | 1 << nth);
        self
    }

    /// Whether there is a trial that `self` takes and writes otherwise, and that `now` keeps.
    pub(crate) fn is_told_apart_by(self, now: Self) -> bool {
        self.changed & !now.refused & !now.changed != 0
    }

    /// Whether none of the trials is taken.
    #[must_use]
    pub fn is_own(self) -> bool {
        taken(self.refused, FLOATS.len()).next().is_none()
    }

    pub(crate) fn takes(self, number: f64) -> bool {
        let trial = FLOATS.iter().position(|(_, trial)| *trial == number);
        trial.is_none_or(|nth| self.refused & (1 << nth) == 0)
    }

    /// Whether this trial is written as another one.
    pub(crate) fn changes(self, number: f64) -> bool {
        let trial = FLOATS.iter().position(|(_, trial)| *trial == number);
        trial.is_some_and(|nth| self.changed & (1 << nth) != 0)
    }

    /// As JSON.
    pub(crate) fn examples(self) -> impl Iterator<Item = &'static str> {
        taken(self.refused | self.changed, FLOATS.len()).map(|nth| FLOATS[nth].0)
    }

    pub(super) fn marked(self, name: &str, mark: fn(Self, [usize; 1]) -> Self) -> Option<Self> {
        let nth = FLOATS.iter().position(|(known, _)| *known == name)?;
        Some(mark(self, [nth]))
    }
}

impl Letter {
    /// But for these, by their places in [`LETTERS`].
    #[must_use]
    pub fn without(mut self, refused: impl IntoIterator<Item = usize>) -> Self {
        self.refused |= refused.into_iter().fold(0, |set, nth| set | 1 << nth);
        self
    }

    /// Whether none of the trials is taken.
    #[must_use]
    pub fn is_own(self) -> bool {
        taken(self.refused, LETTERS.len()).next().is_none()
    }

    pub(crate) fn takes(self, text: &str) -> bool {
        let mut chars = text.chars();
        let (Some(char), None) = (chars.next(), chars.next()) else { return false };
        let trial = LETTERS.iter().position(|(_, trial)| *trial == char);
        trial.is_none_or(|nth| self.refused & (1 << nth) == 0)
    }

    pub(crate) fn examples(self) -> impl Iterator<Item = char> {
        taken(self.refused, LETTERS.len()).map(|nth| LETTERS[nth].1)
    }

    pub(super) fn refusing(self, name: &str) -> Option<Self> {
        let nth = LETTERS.iter().position(|(known, _)| *known == name)?;
        Some(self.without([nth]))
    }
}

fn taken(refused: u32, count: usize) -> impl Iterator<Item = usize> {
    (0..count).filter(move |nth| refused & (1 << nth) == 0)
}

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "f{}", self.bits)?;
        marks(f, [self.refused, self.changed], FLOATS.map(|(name, _)| name))
    }
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("char")?;
        marks(f, [self.refused, 0], LETTERS.map(|(name, _)| name))
    }
}

/// `(!a, ~b)`, where there is one.
fn marks<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    [refused, changed]: [u32; 2],
    names: [&str; N],
) -> fmt::Result {
    let marked = |set: u32, mark: char| {
        let names = names.iter().enumerate().filter(move |(nth, _)| set & (1 << nth) != 0);
        names.map(move |(_, name)| format!("{mark}{name}"))
    };
    let marks: Vec<String> = marked(refused, '!').chain(marked(changed, '~')).collect();
    match marks.is_empty() {
        true => Ok(()),
        false => write!(f, "({})", marks.join(", ")),
    }
}
