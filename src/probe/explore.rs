//! Which strings, numbers and lists a place takes: each candidate is put there, with all other answers as they are.
//!
//! What counts is whether the type refuses it at that place. Where it takes it there, and refuses what is
//! around it, that has a rule of several parts: what it refuses is remembered.

use serde_json::Value;

use super::ValueType;
use super::answer::{Answers, Attempt};
use super::asked::{Forced, KEY, Leaf, LeafKind, is_inside, widest};
use super::fact::Fact;
use super::forms::Forms;
use super::hints::Refused;
use super::path::{at, at_mut};
use crate::number::to_u32;
use atomic_phases_compat::{
    FLOATS, Float, INTEGERS, Integer, LETTERS, Length, Letter, Order, StrFormat, TEXTS,
};

/// So many values that a rule refuses are remembered of one place.
const MAX_REFUSED: usize = 4;

/// What came of a candidate.
struct Tried {
    is_taken: bool,
    /// What was put there, and what is written of it, where there is a value of the type; none where its element of a
    /// list is gone.
    kept: Option<(Value, Option<Value>)>,
}

impl Tried {
    fn is_changed(&self) -> bool {
        self.kept.as_ref().is_some_and(|(given, written)| written.as_ref() != Some(given))
    }

    /// As a number: an integer may be written as a float, and a number as something else.
    fn is_another_number(&self) -> bool {
        self.kept.as_ref().is_some_and(|(given, written)| match written {
            None => true,
            Some(written) => written.is_number() && written.as_f64() != given.as_f64(),
        })
    }
}

impl Answers<'_> {
    pub(super) fn explore(&mut self) {
        for leaf in std::mem::take(&mut self.leaves) {
            if self.known().facts.contains_key(&leaf.id) {
                continue;
            }
            let fact = match leaf.kind {
                LeafKind::Text => match self.format(&leaf) {
                    Some(format) => Fact::Text(format),
                    None => continue,
                },
                LeafKind::Char => {
                    Fact::Char(Letter::default().without(self.refused(&leaf, LETTERS.len())))
                }
                LeafKind::Float(bits) => {
                    let float = Float::of(bits).without(self.refused(&leaf, FLOATS.len()));
                    let mut changed = Vec::new();
                    for nth in 0..FLOATS.len() {
                        let tried = self.tried(&leaf, Forced::Candidate(nth));
                        changed
                            .extend((tried.is_taken && tried.is_another_number()).then_some(nth));
                    }
                    Fact::Float(float.changing(changed))
                }
                LeafKind::Integer(integer) => {
                    let mut changed = Vec::new();
                    let takes = |number| {
                        let tried = self.tried(&leaf, Forced::Integer(number));
                        let is_changed = tried.is_taken && tried.is_another_number();
                        changed.extend(is_changed.then_some(number));
                        tried.is_taken
                    };
                    let limited = limits(integer, takes);
                    Fact::Integer(limited.map(|limited| limited.changing(changed)))
                }
                LeafKind::List => Fact::List(self.length(&leaf), self.order(&leaf)),
                LeafKind::Any => match self.forms(&leaf) {
                    Some(Forms { shape, values }) => Fact::Whole { shape, values },
                    // As long as there is no value of the type around it.
                    None => continue,
                },
                LeafKind::Enum => Fact::Open(self.takes(&leaf, Forced::UnknownVariant)),
            };
            self.catalogue().facts.insert(leaf.id, fact);
        }
    }

    /// Whether the type does not refuse this answer at its own place.
    pub(super) fn takes(&mut self, leaf: &Leaf, forced: Forced) -> bool {
        self.tried(leaf, forced).is_taken
    }

    fn tried(&mut self, leaf: &Leaf, forced: Forced) -> Tried {
        let attempt = self.with_forced(leaf, forced);
        let refused_here = self.failed.first().is_some_and(|frame| frame.path == leaf.key.0);
        let is_taken = self.was_forced && (attempt.is_taken || !refused_here);
        if is_taken && !attempt.is_taken {
            self.note_rule(leaf, &attempt.input);
        }
        let path = self.path_of(&leaf.key.0);
        let kept = attempt.built.and_then(|(input, sample)| {
            let written: Value = serde_json::from_str(&sample).ok()?;
            let given = part(&input, &path)?;
            match part(&written, &path) {
                Some(written) => Some((given, Some(written))),
                None => is_gone(&written, &path).then_some((given, None)),
            }
        });
        Tried { is_taken, kept }
    }

    /// Remembers what is refused around a place that took what was tried there.
    fn note_rule(&mut self, leaf: &Leaf, input: &Value) {
        let is_of_one = !matches!(leaf.kind, LeafKind::Any | LeafKind::Enum);
        let Some(frame) = self.failed.first() else { return };
        let is_rule = self.has_value && is_of_one && self.why == Some(Refused::Other);
        if !is_rule || !is_inside(&leaf.key.0, &frame.path) {
            return;
        }
        let (id, path) = (frame.id.clone(), self.path_of(&frame.path));
        let Some(value @ (Value::Array(_) | Value::Object(_))) = at(input, &path) else { return };
        let refused = self.catalogue.rules.entry(id).or_default();
        if refused.len() < MAX_REFUSED && !refused.contains(value) {
            refused.push(value.clone());
        }
    }

    pub(super) fn with_forced(&mut self, leaf: &Leaf, forced: Forced) -> Attempt {
        self.forced = Some((leaf.key.clone(), forced));
        self.was_forced = false;
        let attempt = self.attempt();
        self.forced = None;
        attempt
    }

    /// `None`: the place was not come to.
    fn format(&mut self, leaf: &Leaf) -> Option<StrFormat> {
        let mut taken = Vec::new();
        for nth in 0..TEXTS.len() {
            let tried = self.tried(leaf, Forced::Candidate(nth));
            if !self.was_forced {
                return None;
            }
            if tried.is_taken {
                taken.push((nth, tried.is_changed()));
            }
        }
        Some(StrFormat::of(taken))
    }

    fn refused(&mut self, leaf: &Leaf, count: usize) -> Vec<usize> {
        (0..count).filter(|nth| !self.takes(leaf, Forced::Candidate(*nth))).collect()
    }

    fn length(&mut self, leaf: &Leaf) -> Length {
        const MAX_LENGTH: usize = 101;
        let mut takes = |length| self.takes(leaf, Forced::Length(length));
        let Some(least) = [0, 1, 2, 3].into_iter().find(|length| takes(*length)) else {
            return Length::default();
        };
        let (mut taken, mut refused) = (least, MAX_LENGTH);
        if takes(MAX_LENGTH) {
            return Length { least: to_u32(least), most: None };
        }
        while refused - taken > 1 {
            let middle = taken.midpoint(refused);
            match takes(middle) {
                true => taken = middle,
                false => refused = middle,
            }
        }
        Length { least: to_u32(least), most: Some(to_u32(taken)) }
    }

    /// What is there twice is written once: a set.
    fn order(&mut self, leaf: &Leaf) -> Order {
        let attempt = self.with_forced(leaf, Forced::Length(2));
        let path = self.path_of(&leaf.key.0);
        let Some((input, sample)) = attempt.built else { return Order::Kept };
        let elements = |json: &str| {
            let value: Value = serde_json::from_str(json).ok()?;
            Some(at(&value, &path)?.as_array()?.clone())
        };
        if elements(&sample).is_none_or(|written| written.len() != 1) {
            return match is_sorted(self.of, &input, &path) {
                Some(true) => Order::Sorted,
                _ => Order::Kept,
            };
        }
        let distinct = distinct(self.of, &input, &path);
        let write = || self.of.rewritten(&distinct.to_string());
        let first = write();
        match (0..16).all(|_| write() == first) {
            true => Order::Set,
            false => Order::Chance,
        }
    }

    /// Values with one of each kind that a place takes, where it takes several and not all.
    pub(super) fn others(&mut self) -> Vec<String> {
        let mut others = Vec::new();
        for leaf in std::mem::take(&mut self.leaves) {
            let Some(Fact::Whole { values, .. }) = self.known().facts.get(&leaf.id) else {
                continue;
            };
            for value in values.clone() {
                let built = self.with_forced(&leaf, Forced::Given(value)).built;
                others.extend(built.map(|(_, sample)| sample));
            }
        }
        others
    }
}

/// What stands at a place, which may be the key of a map's entry.
fn part(value: &Value, path: &[String]) -> Option<Value> {
    match path.split_last() {
        Some((last, around)) if last == KEY => {
            Some(at(value, around)?.as_object()?.keys().next()?.as_str().into())
        }
        _ => at(value, path).cloned(),
    }
}

/// Whether a list has not the element any more in which a place is.
fn is_gone(value: &Value, path: &[String]) -> bool {
    let known = (0..path.len()).rev().find_map(|length| at(value, &path[..length]));
    known.is_some_and(Value::is_array)
}

/// Whether two elements are written in one order, however they are read.
fn is_sorted(of: ValueType, input: &Value, path: &[String]) -> Option<bool> {
    let first = at(input, path)?.get(0)?.clone();
    let write = |elements: Vec<Value>| -> Option<Value> {
        let mut input = input.clone();
        *at_mut(&mut input, path)? = elements.into();
        let written: Value = serde_json::from_str(&of.rewritten(&input.to_string())?).ok()?;
        at(&written, path).cloned()
    };
    let is_one_of_two = |other: &Value| {
        let two = write(vec![first.clone(), other.clone()]);
        *other != first && two.is_some_and(|two| two.as_array().is_some_and(|two| two.len() == 2))
    };
    // By a key, which is the same in some.
    let others = (0..TEXTS.len()).map(|nth| varied(&first, nth)).filter(is_one_of_two);
    let is_one = |other: Value| {
        let (one, two) = (vec![first.clone(), other.clone()], vec![other, first.clone()]);
        write(one) == write(two)
    };
    Some(others.take(3).any(is_one))
}

/// The value with other numbers and strings in all of its parts.
fn varied(value: &Value, nth: usize) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => FLOATS[nth % FLOATS.len()].1.into(),
        Value::Number(_) => {
            i64::try_from(INTEGERS[nth % INTEGERS.len()]).unwrap_or_default().into()
        }
        Value::String(_) => TEXTS[nth % TEXTS.len()].1.into(),
        Value::Array(parts) => parts.iter().map(|part| varied(part, nth)).collect(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, part)| (name.clone(), varied(part, nth)));
            members.collect::<serde_json::Map<_, _>>().into()
        }
        value => value.clone(),
    }
}

/// The input with elements in a list that differ in one part, as many as the type takes.
fn distinct(of: ValueType, input: &Value, path: &[String]) -> Value {
    let mut distinct = input.clone();
    let Some(first) = at(input, path).and_then(|list| list.get(0)).cloned() else {
        return distinct;
    };
    for element in others_of(&first) {
        let mut with_it = distinct.clone();
        let list = at_mut(&mut with_it, path).and_then(Value::as_array_mut);
        list.into_iter().for_each(|list| list.push(element.clone()));
        if of.reads(&with_it.to_string()) {
            distinct = with_it;
        }
    }
    distinct
}

/// Values with another number or string in the first part that is one.
fn others_of(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(_) => {
            INTEGERS.iter().filter_map(|n| i64::try_from(*n).ok()).map(Value::from).collect()
        }
        Value::String(_) => TEXTS.iter().map(|(_, text)| Value::from(*text)).collect(),
        Value::Array(parts) => {
            let of = |index: usize| {
                others_of(&parts[index]).into_iter().map(move |part| {
                    let mut parts = parts.clone();
                    parts[index] = part;
                    Value::from(parts)
                })
            };
            (0..parts.len())
                .map(|index| of(index).collect::<Vec<_>>())
                .find(|all| !all.is_empty())
                .unwrap_or_default()
        }
        Value::Object(members) => {
            let of = |name: &String| -> Vec<Value> {
                let others = others_of(&members[name]).into_iter().map(|part| {
                    let mut members = members.clone();
                    members.insert(name.clone(), part);
                    Value::from(members)
                });
                others.collect()
            };
            members.keys().map(of).find(|all| !all.is_empty()).unwrap_or_default()
        }
        Value::Null | Value::Bool(_) => Vec::new(),
    }
}

/// The integers that are taken; `None` where none of those is that were tried.
pub(super) fn limits(integer: Integer, mut takes: impl FnMut(i128) -> bool) -> Option<Integer> {
    let (least, most) = (integer.width_least(), widest(integer));
    let mut tried: Vec<i128> =
        INTEGERS.into_iter().chain([least, most]).filter(|n| (least..=most).contains(n)).collect();
    tried.sort_unstable();
    tried.dedup();
    let (taken, refused): (Vec<i128>, Vec<i128>) = tried.into_iter().partition(|n| takes(*n));
    let (lowest, highest) = (*taken.first()?, *taken.last()?);
    let mut limit = |mut taken: i128, mut refused: i128| {
        while taken.abs_diff(refused) > 1 {
            let middle = taken / 2 + refused / 2 + (taken % 2 + refused % 2) / 2;
            match takes(middle) {
                true => taken = middle,
                false => refused = middle,
            }
        }
        taken
    };
    let below = refused.iter().copied().rfind(|n| *n < lowest);
    let above = refused.iter().copied().find(|n| *n > highest);
    let least = below.map(|refused| limit(lowest, refused));
    let most = above.map(|refused| limit(highest, refused));
    // One alone of them all is one of others that were not tried: it is not known which.
    if taken.len() == 1 && least.is_some() && least == most {
        return None;
    }
    let within = refused.into_iter().filter(|n| (lowest..=highest).contains(n));
    Some(integer.without(within).within(least, most))
}
