//! The parts of a type that consists of others: elements, members, entries and variants.

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde_json::{Map, Value};

use super::Question;
use super::parts::Found;
use crate::probe::answer::Answers;
use crate::probe::asked::KEY;
use crate::probe::hints::Refused;
use atomic_phases_compat::{Absent, Field, Shape};

pub(super) struct Elements<'a, 'c> {
    pub(super) answers: &'a mut Answers<'c>,
    pub(super) left: usize,
    pub(super) like_first: Option<String>,
    pub(super) shapes: Vec<Shape>,
    pub(super) inputs: Vec<Value>,
}

impl Elements<'_, '_> {
    fn step(&mut self) -> Option<String> {
        self.left = self.left.checked_sub(1)?;
        Some(match &self.like_first {
            Some(first) => {
                self.answers.ask_again(first);
                "0".to_owned()
            }
            None => self.inputs.len().to_string(),
        })
    }
}

impl<'de> SeqAccess<'de> for &mut Elements<'_, '_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        let Some(step) = self.step() else { return Ok(None) };
        let (value, shape, input) =
            Question::inner(self.answers, step, |question| seed.deserialize(question));
        self.shapes.push(shape);
        self.inputs.push(input);
        value.map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The members of a struct: all but those that are left out. Of a field and its alias only one may be there.
pub(super) struct Members<'a, 'c> {
    pub(super) answers: &'a mut Answers<'c>,
    pub(super) left: std::slice::Iter<'static, &'static str>,
    pub(super) next: Option<&'static str>,
    pub(super) fields: Vec<Field>,
    pub(super) inputs: Map<String, Value>,
}

impl Members<'_, '_> {
    fn name(&mut self) -> Option<&'static str> {
        let Self { answers, left, next, .. } = self;
        let name = left.by_ref().copied().find(|name| {
            let member = answers.inside(name);
            !answers.left_out.contains(&member) && !answers.blocked.contains(&member)
        })?;
        *next = Some(name);
        Some(name)
    }

    fn keep(&mut self, name: &str, shape: Shape, input: Value) {
        self.inputs.insert(name.to_owned(), input);
        self.fields.push(Field {
            name: name.to_owned(),
            aliases: Vec::new(),
            optional: false,
            default: Absent::Unknown,
            unfingerprinted: false,
            shape,
        });
    }
}

impl<'de> MapAccess<'de> for &mut Members<'_, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        let Some(name) = self.name() else { return Ok(None) };
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let name = self.next.unwrap_or_default();
        let (value, shape, input) =
            Question::inner(self.answers, name, |question| seed.deserialize(question));
        self.keep(name, shape, input);
        value
    }
}

/// The entries of a map.
pub(super) struct Entries<'a, 'c> {
    answers: &'a mut Answers<'c>,
    left: usize,
    name: String,
    found: Found,
}

impl<'a, 'c> Entries<'a, 'c> {
    pub(super) fn of(answers: &'a mut Answers<'c>, left: usize) -> Self {
        Self {
            answers,
            left,
            name: String::new(),
            found: Found {
                key: Shape::Opaque,
                value: Shape::Opaque,
                inputs: Map::new(),
                is_flattened: false,
            },
        }
    }

    pub(super) fn into_found(self) -> Found {
        self.found
    }

    /// The entry's name, by the key that was given.
    fn keep_key(
        &mut self,
        refused: Option<&Refused>,
        shape: Shape,
        input: &Value,
    ) -> Result<(), Refused> {
        self.found.key = shape;
        self.found.is_flattened |= matches!(refused, Some(Refused::Flattened));
        self.name = match input {
            Value::String(name) => name.clone(),
            Value::Number(_) | Value::Bool(_) => input.to_string(),
            _ if refused.is_some() => String::new(),
            _ => return Err(Refused::Other),
        };
        Ok(())
    }
}

impl<'de> MapAccess<'de> for &mut Entries<'_, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let (key, shape, input) =
            Question::inner(self.answers, KEY, |question| seed.deserialize(question));
        self.keep_key(key.as_ref().err(), shape, &input)?;
        key.map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let name = std::mem::take(&mut self.name);
        let (value, shape, input) =
            Question::inner(self.answers, name.clone(), |question| seed.deserialize(question));
        self.found.value = shape;
        self.found.inputs.insert(name, input);
        value
    }
}

/// A variant, and what it holds.
pub(super) struct Chosen<'a, 'c> {
    pub(super) answers: &'a mut Answers<'c>,
    /// The enum and the variant.
    pub(super) place: (usize, usize),
    pub(super) name: &'static str,
    pub(super) content: &'a mut Option<Shape>,
    pub(super) input: &'a mut Value,
}

impl<'de> EnumAccess<'de> for Chosen<'_, '_> {
    type Error = Refused;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Refused> {
        let variant = seed.deserialize(self.name.into_deserializer())?;
        Ok((variant, self))
    }
}

impl Chosen<'_, '_> {
    fn holds<T>(
        self,
        ask: impl FnOnce(Question<'_, '_>) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let (value, shape, input) = Question::inner(self.answers, self.name, ask);
        (*self.content, *self.input) = (Some(shape), input);
        value
    }
}

impl<'de> VariantAccess<'de> for Chosen<'_, '_> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refused> {
        self.holds(|question| seed.deserialize(question))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.holds(|question| question.deserialize_tuple(length, visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let place = self.place;
        self.holds(|question| {
            question.answers.content_place(place, fields);
            let (value, shape, input) = Question::members(question.answers, fields, visitor);
            (*question.shape, *question.input) = (shape, input);
            value
        })
    }
}
