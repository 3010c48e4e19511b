//! [`examples`]: values that a type of a [`Shape`] may have written, as JSON.
//!
//! Of each place in the shape every alternative is there once: each variant, the outermost integers and those
//! that were tried, each form of strings, `null`, lists of several lengths. Whether a change narrows a type is
//! seen by fitting them into the new shape: a verdict then has a value that shows it. What is not known of a
//! shape is [`UNKNOWN`] in a value, and fits everywhere.

use std::collections::BTreeMap;

use crate::shape::{Absent, Field, List, OTHER, Order, REST, Shape, StrFormat, Types, Variant};

/// What stands in a value for a part that is not known.
pub(crate) const UNKNOWN: &str = "\u{1}unknown\u{1}";

/// The name of a member that a type keeps without knowing it.
const KEPT: &str = "kept_member";

/// More values than these are not made of one shape, so that no file makes the comparison slow.
const MAX_EXAMPLES: usize = 20_000;

/// A value that is longer is not made.
const MAX_BYTES: usize = 1 << 16;

/// Nor are more values of one shape, than are so long together.
const MAX_BYTES_OF_ALL: usize = 1 << 24;

/// Shapes that are gone into, all in all.
const MAX_STEPS: usize = 100_000;

/// Lists are tried with so many elements, and their lengths are told up to that.
const LENGTHS: [u32; 3] = [2, 3, 101];

/// No list of more than one element is longer.
const MAX_BYTES_OF_LIST: usize = 4096;

/// A value that a type of a shape may have written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Example {
    /// It, as JSON.
    pub json: String,
    /// Whether all of it is known: else a part of it stands for what is not.
    pub is_complete: bool,
}

/// Values of this shape, as many as it has alternatives.
#[must_use]
pub fn examples(shape: &Shape, types: &Types) -> Vec<Example> {
    all_examples(shape, types).0
}

/// And whether there are more alternatives than are made.
pub(crate) fn all_examples(shape: &Shape, types: &Types) -> (Vec<Example>, bool) {
    let within = Vec::new();
    let made = BTreeMap::new();
    let mut maker = Maker { types, within, made, recursions: 0, steps: 0, is_cut: false };
    let examples = maker.of(shape);
    (examples, maker.is_cut)
}

struct Maker<'a> {
    types: &'a Types,
    within: Vec<&'a str>,
    /// Of types that do not hold themselves.
    made: BTreeMap<&'a str, Vec<Example>>,
    recursions: usize,
    steps: usize,
    is_cut: bool,
}

impl<'a> Maker<'a> {
    /// The first is the one that stands in others. None, where each would hold itself without end.
    fn of(&mut self, shape: &'a Shape) -> Vec<Example> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            self.is_cut = true;
            return vec![unknown()];
        }
        let mut examples = match shape {
            Shape::Any => literals(&["0.5", "null", "true", "0", "\"\"", "[]", "{}"]),
            Shape::Opaque => vec![unknown()],
            Shape::Null => literals(&["null"]),
            Shape::Bool => literals(&["true", "false"]),
            Shape::Int(integer) => integer.examples().iter().map(|text| known(text)).collect(),
            Shape::Float(float) if float.is_own() => vec![unknown()],
            Shape::Float(float) => float.examples().map(known).collect(),
            Shape::Char(letter) if letter.is_own() => vec![unknown()],
            Shape::Char(letter) => {
                letter.examples().map(|char| known(&quoted(&char.to_string()))).collect()
            }
            Shape::Str(format) => strings(*format),
            Shape::Bytes => literals(&["[97]"]),
            Shape::Option(inner) => self.of(inner).into_iter().chain(literals(&["null"])).collect(),
            Shape::List(list) => self.list(list),
            Shape::Tuple(elements) => {
                let parts = elements.iter().map(|element| self.of(element)).collect();
                self.joined("[", parts, "]")
            }
            Shape::Rule { of, refused } => {
                let is_refused = |made: &Example| {
                    serde_json::from_str(&made.json).is_ok_and(|value| refused.contains(&value))
                };
                self.of(of).into_iter().filter(|made| !is_refused(made)).collect()
            }
            Shape::Map(key, value) => self.map(key, value),
            Shape::Struct { fields, .. } => self.members(fields),
            Shape::Enum(variants) => {
                variants.iter().flat_map(|variant| self.variant(variant)).collect()
            }
            Shape::Union { written, .. } => written.iter().flat_map(|form| self.of(form)).collect(),
            Shape::Named(name) => self.named(name),
        };
        self.is_cut |= examples.len() > MAX_EXAMPLES;
        examples.truncate(MAX_EXAMPLES);
        examples
    }

    /// Of one element, of none, and of several where their order is of no account.
    fn list(&mut self, List { element, length, order }: &'a List) -> Vec<Example> {
        let elements = self.of(element);
        let mut lists: Vec<Example> = Vec::new();
        let first_of = |count: usize, most_bytes: usize| {
            let first = elements.first()?;
            let is_short = (first.json.len() + 1) * count <= most_bytes;
            let json = format!("[{}]", vec![first.json.as_str(); count].join(","));
            (is_short && length.takes(count))
                .then_some(Example { json, is_complete: first.is_complete })
        };
        if length.takes(1) {
            lists.extend(elements.iter().map(|element| element.clone().within("[", "]")));
        } else if let Some(list) = first_of(length.least as usize, MAX_BYTES) {
            lists.push(list);
        }
        if matches!(order, Order::Kept | Order::Sorted) {
            let counts = LENGTHS.into_iter().chain([length.least]).chain(length.most);
            let counts = counts.filter(|count| *count > 1);
            for list in counts.filter_map(|count| first_of(count as usize, MAX_BYTES_OF_LIST)) {
                if !lists.contains(&list) {
                    lists.push(list);
                }
            }
        }
        if length.takes(0) {
            lists.extend(literals(&["[]"]));
        }
        lists
    }

    fn named(&mut self, name: &'a str) -> Vec<Example> {
        if let Some(made) = self.made.get(name) {
            return made.clone();
        }
        if self.within.contains(&name) {
            self.recursions += 1;
            return Vec::new();
        }
        let Some(shape) = self.types.get(name) else { return vec![unknown()] };
        let recursions = self.recursions;
        self.within.push(name);
        let examples = self.of(shape);
        self.within.pop();
        if recursions == self.recursions {
            self.made.insert(name, examples.clone());
        }
        examples
    }

    fn members(&mut self, fields: &'a [Field]) -> Vec<Example> {
        let parts = fields.iter().filter_map(|field| {
            let mut examples = self.of(&field.shape);
            if field.name == REST {
                let name = format!("{}:", quoted(KEPT));
                let present = examples.into_iter().map(|made| made.within(&name, ""));
                return Some([known("")].into_iter().chain(present).collect());
            }
            let name = format!("{}:", quoted(&field.name));
            if field.default.is_left_out() {
                // Where it is nothing it is not written.
                let is_nothing = |made: &Example| match &field.default {
                    Absent::LeftOut(Some(nothing)) => serde_json::from_str(&made.json)
                        .is_ok_and(|made: serde_json::Value| made == *nothing),
                    Absent::LeftOut(None) => ["null", "[]"].contains(&made.json.as_str()),
                    _ => false,
                };
                examples.retain(|made| !is_nothing(made));
                let present = examples.into_iter().map(|made| made.within(&name, ""));
                return Some(present.chain([known("")]).collect());
            }
            // One that can only hold the type itself is left out.
            let is_left_out = examples.is_empty() && field.optional;
            (!is_left_out)
                .then(|| examples.into_iter().map(|made| made.within(&name, "")).collect())
        });
        let parts = parts.collect();
        self.joined("{", parts, "}")
    }

    fn map(&mut self, key: &'a Shape, value: &'a Shape) -> Vec<Example> {
        let keys: Vec<Example> = self.of(key).into_iter().filter_map(Example::into_key).collect();
        let values = self.of(value);
        let mut examples = Vec::new();
        if let (Some(first_key), Some(first_value)) = (keys.first(), values.first()) {
            examples.extend(values.iter().map(|value| entry(first_key, value)));
            examples.extend(keys.iter().skip(1).map(|key| entry(key, first_value)));
        }
        examples.extend(literals(&["{}"]));
        examples
    }

    fn variant(&mut self, variant: &'a Variant) -> Vec<Example> {
        let name = quoted(&variant.name);
        match &variant.content {
            _ if variant.name == OTHER => Vec::new(),
            _ if variant.only_read => Vec::new(),
            None => literals(&[&name]),
            Some(content) => {
                let contents = self.of(content).into_iter();
                contents.map(|content| content.within(&format!("{{{name}:"), "}")).collect()
            }
        }
    }
}

impl Example {
    fn within(mut self, before: &str, behind: &str) -> Self {
        self.json = format!("{before}{}{behind}", self.json);
        self
    }

    /// Keys of JSON objects are strings; serde_json reads numbers and truth values from them.
    fn into_key(self) -> Option<Self> {
        let value: serde_json::Value = serde_json::from_str(&self.json).ok()?;
        match value {
            serde_json::Value::String(_) => Some(self),
            serde_json::Value::Number(_) | serde_json::Value::Bool(_) => {
                Some(self.within("\"", "\""))
            }
            _ => None,
        }
    }
}

fn known(json: &str) -> Example {
    Example { json: json.to_owned(), is_complete: true }
}

fn unknown() -> Example {
    Example { json: quoted(UNKNOWN), is_complete: false }
}

fn literals(all: &[&str]) -> Vec<Example> {
    all.iter().map(|json| known(json)).collect()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn strings(format: StrFormat) -> Vec<Example> {
    let mut written: Vec<Example> = format.examples().map(|text| known(&quoted(text))).collect();
    // Not the empty one first, and not a long one in each other value.
    if format == StrFormat::ANY {
        written.swap(0, 1);
    }
    match written.is_empty() {
        true => vec![unknown()],
        false => written,
    }
}

fn entry(key: &Example, value: &Example) -> Example {
    Example {
        json: format!("{{{}:{}}}", key.json, value.json),
        is_complete: key.is_complete && value.is_complete,
    }
}

impl Maker<'_> {
    /// The first of each part together, and then each other one of a part with the first of the others. A part may be
    /// empty: it is left out.
    fn joined(&mut self, before: &str, parts: Vec<Vec<Example>>, behind: &str) -> Vec<Example> {
        let firsts: Option<Vec<&Example>> = parts.iter().map(|examples| examples.first()).collect();
        let Some(firsts) = firsts else { return Vec::new() };
        let put_together = |changed: usize, example: Option<&Example>| {
            let mut all = Example { json: before.to_owned(), is_complete: true };
            for (index, first) in firsts.iter().enumerate() {
                let part = example.filter(|_| index == changed).unwrap_or(first);
                let is_behind = all.json.len() > before.len() && !part.json.is_empty();
                all.json.push_str(if is_behind { "," } else { "" });
                all.json.push_str(&part.json);
                all.is_complete &= part.is_complete;
            }
            all.json.push_str(behind);
            all
        };
        let first = put_together(0, None);
        let length = first.json.len();
        if length > MAX_BYTES {
            self.is_cut = true;
            return vec![unknown()];
        }
        let most = MAX_EXAMPLES.min(MAX_BYTES_OF_ALL / length.max(1));
        let others = parts
            .iter()
            .enumerate()
            .flat_map(|(index, others)| others.iter().skip(1).map(move |example| (index, example)));
        self.is_cut |= others.clone().count() > most;
        let others = others.take(most).map(|(index, example)| put_together(index, Some(example)));
        std::iter::once(first.clone()).chain(others).collect()
    }
}

#[cfg(test)]
mod tests;
