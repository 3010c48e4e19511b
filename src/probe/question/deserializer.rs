//! The deserializer that answers a type's questions.

use std::any::type_name;

use serde::de::{Deserializer, Visitor};
use serde_json::Value;

use super::Question;
use super::access::{Chosen, Entries};
use super::parts::List;
use crate::probe::hints::Refused;
use atomic_phases_compat::Shape;

impl<'de> Deserializer<'de> for Question<'_, '_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.any(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_bool(self.flag())
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
        visitor.visit_f64(self.float(32))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_f64(self.float(64))
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_char(self.letter())
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_str(self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_str(self.text())
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
        let Self { answers, shape, input } = self;
        if answers.is_recursive() || !answers.chooses_some() {
            *shape = Shape::Option(Box::new(Shape::Opaque));
            return visitor.visit_none();
        }
        let mut inner = Shape::Opaque;
        let value = visitor.visit_some(Question { answers, shape: &mut inner, input });
        *shape = Shape::Option(Box::new(inner));
        value
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

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Refused> {
        let List { length, like_first, seen } = self.list();
        let (value, shapes, elements) =
            Self::elements_like(self.answers, length, like_first, visitor);
        *self.shape = seen.of(shapes);
        *self.input = elements;
        value
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let (value, mut shapes, input) = Self::elements(self.answers, length, visitor);
        shapes.resize(length, Shape::Opaque);
        *self.shape = Shape::Tuple(shapes);
        *self.input = input;
        value
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Refused> {
        if self.is_whole() {
            return self.whole(visitor, |given, visitor| given.deserialize_map(visitor));
        }
        let length = self.count_of_entries();
        let mut entries = Entries::of(self.answers, length);
        let read = visitor.visit_map(&mut entries);
        let found = entries.into_found();
        self.keep_entries(found);
        read
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        if self.is_whole() {
            return self.whole(visitor, |given, visitor| given.deserialize_map(visitor));
        }
        let entered = self.enter_struct(type_name::<V>(), name, fields);
        let (value, of_members, members) = Self::members(self.answers, fields, visitor);
        self.keep_struct(entered, of_members, members);
        value
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let drawn = self.enter_variant(type_name::<V>(), name, variants)?;
        let (mut content, mut inner) = (None, Value::Null);
        let value = visitor.visit_enum(Chosen {
            answers: &mut *self.answers,
            place: (drawn.index, drawn.variant),
            name: drawn.told,
            content: &mut content,
            input: &mut inner,
        });
        self.keep_variant(drawn, content, inner);
        value
    }

    /// The name of a member that was not asked for by name: a flattened type.
    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused::Flattened)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Any;
        visitor.visit_unit()
    }
}
