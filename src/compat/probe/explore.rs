//! Which strings and integers a place takes: each candidate is put there, with all other answers as they are.
//!
//! What counts is whether the type refuses it at that place; what a type says of several members together
//! is not tried out.

use std::mem::discriminant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answer::{Answers, Forced, Leaf, LeafKind, widest};
use crate::compat::{Integer, StrFormat};

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
    /// Whether it takes all kinds of values, and which of the candidates.
    Kinds {
        all: bool,
        taken: Vec<usize>,
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
                LeafKind::Integer(integer) => Fact::Integer(self.limits::<T>(&leaf, integer)),
                LeafKind::Any => {
                    let count = self.kinds().len();
                    let taken: Vec<usize> = (0..count)
                        .filter(|nth| self.takes::<T>(&leaf, Forced::Candidate(*nth)))
                        .collect();
                    Fact::Kinds { all: taken.len() == count, taken }
                }
                LeafKind::Enum => Fact::Open(self.takes::<T>(&leaf, Forced::UnknownVariant)),
            };
            self.catalogue().facts.insert(leaf.id, fact);
        }
    }

    /// Whether the type does not refuse this answer at its own place.
    fn takes<T: Serialize + DeserializeOwned>(&mut self, leaf: &Leaf, forced: Forced) -> bool {
        self.forced = Some((leaf.key.clone(), forced));
        self.was_forced = false;
        let is_taken = self.attempt::<T>().is_taken;
        self.forced = None;
        let refused_here = self.failed.first().is_some_and(|frame| frame.path == leaf.key.0);
        self.was_forced && (is_taken || !refused_here)
    }

    fn format<T: Serialize + DeserializeOwned>(&mut self, leaf: &Leaf) -> StrFormat {
        let mut taken = Vec::new();
        for (nth, (format, ..)) in StrFormat::ALL.iter().enumerate() {
            if self.takes::<T>(leaf, Forced::Candidate(nth)) {
                taken.push(*format);
            }
        }
        let all = StrFormat::ALL.len();
        match taken[..] {
            [format] => format,
            [StrFormat::Any, ..] if taken.len() == all => StrFormat::Any,
            [StrFormat::NotEmpty, ..] if taken.len() == all - 1 => StrFormat::NotEmpty,
            _ => StrFormat::Own,
        }
    }

    fn limits<T: Serialize + DeserializeOwned>(
        &mut self,
        leaf: &Leaf,
        integer: Integer,
    ) -> Option<Integer> {
        let (least, most) = (integer.width_least(), widest(integer));
        let mut takes = |number: i128| self.takes::<T>(leaf, Forced::Integer(number));
        if takes(least) && takes(most) {
            return Some(Integer { zero: takes(0), ..integer });
        }
        let inner = super::answer::INTEGERS.into_iter().filter(|n| (least..=most).contains(n));
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

    /// Values with one of each kind that a place takes, where it takes several and not all.
    pub(super) fn others<T: Serialize + DeserializeOwned>(&mut self) -> Vec<String> {
        let (mut others, kinds) = (Vec::new(), self.kinds());
        for leaf in std::mem::take(&mut self.leaves) {
            let Some(Fact::Kinds { all: false, taken }) = self.known().facts.get(&leaf.id) else {
                continue;
            };
            let mut first_of_kinds = taken.clone();
            first_of_kinds.dedup_by_key(|nth| discriminant(&kinds[*nth]));
            for nth in first_of_kinds {
                self.forced = Some((leaf.key.clone(), Forced::Candidate(nth)));
                let built = self.attempt::<T>().built;
                self.forced = None;
                others.extend(built.map(|(_, sample)| sample));
            }
        }
        others
    }
}
