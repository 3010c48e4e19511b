//! The canonical form under generated values (F2).

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Number, Value};

use super::canonical;

/// Any JSON value, with strings, names and numbers that like to be near each other.
fn values() -> impl Strategy<Value = Value> {
    let text = || prop_oneof!["[ab\"\\\\\n\u{0}é\u{301}😀]{0,3}", any::<String>()];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..3).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-3_i8..3).prop_map(|n| Value::from(f64::from(n))),
        any::<f64>().prop_filter_map("finite", Number::from_f64).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(text(), inner, 0..4).prop_map(|members| Value::from(Map::from_iter(members))),
        ]
    })
}

/// Choices, as many as are asked for.
struct Choices(std::iter::Cycle<std::vec::IntoIter<u8>>);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        usize::from(self.0.next().unwrap_or_default()) % n
    }

    fn space(&mut self) -> &'static str {
        ["", " ", "\n\t", ""][self.below(4)]
    }
}

/// The same value as another client might write it: member order, white space, escapes.
fn otherwise(value: &Value, choices: &mut Choices) -> String {
    let space = choices.space();
    let text = match value {
        Value::String(text) => escaped(text, choices),
        Value::Array(elements) => {
            let elements: Vec<_> = elements.iter().map(|e| otherwise(e, choices)).collect();
            format!("[{space}{}]", elements.join(","))
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members
                .iter()
                .map(|(name, value)| {
                    let (name, space) = (escaped(name, choices), choices.space());
                    format!("{name}{space}:{}", otherwise(value, choices))
                })
                .collect();
            for last in (1..members.len()).rev() {
                members.swap(last, choices.below(last + 1));
            }
            format!("{{{space}{}}}", members.join(","))
        }
        scalar => scalar.to_string(),
    };
    format!("{space}{text}{}", choices.space())
}

fn escaped(text: &str, choices: &mut Choices) -> String {
    let escape = |c: char, choices: &mut Choices| match choices.below(2) {
        0 => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04X}")).collect(),
        _ => serde_json::to_string(&c).unwrap().trim_matches('"').to_owned(),
    };
    let inner: String = text
        .chars()
        .map(|c| match c {
            '"' => "\\\"".to_owned(),
            c => escape(c, choices),
        })
        .collect();
    format!("\"{inner}\"")
}

proptest! {
    /// Reading the canonical form gives the value back, so no two values share one (injective), and
    /// the canonical form of that is itself (idempotent).
    #[test]
    fn f2_the_canonical_form_reads_back_as_the_value(value in values()) {
        let text = canonical(&value).unwrap();
        let back: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&back, &value);
        prop_assert_eq!(canonical(&back).unwrap(), text);
    }

    #[test]
    fn f2_different_values_have_different_forms(a in values(), b in values()) {
        prop_assert_eq!(a == b, canonical(&a).unwrap() == canonical(&b).unwrap());
    }

    #[test]
    fn f2_member_order_white_space_and_escapes_do_not_matter(
        value in values(),
        choices in vec(any::<u8>(), 1..64),
    ) {
        let mut choices = Choices(choices.into_iter().cycle());
        let text = otherwise(&value, &mut choices);
        let again: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(canonical(&again).unwrap(), canonical(&value).unwrap());
    }

    #[test]
    fn f2_any_float_reads_back_as_itself(float in any::<f64>()) {
        match canonical(&float) {
            Ok(text) => prop_assert_eq!(text.parse::<f64>().unwrap(), float),
            Err(_) => prop_assert!(!float.is_finite()),
        }
    }
}
