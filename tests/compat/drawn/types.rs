//! Types of parameters and outputs, by number.

use atomic_phases::compat::ValueType;
use serde::{Deserialize, Deserializer, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct One {
    a: u8,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WithOptional {
    a: u8,
    b: Option<u8>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WithRequired {
    a: u8,
    c: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Closed {
    a: u8,
}

#[derive(Serialize, Deserialize)]
pub(super) enum Choice {
    One,
    Other(u8),
}

/// Types of parameters and outputs, by number.
macro_rules! types {
    ($count:literal: $($number:literal $type:ty),*) => {
        pub(super) const TYPES: usize = $count;

        pub(super) fn type_of(number: usize) -> ValueType {
            match number {
                $($number => ValueType::of::<$type>(),)*
                _ => unreachable!("there are {TYPES}"),
            }
        }

        pub(super) fn reads(number: usize, json: &str) -> bool {
            match number {
                $($number => serde_json::from_str::<$type>(json).is_ok(),)*
                _ => unreachable!("there are {TYPES}"),
            }
        }

        /// Reads a value as a derived `Deserialize` of the type does, and writes it as its `Serialize` does.
        pub(super) fn read_as<'de, D: Deserializer<'de>>(number: usize, from: D) -> Result<String, D::Error> {
            match number {
                $($number => {
                    let value = <$type>::deserialize(from)?;
                    serde_json::to_string(&value).map_err(serde::de::Error::custom)
                })*
                _ => unreachable!("there are {TYPES}"),
            }
        }
    };
}

types!(9: 0 u8, 1 u16, 2 String, 3 Option<u8>, 4 One, 5 WithOptional, 6 WithRequired, 7 Choice, 8 Closed);

/// A value of the type.
pub(super) fn any_of(number: usize) -> String {
    let known = ["1", "\"x\"", r#"{"a":1}"#, r#"{"a":1,"c":1}"#, "\"One\""];
    known.iter().find(|json| reads(number, json)).unwrap().to_string()
}
