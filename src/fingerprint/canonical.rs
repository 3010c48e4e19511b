//! Canonical JSON, version 1, straight from serde's data model.
//!
//! * Members of objects sorted by their text; a member twice is an error.
//! * Integers in decimal, exact at any size. Floats as shortest digits with an exponent (`2.5e0`),
//!   so that no float looks like an integer; `-0.0` as `0.0`; NaN and infinity are errors, because
//!   JSON would store `null` for them.
//! * Strings with the escapes that JSON demands, without Unicode normalisation.
//! * Options, enums, bytes and map keys as serde_json writes them.
//!
//! The form is fixed for ever: rows compare with it. Another form is another version.

use std::fmt::Display;

use serde::{Serialize, ser};

use super::unfingerprinted::MARK;

/// Deepest nesting, that of serde_json.
const MAX_DEPTH: usize = 128;

/// How serde_json hands over its own number and raw types, depending on its features.
const JSON_NUMBER: &str = "$serde_json::private::Number";
const JSON_RAW: &str = "$serde_json::private::RawValue";

/// Why parameters have no fingerprint. Names the field, never its value (G19).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameters have no canonical form: {path}: {rule}")]
pub struct FingerprintError {
    path: String,
    rule: &'static str,
}

impl FingerprintError {
    fn new(rule: &'static str) -> Self {
        Self { path: String::new(), rule }
    }

    fn within(mut self, container: &str) -> Self {
        self.path = match self.path.is_empty() {
            true => container.to_owned(),
            false => format!("{container}.{}", self.path),
        };
        self
    }
}

impl ser::Error for FingerprintError {
    // The message may hold a value.
    fn custom<T: Display>(_: T) -> Self {
        Self::new("its own Serialize refused")
    }
}

/// The canonical form of `value`.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, FingerprintError> {
    let written = value.serialize(Canonical { depth: 0 }).map_err(|mut error| {
        if error.path.is_empty() {
            error.path = "the value itself".to_owned();
        }
        error
    })?;
    Ok(written.unwrap_or_else(|| "null".to_owned()))
}

/// What was written; `None` for something that is left out.
type Written = Option<String>;
type Answer = Result<Written, FingerprintError>;

#[derive(Clone, Copy)]
struct Canonical {
    depth: usize,
}

impl Canonical {
    fn deeper(self) -> Result<Self, FingerprintError> {
        if self.depth == MAX_DEPTH {
            return Err(FingerprintError::new("nested deeper than 128"));
        }
        Ok(Self { depth: self.depth + 1 })
    }

    /// A value in a place that cannot be left out.
    fn whole<T: Serialize + ?Sized>(self, value: &T) -> Result<String, FingerprintError> {
        value.serialize(self)?.ok_or(FingerprintError::new(
            "Unfingerprinted works on a field of its own: write Unfingerprinted<Option<T>>, Unfingerprinted<Vec<T>>",
        ))
    }
}

fn plain(text: impl Display) -> Answer {
    Ok(Some(text.to_string()))
}

fn float(finite: bool, text: String) -> Answer {
    match finite {
        true => Ok(Some(if text == "-0e0" { "0e0".to_owned() } else { text })),
        false => Err(FingerprintError::new("a number that is not finite: JSON has none")),
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A number by its text, read as serde_json reads it where it does not keep the text.
fn number(token: &str) -> Answer {
    if token != "-0" {
        if let Ok(integer) = token.parse::<u64>() {
            return plain(integer);
        }
        if let Ok(integer) = token.parse::<i64>() {
            return plain(integer);
        }
    }
    let parsed: f64 = token.parse().map_err(|_| FingerprintError::new("a number that is none"))?;
    float(parsed.is_finite(), format!("{parsed:e}"))
}

macro_rules! integers {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> Answer { plain(value) })*
    };
}

impl ser::Serializer for Canonical {
    type Ok = Written;
    type Error = FingerprintError;
    type SerializeSeq = List;
    type SerializeTuple = List;
    type SerializeTupleStruct = List;
    type SerializeTupleVariant = List;
    type SerializeMap = Object;
    type SerializeStruct = Object;
    type SerializeStructVariant = Object;

    integers! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32,
        serialize_i64: i64, serialize_i128: i128, serialize_u8: u8, serialize_u16: u16,
        serialize_u32: u32, serialize_u64: u64, serialize_u128: u128
    }

    fn serialize_f32(self, value: f32) -> Answer {
        float(value.is_finite(), format!("{value:e}"))
    }

    fn serialize_f64(self, value: f64) -> Answer {
        float(value.is_finite(), format!("{value:e}"))
    }

    fn serialize_char(self, value: char) -> Answer {
        Ok(Some(quoted(value.encode_utf8(&mut [0; 4]))))
    }

    fn serialize_str(self, value: &str) -> Answer {
        Ok(Some(quoted(value)))
    }

    fn serialize_bytes(self, value: &[u8]) -> Answer {
        value.serialize(self)
    }

    fn serialize_none(self) -> Answer {
        plain("null")
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Answer {
        self.whole(value).map(Some)
    }

    fn serialize_unit(self) -> Answer {
        plain("null")
    }

    fn serialize_unit_struct(self, _: &'static str) -> Answer {
        plain("null")
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Answer {
        Ok(Some(quoted(variant)))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Answer {
        if name == MARK {
            return Ok(None);
        }
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Answer {
        let value = self.deeper()?.whole(value).map_err(|error| error.within(variant))?;
        Ok(Some(format!("{{{}:{value}}}", quoted(variant))))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<List, FingerprintError> {
        List::new(self, None)
    }

    fn serialize_tuple(self, _: usize) -> Result<List, FingerprintError> {
        List::new(self, None)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<List, FingerprintError> {
        List::new(self, None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<List, FingerprintError> {
        List::new(self.deeper()?, Some(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Object, FingerprintError> {
        Object::new(self, Form::Members, None)
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Object, FingerprintError> {
        let form = match name {
            JSON_NUMBER => Form::Number,
            JSON_RAW => Form::Raw,
            _ => Form::Members,
        };
        Object::new(self, form, None)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Object, FingerprintError> {
        Object::new(self.deeper()?, Form::Members, Some(variant))
    }
}

fn tagged(variant: Option<&'static str>, text: String) -> Answer {
    Ok(Some(match variant {
        None => text,
        Some(variant) => format!("{{{}:{text}}}", quoted(variant)),
    }))
}

struct List {
    inside: Canonical,
    items: Vec<String>,
    variant: Option<&'static str>,
}

impl List {
    fn new(outside: Canonical, variant: Option<&'static str>) -> Result<Self, FingerprintError> {
        Ok(Self { inside: outside.deeper()?, items: Vec::new(), variant })
    }

    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FingerprintError> {
        let at = self.items.len();
        let item = self.inside.whole(value).map_err(|error| error.within(&format!("[{at}]")))?;
        self.items.push(item);
        Ok(())
    }

    fn close(self) -> Answer {
        tagged(self.variant, format!("[{}]", self.items.join(",")))
    }
}

/// What an object turns out to be.
#[derive(PartialEq)]
enum Form {
    Members,
    Number,
    Raw,
}

struct Object {
    inside: Canonical,
    form: Form,
    key: Option<String>,
    members: Vec<(String, String)>,
    variant: Option<&'static str>,
}

impl Object {
    fn new(
        outside: Canonical,
        form: Form,
        variant: Option<&'static str>,
    ) -> Result<Self, FingerprintError> {
        let inside = outside.deeper()?;
        Ok(Self { inside, form, key: None, members: Vec::new(), variant })
    }

    fn member<T: Serialize + ?Sized>(
        &mut self,
        key: String,
        value: &T,
    ) -> Result<(), FingerprintError> {
        let name = key.trim_matches('"').to_owned();
        if let Some(value) = value.serialize(self.inside).map_err(|error| error.within(&name))? {
            self.members.push((key, value));
        }
        Ok(())
    }

    fn close(mut self) -> Answer {
        if self.form != Form::Members {
            return self.private();
        }
        self.members.sort();
        if self.members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(FingerprintError::new("a member is there twice"));
        }
        let members: Vec<String> =
            self.members.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        tagged(self.variant, format!("{{{}}}", members.join(",")))
    }

    /// One of serde_json's own types: its only member is its text.
    fn private(self) -> Answer {
        let text = self.members.into_iter().next().map(|(_, text)| text).unwrap_or_default();
        let unreadable = || FingerprintError::new("a number or raw value that is no JSON");
        let text: String = serde_json::from_str(&text).map_err(|_| unreadable())?;
        match self.form {
            Form::Number => number(&text),
            _ => {
                let value: serde_json::Value =
                    serde_json::from_str(&text).map_err(|_| unreadable())?;
                value.serialize(self.inside)
            }
        }
    }
}

macro_rules! lists {
    ($($trait:ident $method:ident),*) => {
        $(impl ser::$trait for List {
            type Ok = Written;
            type Error = FingerprintError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FingerprintError> {
                self.push(value)
            }

            fn end(self) -> Answer {
                self.close()
            }
        })*
    };
}

lists! {
    SerializeSeq serialize_element, SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field, SerializeTupleVariant serialize_field
}

macro_rules! structs {
    ($($trait:ident),*) => {
        $(impl ser::$trait for Object {
            type Ok = Written;
            type Error = FingerprintError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), FingerprintError> {
                self.member(quoted(name), value)
            }

            fn end(self) -> Answer {
                self.close()
            }
        })*
    };
}

structs! { SerializeStruct, SerializeStructVariant }

impl ser::SerializeMap for Object {
    type Ok = Written;
    type Error = FingerprintError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), FingerprintError> {
        let text = self.inside.whole(key)?;
        // As in JSON, a key that is a number or a truth value is the string of it.
        self.key = Some(match text.as_bytes().first() {
            Some(b'"') => text,
            Some(b'{' | b'[') | None => {
                return Err(FingerprintError::new("a map key that is no string, number or bool"));
            }
            Some(_) => quoted(&text),
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(
        &mut self,
        value: &T,
    ) -> Result<(), FingerprintError> {
        let key = self.key.take().ok_or(FingerprintError::new("a map value without a key"))?;
        self.member(key, value)
    }

    fn end(self) -> Answer {
        self.close()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Unfingerprinted;
    use super::*;
    use serde_json::{Value, json as value};
    use std::collections::{BTreeMap, HashMap};

    fn text<T: Serialize>(value: T) -> String {
        json(&value).unwrap()
    }

    #[derive(Serialize)]
    enum Kind {
        Unit,
        New(u8),
        Pair(u8, u8),
        Named { b: u8, a: u8 },
    }

    #[test]
    fn every_shape_of_the_data_model_has_its_form() {
        assert_eq!(text((1, -1, u128::MAX)), "[1,-1,340282366920938463463374607431768211455]");
        assert_eq!(text((0.1, 1.0, -0.0, 1e300, 1.5f32)), "[1e-1,1e0,0e0,1e300,1.5e0]");
        assert_eq!(text(("a\"\\\n\u{1}é", 'x', ())), "[\"a\\\"\\\\\\n\\u0001é\",\"x\",null]");
        assert_eq!(text((None::<u8>, Some(1))), "[null,1]");
        assert_eq!(
            text((Kind::Unit, Kind::New(1), Kind::Pair(1, 2), Kind::Named { a: 1, b: 2 })),
            r#"["Unit",{"New":1},{"Pair":[1,2]},{"Named":{"a":1,"b":2}}]"#
        );
        assert_eq!(text(BTreeMap::from([(2, true), (10, false)])), r#"{"10":false,"2":true}"#);
        assert_eq!(text(HashMap::from([("b", 1), ("a", 2)])), r#"{"a":2,"b":1}"#);
    }

    #[test]
    fn a_json_value_is_written_like_the_types_it_stands_for() {
        let json = value!({"b": [1, 1.0, -1, 18446744073709551615u64], "a": null});
        assert_eq!(text(json), r#"{"a":null,"b":[1,1e0,-1,18446744073709551615]}"#);
        let parsed: Value = serde_json::from_str("[1e2, -0, 18446744073709551616, 0.10]").unwrap();
        assert_eq!(text(parsed), "[1e2,0e0,1.8446744073709552e19,1e-1]");
        let raw =
            serde_json::value::RawValue::from_string("{ \"b\":1, \"a\":1.0 }".into()).unwrap();
        assert_eq!(text(raw), r#"{"a":1e0,"b":1}"#);
    }

    #[test]
    fn a_number_by_its_text_reads_as_without_it() {
        for (token, expected) in [
            ("1", "1"),
            ("-1", "-1"),
            ("1.0", "1e0"),
            ("1.00", "1e0"),
            ("1e2", "1e2"),
            ("-0", "0e0"),
            ("18446744073709551616", "1.8446744073709552e19"),
            ("9007199254740993", "9007199254740993"),
        ] {
            assert_eq!(number(token).unwrap().unwrap(), expected, "{token}");
        }
        assert!(number("1e400").is_err());
    }

    #[test]
    fn what_has_no_canonical_form_is_an_error_that_names_the_field_and_no_value() {
        #[derive(Serialize)]
        struct Item {
            price: f64,
        }
        #[derive(Serialize)]
        struct Cart {
            items: Vec<Item>,
        }
        let cart = Cart { items: vec![Item { price: 1.0 }, Item { price: f64::NAN }] };
        let error = json(&cart).unwrap_err().to_string();
        assert!(error.contains("items.[1].price"), "{error}");
        assert!(json(&[Unfingerprinted(1)]).is_err(), "an item cannot be left out");
        assert!(json(&(f64::INFINITY, 1)).is_err());

        let mut deep = value!(1);
        for _ in 0..200 {
            deep = value!([deep]);
        }
        assert!(json(&deep).unwrap_err().to_string().contains("128"));
    }

    #[test]
    fn a_member_twice_is_an_error() {
        struct Twice;
        impl Serialize for Twice {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("a", &1)?;
                map.serialize_entry("a", &2)?;
                map.end()
            }
        }
        assert!(json(&Twice).is_err());
    }

    mod random {
        use super::*;
        use proptest::prelude::*;

        fn any_json() -> impl Strategy<Value = Value> {
            let leaf = prop_oneof![
                Just(Value::Null),
                any::<bool>().prop_map(Value::from),
                any::<i64>().prop_map(Value::from),
                any::<u64>().prop_map(Value::from),
                (-1e300f64..1e300).prop_map(Value::from),
                ".{0,8}".prop_map(Value::from),
            ];
            leaf.prop_recursive(4, 32, 4, |inner| {
                prop_oneof![
                    prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                    prop::collection::btree_map(".{0,4}", inner, 0..4)
                        .prop_map(|map| Value::Object(map.into_iter().collect())),
                ]
            })
        }

        proptest! {
            #[test]
            fn the_form_is_json_and_its_own_canonical_form(value in any_json()) {
                let once = json(&value).unwrap();
                let read: Value = serde_json::from_str(&once).unwrap();
                prop_assert_eq!(json(&read).unwrap(), once);
            }

            #[test]
            fn two_values_have_one_form_only_if_they_are_equal(a in any_json(), b in any_json()) {
                prop_assert_eq!(json(&a).unwrap() == json(&b).unwrap(), a == b);
            }

            #[test]
            fn white_space_and_escapes_of_the_text_do_not_count(value in any_json()) {
                let pretty: Value =
                    serde_json::from_str(&serde_json::to_string_pretty(&value).unwrap()).unwrap();
                prop_assert_eq!(json(&pretty).unwrap(), json(&value).unwrap());
            }
        }
    }
}
