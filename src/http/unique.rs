//! Finds a member that is given twice. serde's structs refuse one by themselves; its maps,
//! `serde_json::Value` and fields that a type does not know let it pass.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The member's name is the client's text and is not repeated; serde_json adds line and column.
const TWICE: &str = "a member is given twice in one object";

const RESERVED: &str = "a member has a name that is reserved";

/// How serde_json names a value that it hands to itself as text. Given by a client, such a member would
/// be read as the JSON in its string, which has not been checked.
const PRIVATE: &str = "$serde_json::private::";

pub(super) fn names_are_unique(json: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<Unique>(json).map(|Unique| ())
}

pub(super) fn pairs_are_unique(form: &[u8]) -> Result<(), serde_urlencoded::de::Error> {
    let pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = serde_urlencoded::from_bytes(form)?;
    // A `Value` would read the JSON in its string here, too, and none of the parameters behind it.
    if pairs.iter().any(|(name, _)| name.starts_with(PRIVATE)) {
        return Err(serde_urlencoded::de::Error::custom(RESERVED));
    }
    let mut seen = HashSet::new();
    match pairs.iter().all(|(name, _)| seen.insert(name)) {
        true => Ok(()),
        false => Err(serde_urlencoded::de::Error::custom("a parameter is given twice")),
    }
}

/// Any JSON value in which no object has two members of one name. Keeps nothing of it.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Unique, M::Error> {
        // Decoded names: `"a"` and `"\u0061"` are one.
        let mut seen = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if name.starts_with(PRIVATE) {
                members.next_value::<Number>()?;
                continue;
            }
            if !seen.insert(name) {
                return Err(M::Error::custom(TWICE));
            }
            members.next_value::<Unique>()?;
        }
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Unique, A::Error> {
        while elements.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }
}

/// A number, as serde_json hands it over in a build with `arbitrary_precision`: an object with one reserved
/// name. Its text is a `String` then; what a client wrote is a part of the body, or a copy in a buffer.
struct Number;

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Number)
    }
}

impl Visitor<'_> for Number {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member whose name is not reserved")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Number, E> {
        Err(E::custom(RESERVED))
    }

    fn visit_string<E: Error>(self, _: String) -> Result<Number, E> {
        Ok(Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_given_twice_is_found_at_any_depth_and_in_any_spelling() {
        for json in
            [r#"{"a":1,"a":1}"#, r#"{"a":1,"\u0061":2}"#, r#"[{"x":[{"a":null,"b":{},"a":null}]}]"#]
        {
            let error = names_are_unique(json.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with(TWICE), "{error}");
        }
        for json in [r#"{"a":{"a":[{"a":1},{"a":1}]},"b":-1.5e3}"#, "null", "\"x\"", "[]"] {
            names_are_unique(json.as_bytes()).unwrap();
        }
        assert!(pairs_are_unique(b"a=1&b=2&%61=3").is_err());
        assert!(pairs_are_unique(b"a=1&b=2&A=3").is_ok());
        for name in ["RawValue", "Number", "any"] {
            let form = format!("a=1&%24serde_json%3A%3Aprivate::{name}=2");
            assert!(pairs_are_unique(form.as_bytes()).is_err(), "{form}");
        }
    }

    #[test]
    fn hostile_json_is_an_error_and_no_panic() {
        let deep = "[".repeat(100_000);
        for json in [deep.as_str(), r#"{"a":1e400}"#, r#""\ud800""#, "\u{feff}{}", "{} x", ""] {
            assert!(names_are_unique(json.as_bytes()).is_err(), "{json:.20}");
        }
        assert!(names_are_unique(b"\"\xff\"").is_err());
    }
}
