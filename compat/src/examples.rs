//! [`examples`]: values that a type of a [`Shape`] may have written, as JSON.
//!
//! Of each place in the shape every alternative is there once: each variant, the outermost integers, `null`,
//! an empty list. Whether a change narrows a type is seen by fitting them into the new shape: a verdict then
//! has a value that shows it. What is not known of a shape is [`UNKNOWN`] in a value, and fits everywhere.

use std::collections::BTreeMap;

use crate::shape::{Field, OTHER, Shape, StrFormat, Types, Variant};

/// What stands in a value for a part that is not known.
pub(crate) const UNKNOWN: &str = "\u{1}unknown\u{1}";

/// More values than these are not made of one shape, so that no file makes the comparison slow.
const MOST: usize = 2000;

/// A value that is longer is not made.
const MOST_BYTES: usize = 1 << 16;

/// Nor are more values of one shape, than are so long together.
const MOST_BYTES_OF_ALL: usize = 1 << 20;

/// Shapes that are gone into, all in all.
const MOST_STEPS: usize = 100_000;

/// A value that a type of a shape may have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// It, as JSON.
    pub json: String,
    /// Whether all of it is known: else a part of it stands for what is not.
    pub is_complete: bool,
}

/// Values of this shape, as many as it has alternatives.
#[must_use]
pub fn examples(shape: &Shape, types: &Types) -> Vec<Example> {
    Maker { types, within: Vec::new(), made: BTreeMap::new(), recursions: 0, steps: 0 }.of(shape)
}

struct Maker<'a> {
    types: &'a Types,
    within: Vec<&'a str>,
    /// Of types that do not hold themselves.
    made: BTreeMap<&'a str, Vec<Example>>,
    recursions: usize,
    steps: usize,
}

impl<'a> Maker<'a> {
    /// The first is the one that stands in others. None, where each would hold itself without end.
    fn of(&mut self, shape: &'a Shape) -> Vec<Example> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return vec![unknown()];
        }
        let mut examples = match shape {
            Shape::Any => literals(&["0.5", "null", "true", "0", "\"\"", "[]", "{}"]),
            Shape::Opaque => vec![unknown()],
            Shape::Null => literals(&["null"]),
            Shape::Bool => literals(&["true", "false"]),
            Shape::Int(integer) => integer.examples().iter().map(|text| known(text)).collect(),
            Shape::Float(_) => literals(&["0.5"]),
            Shape::Char => literals(&["\"a\""]),
            Shape::Str(format) => strings(*format),
            Shape::Bytes => literals(&["[97]"]),
            Shape::Option(inner) => self.of(inner).into_iter().chain(literals(&["null"])).collect(),
            Shape::List(element) => {
                let elements = self.of(element).into_iter();
                elements.map(|element| element.within("[", "]")).chain(literals(&["[]"])).collect()
            }
            Shape::Tuple(elements) => {
                let parts = elements.iter().map(|element| (String::new(), self.of(element)));
                joined("[", parts.collect(), "]")
            }
            Shape::Map(key, value) => self.map(key, value),
            Shape::Struct { fields, .. } => self.members(fields),
            Shape::Enum(variants) => {
                variants.iter().flat_map(|variant| self.variant(variant)).collect()
            }
            Shape::Union { written, .. } => written.iter().flat_map(|form| self.of(form)).collect(),
            Shape::Named(name) => self.named(name),
        };
        examples.truncate(MOST);
        examples
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
            let examples = self.of(&field.shape);
            // One that can only hold the type itself is left out.
            let is_left_out = examples.is_empty() && field.optional;
            (!is_left_out).then(|| (format!("{}:", quoted(&field.name)), examples))
        });
        joined("{", parts.collect(), "}")
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

/// Two of a form that a fixed set of strings could hold one of.
fn strings(format: StrFormat) -> Vec<Example> {
    match format {
        StrFormat::Own => vec![unknown()],
        StrFormat::Any => literals(&["\"ab\"", "\"\""]),
        StrFormat::NotEmpty => literals(&["\"ab\"", "\"a\""]),
        StrFormat::Currency => literals(&["\"USD\"", "\"XTS\""]),
        _ => vec![known(&quoted(format.example()))],
    }
}

fn entry(key: &Example, value: &Example) -> Example {
    Example {
        json: format!("{{{}:{}}}", key.json, value.json),
        is_complete: key.is_complete && value.is_complete,
    }
}

/// The first of each part together, and then each other one of a part with the first of the others.
fn joined(before: &str, parts: Vec<(String, Vec<Example>)>, behind: &str) -> Vec<Example> {
    let firsts: Option<Vec<&Example>> =
        parts.iter().map(|(_, examples)| examples.first()).collect();
    let Some(firsts) = firsts else { return Vec::new() };
    let put_together = |changed: usize, example: Option<&Example>| {
        let mut all = Example { json: before.to_owned(), is_complete: true };
        for (index, ((name, _), first)) in parts.iter().zip(&firsts).enumerate() {
            let part = example.filter(|_| index == changed).unwrap_or(first);
            all.json.push_str(if index == 0 { "" } else { "," });
            all.json.push_str(name);
            all.json.push_str(&part.json);
            all.is_complete &= part.is_complete;
        }
        all.json.push_str(behind);
        all
    };
    let first = put_together(0, None);
    let length = first.json.len();
    if length > MOST_BYTES {
        return vec![unknown()];
    }
    let most = MOST.min(MOST_BYTES_OF_ALL / length.max(1));
    let others = parts.iter().enumerate().flat_map(|(index, (_, others))| {
        others.iter().skip(1).map(move |example| (index, example))
    });
    let others = others.take(most).map(|(index, example)| put_together(index, Some(example)));
    std::iter::once(first.clone()).chain(others).collect()
}

#[cfg(test)]
mod tests;
