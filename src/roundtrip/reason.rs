//! A [`Loss`] in words, as a reason that is logged, stored and shown to operators.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::{Because, Loss};
use crate::fingerprint::Step;
use crate::lock::lock;

/// The reasons that were given so far. Each is kept for good, because a reason is a `&'static str`
/// everywhere: there are as many of them as the application's types have places.
static GIVEN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// A type that contains itself has places without end.
const MAX_REASONS: usize = 1_000;

impl Loss {
    /// Why the output of a phase is refused, where within it, and what to return instead.
    pub(crate) fn reason(&self) -> &'static str {
        let place = match self.place() {
            place if place.is_empty() => "the output as a whole".to_owned(),
            place => format!("`{place}` of the output"),
        };
        let text = format!("{place} {}", self.because.advice());
        let mut given = lock(&GIVEN);
        match given.get(text.as_str()) {
            Some(known) => known,
            None if given.len() >= MAX_REASONS => self.because.advice(),
            None => {
                let text: &'static str = Box::leak(text.into_boxed_str());
                given.insert(text);
                text
            }
        }
    }

    /// The path without the positions of elements: as many places as the type has, not the value.
    fn place(&self) -> String {
        let mut place = String::new();
        for step in &self.path {
            match step {
                Step::Field(name) if place.is_empty() => place.push_str(name),
                Step::Field(name) => place.extend([".", name]),
                Step::Entry => place.push_str("[key]"),
                Step::Index(_) => place.push_str("[]"),
            }
        }
        place
    }
}

impl Because {
    fn advice(self) -> &'static str {
        match self {
            Self::NotWritten => {
                "has no JSON form: a map's key has to be a string, a number, a bool or a unit variant; \
                 return a list of pairs instead"
            }
            Self::NotFinite => {
                "is a float that is NaN or infinite, which JSON cannot hold: return an `Option` or an \
                 error instead"
            }
            Self::NotRead => {
                "does not deserialize from what it serializes to: give a skipped member \
                 `#[serde(default)]`, and both halves of serde the same form"
            }
            Self::Differs | Self::Order => {
                "comes back from its stored form as another value: return no nested `Option`, and no \
                 untagged enum whose variants look alike"
            }
        }
    }
}
