//! The canonical form: JSON written straight from serde's data model.
//!
//! Never through `serde_json::Value`: what that can hold, and in which order, depends on cargo
//! features that any crate in the final build may switch on (`arbitrary_precision`,
//! `preserve_order`), and a fingerprint must not.

mod compound;

use serde::ser::{Serialize, Serializer};

use self::compound::{Elements, Members, Structure};
use super::error::{FingerprintError, FingerprintRule, MAX_DEPTH, Step};
use super::{scalars, unfingerprinted};

/// What serializing a value came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Its text is written.
    Value,
    /// It is an `Unfingerprinted`: nothing is written, and its member has to go.
    LeftOut,
}

impl Written {
    /// For the places where there is no member to leave out.
    pub(super) fn required(self) -> Result<(), FingerprintError> {
        match self {
            Self::Value => Ok(()),
            Self::LeftOut => Err(FingerprintError::new(FingerprintRule::NotAMember)),
        }
    }
}

/// The canonical JSON of `value`, at the end of `out`.
pub(super) fn write<T: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    value: &T,
) -> Result<(), FingerprintError> {
    value.serialize(Canonical { out, depth: 0 })?.required()
}

/// Writes one value.
pub(super) struct Canonical<'a> {
    pub(super) out: &'a mut Vec<u8>,
    /// How many objects and arrays stand around the value.
    pub(super) depth: usize,
}

type Outcome = Result<Written, FingerprintError>;

impl<'a> Canonical<'a> {
    fn literal(self, text: &str) -> Outcome {
        self.out.extend_from_slice(text.as_bytes());
        Ok(Written::Value)
    }

    fn string(self, text: &str) -> Outcome {
        scalars::write_string(self.out, text);
        Ok(Written::Value)
    }

    fn float(self, value: f64) -> Outcome {
        scalars::write_float(self.out, value)?;
        Ok(Written::Value)
    }

    /// One object or array further in.
    fn deeper(self) -> Result<Self, FingerprintError> {
        match self.depth {
            MAX_DEPTH.. => Err(FingerprintError::new(FingerprintRule::TooDeep)),
            depth => Ok(Self { out: self.out, depth: depth + 1 }),
        }
    }

    fn elements(self) -> Result<Elements<'a>, FingerprintError> {
        self.deeper().map(|inner| Elements::open(inner, "]"))
    }

    fn members(self) -> Result<Members<'a>, FingerprintError> {
        self.deeper().map(|inner| Members::open(inner, "}"))
    }

    /// `{"variant":` of an externally tagged enum; who calls closes it.
    fn tagged(self, variant: &str) -> Result<Self, FingerprintError> {
        let inner = self.deeper()?;
        inner.out.push(b'{');
        scalars::write_string(inner.out, variant);
        inner.out.push(b':');
        Ok(inner)
    }
}

macro_rules! integers {
    ($($method:ident: $type:ty,)*) => {
        $(fn $method(self, value: $type) -> Outcome {
            scalars::write_integer(self.out, value);
            Ok(Written::Value)
        })*
    };
}

impl<'a> Serializer for Canonical<'a> {
    type Ok = Written;
    type Error = FingerprintError;
    type SerializeSeq = Elements<'a>;
    type SerializeTuple = Elements<'a>;
    type SerializeTupleStruct = Elements<'a>;
    type SerializeTupleVariant = Elements<'a>;
    type SerializeMap = Members<'a>;
    type SerializeStruct = Structure<'a>;
    type SerializeStructVariant = Members<'a>;

    integers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64, serialize_u128: u128,
    }

    fn serialize_bool(self, value: bool) -> Outcome {
        self.literal(if value { "true" } else { "false" })
    }

    fn serialize_f32(self, value: f32) -> Outcome {
        self.float(value.into())
    }

    fn serialize_f64(self, value: f64) -> Outcome {
        self.float(value)
    }

    fn serialize_char(self, value: char) -> Outcome {
        self.string(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Outcome {
        self.string(value)
    }

    fn serialize_bytes(self, value: &[u8]) -> Outcome {
        self.collect_seq(value)
    }

    fn serialize_none(self) -> Outcome {
        self.literal("null")
    }

    /// `Some` of an `Unfingerprinted` is refused: its `None` is written as `null`, because nothing
    /// tells it from another, so the two could not both be left out.
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Outcome {
        value.serialize(self)?.required()?;
        Ok(Written::Value)
    }

    fn serialize_unit(self) -> Outcome {
        self.literal("null")
    }

    fn serialize_unit_struct(self, _: &'static str) -> Outcome {
        self.literal("null")
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Outcome {
        self.string(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Outcome {
        if name == unfingerprinted::NAME {
            return Ok(Written::LeftOut);
        }
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Outcome {
        let Canonical { out, depth } = self.tagged(variant)?;
        value
            .serialize(Canonical { out: &mut *out, depth })
            .and_then(Written::required)
            .map_err(|error| error.within(Step::Field(variant)))?;
        out.push(b'}');
        Ok(Written::Value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Elements<'a>, FingerprintError> {
        self.elements()
    }

    fn serialize_tuple(self, _: usize) -> Result<Elements<'a>, FingerprintError> {
        self.elements()
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Elements<'a>, FingerprintError> {
        self.elements()
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Elements<'a>, FingerprintError> {
        Ok(Elements::open(self.tagged(variant)?.deeper()?, "]}"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Members<'a>, FingerprintError> {
        self.members()
    }

    fn serialize_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<Structure<'a>, FingerprintError> {
        match name {
            "$serde_json::private::Number" => Ok(Structure::Number(self.out)),
            "$serde_json::private::RawValue" => Ok(Structure::RawText(self.out)),
            _ => self.members().map(Structure::Members),
        }
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Members<'a>, FingerprintError> {
        Ok(Members::open(self.tagged(variant)?.deeper()?, "}}"))
    }
}
