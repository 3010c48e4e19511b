//! The deserializer that answers a type's questions, and the search over its answers.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};
use serde_json::{Map, Value};

use super::{Catalogue, Place};
use crate::compat::{Field, Shape, StrFormat, Variant};

/// Types that are nested deeper are not gone into.
const MAX_DEPTH: usize = 64;

/// What the type was answered, as a path in the tree of all answers.
pub(super) struct Answers<'c> {
    catalogue: &'c mut Catalogue,
    /// Whether the least value is tried first.
    least: bool,
    /// Which candidate each question got, and of how many.
    taken: Vec<(usize, usize)>,
    asked: usize,
    /// The named types that are being answered, the outermost first.
    within: Vec<usize>,
    depth: usize,
    path: Vec<String>,
    places: Vec<Place>,
    found: Vec<(usize, Shape)>,
}

impl<'c> Answers<'c> {
    pub(super) fn new(catalogue: &'c mut Catalogue, least: bool) -> Self {
        Self {
            catalogue,
            least,
            taken: Vec::new(),
            asked: 0,
            within: Vec::new(),
            depth: 0,
            path: Vec::new(),
            places: Vec::new(),
            found: Vec::new(),
        }
    }

    /// A value of `T` by the answers of now; `None` where it refuses one.
    pub(super) fn of<T: DeserializeOwned>(&mut self) -> Option<(Shape, Value)> {
        self.asked = 0;
        self.depth = 0;
        self.within.clear();
        self.path.clear();
        self.places.clear();
        self.found.clear();
        let (mut shape, mut input) = (Shape::Opaque, Value::Null);
        let question = Question { answers: self, shape: &mut shape, input: &mut input };
        T::deserialize(question).ok().map(|_| (shape, input))
    }

    /// Goes to the next answers: `false` where all were tried.
    pub(super) fn next(&mut self) -> bool {
        self.taken.truncate(self.asked);
        while let Some((taken, of)) = self.taken.pop() {
            if taken + 1 < of {
                self.taken.push((taken + 1, of));
                return true;
            }
        }
        false
    }

    /// Remembers what the types of this value look like, and tells where they are in it.
    pub(super) fn keep(&mut self) -> Vec<Place> {
        for (index, shape) in std::mem::take(&mut self.found) {
            let known = &mut self.catalogue.0[index].shape;
            *known = super::merged(std::mem::replace(known, Shape::Opaque), shape);
        }
        let places = std::mem::take(&mut self.places);
        for place in &places {
            self.catalogue.0[place.index].built.extend(place.variant);
        }
        places
    }

    fn place(&mut self, index: usize, variant: Option<usize>, members: &'static [&'static str]) {
        self.places.push(Place { index, variant, path: self.path.clone(), members });
    }

    /// One of `of` candidates.
    fn choose(&mut self, of: usize) -> usize {
        if self.asked == self.taken.len() {
            self.taken.push((0, of));
        }
        self.asked += 1;
        self.taken[self.asked - 1].0
    }

    /// As [`choose`](Self::choose), the last one first for the least value.
    fn choose_size(&mut self, of: usize) -> usize {
        let chosen = self.choose(of);
        if self.least { of - 1 - chosen } else { chosen }
    }

    /// Whether a type is being answered that holds itself: then there is none of what comes next.
    fn is_recursive(&self) -> bool {
        let Some((last, before)) = self.within.split_last() else { return false };
        before.contains(last)
    }
}

/// One question of a type: what it wants is in `shape` then, what it was given in `input`.
struct Question<'a, 'c> {
    answers: &'a mut Answers<'c>,
    shape: &'a mut Shape,
    input: &'a mut Value,
}

impl<'a, 'c> Question<'a, 'c> {
    fn inner<T>(
        answers: &mut Answers<'_>,
        step: impl Into<String>,
        ask: impl FnOnce(Question<'_, '_>) -> Result<T, Refused>,
    ) -> Result<(T, Shape, Value), Refused> {
        let (mut shape, mut input) = (Shape::Opaque, Value::Null);
        answers.depth += 1;
        if answers.depth > MAX_DEPTH {
            return Err(Refused);
        }
        answers.path.push(step.into());
        let value = ask(Question { answers, shape: &mut shape, input: &mut input })?;
        answers.path.pop();
        answers.depth -= 1;
        Ok((value, shape, input))
    }

    fn integer<'de, V: Visitor<'de>>(
        self,
        signed: bool,
        bits: u8,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        *self.shape = Shape::Int { signed, bits };
        // JSON of serde_json ends at 64 bits.
        let width = u32::from(bits.min(64));
        let most = if signed { u64::MAX >> (65 - width) } else { u64::MAX >> (64 - width) };
        let chosen = self.answers.choose(4);
        if self.answers.least && signed && chosen == 0 {
            let least = -(most as i64) - 1;
            *self.input = least.into();
            return visitor.visit_i64(least);
        }
        let candidates = if self.answers.least { [0, 1, 2, most] } else { [most, 1, 0, 2] };
        let number = candidates[chosen];
        *self.input = number.into();
        match i64::try_from(number) {
            Ok(number) if signed => visitor.visit_i64(number),
            _ => visitor.visit_u64(number),
        }
    }

    fn float<'de, V: Visitor<'de>>(self, bits: u8, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Float(bits);
        let candidates = if self.answers.least { [-0.5, 0.0, 1.0] } else { [0.5, 1.0, 0.0] };
        let number = candidates[self.answers.choose(3)];
        *self.input = number.into();
        visitor.visit_f64(number)
    }

    fn elements<'de, V: Visitor<'de>>(
        answers: &mut Answers<'_>,
        length: usize,
        visitor: V,
    ) -> Result<(V::Value, Vec<Shape>, Value), Refused> {
        let mut elements =
            Elements { answers, left: length, shapes: Vec::new(), inputs: Vec::new() };
        let value = visitor.visit_seq(&mut elements)?;
        let Elements { shapes, inputs, .. } = elements;
        Ok((value, shapes, Value::from(inputs)))
    }

    fn members<'de, V: Visitor<'de>>(
        answers: &mut Answers<'_>,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<(V::Value, Shape, Value), Refused> {
        let left = fields.iter();
        let mut members =
            Members { answers, left, next: "", fields: Vec::new(), inputs: Map::new() };
        let value = visitor.visit_map(&mut members)?;
        let Members { fields, inputs, .. } = members;
        Ok((value, Shape::Struct { fields, closed: false }, Value::Object(inputs)))
    }

    fn string<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let (format, _, example) = StrFormat::ALL[self.answers.choose(StrFormat::ALL.len())];
        *self.shape = Shape::Str(format);
        *self.input = example.into();
        visitor.visit_str(example)
    }
}

impl<'de> Deserializer<'de> for Question<'_, '_> {
    type Error = Refused;

    /// Of a type that takes what comes: an enum that is not tagged from outside, or any value.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Any;
        let numbers = [0u64, 1];
        let chosen = self.answers.choose(StrFormat::ALL.len() + numbers.len() + 2);
        match chosen {
            0 => visitor.visit_unit(),
            1 => {
                *self.input = true.into();
                visitor.visit_bool(true)
            }
            2 | 3 => {
                *self.input = numbers[chosen - 2].into();
                visitor.visit_u64(numbers[chosen - 2])
            }
            _ => {
                let (_, _, example) = StrFormat::ALL[chosen - 4];
                *self.input = example.into();
                visitor.visit_str(example)
            }
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Bool;
        let value = (self.answers.choose(2) == 0) != self.answers.least;
        *self.input = value.into();
        visitor.visit_bool(value)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 8, visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 16, visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 32, visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 64, visitor)
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 128, visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 8, visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 16, visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 32, visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 64, visitor)
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 128, visitor)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.float(32, visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.float(64, visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Char;
        *self.input = "a".into();
        visitor.visit_char('a')
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.string(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Bytes;
        *self.input = Value::from(vec![97]);
        visitor.visit_bytes(b"a")
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let answers = self.answers;
        if answers.is_recursive() || answers.choose_size(2) == 1 {
            *self.shape = Shape::Option(Box::new(Shape::Opaque));
            return visitor.visit_none();
        }
        let mut inner = Shape::Opaque;
        let value =
            visitor.visit_some(Question { answers, shape: &mut inner, input: self.input })?;
        *self.shape = Shape::Option(Box::new(inner));
        Ok(value)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Null;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let answers = self.answers;
        let length = match answers.is_recursive() {
            true => 0,
            false => 1 - answers.choose_size(2),
        };
        let (value, shapes, input) = Self::elements(answers, length, visitor)?;
        *self.shape = Shape::List(Box::new(shapes.into_iter().next().unwrap_or(Shape::Opaque)));
        *self.input = input;
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let (value, shapes, input) = Self::elements(self.answers, length, visitor)?;
        *self.shape = Shape::Tuple(shapes);
        *self.input = input;
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let answers = self.answers;
        let left = match answers.is_recursive() {
            true => 0,
            false => 1 - answers.choose_size(2),
        };
        let (key, value) = (Shape::Opaque, Shape::Opaque);
        let mut entries =
            Entries { answers, left, key, value, name: String::new(), inputs: Map::new() };
        let read = visitor.visit_map(&mut entries)?;
        *self.shape = Shape::Map(Box::new(entries.key), Box::new(entries.value));
        *self.input = Value::Object(entries.inputs);
        Ok(read)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let answers = self.answers;
        let index = answers.catalogue.index_of(name, fields);
        answers.within.push(index);
        answers.place(index, None, fields);
        let (value, shape, input) = Self::members(answers, fields, visitor)?;
        answers.within.pop();
        answers.found.push((index, shape));
        *self.shape = Shape::Named(answers.catalogue.0[index].name.clone());
        *self.input = input;
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let answers = self.answers;
        let index = answers.catalogue.index_of(name, variants);
        // Those that were not built yet come first.
        let built = &answers.catalogue.0[index].built;
        let (done, mut order): (Vec<usize>, Vec<usize>) =
            (0..variants.len()).partition(|variant| built.contains(variant));
        order.extend(done);
        if order.is_empty() {
            return Err(Refused);
        }
        let variant = order[answers.choose(order.len())];
        answers.within.push(index);
        answers.place(index, Some(variant), &[]);
        let name = variants[variant];
        let (mut content, mut input) = (None, Value::Null);
        let value = visitor.visit_enum(Chosen {
            answers: &mut *answers,
            place: (index, variant),
            name,
            content: &mut content,
            input: &mut input,
        })?;
        answers.within.pop();
        *self.input = match content {
            None => name.into(),
            Some(_) => Value::Object([(name.to_owned(), input)].into_iter().collect()),
        };
        let shape = Shape::Enum(vec![Variant { name: name.to_owned(), content }]);
        answers.found.push((index, shape));
        *self.shape = Shape::Named(answers.catalogue.0[index].name.clone());
        Ok(value)
    }

    /// The name of a member that was not asked for by name: a flattened type.
    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Any;
        visitor.visit_unit()
    }
}

struct Elements<'a, 'c> {
    answers: &'a mut Answers<'c>,
    left: usize,
    shapes: Vec<Shape>,
    inputs: Vec<Value>,
}

impl<'de> SeqAccess<'de> for &mut Elements<'_, '_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let step = self.inputs.len().to_string();
        let (value, shape, input) =
            Question::inner(self.answers, step, |question| seed.deserialize(question))?;
        self.shapes.push(shape);
        self.inputs.push(input);
        Ok(Some(value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The members of a struct. Each may be left out, which is tried last: of a field and its alias only one
/// may be there.
struct Members<'a, 'c> {
    answers: &'a mut Answers<'c>,
    left: std::slice::Iter<'static, &'static str>,
    next: &'static str,
    fields: Vec<Field>,
    inputs: Map<String, Value>,
}

impl<'de> MapAccess<'de> for &mut Members<'_, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        for name in self.left.by_ref() {
            if self.answers.choose(2) == 0 {
                self.next = name;
                return seed.deserialize((*name).into_deserializer()).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let name = self.next.to_owned();
        let (value, shape, input) =
            Question::inner(self.answers, self.next, |question| seed.deserialize(question))?;
        self.inputs.insert(name.clone(), input);
        self.fields.push(Field { name, aliases: Vec::new(), optional: false, shape });
        Ok(value)
    }
}

/// The entries of a map.
struct Entries<'a, 'c> {
    answers: &'a mut Answers<'c>,
    left: usize,
    key: Shape,
    value: Shape,
    name: String,
    inputs: Map<String, Value>,
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
            Question::inner(self.answers, "", |question| seed.deserialize(question))?;
        self.key = shape;
        self.name = match input {
            Value::String(name) => name,
            Value::Number(_) | Value::Bool(_) => input.to_string(),
            _ => return Err(Refused),
        };
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let name = std::mem::take(&mut self.name);
        let (value, shape, input) =
            Question::inner(self.answers, name.clone(), |question| seed.deserialize(question))?;
        self.value = shape;
        self.inputs.insert(name, input);
        Ok(value)
    }
}

/// A variant, and what it holds.
struct Chosen<'a, 'c> {
    answers: &'a mut Answers<'c>,
    /// The enum and the variant.
    place: (usize, usize),
    name: &'static str,
    content: &'a mut Option<Shape>,
    input: &'a mut Value,
}

impl<'de> EnumAccess<'de> for Chosen<'_, '_> {
    type Error = Refused;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Refused> {
        let variant = seed.deserialize(self.name.into_deserializer())?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Chosen<'_, '_> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refused> {
        let (value, shape, input) =
            Question::inner(self.answers, self.name, |question| seed.deserialize(question))?;
        (*self.content, *self.input) = (Some(shape), input);
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let (value, shape, input) = Question::inner(self.answers, self.name, |question| {
            question.deserialize_tuple(length, visitor)
        })?;
        (*self.content, *self.input) = (Some(shape), input);
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let (index, variant) = self.place;
        let (value, shape, input) = Question::inner(self.answers, self.name, |question| {
            question.answers.place(index, Some(variant), fields);
            let (value, shape, input) = Question::members(question.answers, fields, visitor)?;
            (*question.shape, *question.input) = (shape, input);
            Ok(value)
        })?;
        (*self.content, *self.input) = (Some(shape), input);
        Ok(value)
    }
}

/// The type did not take an answer. What it says about it does not matter.
#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}
