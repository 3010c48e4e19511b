//! The text of a map's key: the same kinds of keys that serde_json takes, and nothing that would
//! need a form of its own.

use std::borrow::Cow;
use std::fmt::Display;

use serde::ser::{Impossible, Serialize, Serializer};

use super::error::{FingerprintError, FingerprintRule};
use super::scalars;

/// The text of `key`, not escaped.
pub(super) fn text<T: Serialize + ?Sized>(key: &T) -> Result<Cow<'static, str>, FingerprintError> {
    key.serialize(KeyText)
}

struct KeyText;

type Text = Result<Cow<'static, str>, FingerprintError>;
type Never = Impossible<Cow<'static, str>, FingerprintError>;

fn by_display(value: impl Display) -> Text {
    Ok(Cow::Owned(value.to_string()))
}

fn float(value: f64) -> Text {
    let mut text = Vec::new();
    scalars::write_float(&mut text, value)?;
    Ok(Cow::Owned(String::from_utf8_lossy(&text).into_owned()))
}

fn no_key<T>() -> Result<T, FingerprintError> {
    Err(FingerprintError::new(FingerprintRule::MapKey))
}

/// The methods whose value is shown by its `Display`.
macro_rules! shown {
    ($($method:ident: $type:ty,)*) => {
        $(fn $method(self, value: $type) -> Text { by_display(value) })*
    };
}

impl Serializer for KeyText {
    type Ok = Cow<'static, str>;
    type Error = FingerprintError;
    type SerializeSeq = Never;
    type SerializeTuple = Never;
    type SerializeTupleStruct = Never;
    type SerializeTupleVariant = Never;
    type SerializeMap = Never;
    type SerializeStruct = Never;
    type SerializeStructVariant = Never;

    shown! {
        serialize_bool: bool, serialize_char: char, serialize_str: &str,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64, serialize_u128: u128,
    }

    fn serialize_f32(self, value: f32) -> Text {
        float(value.into())
    }

    fn serialize_f64(self, value: f64) -> Text {
        float(value)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Text {
        Ok(Cow::Borrowed(variant))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Text {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Text {
        if name == super::unfingerprinted::NAME {
            return Err(FingerprintError::new(FingerprintRule::NotAMember));
        }
        value.serialize(self)
    }

    fn serialize_bytes(self, _: &[u8]) -> Text {
        no_key()
    }

    fn serialize_none(self) -> Text {
        no_key()
    }

    fn serialize_unit(self) -> Text {
        no_key()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Text {
        no_key()
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Text {
        no_key()
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Never, FingerprintError> {
        no_key()
    }

    fn serialize_tuple(self, _: usize) -> Result<Never, FingerprintError> {
        no_key()
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Never, FingerprintError> {
        no_key()
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Never, FingerprintError> {
        no_key()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Never, FingerprintError> {
        no_key()
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Never, FingerprintError> {
        no_key()
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Never, FingerprintError> {
        no_key()
    }
}
