//! [`Case`]: what goes wrong in one case, as a line of text that can be played again.

use std::fmt;
use std::str::FromStr;

use super::mode::Fault;
use super::points::{NoSuchPoint, Point};

/// The environment variable that makes an explorer run one case only.
pub(crate) const CASE: &str = "ATOMIC_PHASES_CASE";

/// Stands for an attempt in which nothing goes wrong, in front of one in which something does.
const UNDISTURBED: &str = "undisturbed";

/// Who drives the request: a client that calls again, or a background worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Retry,
    Workers,
}

impl Driver {
    pub(crate) const BOTH: [Self; 2] = [Self::Retry, Self::Workers];

    fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Workers => "workers",
        }
    }
}

/// Where one of two workers stands still and the other continues. Printed, and parsed, as
/// `booked/after_commit#0=switch`, or `=expire`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) point: Point,
    pub(crate) visit: u32,
    /// Whether each lease runs out meanwhile.
    pub(crate) expires: bool,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.expires { "expire" } else { "switch" };
        write!(f, "{}#{}={word}", self.point, self.visit)
    }
}

impl FromStr for Turn {
    type Err = NoSuchPoint;

    fn from_str(text: &str) -> Result<Self, NoSuchPoint> {
        let parsed = || {
            let (at, word) = text.rsplit_once('=')?;
            let expires = match word {
                "switch" => false,
                "expire" => true,
                _ => return None,
            };
            let (point, visit) = at.rsplit_once('#').unwrap_or((at, "0"));
            Some(Self { point: point.parse().ok()?, visit: visit.parse().ok()?, expires })
        };
        parsed().ok_or_else(|| NoSuchPoint(text.to_owned()))
    }
}

/// A place where a worker stood while the other could have gone on: the next turn may be there.
pub(super) struct Stop {
    pub(super) point: Point,
    pub(super) visit: u32,
    /// Whether there was a lease, or a back-off, that could have run out.
    pub(super) may_expire: bool,
}

/// What goes wrong, and who drives on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Attempt by attempt, those of one attempt in their order. Printed, and parsed, as
    /// `booked/before_commit#0=not_sent + booked/after_commit#0=drop; charged/before_call#0=panic; workers`.
    Crashes { faults: Vec<Vec<Fault>>, driver: Driver },
    /// Two workers in turns, and who the second is. Printed, and parsed, as
    /// `two: charged/after_call#0=expire; booked/before_body#0=switch; retry`.
    Turns { turns: Vec<Turn>, second: Driver },
}

impl Case {
    pub(crate) const CLEAN: Self = Self::Crashes { faults: Vec::new(), driver: Driver::Retry };

    /// The one case that the environment asks for.
    pub(crate) fn of_the_environment() -> Option<Result<Self, NoSuchPoint>> {
        Some(std::env::var(CASE).ok()?.parse())
    }

    pub(crate) fn driver(&self) -> Driver {
        match self {
            Self::Crashes { driver, .. } => *driver,
            Self::Turns { second, .. } => *second,
        }
    }
}

impl FromStr for Case {
    type Err = NoSuchPoint;

    fn from_str(text: &str) -> Result<Self, NoSuchPoint> {
        let (two, parts) = match text.trim().strip_prefix("two:") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mut driver, mut turns, mut faults) = (Driver::Retry, Vec::new(), Vec::new());
        for part in parts.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            if let Some(named) = Driver::BOTH.into_iter().find(|known| known.as_str() == part) {
                driver = named;
            } else if two {
                turns.push(part.parse()?);
            } else if part == UNDISTURBED {
                faults.push(Vec::new());
            } else {
                let attempt: Result<_, _> = part.split('+').map(|one| one.trim().parse()).collect();
                faults.push(attempt?);
            }
        }
        Ok(match two {
            true => Self::Turns { turns, second: driver },
            false => Self::Crashes { faults, driver },
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crashes { faults, .. } => {
                for attempt in faults {
                    if attempt.is_empty() {
                        f.write_str(UNDISTURBED)?;
                    }
                    for (index, fault) in attempt.iter().enumerate() {
                        let between = if index == 0 { "" } else { " + " };
                        write!(f, "{between}{fault}")?;
                    }
                    f.write_str("; ")?;
                }
            }
            Self::Turns { turns, .. } => {
                f.write_str("two: ")?;
                for turn in turns {
                    write!(f, "{turn}; ")?;
                }
            }
        }
        f.write_str(self.driver().as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_parsed_as_it_is_printed() {
        for text in [
            "retry",
            "booked/after_commit#0=drop; charged/before_call#2=panic; workers",
            "booked/before_commit#0=not_sent + booked/after_commit#0=drop; a/b#0=panic; retry",
            "undisturbed; seen/before_phase#0=replicated + charged/after_call#0=row_lost; workers",
            "two: workers",
            "two: charged/after_call#0=expire; booked/before_body#1=switch; retry",
        ] {
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        for bad in
            ["booked/Nowhere=drop", "booked/after_commit=switch", "two: a/b=drop", "a/b=drop +"]
        {
            assert!(bad.parse::<Case>().is_err(), "{bad}");
        }
    }
}
