//! [`Objects`]: reads JSON as the types say it, except that a struct is read from an object only. serde
//! would take an array as well, member by member in the order of the fields, at any depth.
//!
//! What serde buffers first (`untagged`, `flatten`, `tag = ".."`, and a `content = ".."` that comes before its tag) it
//! reads from a copy of its own, which this rule does not reach: there an array passes for an object, as ever.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};

/// A deserializer, or a part of one, under that rule.
pub(super) struct Objects<T>(T);

impl<T> Objects<T> {
    pub(super) fn new(inner: T) -> Self {
        Self(inner)
    }
}

/// A visitor, and whether it is a struct's.
struct Reads<V> {
    visitor: V,
    is_struct: bool,
}

fn reads<V>(visitor: V) -> Reads<V> {
    Reads { visitor, is_struct: false }
}

macro_rules! deserialize {
    ($($name:ident($($argument:ident: $type:ty),*))*) => {
        $(fn $name<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$name($($argument,)* reads(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Objects<D> {
    type Error = D::Error;

    deserialize! {
        deserialize_any() deserialize_bool()
        deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64() deserialize_i128()
        deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64() deserialize_u128()
        deserialize_f32() deserialize_f64() deserialize_char() deserialize_str() deserialize_string()
        deserialize_bytes() deserialize_byte_buf() deserialize_option() deserialize_unit()
        deserialize_unit_struct(name: &'static str) deserialize_newtype_struct(name: &'static str)
        deserialize_seq() deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize) deserialize_map()
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
        deserialize_identifier() deserialize_ignored_any()
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_struct(name, fields, Reads { visitor, is_struct: true })
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($name:ident: $type:ty),* $(,)?) => {
        $(fn $name<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.visitor.$name(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Reads<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    visit! {
        visit_bool: bool,
        visit_i8: i8, visit_i16: i16, visit_i32: i32, visit_i64: i64, visit_i128: i128,
        visit_u8: u8, visit_u16: u16, visit_u32: u32, visit_u64: u64, visit_u128: u128,
        visit_f32: f32, visit_f64: f64, visit_char: char,
        visit_str: &str, visit_borrowed_str: &'de str, visit_string: String,
        visit_bytes: &[u8], visit_borrowed_bytes: &'de [u8], visit_byte_buf: Vec<u8>,
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Objects(value))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Objects(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<V::Value, A::Error> {
        match self.is_struct {
            true => Err(A::Error::invalid_type(Unexpected::Seq, &"an object")),
            false => self.visitor.visit_seq(Objects(elements)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Objects(members))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Objects(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Objects<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Objects(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Objects(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Objects<A> {
    type Error = A::Error;
    type Variant = Objects<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(Objects(seed))?;
        Ok((value, Objects(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Objects(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, reads(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Reads { visitor, is_struct: true })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::Value;
    use serde_json::value::RawValue;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Point {
        x: i64,
        y: Option<f64>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Shape {
        Dot,
        Named(Point),
        Line(Point, Point),
        Circle { at: Point, radius: u128 },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Wrapped(Point);

    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        raw: &'a RawValue,
        text: &'a str,
    }

    fn read<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, serde_json::Error> {
        T::deserialize(Objects::new(&mut serde_json::Deserializer::from_str(json)))
    }

    /// As without the rule, where no array stands for an object.
    fn as_ever<'a, T: Deserialize<'a> + PartialEq + fmt::Debug>(json: &'a str) {
        assert_eq!(read::<T>(json).unwrap(), serde_json::from_str(json).unwrap());
    }

    #[test]
    fn what_is_no_array_in_place_of_an_object_is_read_as_ever() {
        as_ever::<Vec<Point>>(r#"[{"x":1,"y":2.5},{"x":-9223372036854775808}]"#);
        as_ever::<BTreeMap<String, (Point, bool, char)>>(r#"{"a":[{"x":1},true,"c"]}"#);
        as_ever::<BTreeMap<u64, Wrapped>>(r#"{"17":{"x":1}}"#);
        for json in [
            r#""Dot""#,
            r#"{"Named":{"x":1}}"#,
            r#"{"Line":[{"x":1},{"x":2}]}"#,
            r#"{"Circle":{"at":{"x":1},"radius":340282366920938463463374607431768211455}}"#,
        ] {
            as_ever::<Shape>(json);
        }
        as_ever::<Value>(r#"[{"a":[1,-2,3.5,"x",null,{}]}]"#);
        as_ever::<Option<Wrapped>>("null");
        let raw: Raw<'_> = read(r#"{"raw": [1,  2], "text":"t"}"#).unwrap();
        assert_eq!((raw.raw.get(), raw.text), ("[1,  2]", "t"));
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        At(Point),
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Pin { at: Point },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(tag = "kind", content = "at")]
    enum Adjacent {
        Pin(Point),
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Flat {
        name: String,
        #[serde(flatten)]
        pin: Pin,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Pin {
        at: Point,
    }

    /// What the documentation of `Policy::parameters` says of it. Both spellings are one request, by the
    /// values that the handler sees.
    #[test]
    fn what_serde_buffers_takes_an_array_for_an_object() {
        let at = || Point { x: 1, y: Some(2.5) };
        for json in [r#"{"x":1,"y":2.5}"#, "[1,2.5]"] {
            assert_eq!(read::<Untagged>(json).unwrap(), Untagged::At(at()));
            let tagged = format!(r#"{{"kind":"Pin","at":{json}}}"#);
            assert_eq!(read::<Tagged>(&tagged).unwrap(), Tagged::Pin { at: at() });
            let adjacent = format!(r#"{{"at":{json},"kind":"Pin"}}"#);
            assert_eq!(read::<Adjacent>(&adjacent).unwrap(), Adjacent::Pin(at()));
            let flat = format!(r#"{{"name":"n","at":{json}}}"#);
            let name = "n".to_owned();
            assert_eq!(read::<Flat>(&flat).unwrap(), Flat { name, pin: Pin { at: at() } });
        }
        // What is not buffered is an object still: the body itself, the flattened struct, and a content behind its tag.
        for error in [
            read::<Adjacent>(r#"{"kind":"Pin","at":[1,2.5]}"#).unwrap_err(),
            read::<Flat>(r#"["n",{"at":{"x":1}}]"#).unwrap_err(),
            read::<Flat>(r#"{"name":"n","pin":[{"x":1}]}"#).unwrap_err(),
        ] {
            assert!(error.is_data(), "{error}");
        }
    }

    #[test]
    fn an_array_is_no_struct_at_any_depth() {
        for error in [
            read::<Point>("[1,2.5]").unwrap_err(),
            read::<Vec<Point>>("[[1,2.5]]").unwrap_err(),
            read::<Option<Wrapped>>("[1,null]").unwrap_err(),
            read::<BTreeMap<String, Point>>(r#"{"a":[1,2]}"#).unwrap_err(),
            read::<Shape>(r#"{"Named":[1,2]}"#).unwrap_err(),
            read::<Shape>(r#"{"Line":[{"x":1},[2,1]]}"#).unwrap_err(),
            read::<Shape>(r#"{"Circle":[{"x":1},2]}"#).unwrap_err(),
        ] {
            assert!(error.is_data() && error.line() == 1, "{error}");
            assert!(error.to_string().contains("expected an object"), "{error}");
        }
    }
}
