//! [`Given`]: a JSON value as a deserializer whose errors are heard, and which else reads as serde_json does.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, Unexpected, VariantAccess, Visitor,
};
use serde_json::Value;

use super::hints::Refused;

#[derive(Clone, Copy)]
pub(super) struct Given<'v>(pub(super) &'v Value);

impl<'v> IntoDeserializer<'_, Refused> for Given<'v> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Given<'_> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::String(text) => visitor.visit_str(text),
            Value::Array(values) => {
                let mut elements = SeqDeserializer::new(values.iter().map(Given));
                let value = visitor.visit_seq(&mut elements)?;
                elements.end().map(|()| value)
            }
            Value::Object(members) => {
                let members = members.iter().map(|(name, value)| (name.as_str(), Given(value)));
                let mut members = MapDeserializer::new(members);
                let value = visitor.visit_map(&mut members)?;
                members.end().map(|()| value)
            }
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(Variant { name, content: Content(None) }),
            Value::Object(members) if members.len() == 1 => {
                let (name, content) = members.iter().next().ok_or(Refused::Other)?;
                visitor.visit_enum(Variant { name, content: Content(Some(content)) })
            }
            _ => Err(serde::de::Error::invalid_type(Unexpected::Unit, &"enum")),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Variant<'v> {
    name: &'v str,
    content: Content<'v>,
}

struct Content<'v>(Option<&'v Value>);

impl<'v> Content<'v> {
    fn given(self) -> Result<Given<'v>, Refused> {
        self.0.map(Given).ok_or(Refused::Other)
    }
}

impl<'de, 'v> EnumAccess<'de> for Variant<'v> {
    type Error = Refused;
    type Variant = Content<'v>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Refused> {
        let variant = seed.deserialize(self.name.into_deserializer())?;
        Ok((variant, self.content))
    }
}

impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = Refused;

    fn unit_variant(self) -> Result<(), Refused> {
        match self.0 {
            None | Some(Value::Null) => Ok(()),
            Some(_) => Err(Refused::Other),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refused> {
        seed.deserialize(self.given()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Refused> {
        self.given()?.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.given()?.deserialize_any(visitor)
    }
}
