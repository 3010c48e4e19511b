//! The parts of a type that consists of others: elements, members, entries and variants.

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde_json::{Map, Value};

use super::answer::Answers;
use super::asked::KEY;
use super::hints::Refused;
use super::question::Question;
use crate::compat::{Absent, Field, Shape};

pub(super) struct Elements<'a, 'c> {
    pub(super) answers: &'a mut Answers<'c>,
    pub(super) left: usize,
    pub(super) like_first: Option<String>,
    pub(super) shapes: Vec<Shape>,
    pub(super) inputs: Vec<Value>,
}

impl<'de> SeqAccess<'de> for &mut Elements<'_, '_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let step = match &self.like_first {
            Some(first) => {
                self.answers.ask_again(first);
                "0".to_owned()
            }
            None => self.inputs.len().to_string(),
        };
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

impl<'de> MapAccess<'de> for &mut Members<'_, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        for name in self.left.by_ref() {
            let member = self.answers.inside(name);
            let is_left_out =
                self.answers.left_out.contains(&member) || self.answers.blocked.contains(&member);
            if !is_left_out {
                self.next = Some(name);
                return seed.deserialize((*name).into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let name = self.next.unwrap_or_default().to_owned();
        let (value, shape, input) =
            Question::inner(self.answers, name.clone(), |question| seed.deserialize(question));
        self.inputs.insert(name.clone(), input);
        self.fields.push(Field {
            name,
            aliases: Vec::new(),
            optional: false,
            default: Absent::Unknown,
            unfingerprinted: false,
            shape,
        });
        value
    }
}

/// The entries of a map.
pub(super) struct Entries<'a, 'c> {
    answers: &'a mut Answers<'c>,
    left: usize,
    pub(super) key: Shape,
    pub(super) value: Shape,
    name: String,
    pub(super) inputs: Map<String, Value>,
    /// Whether its keys are members of a struct.
    pub(super) is_flattened: bool,
}

impl<'a, 'c> Entries<'a, 'c> {
    pub(super) fn of(answers: &'a mut Answers<'c>, left: usize) -> Self {
        Self {
            answers,
            left,
            key: Shape::Opaque,
            value: Shape::Opaque,
            name: String::new(),
            inputs: Map::new(),
            is_flattened: false,
        }
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
        self.key = shape;
        self.is_flattened |= matches!(key, Err(Refused::Flattened));
        self.name = match input {
            Value::String(name) => name,
            Value::Number(_) | Value::Bool(_) => input.to_string(),
            _ if key.is_err() => String::new(),
            _ => return Err(Refused::Other),
        };
        key.map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let name = std::mem::take(&mut self.name);
        let (value, shape, input) =
            Question::inner(self.answers, name.clone(), |question| seed.deserialize(question));
        self.value = shape;
        self.inputs.insert(name, input);
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
