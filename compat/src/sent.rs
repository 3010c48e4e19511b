//! [`differences`]: what clients send that the new type makes something else of than of what is stored.
//!
//! A retry is compared with the row by the type of today, which reads both: what the client sends again, and what the
//! old type has written of it. So each value that the old type takes is served again where the new one [makes](Reader)
//! the same of the two. This holds whatever the two types look like; what [`changes`](crate::members::changes) knows
//! of pairs of shapes names a change better, and comes first.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::examples::examples;
use crate::members::{MemberChange, Typed};
use crate::reader::Reader;
use crate::shape::{FLOATS, Field, INTEGERS, List, OTHER, Order, Shape, Types, Unknown};

/// So many values are tried at most.
const MAX_TRIED: usize = 4000;

/// How many differences are reported.
const MAX_TOLD: usize = 8;

/// A member that no type knows.
const ANOTHER: &str = "another_member";

/// What a client sends otherwise than it is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Otherwise {
    /// Without a member.
    Without,
    /// With one that the type does not know.
    WithAnother,
    /// In another form.
    Form,
}

pub(crate) fn differences(old: Typed<'_>, new: Typed<'_>) -> Vec<MemberChange> {
    match old.shape == new.shape && old.types == new.types {
        true => Vec::new(),
        false => told_apart(old, new),
    }
}

fn told_apart(old: Typed<'_>, new: Typed<'_>) -> Vec<MemberChange> {
    let mut found: Vec<MemberChange> = Vec::new();
    let before = Reader { types: old.types, counts_only: false };
    let now = Reader { types: new.types, counts_only: true };
    for (value, path, otherwise) in sent(old) {
        let Ok(stored) = before.reads(&value, old.shape) else { continue };
        let Ok(of_row) = now.reads(&stored, new.shape) else { continue };
        let change = match now.reads(&value, new.shape) {
            Err(unread) if unread.is_refused() => match otherwise {
                Otherwise::Without => MemberChange::DefaultDropped(path),
                Otherwise::Form => MemberChange::FormDropped(path),
                // That is told on its own.
                Otherwise::WithAnother => continue,
            },
            Ok(of_retry) if of_retry != of_row => match otherwise {
                Otherwise::Without => MemberChange::DefaultChanged(path),
                Otherwise::Form | Otherwise::WithAnother => MemberChange::ToldApart(path),
            },
            _ => continue,
        };
        if !found.contains(&change) {
            found.push(change);
        }
        if found.len() == MAX_TOLD {
            break;
        }
    }
    found
}

/// Values that a client may send and the type does not write so, each with the place where it differs.
fn sent(typed: Typed<'_>) -> Vec<(Value, String, Otherwise)> {
    let (seen, found) = (BTreeSet::new(), Vec::new());
    let mut client = Client { types: typed.types, seen, found };
    for made in examples(typed.shape, typed.types).iter().filter(|made| made.is_complete) {
        if client.found.len() > MAX_TRIED {
            break;
        }
        if let Ok(value) = serde_json::from_str::<Value>(&made.json) {
            client.value(typed.shape, &value, "", &|value| value);
        }
    }
    client.found
}

struct Client<'a> {
    types: &'a Types,
    /// Places that were gone through.
    seen: BTreeSet<String>,
    found: Vec<(Value, String, Otherwise)>,
}

type Put<'p> = &'p dyn Fn(Value) -> Value;

impl Client<'_> {
    fn value(&mut self, shape: &Shape, value: &Value, path: &str, put: Put<'_>) {
        if let Shape::Named(name) = shape {
            if let Some(shape) = self.types.get(name) {
                self.value(shape, value, path, put);
            }
            return;
        }
        let is_new = self.seen.insert(format!("{path} {}", kind(shape, value)));
        let others = if is_new { self.instead(shape, value) } else { Vec::new() };
        let others = others.into_iter().map(|other| (put(other), path.to_owned(), Otherwise::Form));
        self.found.extend(others);
        match (shape, value) {
            (Shape::Option(inner), value) if !value.is_null() => {
                self.value(inner, value, path, put);
            }
            (Shape::Rule { of, .. }, value) => self.value(of, value, path, put),
            (Shape::List(List { element, .. }), Value::Array(values)) => {
                self.parts(
                    std::iter::repeat(&**element),
                    &values[..values.len().min(1)],
                    path,
                    &|parts| {
                        let rest = values.iter().skip(1).cloned();
                        put(parts.into_iter().chain(rest).collect())
                    },
                );
            }
            (Shape::Tuple(shapes), Value::Array(values)) => {
                self.parts(shapes.iter(), values, path, &|parts| put(parts.into()));
            }
            (Shape::Map(_, element), Value::Object(members)) => {
                for (name, member) in members.iter().take(1) {
                    let path = format!("{path}[]");
                    self.value(element, member, &path, &|member| put(with(members, name, member)));
                }
            }
            (Shape::Struct { fields, manner }, Value::Object(members)) => {
                for field in fields {
                    self.member(field, members, path, put);
                }
                if is_new && manner.unknown == Unknown::PassedOver {
                    let more = put(with(members, ANOTHER, 1.into()));
                    self.found.push((more, format!("{path}.*"), Otherwise::WithAnother));
                }
            }
            (Shape::Enum(variants), Value::Object(members)) => {
                let Some((name, content)) = members.iter().next() else { return };
                let variant = variants.iter().find(|variant| variant.name == *name);
                if let Some(shape) = variant.and_then(|variant| variant.content.as_ref()) {
                    let path = format!("{path}.{name}");
                    self.value(shape, content, &path, &|content| put(with(members, name, content)));
                }
            }
            (Shape::Union { written, .. }, value) => {
                let reader = Reader { types: self.types, counts_only: false };
                let form = written.iter().find(|form| reader.reads(value, form).is_ok());
                if let Some(form) = form {
                    self.value(form, value, path, put);
                }
            }
            _ => {}
        }
    }

    /// One member of a struct: its value, its other names, and that it may be left out.
    fn member(&mut self, field: &Field, members: &Map<String, Value>, path: &str, put: Put<'_>) {
        let Some(member) = members.get(&field.name) else { return };
        let path = format!("{path}.{}", field.name);
        self.value(&field.shape, member, &path, &|member| put(with(members, &field.name, member)));
        if !self.seen.insert(format!("{path}: its names")) {
            return;
        }
        let mut without = members.clone();
        without.remove(&field.name);
        for alias in &field.aliases {
            let renamed = with(&without, alias, member.clone());
            self.found.push((put(renamed), path.clone(), Otherwise::Form));
        }
        if field.optional {
            self.found.push((put(without.into()), path, Otherwise::Without));
        }
    }

    fn parts<'s>(
        &mut self,
        shapes: impl Iterator<Item = &'s Shape>,
        values: &[Value],
        path: &str,
        put: &dyn Fn(Vec<Value>) -> Value,
    ) {
        for (index, (shape, value)) in shapes.zip(values).enumerate() {
            self.value(shape, value, &format!("{path}[{index}]"), &|part| {
                let mut values = values.to_vec();
                values[index] = part;
                put(values)
            });
        }
    }

    /// What is read in this place, too, and written as something else.
    fn instead(&self, shape: &Shape, value: &Value) -> Vec<Value> {
        match (shape, value) {
            (Shape::Option(_), value) if !value.is_null() => vec![Value::Null],
            (Shape::Int(integer), _) => {
                let changed = INTEGERS.into_iter().filter(|trial| integer.changes(*trial));
                changed.filter_map(|trial| i64::try_from(trial).ok()).map(Value::from).collect()
            }
            (Shape::Float(float), _) => {
                let changed = FLOATS.iter().filter(|(_, trial)| float.changes(*trial));
                changed.map(|(_, trial)| Value::from(*trial)).chain([1.into()]).collect()
            }
            (Shape::Str(format), _) => format.changed().map(Value::from).collect(),
            (Shape::List(List { element, order: order @ (Order::Set | Order::Sorted), .. }), _) => {
                let made =
                    examples(element, self.types).into_iter().filter(|made| made.is_complete);
                let made: Vec<Value> =
                    made.take(2).filter_map(|made| serde_json::from_str(&made.json).ok()).collect();
                let twice = made.first().filter(|_| *order == Order::Set);
                let twice = twice.map(|first| Value::from(vec![first.clone(), first.clone()]));
                let mut lists: Vec<Value> = twice.into_iter().collect();
                if let [one, other] = made.as_slice() {
                    lists.push(Value::from(vec![one.clone(), other.clone()]));
                    lists.push(Value::from(vec![other.clone(), one.clone()]));
                }
                lists
            }
            (Shape::Map(key, _), Value::Object(members)) => {
                let Some(member) = members.values().next() else { return Vec::new() };
                let entry = |key: String| Value::from(Map::from_iter([(key, member.clone())]));
                self.keys(key).into_iter().map(entry).collect()
            }
            (Shape::Enum(variants), _) => {
                let read =
                    variants.iter().filter(|variant| variant.only_read || variant.name == OTHER);
                let bare = read.filter(|variant| variant.content.is_none());
                bare.map(|variant| match variant.name == OTHER {
                    true => "AnotherVariant".into(),
                    false => variant.name.as_str().into(),
                })
                .collect()
            }
            (Shape::Union { read, .. }, _) => {
                let form = |form: &Shape| match form {
                    // Nothing is written as it is read there.
                    Shape::Str(format) => examples(&Shape::Str(format.as_read()), self.types),
                    form => examples(form, self.types),
                };
                let made = read.iter().flat_map(form).filter(|made| made.is_complete);
                made.filter_map(|made| serde_json::from_str(&made.json).ok()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Keys that are written otherwise than they are read.
    fn keys(&self, key: &Shape) -> Vec<String> {
        match key {
            Shape::Str(format) => format.changed().map(str::to_owned).collect(),
            Shape::Enum(variants) => {
                let read = variants.iter().filter(|variant| variant.only_read);
                read.map(|variant| variant.name.clone()).collect()
            }
            Shape::Named(name) => match self.types.get(name) {
                Some(Shape::Named(_)) | None => Vec::new(),
                Some(key) => self.keys(key),
            },
            _ => Vec::new(),
        }
    }
}

fn with(members: &Map<String, Value>, name: &str, member: Value) -> Value {
    let mut members = members.clone();
    members.insert(name.to_owned(), member);
    members.into()
}

/// One place may hold values of several forms.
fn kind(shape: &Shape, value: &Value) -> String {
    let of_value = match value {
        Value::Null => "null",
        Value::Array(values) if values.is_empty() => "empty",
        Value::Object(members) if members.is_empty() => "empty",
        _ => "",
    };
    let of_shape = match shape {
        Shape::Option(_) => "option",
        Shape::Union { .. } => "union",
        Shape::Rule { .. } => "rule",
        Shape::Struct { .. } => return format!("{of_value}{shape}"),
        _ => "",
    };
    format!("{of_value}{of_shape}")
}

#[cfg(test)]
mod tests;
