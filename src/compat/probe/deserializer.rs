//! The deserializer that answers a type's questions.

use std::any::type_name;

use serde::de::{Deserializer, Visitor};
use serde_json::Value;

use super::access::{Chosen, Entries};
use super::asked::{Forced, LeafKind, UNKNOWN, Ways, is_inside};
use super::explore::Fact;
use super::hints::Refused;
use super::question::Question;
use crate::compat::{List, OTHER, Shape, Variant};

impl<'de> Deserializer<'de> for Question<'_, '_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.any(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Bool;
        let key = self.answers.key();
        let value = (self.answers.choose(key, 2, Ways::All) == 0) != self.answers.least;
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
        self.letter(visitor)
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

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        let first = answers.inside("0");
        let is_empty = answers.is_recursive() || answers.blocked.contains(&first);
        let mut length = usize::from(!is_empty && answers.chooses_some());
        let (mut like_first, mut seen) = (None, None);
        if !is_empty {
            let key = answers.key();
            seen = answers.leaf(&key, LeafKind::List);
            if let Some(Forced::Length(forced)) = answers.forced(&key) {
                (length, like_first) = (forced, Some(first));
            }
        }
        let (value, shapes, elements) = Self::elements_like(answers, length, like_first, visitor);
        let element = shapes.into_iter().next().unwrap_or(Shape::Opaque);
        *shape = Shape::List(match seen {
            Some(Fact::List(length, order)) => List { length, order, ..List::of(element) },
            _ => List::of(element),
        });
        *input = elements;
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

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let here = self.answers.here();
        if self.answers.wholes.contains(&here) {
            return self.whole(visitor, |given, visitor| given.deserialize_map(visitor));
        }
        let Self { answers, shape, input } = self;
        let is_blocked = answers.blocked.iter().any(|path| is_inside(path, &here));
        let is_empty = answers.is_recursive() || is_blocked;
        let length = usize::from(!is_empty && answers.chooses_some());
        let mut entries = Entries::of(answers, length);
        let read = visitor.visit_map(&mut entries);
        let Entries { key, value, inputs, is_flattened, .. } = entries;
        *shape = Shape::Map(Box::new(key), Box::new(value));
        *input = Value::Object(inputs);
        // The members of a flattened type are not those of a map.
        if is_flattened {
            answers.wholes.insert(here);
            *shape = Shape::Opaque;
        }
        read
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        if self.answers.wholes.contains(&self.answers.here()) {
            return self.whole(visitor, |given, visitor| given.deserialize_map(visitor));
        }
        let Self { answers, shape, input } = self;
        let index = answers.catalogue.index_of::<V>(name, fields, false);
        answers.enter(index, None);
        answers.place(index, None, fields);
        let depth = answers.within.len();
        let (value, of_members, members) = Self::members(answers, fields, visitor);
        answers.within.truncate(depth - 1);
        answers.found.push((index, of_members));
        *shape = Shape::Named(answers.catalogue.types[index].name.clone());
        *input = members;
        value
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        // The tag beside a content, whose type goes by it: both are asked as a whole.
        if type_name::<V>().contains("AdjacentlyTagged") {
            self.answers.wholes.insert(self.answers.outside());
            return Err(Refused::Flattened);
        }
        let Self { answers, shape, input } = self;
        let index = answers.catalogue.index_of::<V>(name, variants, true);
        *shape = Shape::Named(answers.catalogue.types[index].name.clone());
        let is_within = answers.is_within(index);
        let key = answers.key();
        if !answers.orders.contains_key(&key) {
            let order = answers.order_of_variants(index, variants.len());
            answers.orders.insert(key.clone(), order);
        }
        let mut order = answers.orders.get(&key).cloned().unwrap_or_default();
        order.retain(|variant| {
            let content = answers.inside(variants[*variant]);
            !answers.blocked.contains(&content)
        });
        if order.is_empty() {
            return Err(if is_within { Refused::NotYet } else { Refused::Other });
        }
        let fact = answers.leaf(&key, LeafKind::Enum);
        let is_tried_out = answers.forced(&key).is_some();
        let variant = order[answers.choose(key, order.len(), Ways::Variants)];
        answers.enter(index, Some(variant));
        answers.place(index, Some(variant), &[]);
        let depth = answers.within.len();
        let name = variants[variant];
        let (mut content, mut inner) = (None, Value::Null);
        let value = visitor.visit_enum(Chosen {
            answers: &mut *answers,
            place: (index, variant),
            name: if is_tried_out { UNKNOWN } else { name },
            content: &mut content,
            input: &mut inner,
        });
        answers.within.truncate(depth - 1);
        *input = match content {
            None => name.into(),
            Some(_) => Value::Object([(name.to_owned(), inner)].into_iter().collect()),
        };
        let mut known = vec![Variant { name: name.to_owned(), content, only_read: false }];
        if fact == Some(Fact::Open(true)) {
            known.push(Variant { name: OTHER.to_owned(), content: None, only_read: false });
        }
        answers.found.push((index, Shape::Enum(known)));
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
