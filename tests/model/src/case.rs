//! [`Case`]: a configuration, and its expected verdict.

use std::collections::BTreeSet;

use crate::check::Verdict;
use crate::config::Config;
use crate::properties::{FENCED, FINISHED};

/// What a configuration is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// The engine: nothing is violated.
    Engine,
    /// Other rules that turn out to be harmless.
    Harmless,
    /// A mistake, which the checker must find.
    Mistake,
    /// A situation for which the engine makes no promise, or only some.
    NotPromised,
}

impl Sort {
    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Engine => "the engine",
            Self::Harmless => "harmless",
            Self::Mistake => "a mistake",
            Self::NotPromised => "not promised",
        }
    }
}

/// A configuration and its verdict.
pub struct Case {
    /// For the command line.
    pub name: &'static str,
    /// What it is for.
    pub sort: Sort,
    /// What is checked.
    pub config: Config,
    /// Exactly what does not hold.
    pub violated: &'static [&'static str],
    /// The situations that must be reached, so that the verdict means something.
    pub reached: &'static [&'static str],
}

impl Case {
    /// The differences between the expected and the actual verdict; empty if there are none.
    #[must_use]
    pub fn surprises(&self, verdict: &Verdict) -> Vec<String> {
        let expected: BTreeSet<_> = self.violated.iter().copied().collect();
        let violated = verdict.violated.difference(&expected).map(|p| format!("violated: {p}"));
        let missed = expected.difference(&verdict.violated).map(|p| format!("not found: {p}"));
        let unreached = self.reached.iter().filter(|name| !verdict.reached.contains(*name));
        let unreached = unreached.map(|name| format!("never reached: {name}"));
        violated.chain(missed).chain(unreached).collect()
    }
}

pub(crate) const fn engine(
    name: &'static str,
    config: Config,
    reached: &'static [&'static str],
) -> Case {
    Case { name, sort: Sort::Engine, config, violated: &[], reached }
}
pub(crate) const fn harmless(name: &'static str, config: Config) -> Case {
    Case { name, sort: Sort::Harmless, config, violated: &[], reached: &[FINISHED, FENCED] }
}
pub(crate) const fn mistake(
    name: &'static str,
    config: Config,
    violated: &'static [&'static str],
) -> Case {
    Case { name, sort: Sort::Mistake, config, violated, reached: &[] }
}
pub(crate) const fn not_promised(
    name: &'static str,
    config: Config,
    violated: &'static [&'static str],
    reached: &'static [&'static str],
) -> Case {
    Case { name, sort: Sort::NotPromised, config, violated, reached }
}
