//! Values for a place that keeps to itself what it is made of: a flattened, tagged or untagged type. They are found
//! in a conversation: the place is given a value, and what it [says](super::hints) while it refuses it is
//! what the next one has.

use std::collections::{BTreeSet, VecDeque};

use serde_json::{Map, Value, json};

use super::answer::Answers;
use super::asked::{Forced, Leaf, LeafKind, UNKNOWN};
use super::candidates::{Trial, integers, kinds};
use super::fact::Talked;
use super::hints::Hint;
use super::path::{at, at_mut};
use atomic_phases_compat::{INTEGERS, TEXTS};

/// So many values are tried at one place at most.
const MAX_VALUES: usize = 600;

/// And so many where one member of it is filled.
const MAX_VALUES_OF_MEMBER: usize = 80;

impl Answers<'_> {
    /// Finds values for the places of this attempt that were not tried yet. `false`: there is none.
    pub(super) fn converse(&mut self) -> bool {
        let mut is_new = false;
        for leaf in std::mem::take(&mut self.leaves) {
            if matches!(leaf.kind, LeafKind::Any) && !self.known().talked.contains_key(&leaf.id) {
                self.talk_with(&leaf);
                is_new = true;
            }
        }
        is_new
    }

    pub(super) fn talk_with(&mut self, leaf: &Leaf) -> Talked {
        if let Some(talked) = self.known().talked.get(&leaf.id) {
            return talked.clone();
        }
        let kinds = kinds();
        let talked = match kinds.iter().all(|value| self.gives(leaf, value)) {
            true => Talked::Everything,
            false => Talked::Takes(self.values_of(leaf, kinds)),
        };
        self.catalogue().talked.insert(leaf.id.clone(), talked.clone());
        talked
    }

    fn values_of(&mut self, leaf: &Leaf, kinds: Vec<Value>) -> Vec<Value> {
        let path = self.path_of(&leaf.key.0);
        let given = self.given.iter().filter_map(|sample| at(sample, &path)).cloned();
        let given = given.map(|value| Trial { value, cursor: None });
        let kinds = kinds.into_iter().chain(integers());
        let kinds = kinds.map(|value| Trial { value, cursor: Some(Vec::new()) });
        let mut values = Vec::new();
        self.search(leaf, given.chain(kinds).collect(), MAX_VALUES, |_, value| {
            values.push(value.clone());
            false
        });
        values
    }

    /// Whether the place takes this value.
    pub(super) fn gives(&mut self, leaf: &Leaf, value: &Value) -> bool {
        self.takes(leaf, Forced::Given(value.clone()))
    }

    /// Goes on with what the place says, until `is_enough` of a value that it takes.
    fn search(
        &mut self,
        leaf: &Leaf,
        trials: Vec<Trial>,
        most: usize,
        mut is_enough: impl FnMut(&mut Self, &Value) -> bool,
    ) {
        let mut queue = VecDeque::from(trials);
        let mut tried = BTreeSet::new();
        while let Some(trial) = queue.pop_front() {
            if tried.len() >= most || !tried.insert(trial.value.to_string()) {
                continue;
            }
            let is_taken = self.gives(leaf, &trial.value);
            let heard = std::mem::take(&mut self.heard);
            if is_taken && is_enough(self, &trial.value) {
                return;
            }
            heard.iter().for_each(|hint| queue.extend(next(&trial, hint)));
        }
    }

    /// The first value that the place takes, from these on, and that is `wanted`.
    pub(super) fn first(
        &mut self,
        leaf: &Leaf,
        trials: Vec<Trial>,
        mut wanted: impl FnMut(&mut Self, &Value) -> bool,
    ) -> Option<Value> {
        let mut found = None;
        self.search(leaf, trials, MAX_VALUES_OF_MEMBER, |answers, value| {
            let is_it = wanted(answers, value);
            found = is_it.then(|| value.clone());
            is_it
        });
        found
    }

    /// The variants of which the place expects one, where it has a string.
    pub(super) fn variants_at(
        &mut self,
        leaf: &Leaf,
        value: &Value,
        place: &[String],
    ) -> Option<&'static [&'static str]> {
        let unknown = Trial::with(value, place, UNKNOWN.into())?;
        if self.gives(leaf, &unknown.value) {
            return None;
        }
        self.heard.iter().find_map(|hint| match hint {
            Hint::Variants(names) => Some(*names),
            _ => None,
        })
    }
}

/// What comes after a value that was refused with this hint.
fn next(trial: &Trial, hint: &Hint) -> Vec<Trial> {
    let cursor = trial.cursor.as_deref().unwrap_or_default();
    let instead = |inner: Value| Trial::with(&trial.value, cursor, inner);
    match hint {
        Hint::Missing(name) => {
            // The object that came last first: the others may miss a member of that name, too.
            let places = (0..=cursor.len()).rev().map(|length| &cursor[..length]);
            places.filter_map(|place| with_member(&trial.value, place, name)).collect()
        }
        Hint::Variants(names) => {
            let bare = names.iter().filter_map(|name| instead((*name).into()));
            let holding = names.iter().filter_map(|name| {
                let content = Map::from_iter([((*name).to_owned(), Value::Null)]);
                let mut trial = instead(content.into())?;
                trial.cursor.as_mut()?.push((*name).to_owned());
                Some(trial)
            });
            bare.chain(holding).collect()
        }
        Hint::Kind(expected) => of_kind(expected).into_iter().filter_map(instead).collect(),
        Hint::Length(_) => {
            let mut places = (0..=cursor.len()).rev().map(|length| &cursor[..length]);
            places.find_map(|place| with_element(&trial.value, place)).into_iter().collect()
        }
        Hint::Other => match at(&trial.value, cursor) {
            Some(Value::String(_)) => {
                let texts = TEXTS.iter().map(|(_, text)| Value::from(*text));
                texts.filter_map(instead).collect()
            }
            Some(Value::Number(_)) => {
                let numbers = INTEGERS.iter().filter_map(|number| i64::try_from(*number).ok());
                numbers.filter_map(|number| instead(number.into())).collect()
            }
            _ => Vec::new(),
        },
    }
}

fn with_member(value: &Value, place: &[String], name: &str) -> Option<Trial> {
    let mut value = value.clone();
    let members = at_mut(&mut value, place)?.as_object_mut()?;
    if members.contains_key(name) {
        return None;
    }
    members.insert(name.to_owned(), Value::Null);
    let cursor = place.iter().cloned().chain([name.to_owned()]).collect();
    Some(Trial { value, cursor: Some(cursor) })
}

fn with_element(value: &Value, place: &[String]) -> Option<Trial> {
    let mut value = value.clone();
    let elements = at_mut(&mut value, place)?.as_array_mut()?;
    elements.push(Value::Null);
    let index = (elements.len() - 1).to_string();
    let cursor = place.iter().cloned().chain([index]).collect();
    Some(Trial { value, cursor: Some(cursor) })
}

/// Values of the kinds that serde, or a type, calls so.
fn of_kind(expected: &str) -> Vec<Value> {
    const INTEGERS: &[&str] = &[
        "i8", "i16", "i32", "i64", "i128", "u8", "u16", "u32", "u64", "u128", "isize", "usize",
        "integer",
    ];
    let kinds: [(&[&str], Value); 7] = [
        (INTEGERS, 1.into()),
        (&["f32", "f64", "float"], 0.5.into()),
        (&["bool", "boolean"], true.into()),
        (&["string", "str", "character", "identifier", "enum"], "a".into()),
        (&["sequence", "array", "tuple"], json!([])),
        (&["struct", "map", "internally", "adjacently"], json!({})),
        (&["unit"], Value::Null),
    ];
    let words: Vec<&str> = expected.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let is_meant = |names: &[&str]| names.iter().any(|name| words.contains(name));
    let meant: Vec<Value> =
        kinds.iter().filter(|(names, _)| is_meant(names)).map(|(_, value)| value.clone()).collect();
    match meant.is_empty() {
        true => kinds.into_iter().map(|(_, value)| value).chain(["1".into()]).collect(),
        false => meant,
    }
}
