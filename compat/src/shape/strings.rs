//! [`StrFormat`]: which strings a type takes, told by a set of trials.

use std::fmt;

/// The strings that a place is tried with, by name. The first that is taken stands in samples.
pub const TEXTS: [(&str, &str); 36] = [
    ("empty", ""),
    ("letter", "a"),
    ("uuid-hyphens", "00000000-0000-4000-8000-000000000000"),
    ("utc", "2000-01-01T00:00:00Z"),
    ("local-date-time", "2000-01-01T00:00:00"),
    ("date", "2000-01-01"),
    ("time", "00:00:00"),
    ("one", "1"),
    ("https", "https://a.example/"),
    ("ip4", "127.0.0.1"),
    ("mail", "a@a.example"),
    ("USD", "USD"),
    ("uuid-simple", "0000000000004000800000000000000a"),
    ("uuid-upper", "0000000A-0000-4000-8000-00000000000A"),
    ("fraction", "2000-01-01T00:00:00.500Z"),
    ("offset", "2000-01-01T01:00:00+01:00"),
    ("decimal", "1.5"),
    ("minus", "-1"),
    ("http", "http://a.example/"),
    ("ip6", "::1"),
    ("EUR", "EUR"),
    ("XTS", "XTS"),
    ("padded", " a "),
    ("not-ascii", "\u{eb}"),
    ("long", LONG),
    ("DE", "DE"),
    ("ABCD", "ABCD"),
    ("date-loose", "2000-1-1"),
    ("micros", "2000-01-01T00:00:00.500000"),
    ("offset-micros", "2000-01-01T00:00:00.500000+00:00"),
    ("time-micros", "00:00:00.500000"),
    ("ip6-long", "0:0:0:0:0:0:0:1"),
    ("zeros", "007"),
    ("cents", "1.50"),
    ("plus", "+1"),
    ("blanks", "a  b"),
];

/// 256 letters.
const LONG: &str = concat!(
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
);

/// A form that is known: its name, the trials that it takes, those of them that it writes otherwise, and whether a
/// string that is not a trial has it, by its pattern of digits and marks.
type Known = (&'static str, &'static [&'static str], &'static [&'static str], fn(&str) -> bool);

/// Beside any string, and any but the empty one.
const KNOWN: [Known; 15] = [
    (
        "uuid",
        &["uuid-hyphens", "uuid-simple", "uuid-upper"],
        &["uuid-simple", "uuid-upper"],
        is_uuid,
    ),
    (
        "date-time",
        &["utc", "fraction", "offset", "offset-micros"],
        &["offset", "offset-micros"],
        is_date_time,
    ),
    (
        "offset-date-time",
        &["utc", "fraction", "offset", "offset-micros"],
        &["offset-micros"],
        is_date_time,
    ),
    ("local-date-time", &["local-date-time"], &[], is_local_date_time),
    ("naive-date-time", &["local-date-time", "micros"], &["micros"], is_local_date_time),
    ("naive-date", &["date", "date-loose"], &["date-loose"], is_date),
    ("naive-time", &["time", "time-micros"], &["time-micros"], |text| is_like(text, "00:00:00")),
    ("date", &["date"], &[], is_date),
    ("time", &["time"], &[], |text| is_like(text, "00:00:00")),
    ("number", &["one", "decimal", "minus", "zeros", "cents", "plus"], &[], |text| {
        text.parse::<f64>().is_ok()
    }),
    ("integer", &["one", "minus", "zeros", "plus"], &[], |text| text.parse::<i128>().is_ok()),
    ("url", &["https", "http"], &[], |text| text.contains("://")),
    ("ip", &["ip4", "ip6", "ip6-long"], &["ip6-long"], |text| {
        text.parse::<std::net::IpAddr>().is_ok()
    }),
    ("mail", &["mail"], &[], |text| text.contains('@')),
    ("currency", &["USD", "EUR", "XTS"], &[], is_currency),
];

const ANY: &str = "";
const NOT_EMPTY: &str = "not-empty";
const OWN: &str = "own";

/// Which strings a type takes, as far as [`TEXTS`] show, and which of those it writes otherwise than it reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrFormat {
    taken: u64,
    changed: u64,
}

impl StrFormat {
    /// Any string, as it is.
    pub const ANY: Self = Self { taken: (1 << TEXTS.len()) - 1, changed: 0 };
    /// Any but the empty one.
    pub const NOT_EMPTY: Self = Self { taken: Self::ANY.taken - 1, changed: 0 };
    /// By a rule of the type's own, which no trial keeps.
    pub const OWN: Self = Self { taken: 0, changed: 0 };

    /// Of the trials that are taken, by their places in [`TEXTS`], each with whether it is written otherwise.
    #[must_use]
    pub fn of(trials: impl IntoIterator<Item = (usize, bool)>) -> Self {
        let mut format = Self::OWN;
        for (nth, is_changed) in trials {
            format.taken |= 1 << nth;
            format.changed |= u64::from(is_changed) << nth;
        }
        format
    }

    /// By the name of a form that is known.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            ANY => Some(Self::ANY),
            NOT_EMPTY => Some(Self::NOT_EMPTY),
            OWN => Some(Self::OWN),
            name => KNOWN.iter().find(|(known, ..)| *known == name).map(of_known),
        }
    }

    /// Its name, if it is a form that is known.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::ANY => Some(ANY),
            Self::NOT_EMPTY => Some(NOT_EMPTY),
            Self::OWN => Some(OWN),
            _ => KNOWN.iter().find(|known| of_known(known) == self).map(|(name, ..)| *name),
        }
    }

    /// Whether it has a name, and is not a rule of the type's own.
    #[must_use]
    pub fn is_known(self) -> bool {
        self != Self::OWN && self.name().is_some()
    }

    /// Whether one trial alone is taken, and is not a form of a name: which others are is not known.
    pub(crate) fn is_one_of_others(self) -> bool {
        self.taken.count_ones() == 1 && self.name().is_none()
    }

    /// Strings that a type of this form writes.
    pub(crate) fn examples(self) -> impl Iterator<Item = &'static str> {
        let written = self.taken & !self.changed;
        trials(written).map(|nth| TEXTS[nth].1)
    }

    /// The trials that it writes otherwise than it reads them.
    pub(crate) fn changed(self) -> impl Iterator<Item = &'static str> {
        trials(self.taken & self.changed).map(|nth| TEXTS[nth].1)
    }

    /// Whether it is known of `text` whether it is written as it is read.
    pub(crate) fn has_tried(self, text: &str) -> bool {
        self != Self::OWN && (self.changed == 0 || TEXTS.iter().any(|(_, trial)| *trial == text))
    }

    /// Of the strings that are read, however they are written.
    pub(crate) fn as_read(self) -> Self {
        Self { changed: 0, ..self }
    }

    /// Whether there is a trial that `self` takes and writes otherwise, and that `now` keeps.
    pub(crate) fn is_told_apart_by(self, now: Self) -> bool {
        self.changed & now.taken & !now.changed != 0
    }

    /// Whether it writes `text`, a trial, otherwise than it reads it.
    pub(crate) fn changes(self, text: &str) -> bool {
        let nth = TEXTS.iter().position(|(_, trial)| *trial == text);
        nth.is_some_and(|nth| self.changed & (1 << nth) != 0)
    }

    /// Whether `text` has this form: by the trials, or else by its pattern, as far as that is known.
    pub(crate) fn recognises(self, text: &str) -> bool {
        if let Some(nth) = TEXTS.iter().position(|(_, trial)| *trial == text) {
            return self.taken & (1 << nth) != 0;
        }
        let known = KNOWN.iter().find(|known| of_known(known) == self);
        known.is_none_or(|(.., has_it)| has_it(text))
    }

    /// Whether `text` has the pattern of this form.
    #[must_use]
    pub fn is_like(self, text: &str) -> bool {
        let known = KNOWN.iter().find(|known| of_known(known) == self);
        known.is_some_and(|(.., has_it)| has_it(text))
    }

    /// A form from its text: its name, or the trials that it takes, `a+b`, or does not take, `!a!b`; and behind them
    /// those that it writes otherwise, `~a`.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.split('~');
        let base = parts.next()?.trim();
        let mut format = match (Self::named(base), base.strip_prefix('!')) {
            (Some(known), _) => known,
            (None, Some(refused)) => {
                let refused = set(refused.split('!'))?;
                Self { taken: Self::ANY.taken & !refused, changed: 0 }
            }
            (None, None) => Self { taken: set(base.split('+'))?, changed: 0 },
        };
        format.changed |= set(parts)?;
        Some(format)
    }
}

/// As `StrFormat::from_text` reads it.
impl fmt::Display for StrFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.write_str(name);
        }
        let refused = Self::ANY.taken & !self.taken;
        let names = |set, before: &str| -> String {
            trials(set).map(|nth| format!("{before}{}", TEXTS[nth].0)).collect()
        };
        match refused {
            0 => {}
            refused if refused.count_ones() < self.taken.count_ones() => {
                f.write_str(&names(refused, "!"))?;
            }
            _ => f.write_str(names(self.taken, "+").trim_start_matches('+'))?,
        }
        f.write_str(&names(self.changed, "~"))
    }
}

fn of_known((_, taken, changed, _): &Known) -> StrFormat {
    let set = |names: &[&str]| set(names.iter().copied()).unwrap_or_default();
    StrFormat { taken: set(taken), changed: set(changed) }
}

fn set<'n>(names: impl Iterator<Item = &'n str>) -> Option<u64> {
    names
        .map(|name| TEXTS.iter().position(|(known, _)| *known == name.trim()))
        .try_fold(0, |set, nth| Some(set | 1 << nth?))
}

fn trials(set: u64) -> impl Iterator<Item = usize> {
    (0..TEXTS.len()).filter(move |nth| set & (1 << nth) != 0)
}

fn is_uuid(text: &str) -> bool {
    let digits = text.chars().filter(|c| *c != '-');
    [32, 36].contains(&text.len())
        && digits.clone().count() == 32
        && digits.clone().all(|c| c.is_ascii_hexdigit())
}

fn is_date_time(text: &str) -> bool {
    is_like(text, "0000-00-00T00:00:00") && has_offset(text)
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && is_like(text, "0000-00-00")
}

fn is_local_date_time(text: &str) -> bool {
    is_like(text, "0000-00-00T00:00:00") && !has_offset(text)
}

fn is_currency(text: &str) -> bool {
    text.len() == 3 && text.chars().all(|c| c.is_ascii_uppercase())
}

/// Whether `text` begins like `pattern`, in which `0` is any digit.
fn is_like(text: &str, pattern: &str) -> bool {
    text.len() >= pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
            b'0' => byte.is_ascii_digit(),
            mark => byte.eq_ignore_ascii_case(&mark),
        })
}

fn has_offset(text: &str) -> bool {
    let time = text.get(19..).unwrap_or_default();
    time.ends_with(['Z', 'z']) || time.contains(['+', '-'])
}
