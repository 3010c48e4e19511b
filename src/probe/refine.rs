//! What a type takes beside what it was asked for: its input is changed member by member, and given to
//! serde_json as it would be read from a row.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::asked::UNKNOWN;
use super::path::at;
use super::{Built, Catalogue, Place, ValueType};
use atomic_phases_compat::{
    Absent, FLOATS, Field, INTEGERS, LETTERS, Manner, Shape, StrFormat, TEXTS, Unknown,
};

/// A default that is longer is not written down.
const MAX_BYTES_OF_DEFAULT: usize = 400;

/// Finds optional members, other names of members, and whether unknown ones are refused, of each type in
/// the value that was not changed yet.
pub(super) fn refine(of: ValueType, catalogue: &mut Catalogue, pass: &Built) {
    let enums: BTreeMap<String, Shape> = catalogue.enums().collect();
    for Place { index, variant, path, members } in &pass.places {
        let named = &mut catalogue.types[*index];
        let variant_name = variant.and_then(|variant| named.identity.members.get(variant));
        let shape = match variant_name {
            None => Some(&mut named.shape),
            Some(name) => variant_content(&mut named.shape, name),
        };
        if let Some(Shape::Struct { fields, manner }) = shape
            && !members.is_empty()
            && named.refined.insert(*variant)
        {
            Members { of, pass, path, enums: &enums }.refine(fields, manner, members);
        }
    }
}

fn variant_content<'s>(shape: &'s mut Shape, name: &str) -> Option<&'s mut Shape> {
    let Shape::Enum(variants) = shape else { return None };
    variants.iter_mut().find(|variant| variant.name == name)?.content.as_mut()
}

/// An object in the input of a type.
struct Members<'p> {
    of: ValueType,
    pass: &'p Built,
    path: &'p [String],
    enums: &'p BTreeMap<String, Shape>,
}

impl Members<'_> {
    fn refine(&self, fields: &mut [Field], manner: &mut Manner, declared: &[&str]) {
        let with_unknown = self.changed(|members| {
            members.insert(UNKNOWN.to_owned(), Value::Null);
        });
        manner.unknown = match with_unknown {
            Some(_) => Unknown::PassedOver,
            None => Unknown::Refused,
        };
        let asked: Vec<String> = fields.iter().map(|field| field.name.clone()).collect();
        for field in fields.iter_mut() {
            field.optional = self.without(&field.name).is_some();
        }
        let absent = declared.iter().filter(|name| !fields.iter().any(|f| f.name == ***name));
        let absent: Vec<&str> = absent.copied().collect();
        for name in absent {
            let is_alias = |field: &&mut Field| {
                let renamed = self.changed(|members| {
                    if let Some(value) = members.remove(&field.name) {
                        members.insert(name.to_owned(), value);
                    }
                });
                renamed.as_deref() == Some(self.pass.sample.as_str())
            };
            if let Some(field) = fields.iter_mut().find(|field| is_alias(field)) {
                field.aliases.push(name.to_owned());
            }
        }
        // The name that the type writes is the first.
        let written = serde_json::from_str::<Value>(&self.pass.sample).ok();
        let written = written.as_ref().and_then(|value| at(value, self.path)?.as_object());
        for field in fields.iter_mut() {
            let is_written =
                |name: &String| written.is_some_and(|members| members.contains_key(name));
            if let Some(index) = field.aliases.iter().position(is_written)
                && !is_written(&field.name)
            {
                std::mem::swap(&mut field.name, &mut field.aliases[index]);
            }
            field.aliases.sort_unstable();
        }
        let written = self.of.written(&self.pass.input.to_string());
        let object = written.as_ref().and_then(|written| written.at(self.path));
        let left_out: Vec<&str> =
            object.map(|it| it.unfingerprinted().collect()).unwrap_or_default();
        for (asked, field) in asked.iter().zip(fields) {
            field.default = self.absent(asked, &field.name, &field.shape).unwrap_or_default();
            field.unfingerprinted = left_out.contains(&field.name.as_str());
        }
    }

    fn without(&self, name: &str) -> Option<String> {
        self.changed(|members| drop(members.remove(name)))
    }

    /// What a member is that is not there, by what the type writes twice: `asked` is the name under which it was read.
    fn absent(&self, asked: &str, name: &str, shape: &Shape) -> Option<Absent> {
        let of = |written: &str| -> Option<Option<Value>> {
            let written: Value = serde_json::from_str(written).ok()?;
            Some(at(&written, self.path)?.as_object()?.get(name).cloned())
        };
        let is_written_at_times = of(&self.pass.sample)?.is_some();
        let (first, again) = (of(&self.without(asked)?)?, of(&self.without(asked)?)?);
        Some(match (first, again) {
            (Some(first), Some(again)) if first != again => Absent::ByChance,
            (Some(first), Some(again)) => {
                constant(&first, &again, shape).map(Absent::Is).unwrap_or_default()
            }
            (None, None) if is_written_at_times => {
                let with_null = self.changed(|members| {
                    members.insert(asked.to_owned(), Value::Null);
                });
                if let Some(Some(Some(_))) = with_null.map(|written| of(&written)) {
                    return Some(Absent::Apart);
                }
                let is_left_out = |value: &Value| {
                    let with_it = self.changed(|members| {
                        members.insert(asked.to_owned(), value.clone());
                    });
                    with_it.and_then(|written| of(&written)) == Some(None)
                };
                let shape = match shape {
                    Shape::Named(name) => self.enums.get(name).unwrap_or(shape),
                    shape => shape,
                };
                Absent::LeftOut(left_out(shape, is_left_out))
            }
            _ => Absent::Unknown,
        })
    }

    /// What the type writes after it has read the changed input, if it reads that.
    fn changed(&self, change: impl FnOnce(&mut Map<String, Value>)) -> Option<String> {
        let mut input = self.pass.input.clone();
        let mut place = &mut input;
        for step in self.path {
            place = match place {
                Value::Array(elements) => elements.get_mut(step.parse::<usize>().ok()?)?,
                Value::Object(members) => members.get_mut(step)?,
                _ => return None,
            };
        }
        change(place.as_object_mut()?);
        self.of.rewritten(&input.to_string())
    }
}

/// The value that a member of this shape has where it is left out: what is left out, too, where it is said.
pub(super) fn left_out(
    shape: &Shape,
    mut is_left_out: impl FnMut(&Value) -> bool,
) -> Option<Value> {
    let inner = match shape {
        Shape::Rule { of, .. } => &**of,
        shape => shape,
    };
    let candidates: Vec<Value> = match inner {
        Shape::Bool => vec![false.into(), true.into()],
        Shape::Int(_) => {
            let small = INTEGERS.iter().filter_map(|number| i64::try_from(*number).ok());
            small.map(Value::from).collect()
        }
        Shape::Float(_) => FLOATS.iter().map(|(_, number)| (*number).into()).collect(),
        Shape::Str(_) => TEXTS.iter().map(|(_, text)| (*text).into()).collect(),
        Shape::Char(_) => LETTERS.iter().map(|(_, letter)| letter.to_string().into()).collect(),
        Shape::Enum(variants) => {
            let bare = variants.iter().filter(|variant| variant.content.is_none());
            bare.map(|variant| variant.name.as_str().into()).collect()
        }
        shape => Absent::nothing(shape).into_iter().collect(),
    };
    let mut found = candidates.into_iter().filter(|value| is_left_out(value));
    // Of several it is not known which.
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// A default that was made twice, where it is a constant: what looks like a time or an id would be another one in the
/// next lock file. That an `Option` is `None` is not said.
pub(super) fn constant(first: &Value, again: &Value, shape: &Shape) -> Option<Value> {
    let is_said = !first.is_null() || !matches!(shape, Shape::Option(_));
    let is_constant = is_said && first == again && first.to_string().len() <= MAX_BYTES_OF_DEFAULT;
    (is_constant && !is_of_the_moment(first)).then(|| first.clone())
}

/// Whether a time or an id is in there.
fn is_of_the_moment(value: &Value) -> bool {
    // Seconds since 1970 from 2017 on, for a hundred years; and smaller units of them.
    let is_time = |number: f64| {
        let seconds = 1.5e9..4.6e9;
        [1.0, 1e3, 1e6, 1e9].iter().any(|unit| seconds.contains(&(number / unit)))
    };
    match value {
        Value::Number(number) => number.as_f64().is_some_and(is_time),
        Value::String(text) => {
            let of_time = StrFormat::named("date-time").into_iter();
            let formats =
                of_time.chain(StrFormat::named("naive-date-time")).chain(StrFormat::named("uuid"));
            formats.into_iter().any(|format| format.is_like(text))
        }
        Value::Array(values) => values.iter().any(is_of_the_moment),
        Value::Object(members) => members.values().any(is_of_the_moment),
        Value::Null | Value::Bool(_) => false,
    }
}
