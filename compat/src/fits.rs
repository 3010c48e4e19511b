//! Whether a type that looks like a [`Shape`] reads a stored value, and where it does not.

use serde_json::{Map, Value};

use crate::examples::UNKNOWN;
use crate::shape::{Field, Integer, List, Manner, OTHER, REST, Shape, Types, Unknown, Variant};
use crate::tags::has_tag;

/// Where a stored value does not fit. It names places and types, never a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misfit {
    /// From the value inwards: `.origin.lat`, `[0]`.
    pub path: String,
    /// What the type reads there.
    pub wanted: String,
    /// What the stored value has there.
    pub found: &'static str,
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.path.is_empty() { "the value" } else { &self.path };
        write!(f, "{place} is {}, and has to be `{}`", self.found, self.wanted)
    }
}

/// Whether a type of this shape reads `value`.
///
/// # Errors
/// [`Misfit`]: the first place that it does not read.
pub fn fits(value: &Value, shape: &Shape, types: &Types) -> Result<(), Misfit> {
    Reader::of(types).reads(value, shape)
}

/// The same of a value that is not a user's, but made from a shape or a sample: the name of a member that is refused is
/// told, too.
pub(crate) fn fits_sample(value: &Value, shape: &Shape, types: &Types) -> Result<(), Misfit> {
    Reader { tells_names: true, ..Reader::of(types) }.reads(value, shape)
}

/// Whether a type of this shape may have written `value`: each of its objects has every member of the type, and no
/// other.
pub(crate) fn is_whole(value: &Value, shape: &Shape, types: &Types) -> bool {
    Reader { is_whole: true, ..Reader::of(types) }.reads(value, shape).is_ok()
}

struct Reader<'a> {
    types: &'a Types,
    path: String,
    /// Whether nothing may be left out or passed over.
    is_whole: bool,
    /// Whether names within a value may be shown.
    tells_names: bool,
}

impl<'a> Reader<'a> {
    fn of(types: &'a Types) -> Self {
        Self { types, path: String::new(), is_whole: false, tells_names: false }
    }

    fn misfit(&self, shape: &Shape, found: &'static str) -> Result<(), Misfit> {
        Err(Misfit { path: self.path.clone(), wanted: shape.to_string(), found })
    }

    fn within(&mut self, step: &str, value: &Value, shape: &Shape) -> Result<(), Misfit> {
        let length = self.path.len();
        self.path.push_str(step);
        self.reads(value, shape)?;
        self.path.truncate(length);
        Ok(())
    }

    fn reads(&mut self, value: &Value, shape: &Shape) -> Result<(), Misfit> {
        let is_read = match (shape, value) {
            (_, Value::String(text)) if text == UNKNOWN => true,
            (Shape::Any | Shape::Opaque, _)
            | (Shape::Null | Shape::Option(_), Value::Null)
            | (Shape::Bool, Value::Bool(_))
            | (Shape::Bytes, Value::String(_)) => true,
            (Shape::Int(integer), Value::Number(number)) => integer.takes(number),
            (Shape::Float(float), Value::Number(number)) => {
                number.as_f64().is_none_or(|number| float.takes(number))
            }
            (Shape::Char(letter), Value::String(text)) => letter.takes(text),
            (Shape::Str(format), Value::String(text)) => format.recognises(text),
            (Shape::Bytes, Value::Array(_)) => {
                return self.elements(value, std::iter::repeat(&BYTE));
            }
            (Shape::Option(inner), _) => return self.reads(value, inner),
            (Shape::List(List { element, length, .. }), Value::Array(values)) => {
                if !length.takes(values.len()) {
                    return self.misfit(shape, "an array of another length");
                }
                return self.elements(value, std::iter::repeat(&**element));
            }
            (Shape::Tuple(elements), Value::Array(values)) if values.len() == elements.len() => {
                return self.elements(value, elements.iter());
            }
            // serde's derive reads a struct from an array, too.
            (Shape::Struct { fields, manner }, Value::Array(values))
                if values.len() == fields.len() && !self.is_whole && !manner.by_name =>
            {
                return self.elements(value, fields.iter().map(|field| &field.shape));
            }
            (Shape::Map(key, element), Value::Object(members)) => {
                for (name, member) in members {
                    if !is_key(name, key, self.types) {
                        return self.misfit(shape, "an object with other keys");
                    }
                    // The key of a map is a value.
                    self.within("[key]", member, element)?;
                }
                true
            }
            (Shape::Struct { fields, manner }, Value::Object(members)) => {
                return self.members(shape, members, fields, *manner);
            }
            (Shape::Rule { refused, .. }, value) if refused.contains(value) => {
                return self.misfit(shape, "a value that its rule refuses");
            }
            (Shape::Rule { of, .. }, value) => return self.reads(value, of),
            (Shape::Enum(variants), _) => return self.variant(shape, value, variants),
            (Shape::Union { written, read }, _) => {
                return self.union(shape, value, written.iter().chain(read));
            }
            (Shape::Named(name), _) => match self.types.get(name) {
                Some(named) => return self.reads(value, named),
                None => true,
            },
            _ => false,
        };
        match is_read {
            true => Ok(()),
            false => self.misfit(shape, kind(value)),
        }
    }

    fn elements<'s>(
        &mut self,
        value: &Value,
        shapes: impl Iterator<Item = &'s Shape>,
    ) -> Result<(), Misfit> {
        let values = value.as_array().into_iter().flatten();
        for (index, (value, shape)) in values.zip(shapes).enumerate() {
            self.within(&format!("[{index}]"), value, shape)?;
        }
        Ok(())
    }

    fn members(
        &mut self,
        shape: &Shape,
        members: &Map<String, Value>,
        fields: &[Field],
        manner: Manner,
    ) -> Result<(), Misfit> {
        for field in fields.iter().filter(|field| field.name != REST) {
            let step = format!(".{}", field.name);
            let names = field.aliases.iter().chain([&field.name]);
            let mut values = names.filter_map(|name| members.get(name));
            let value = values.next();
            if values.next().is_some() {
                self.path.push_str(&step);
                return self.misfit(&field.shape, "there twice, under two of its names");
            }
            match value {
                Some(value) => self.within(&step, value, &field.shape)?,
                None if field.optional && (!self.is_whole || field.default.is_left_out()) => {}
                None => {
                    self.path.push_str(&step);
                    return self.misfit(&field.shape, "absent");
                }
            }
        }
        let is_known = |name: &String| {
            fields.iter().any(|field| field.name == *name || field.aliases.contains(name))
        };
        let mut unknown = members.keys().filter(|name| !is_known(name));
        if let Some(rest) = fields.iter().find(|field| field.name == REST) {
            return unknown.try_for_each(|name| match self.tells_names {
                true => self.within(&format!(".{name}"), &members[name], &rest.shape),
                false => self.within(".*", &members[name], &rest.shape),
            });
        }
        match unknown.next() {
            Some(name) if manner.unknown == Unknown::Refused || self.is_whole => {
                if !self.tells_names {
                    return self.misfit(shape, "an object with a member that is refused");
                }
                self.path.push_str(&format!(".{name}"));
                self.misfit(shape, "a member that is refused")
            }
            _ => Ok(()),
        }
    }

    /// Where the value has the tag of a form, what is told is why that one does not read it.
    fn union<'s>(
        &mut self,
        shape: &Shape,
        value: &Value,
        forms: impl Iterator<Item = &'s Shape>,
    ) -> Result<(), Misfit> {
        let length = self.path.len();
        let mut of_its_form = None;
        for form in forms {
            let Err(misfit) = self.reads(value, form) else { return Ok(()) };
            self.path.truncate(length);
            if has_tag(form, value) {
                of_its_form = Some(misfit);
            }
        }
        match of_its_form {
            Some(misfit) => Err(misfit),
            None => self.misfit(shape, kind(value)),
        }
    }

    fn variant(
        &mut self,
        shape: &Shape,
        value: &Value,
        variants: &[Variant],
    ) -> Result<(), Misfit> {
        let (name, content) = match value {
            Value::String(name) => (name, None),
            Value::Object(members) => match members.iter().next() {
                Some((name, content)) if members.len() == 1 => (name, Some(content)),
                _ => return self.misfit(shape, "an object of another form"),
            },
            other => return self.misfit(shape, kind(other)),
        };
        let of_that_name = |variant: &&Variant| variant.name == *name && *name != OTHER;
        let Some(known) = variants.iter().find(of_that_name) else {
            // Of those that stand for all others, serde knows such that hold nothing.
            let is_open = variants.iter().any(|variant| variant.name == OTHER);
            return match (is_open, content) {
                (true, None | Some(Value::Null)) => Ok(()),
                _ => self.misfit(shape, "another variant"),
            };
        };
        match (content, &known.content) {
            (None, None | Some(Shape::Opaque)) | (Some(Value::Null), None) => Ok(()),
            (Some(Value::String(text)), None) if text == UNKNOWN => Ok(()),
            (Some(content), Some(shape)) => self.within(&format!(".{name}"), content, shape),
            _ => self.misfit(shape, "a variant with another content"),
        }
    }
}

const BYTE: Shape = Shape::Int(Integer::of(false, 8));

/// Keys of JSON objects are strings; serde_json reads numbers, truth values and variants from them.
pub(crate) fn is_key(name: &str, shape: &Shape, types: &Types) -> bool {
    match shape {
        _ if name == UNKNOWN => true,
        Shape::Str(format) => format.recognises(name),
        Shape::Char(letter) => letter.takes(name),
        Shape::Bool => name == "true" || name == "false",
        Shape::Int(_) | Shape::Float(_) => match serde_json::from_str::<Value>(name) {
            Ok(number) => fits(&number, shape, types).is_ok(),
            Err(_) => false,
        },
        Shape::Enum(variants) => {
            variants.iter().any(|variant| variant.name == name || variant.name == OTHER)
        }
        Shape::Union { written, read } => {
            written.iter().chain(read).any(|shape| is_key(name, shape, types))
        }
        Shape::Rule { of, .. } => is_key(name, of, types),
        Shape::Named(named) => types.get(named).is_none_or(|shape| is_key(name, shape, types)),
        _ => true,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "another integer",
        Value::String(_) => "another string",
        Value::Array(_) => "an array of another form",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
