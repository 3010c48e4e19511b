//! What a type says while it refuses a value: the names and forms that it looked for.
//!
//! serde keeps the parts of a flattened, tagged or untagged type to itself, but it makes its errors by the
//! deserializer's own type, even those that it then drops. So they are heard here.

use std::cell::RefCell;
use std::fmt;

use serde::{de, ser};

/// More are not kept of one value.
const MAX_HINTS: usize = 64;

thread_local! {
    static HEARD: RefCell<Option<Vec<Hint>>> = const { RefCell::new(None) };
}

/// What a type looked for and did not find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// A member.
    Missing(&'static str),
    /// One of these variants.
    Variants(&'static [&'static str]),
    /// A value of another kind, in serde's words.
    Kind(String),
    /// An array of another length, in serde's words.
    Length(String),
    /// Something else, which it does not tell.
    Other,
}

/// From now on what is said is kept, for [`take_heard`].
pub(super) fn listen() {
    HEARD.set(Some(Vec::new()));
}

pub(super) fn take_heard() -> Vec<Hint> {
    HEARD.take().unwrap_or_default()
}

fn hear(hint: impl FnOnce() -> Hint) {
    HEARD.with_borrow_mut(|heard| {
        if let Some(heard) = heard.as_mut().filter(|heard| heard.len() < MAX_HINTS) {
            heard.push(hint());
        }
    });
}

/// Why the type did not take an answer, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Of two names of the member of this name one is too much.
    Duplicate(&'static str),
    /// A member is not there.
    Missing,
    /// It holds itself, and no variant of it is known to come to an end.
    NotYet,
    /// It asks for names that it does not tell.
    Flattened,
    Other,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }
}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        hear(|| Hint::Other);
        Self::Other
    }

    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        hear(|| Hint::Kind(expected.to_string()));
        Self::Other
    }

    fn invalid_length(_: usize, expected: &dyn de::Expected) -> Self {
        hear(|| Hint::Length(expected.to_string()));
        Self::Other
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        hear(|| Hint::Variants(expected));
        Self::Other
    }

    fn duplicate_field(name: &'static str) -> Self {
        Self::Duplicate(name)
    }

    fn missing_field(name: &'static str) -> Self {
        hear(|| Hint::Missing(name));
        Self::Missing
    }
}
