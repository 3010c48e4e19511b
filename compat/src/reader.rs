//! [`Reader`]: what a type of a shape makes of a value, as it would write it again.

use serde_json::{Map, Value};

use crate::fits::is_key;
use crate::shape::{
    Absent, Field, Float, List, OTHER, Order, REST, Shape, Types, Unknown, Variant,
};

/// Before what is written otherwise than it is read, in the same form: it stands for that, which is not known.
const MARK: char = '\u{2}';

/// The same, where it is written in another form of a union.
const OTHER_FORM: char = '\u{3}';

/// Types that name each other without end are not gone into.
const MAX_NAMES: usize = 32;

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The type refuses it.
    Refused,
    /// The shape does not tell.
    NotKnown,
}

impl Unread {
    pub(crate) fn is_refused(self) -> bool {
        self == Self::Refused
    }
}

use Unread::{NotKnown, Refused};

pub(crate) struct Reader<'a> {
    pub(crate) types: &'a Types,
    /// Whether what is not part of the fingerprint is left out.
    pub(crate) counts_only: bool,
}

impl Reader<'_> {
    pub(crate) fn reads(&self, value: &Value, shape: &Shape) -> Result<Value, Unread> {
        let kept = || Ok(value.clone());
        if is_marked(value) {
            return self.of_row(value, shape);
        }
        match (shape, value) {
            (Shape::Opaque, _) => Err(NotKnown),
            (Shape::Any, _)
            | (Shape::Null | Shape::Option(_), Value::Null)
            | (Shape::Bool, Value::Bool(_)) => kept(),
            (Shape::Bytes, Value::Array(_) | Value::String(_)) => Err(NotKnown),
            (Shape::Int(integer), Value::Number(number)) if integer.takes(number) => {
                let is_changed = number.as_i64().is_some_and(|it| integer.changes(it.into()));
                if is_changed { Ok(marked(value)) } else { kept() }
            }
            (Shape::Float(float), Value::Number(number)) => {
                read_float(float, number.as_f64().ok_or(NotKnown)?)
            }
            (Shape::Char(letter), Value::String(text)) if letter.takes(text) => kept(),
            (Shape::Str(format), Value::String(text)) if format.recognises(text) => {
                match format.changes(text) {
                    true => Ok(marked(value)),
                    false if format.has_tried(text) => kept(),
                    false => Err(NotKnown),
                }
            }
            (Shape::Option(inner), _) => self.reads(value, inner),
            (Shape::List(List { element, length, order }), Value::Array(values)) => {
                if !length.takes(values.len()) {
                    return Err(Refused);
                }
                let read: Result<Vec<Value>, Unread> =
                    values.iter().map(|value| self.reads(value, element)).collect();
                in_order(read?, *order)
            }
            (Shape::Tuple(shapes), Value::Array(values)) if shapes.len() == values.len() => {
                let parts = values.iter().zip(shapes);
                parts.map(|(value, shape)| self.reads(value, shape)).collect()
            }
            // Elements at the end may have defaults.
            (Shape::Tuple(_), Value::Array(_)) => Err(NotKnown),
            (Shape::Map(key, element), Value::Object(members)) => {
                let mut read = Map::new();
                for (name, member) in members {
                    read.insert(self.key(name, key)?, self.reads(member, element)?);
                }
                Ok(read.into())
            }
            (Shape::Struct { fields, manner }, Value::Object(members)) => {
                self.members(fields, manner.unknown, members)
            }
            (Shape::Struct { fields, manner }, Value::Array(values))
                if fields.len() == values.len() && !manner.by_name =>
            {
                let names = fields.iter().map(|field| field.name.clone());
                let members = names.zip(values.iter().cloned()).collect();
                self.members(fields, manner.unknown, &members)
            }
            (Shape::Struct { manner, .. }, Value::Array(_)) if !manner.by_name => Err(NotKnown),
            (Shape::Rule { refused, .. }, _) if refused.contains(value) => Err(Refused),
            (Shape::Rule { of, .. }, _) => self.reads(value, of),
            (Shape::Enum(variants), Value::String(name)) => read_unit(variants, name),
            (Shape::Enum(variants), Value::Object(members)) if members.len() == 1 => {
                let (name, content) = members.iter().next().ok_or(Refused)?;
                self.variant(variants, name, content)
            }
            (Shape::Union { written, read }, _) => self.alternatives(value, written, read),
            (Shape::Named(name), _) => self.reads(value, self.named(name)?),
            _ => Err(Refused),
        }
    }

    /// A variant with a content.
    fn variant(&self, variants: &[Variant], name: &str, content: &Value) -> Result<Value, Unread> {
        let variant = variants.iter().find(|variant| variant.name == *name).ok_or(NotKnown)?;
        match &variant.content {
            Some(shape) if !variant.only_read => {
                let content = self.reads(content, shape)?;
                Ok(Map::from_iter([(name.to_owned(), content)]).into())
            }
            _ => Err(NotKnown),
        }
    }

    /// What becomes of a value that was written otherwise than it had been given. Where that is of no consequence it is
    /// kept: a type that makes of the given value no other one does not come to it from another one either.
    fn of_row(&self, value: &Value, shape: &Shape) -> Result<Value, Unread> {
        let (is_other_form, given) = unmarked(value).ok_or(NotKnown)?;
        let shape = match shape {
            Shape::Named(name) => self.named(name)?,
            shape => shape,
        };
        match (shape, self.reads(&given, shape)) {
            (Shape::Option(inner) | Shape::Rule { of: inner, .. }, _) => self.of_row(value, inner),
            (_, Ok(read)) if is_marked(&read) => Ok(read),
            // What was written may be of a form that it reads and does not write, and so become the given value.
            (Shape::Union { read, .. }, Ok(_)) if !read.is_empty() => Err(NotKnown),
            (_, Ok(_)) => Ok(value.clone()),
            (shape, Err(Refused)) if is_other_form || may_be(&given, shape) => Ok(value.clone()),
            (_, Err(_)) => Err(NotKnown),
        }
    }

    fn named(&self, name: &str) -> Result<&Shape, Unread> {
        let mut shape = self.types.get(name).ok_or(NotKnown)?;
        for _ in 0..MAX_NAMES {
            match shape {
                Shape::Named(name) => shape = self.types.get(name).ok_or(NotKnown)?,
                shape => return Ok(shape),
            }
        }
        Err(NotKnown)
    }

    /// By the first that takes it.
    fn alternatives(
        &self,
        value: &Value,
        written: &[Shape],
        read: &[Shape],
    ) -> Result<Value, Unread> {
        for form in written {
            match self.reads(value, form) {
                // One of which no value was found may take it.
                Err(Refused) if matches!(form, Shape::Enum(variants) if variants.is_empty()) => {
                    return Err(NotKnown);
                }
                Err(Refused) => {}
                // Each form takes what stands for another value.
                _ if has_mark(value) && written.len() > 1 => return Err(NotKnown),
                read => return read,
            }
        }
        for form in read {
            match self.reads(value, form) {
                Err(Refused) => {}
                Err(NotKnown) => return Err(NotKnown),
                Ok(_) => return Ok(with_mark(OTHER_FORM, value)),
            }
        }
        Err(Refused)
    }

    fn key(&self, name: &str, key: &Shape) -> Result<String, Unread> {
        if name.starts_with(MARK) {
            return Ok(name.to_owned());
        }
        let is_changed = match key {
            Shape::Named(named) => return self.key(name, self.named(named)?),
            Shape::Str(format) if !format.recognises(name) => return Err(Refused),
            Shape::Str(format) if !format.changes(name) && !format.has_tried(name) => {
                return Err(NotKnown);
            }
            Shape::Str(format) => format.changes(name),
            Shape::Enum(variants) => match variants.iter().find(|variant| variant.name == name) {
                Some(variant) => variant.only_read,
                None => return Err(NotKnown),
            },
            Shape::Any | Shape::Opaque | Shape::Union { .. } | Shape::Rule { .. } => {
                return Err(NotKnown);
            }
            key if is_key(name, key, self.types) => false,
            _ => return Err(Refused),
        };
        Ok(if is_changed { format!("{MARK}{name}") } else { name.to_owned() })
    }

    fn members(
        &self,
        fields: &[Field],
        unknown: Unknown,
        members: &Map<String, Value>,
    ) -> Result<Value, Unread> {
        let mut read = Map::new();
        let mut left: Vec<&String> = members.keys().collect();
        for field in fields.iter().filter(|field| field.name != REST) {
            let is_it = |name: &&String| **name == field.name || field.aliases.contains(name);
            let mut named = members.keys().filter(is_it);
            let value = match (named.next(), named.next()) {
                (Some(name), None) => self.reads(&members[name], &field.shape)?,
                (None, _) => match self.absent(field)? {
                    Some(value) => value,
                    None => continue,
                },
                (Some(_), Some(_)) => return Err(Refused),
            };
            left.retain(|name| !is_it(name));
            let is_left_out = match &field.default {
                Absent::LeftOut(Some(nothing)) => value == *nothing,
                Absent::LeftOut(None) if is_nothing(&value) => return Err(NotKnown),
                _ => false,
            };
            let counts = !(self.counts_only && field.unfingerprinted);
            if counts && !is_left_out {
                read.insert(field.name.clone(), value);
            }
        }
        let rest = fields.iter().find(|field| field.name == REST);
        for name in left {
            match (unknown, rest) {
                (Unknown::PassedOver, _) => {}
                (Unknown::Refused, _) => return Err(Refused),
                (Unknown::Kept, rest) => {
                    let value = match rest {
                        Some(rest) => self.reads(&members[name], &rest.shape)?,
                        None => members[name].clone(),
                    };
                    read.insert(name.clone(), value);
                }
            }
        }
        Ok(read.into())
    }

    /// `None`: it is not written.
    fn absent(&self, field: &Field) -> Result<Option<Value>, Unread> {
        match &field.default {
            _ if !field.optional => Err(Refused),
            Absent::Is(value) => self.reads(value, &field.shape).map(Some).map_err(|_| NotKnown),
            Absent::LeftOut(_) | Absent::Apart => Ok(None),
            Absent::Unknown if matches!(field.shape, Shape::Option(_)) => Ok(Some(Value::Null)),
            Absent::Unknown | Absent::ByChance => Err(NotKnown),
        }
    }
}

fn read_float(float: &Float, number: f64) -> Result<Value, Unread> {
    if !float.takes(number) {
        return Err(Refused);
    }
    let is_rounded = float.bits == 32 && f64::from(number as f32) != number;
    match float.changes(number) {
        false if is_rounded => Err(NotKnown),
        false => Ok(number.into()),
        true => Ok(marked(&number.into())),
    }
}

/// A variant without a content.
fn read_unit(variants: &[Variant], name: &str) -> Result<Value, Unread> {
    match variants.iter().find(|variant| variant.name == *name && name != OTHER) {
        Some(variant) if variant.content.is_some() => Err(Refused),
        Some(variant) if variant.only_read => Ok(marked(&name.into())),
        Some(_) => Ok(name.into()),
        None if variants.iter().any(|variant| variant.name == OTHER) => Ok(marked(&OTHER.into())),
        None => Err(Refused),
    }
}

fn in_order(mut values: Vec<Value>, order: Order) -> Result<Value, Unread> {
    match order {
        Order::Chance => return Err(NotKnown),
        Order::Kept => {}
        Order::Sorted | Order::Set => {
            values.sort_by_cached_key(Value::to_string);
            if order == Order::Set {
                values.dedup();
            }
        }
    }
    Ok(values.into())
}

/// Whether a value of this kind can be of that shape.
fn may_be(value: &Value, shape: &Shape) -> bool {
    match shape {
        Shape::Int(_) | Shape::Float(_) => value.is_number(),
        Shape::Str(_) | Shape::Char(_) => value.is_string(),
        Shape::Enum(_) => value.is_string() || value.is_object(),
        _ => false,
    }
}

fn marked(value: &Value) -> Value {
    with_mark(MARK, value)
}

fn with_mark(mark: char, value: &Value) -> Value {
    format!("{mark}{value}").into()
}

fn is_marked(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.starts_with([MARK, OTHER_FORM]))
}

/// Whether it is of another form, and what was given.
fn unmarked(value: &Value) -> Option<(bool, Value)> {
    let text = value.as_str()?;
    let is_other_form = text.starts_with(OTHER_FORM);
    let given = serde_json::from_str(text.strip_prefix([MARK, OTHER_FORM])?).ok()?;
    Some((is_other_form, given))
}

fn has_mark(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().any(has_mark),
        Value::Object(members) => {
            members.iter().any(|(name, member)| name.starts_with(MARK) || has_mark(member))
        }
        value => is_marked(value),
    }
}

/// What a type may leave out, of which it is not known.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}
