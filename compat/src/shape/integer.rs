//! [`Integer`]: which integers a type takes.

use std::fmt;

use serde_json::Number;

/// The integers that a place is tried with, beside the outermost of its width.
pub const INTEGERS: [i128; 25] = [
    1, 0, 2, 10, 100, 1000, 2000, -1, 50, 5, 3, 7, 12, 60, 365, 4, 6, 8, 9, 20, 30, 40, 200, 404,
    500,
];

/// An integer of a width, and which of those the type takes, as far as probing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    /// Whether it has a sign.
    pub signed: bool,
    /// 8 to 128.
    pub bits: u8,
    /// The least that is taken; `None`: the least of the width.
    pub least: Option<i128>,
    /// The greatest that is taken; `None`: the greatest of the width.
    pub most: Option<i128>,
    /// Which of [`INTEGERS`] are refused within these limits, as a set of their places there.
    refused: u32,
    /// Which of [`INTEGERS`] are written as another one.
    changed: u32,
}

impl Integer {
    /// All of a width.
    #[must_use]
    pub const fn of(signed: bool, bits: u8) -> Self {
        Self { signed, bits, least: None, most: None, refused: 0, changed: 0 }
    }

    /// From the one to the other, both included; `None`: to that of the width.
    #[must_use]
    pub const fn within(self, least: Option<i128>, most: Option<i128>) -> Self {
        Self { least, most, ..self }
    }

    /// But for these of [`INTEGERS`].
    #[must_use]
    pub fn without(mut self, refused: impl IntoIterator<Item = i128>) -> Self {
        self.refused |= places(refused);
        self
    }

    /// These of [`INTEGERS`] are read, and written as another one.
    #[must_use]
    pub fn changing(mut self, changed: impl IntoIterator<Item = i128>) -> Self {
        self.changed |= places(changed);
        self
    }

    /// Whether there is a trial that `self` takes and writes otherwise, and that `now` keeps.
    pub(crate) fn is_told_apart_by(self, now: Self) -> bool {
        let keeps = |trial: i128| now.takes_text(&trial.to_string()) && !now.changes(trial);
        INTEGERS.into_iter().any(|trial| self.changes(trial) && keeps(trial))
    }

    /// Whether any trial is written as another one.
    pub(crate) fn has_changed(self) -> bool {
        self.changed != 0
    }

    pub(crate) fn changes(self, number: i128) -> bool {
        places([number]) & self.changed != 0
    }

    fn refuses(self, number: i128) -> bool {
        let place = INTEGERS.iter().position(|trial| *trial == number);
        place.is_some_and(|nth| self.refused & (1 << nth) != 0)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        let (signed, bits) = match name.split_at_checked(1)? {
            ("i", bits) => (true, bits),
            ("u", bits) => (false, bits),
            _ => return None,
        };
        let bits = ["8", "16", "32", "64", "128"].contains(&bits).then(|| bits.parse().ok())??;
        Some(Self::of(signed, bits))
    }

    /// The least of the width.
    #[must_use]
    pub const fn width_least(self) -> i128 {
        match (self.signed, self.bits) {
            (false, _) => 0,
            (true, 128) => i128::MIN,
            (true, bits) => -(1 << (bits - 1)),
        }
    }

    /// The greatest of the width, as a text: that of `u128` is not an `i128`.
    fn width_most(self) -> String {
        match (self.signed, self.bits) {
            (true, 128) => i128::MAX.to_string(),
            (false, 128) => u128::MAX.to_string(),
            (true, bits) => ((1_i128 << (bits - 1)) - 1).to_string(),
            (false, bits) => ((1_i128 << bits) - 1).to_string(),
        }
    }

    /// The outermost that are taken, and the trials within, as JSON.
    pub(crate) fn examples(self) -> Vec<String> {
        let most = self.most.map_or_else(|| self.width_most(), |most| most.to_string());
        let least = self.least.unwrap_or_else(|| self.width_least()).to_string();
        let mut examples = vec![most];
        for text in std::iter::once(least).chain(INTEGERS.map(|trial| trial.to_string())) {
            if !examples.contains(&text) {
                examples.push(text);
            }
        }
        let is_written = |text: &String| !text.parse().is_ok_and(|number| self.changes(number));
        examples.retain(|text| self.takes_text(text) && is_written(text));
        examples
    }

    /// Whether a float of this many bits has each of them, with all its digits.
    pub(crate) fn is_exact_in(self, float_bits: u8) -> bool {
        let greatest = if float_bits == 32 { 1 << 24 } else { 1 << 53 };
        let is_exact = |text: &String| {
            text.parse::<i128>().is_ok_and(|number| (-greatest..=greatest).contains(&number))
        };
        self.examples().iter().all(is_exact)
    }

    /// Whether a type of this kind reads `number`.
    pub(crate) fn takes(self, number: &Number) -> bool {
        self.takes_text(&number.to_string())
    }

    fn takes_text(self, text: &str) -> bool {
        if let Ok(number) = text.parse::<i128>() {
            let in_width = match (self.signed, self.bits) {
                (true, 128) => true,
                (false, 128) => number >= 0,
                (true, bits) => (-(1 << (bits - 1))..1 << (bits - 1)).contains(&number),
                (false, bits) => (0..1 << bits).contains(&number),
            };
            return in_width
                && self.least.is_none_or(|least| number >= least)
                && self.most.is_none_or(|most| number <= most)
                && !self.refuses(number);
        }
        // `Value` keeps what is greater than 64 bits as a number with an exponent.
        let is_whole = |number: f64| number.fract() == 0.0 && number.abs() >= 1e18;
        let is_wide = self.bits == 128 && text.parse::<f64>().is_ok_and(is_whole);
        let is_signed = text.starts_with('-');
        // A half of those without a sign is too great for those with one.
        let is_in_sign =
            !self.signed || text.parse::<f64>().is_ok_and(|number| number.abs() < 1.75e38);
        is_wide
            && is_in_sign
            && (self.signed || !is_signed)
            && match is_signed {
                true => self.least.is_none(),
                false => self.most.is_none(),
            }
    }
}

/// Of those that are trials.
fn places(numbers: impl IntoIterator<Item = i128>) -> u32 {
    let place = |number| INTEGERS.iter().position(|trial| *trial == number);
    numbers.into_iter().filter_map(place).fold(0, |set, nth| set | 1 << nth)
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.signed { 'i' } else { 'u' };
        write!(f, "{sign}{}", self.bits)?;
        let text = |bound: Option<i128>| bound.map_or_else(String::new, |bound| bound.to_string());
        let has_range = self.least.is_some() || self.most.is_some();
        let range = has_range.then(|| format!("{}..{}", text(self.least), text(self.most)));
        let refused = INTEGERS.iter().filter(|trial| self.refuses(**trial));
        let refused = refused.map(|trial| format!("!{trial}"));
        let changed = INTEGERS.iter().filter(|trial| self.changes(**trial));
        let changed = changed.map(|trial| format!("~{trial}"));
        let limits: Vec<String> = range.into_iter().chain(refused).chain(changed).collect();
        match limits.is_empty() {
            true => Ok(()),
            false => write!(f, "({})", limits.join(", ")),
        }
    }
}
