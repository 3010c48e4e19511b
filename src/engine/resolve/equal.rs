//! Whether two JSON values are the same.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// How deep values are compared: as deep as serde_json reads one.
const DEEPEST: usize = 128;

/// By value: white space and the order of members do not matter. What cannot be compared is not equal.
pub(super) fn equal(one: &RawValue, other: &RawValue) -> bool {
    one.get() == other.get() || are_equal(one.get(), other.get(), DEEPEST)
}

/// Part by part, because a number in a `serde_json::Value` has no more digits than an `f64`.
fn are_equal(one: &str, other: &str, depth: usize) -> bool {
    type Object<'a> = BTreeMap<String, &'a RawValue>;
    type Array<'a> = Vec<&'a RawValue>;
    fn both<'a, T: serde::Deserialize<'a>>(one: &'a str, other: &'a str) -> Option<(T, T)> {
        Some((serde_json::from_str(one).ok()?, serde_json::from_str(other).ok()?))
    }
    let Some(depth) = depth.checked_sub(1) else { return false };
    let (one, other) = (one.trim(), other.trim());
    let part = |(one, other): (&RawValue, &RawValue)| are_equal(one.get(), other.get(), depth);
    match (one.as_bytes().first(), other.as_bytes().first()) {
        (Some(b'{'), Some(b'{')) => both::<Object<'_>>(one, other).is_some_and(|(one, other)| {
            one.keys().eq(other.keys()) && one.into_values().zip(other.into_values()).all(part)
        }),
        (Some(b'['), Some(b'[')) => both::<Array<'_>>(one, other).is_some_and(|(one, other)| {
            one.len() == other.len() && one.into_iter().zip(other).all(part)
        }),
        (Some(b'"'), Some(b'"')) => {
            both::<String>(one, other).is_some_and(|(one, other)| one == other)
        }
        // Of a number, as it is written: how it is read is the application's.
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::equal;

    #[test]
    fn outputs_are_compared_by_value_and_to_the_last_digit() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let are = |one: &str, other: &str| equal(&raw(one), &raw(other));
        assert!(are(r#"{"a": [1, null], "b": "\u00e4"}"#, r#"{"b":"ä","a":[1,null]}"#));
        for (one, other) in [
            ("340282366920938463463374607431768211450", "340282366920938463463374607431768211455"),
            ("0.1", "0.10000000000000000001"),
            (r#"{"a":1}"#, r#"{"a":1,"b":1}"#),
            ("[1]", "[1,2]"),
            ("[1]", "{}"),
            ("null", "0"),
            (r#""1""#, "1"),
        ] {
            assert!(!are(one, other) && !are(other, one), "{one} {other}");
        }
        let deep = |end: &str| format!("{}{end}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(are(&deep("1"), &deep("1")) && !are(&deep("1"), &deep("2")));
    }
}
