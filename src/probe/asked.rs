//! What a type was asked at a place, and what was tried there.

use serde_json::Value;

use atomic_phases_compat::Integer;

/// No type has a member or a variant of that name.
pub(super) const UNKNOWN: &str = "$atomic_phases::private::Unknown";

/// The step to the key of a map's entry.
pub(super) const KEY: &str = "\u{2}key";

/// Between the steps of a path.
pub(super) const STEP: char = '\u{1}';

/// A question: the place where it was asked, and how many were asked there before it.
pub(super) type Key = (String, u32);

/// Whether `path` is inside of the place `outer`.
pub(super) fn is_inside(path: &str, outer: &str) -> bool {
    match outer {
        "" => !path.is_empty(),
        _ => path.strip_prefix(outer).is_some_and(|rest| rest.starts_with(STEP)),
    }
}

/// The greatest integer of a width that JSON of serde_json has, and 128 bits of a sign.
pub(super) fn widest(integer: Integer) -> i128 {
    match (integer.signed, integer.bits) {
        (_, 128) => i128::MAX,
        (true, bits) => (1 << (bits - 1)) - 1,
        (false, bits) => (1 << bits) - 1,
    }
}

/// Where a question belongs to: the innermost named type, and the way from there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeafId {
    pub(super) owner: Owner,
    pub(super) path: String,
    pub(super) nth: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// No named type: of this probe.
    Probe(usize),
    /// A type, or a variant of it.
    Type(usize, Option<usize>),
}

/// An answer that was given.
pub(super) struct Asked {
    pub(super) key: Key,
    /// Which of how many candidates.
    pub(super) taken: usize,
    pub(super) of: usize,
    pub(super) ways: Ways,
}

/// What another answer to a question changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ways {
    /// A value.
    All,
    /// Whether something is there.
    Around,
    /// Which variant it is.
    Variants,
}

/// A place at which the type refused what it had been answered, and what had been asked for it.
pub(super) struct Frame {
    pub(super) path: String,
    pub(super) id: LeafId,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A place at which several values can be tried out.
pub(super) struct Leaf {
    pub(super) key: Key,
    pub(super) id: LeafId,
    pub(super) kind: LeafKind,
}

#[derive(Clone, Copy)]
pub(super) enum LeafKind {
    Text,
    Char,
    Integer(Integer),
    Float(u8),
    List,
    Any,
    Enum,
}

/// An answer that is tried out.
#[derive(Clone)]
pub(super) enum Forced {
    /// One of the texts, characters or floats, by its place in their list.
    Candidate(usize),
    /// So many elements, all of them like the first.
    Length(usize),
    Given(Value),
    Integer(i128),
    UnknownVariant,
}
