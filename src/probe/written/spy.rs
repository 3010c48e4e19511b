//! [`Spy`]: the serializer that hears what a type writes.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::Written;
use crate::fingerprint::UNFINGERPRINTED;
use crate::probe::hints::Refused;
use atomic_phases_compat::{Float, Integer, Letter, Shape, StrFormat};

type Made = fn(&'static str, Vec<(String, Written)>) -> Written;

pub(super) struct Spy;

/// The parts of a value that has several.
pub(super) struct Parts {
    parts: Vec<(String, Written)>,
    key: String,
    made: Made,
    name: &'static str,
    variant: Option<&'static str>,
}

impl Parts {
    fn of(name: &'static str, made: Made) -> Result<Self, Refused> {
        Ok(Self { parts: Vec::new(), key: String::new(), made, name, variant: None })
    }

    fn in_variant(self, variant: &'static str) -> Self {
        Self { variant: Some(variant), ..self }
    }

    fn add(&mut self, name: &str, value: &(impl Serialize + ?Sized)) -> Result<(), Refused> {
        self.parts.push((name.to_owned(), value.serialize(Spy)?));
        Ok(())
    }

    fn finish(self) -> Result<Written, Refused> {
        let made = (self.made)(self.name, self.parts);
        Ok(match self.variant {
            Some(variant) => Written::Variant(variant, Some(Box::new(made))),
            None => made,
        })
    }
}

fn values(parts: Vec<(String, Written)>) -> Vec<Written> {
    parts.into_iter().map(|(_, part)| part).collect()
}

fn leaf(shape: Shape) -> Result<Written, Refused> {
    Ok(Written::Leaf(shape))
}

macro_rules! integers {
    ($($method:ident $type:ty, $signed:literal, $bits:literal;)*) => {
        $(fn $method(self, _: $type) -> Result<Written, Refused> {
            leaf(Shape::Int(Integer::of($signed, $bits)))
        })*
    };
}

impl Serializer for Spy {
    type Ok = Written;
    type Error = Refused;
    type SerializeSeq = Parts;
    type SerializeTuple = Parts;
    type SerializeTupleStruct = Parts;
    type SerializeTupleVariant = Parts;
    type SerializeMap = Parts;
    type SerializeStruct = Parts;
    type SerializeStructVariant = Parts;

    integers! {
        serialize_i8 i8, true, 8;
        serialize_i16 i16, true, 16;
        serialize_i32 i32, true, 32;
        serialize_i64 i64, true, 64;
        serialize_i128 i128, true, 128;
        serialize_u8 u8, false, 8;
        serialize_u16 u16, false, 16;
        serialize_u32 u32, false, 32;
        serialize_u64 u64, false, 64;
        serialize_u128 u128, false, 128;
    }

    fn serialize_bool(self, _: bool) -> Result<Written, Refused> {
        leaf(Shape::Bool)
    }

    fn serialize_f32(self, _: f32) -> Result<Written, Refused> {
        leaf(Shape::Float(Float::of(32)))
    }

    fn serialize_f64(self, _: f64) -> Result<Written, Refused> {
        leaf(Shape::Float(Float::of(64)))
    }

    fn serialize_char(self, _: char) -> Result<Written, Refused> {
        leaf(Shape::Char(Letter::default()))
    }

    fn serialize_str(self, _: &str) -> Result<Written, Refused> {
        leaf(Shape::Str(StrFormat::ANY))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<Written, Refused> {
        leaf(Shape::Bytes)
    }

    fn serialize_none(self) -> Result<Written, Refused> {
        Ok(Written::None)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Written, Refused> {
        Ok(Written::Some(Box::new(value.serialize(Self)?)))
    }

    fn serialize_unit(self) -> Result<Written, Refused> {
        leaf(Shape::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Written, Refused> {
        leaf(Shape::Null)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Written, Refused> {
        Ok(Written::Variant(variant, None))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Written, Refused> {
        let inner = value.serialize(self)?;
        Ok(match name {
            UNFINGERPRINTED => Written::Unfingerprinted(Box::new(inner)),
            _ => inner,
        })
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Written, Refused> {
        Ok(Written::Variant(variant, Some(Box::new(value.serialize(self)?))))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts, Refused> {
        Parts::of("", |_, parts| Written::List(values(parts)))
    }

    fn serialize_tuple(self, _: usize) -> Result<Parts, Refused> {
        Parts::of("", |_, parts| Written::Tuple(values(parts)))
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<Parts, Refused> {
        self.serialize_tuple(length)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Parts, Refused> {
        Ok(self.serialize_tuple(length)?.in_variant(variant))
    }

    /// A map tells its length, and a type with a flattened member cannot.
    fn serialize_map(self, length: Option<usize>) -> Result<Parts, Refused> {
        match length {
            Some(_) => Parts::of("", |_, parts| Written::Map(parts)),
            None => Parts::of("", Written::Struct),
        }
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Parts, Refused> {
        Parts::of(name, Written::Struct)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Parts, Refused> {
        Ok(Parts::of("", Written::Struct)?.in_variant(variant))
    }
}

macro_rules! elements {
    ($($trait:ident $method:ident),*) => {
        $(impl $trait for Parts {
            type Ok = Written;
            type Error = Refused;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
                self.add("", value)
            }

            fn end(self) -> Result<Written, Refused> {
                self.finish()
            }
        })*
    };
}

elements! {
    SerializeSeq serialize_element, SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field
}

macro_rules! members {
    ($($trait:ident),*) => {
        $(impl $trait for Parts {
            type Ok = Written;
            type Error = Refused;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Refused> {
                self.add(name, value)
            }

            fn end(self) -> Result<Written, Refused> {
                self.finish()
            }
        })*
    };
}

members! { SerializeStruct, SerializeStructVariant }

impl SerializeMap for Parts {
    type Ok = Written;
    type Error = Refused;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Refused> {
        let key = serde_json::to_value(key).map_err(|_| Refused::Other)?;
        self.key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        let key = std::mem::take(&mut self.key);
        self.add(&key, value)
    }

    fn end(self) -> Result<Written, Refused> {
        self.finish()
    }
}
