//! Which strings and integers a place takes: each candidate is put there, with all other answers as they are.
//!
//! What counts is whether the type refuses it at that place; what a type says of several members together
//! is not tried out.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::answer::Answers;
use super::asked::{Forced, INTEGERS, Leaf, LeafKind, widest};
use super::forms::Forms;
use super::search::Attempt;
use crate::compat::{Integer, Shape, StrFormat};

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

/// What was found out about a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Text(StrFormat),
    /// `None`: it refuses all that were tried.
    Integer(Option<Integer>),
    /// What it looks like that is asked as a whole, and a value of each of its forms.
    Whole {
        shape: Shape,
        values: Vec<Value>,
    },
    /// Whether it takes variants that it does not know.
    Open(bool),
}

impl Answers<'_> {
    pub(super) fn explore<T: Serialize + DeserializeOwned>(&mut self) {
        for leaf in std::mem::take(&mut self.leaves) {
            if self.known().facts.contains_key(&leaf.id) {
                continue;
            }
            let fact = match leaf.kind {
                LeafKind::Text => Fact::Text(self.format::<T>(&leaf)),
                LeafKind::Integer(integer) => {
                    let takes = |number| self.takes::<T>(&leaf, Forced::Integer(number));
                    Fact::Integer(limits(integer, takes))
                }
                LeafKind::Any => match self.forms::<T>(&leaf) {
                    Some(Forms { shape, values }) => Fact::Whole { shape, values },
                    // As long as there is no value of the type around it.
                    None => continue,
                },
                LeafKind::Enum => Fact::Open(self.takes::<T>(&leaf, Forced::UnknownVariant)),
            };
            self.catalogue().facts.insert(leaf.id, fact);
        }
    }

    /// Whether the type does not refuse this answer at its own place.
    pub(super) fn takes<T: Serialize + DeserializeOwned>(
        &mut self,
        leaf: &Leaf,
        forced: Forced,
    ) -> bool {
        let is_taken = self.with_forced::<T>(leaf, forced).is_taken;
        let refused_here = self.failed.first().is_some_and(|frame| frame.path == leaf.key.0);
        self.was_forced && (is_taken || !refused_here)
    }

    pub(super) fn with_forced<T: Serialize + DeserializeOwned>(
        &mut self,
        leaf: &Leaf,
        forced: Forced,
    ) -> Attempt {
        self.forced = Some((leaf.key.clone(), forced));
        self.was_forced = false;
        let attempt = self.attempt::<T>();
        self.forced = None;
        attempt
    }

    fn format<T: Serialize + DeserializeOwned>(&mut self, leaf: &Leaf) -> StrFormat {
        let mut taken = Vec::new();
        for (nth, (format, ..)) in StrFormat::ALL.iter().enumerate() {
            if self.takes::<T>(leaf, Forced::Candidate(nth)) {
                taken.push(*format);
            }
        }
        format_of(&taken)
    }

    /// Values with one of each kind that a place takes, where it takes several and not all.
    pub(super) fn others<T: Serialize + DeserializeOwned>(&mut self) -> Vec<String> {
        let mut others = Vec::new();
        for leaf in std::mem::take(&mut self.leaves) {
            let Some(Fact::Whole { values, .. }) = self.known().facts.get(&leaf.id) else {
                continue;
            };
            for value in values.clone() {
                let built = self.with_forced::<T>(&leaf, Forced::Given(value)).built;
                others.extend(built.map(|(_, sample)| sample));
            }
        }
        others
    }
}

/// The form of strings of which these are taken.
pub(super) fn format_of(taken: &[StrFormat]) -> StrFormat {
    let all = StrFormat::ALL.len();
    match taken {
        [format] => *format,
        [StrFormat::Any, ..] if taken.len() == all => StrFormat::Any,
        [StrFormat::NotEmpty, ..] if taken.len() == all - 1 => StrFormat::NotEmpty,
        _ => StrFormat::Own,
    }
}

/// The integers that are taken; `None` where none of those is that were tried.
pub(super) fn limits(integer: Integer, mut takes: impl FnMut(i128) -> bool) -> Option<Integer> {
    let (least, most) = (integer.width_least(), widest(integer));
    if takes(least) && takes(most) {
        return Some(Integer { zero: takes(0), ..integer });
    }
    let inner = INTEGERS.into_iter().filter(|n| (least..=most).contains(n));
    let taken = [most, least].into_iter().chain(inner).find(|number| takes(*number))?;
    let mut limit = |mut refused: i128| {
        if takes(refused) {
            return None;
        }
        let mut taken = taken;
        while taken.abs_diff(refused) > 1 {
            let middle = taken / 2 + refused / 2 + (taken % 2 + refused % 2) / 2;
            match takes(middle) {
                true => taken = middle,
                false => refused = middle,
            }
        }
        Some(taken)
    };
    Some(Integer { least: limit(least), most: limit(most), ..integer })
}
