use proptest::prelude::*;

use super::*;
use crate::fits;
use crate::shape::tests::shapes;

fn of(shape: &str) -> Vec<String> {
    let types = Types::from([
        ("Tree".into(), "{leaf: bool, more: [Tree], other?: Tree?}".parse().unwrap()),
        ("Endless".into(), "{more: Endless}".parse().unwrap()),
    ]);
    examples(&shape.parse().unwrap(), &types).into_iter().map(|made| made.json).collect()
}

#[test]
fn each_alternative_of_each_place_is_there_once() {
    assert_eq!(of("u8")[..4], ["255", "0", "1", "2"]);
    assert_eq!(of("i8")[..2], ["127", "-128"]);
    assert_eq!(of("u8(1..3)"), ["3", "1", "2"]);
    assert_eq!(of("u8(..2, !1)"), ["2", "0"]);
    assert_eq!(of("u128")[..2], ["340282366920938463463374607431768211455", "0"]);
    assert_eq!(of("f32(!1.0, !0.1)")[..2], ["0.5", "0.0"]);
    assert_eq!(of("char(!A)")[..2], ["\"a\"", "\"1\""]);
    assert_eq!(of("str(uuid-simple+uuid-hyphens~uuid-hyphens)").len(), 1, "as it is written");
    assert_eq!(of("[bool?](..1)"), ["[true]", "[false]", "[null]", "[]"]);
    assert_eq!(
        of("[null](1..4)"),
        ["[null]", "[null,null]", "[null,null,null]", "[null,null,null,null]"]
    );
    assert_eq!(of("[null](3..3)"), ["[null,null,null]"]);
    assert_eq!(of("set<bool>"), ["[true]", "[false]", "[]"]);
    assert_eq!(of("(null, bool) but [[null, false]]"), ["[null,true]"]);
    assert_eq!(of("{a?: bool? = left out}"), [r#"{"a":true}"#, r#"{"a":false}"#, "{}"]);
    assert_eq!(of("(bool, null)"), ["[true,null]", "[false,null]"]);
    assert_eq!(of("map<bool, null>"), [r#"{"true":null}"#, r#"{"false":null}"#, "{}"]);
    assert_eq!(of("enum {A, B: bool, *}"), [r#""A""#, r#"{"B":true}"#, r#"{"B":false}"#]);
    assert_eq!(of("union {bool, null; u8}"), ["true", "false", "null"], "as it is written");
    let rest = r#""b":"USD"}"#;
    assert_eq!(
        of("{a|z: bool, b?: str(USD+EUR)}"),
        [
            format!(r#"{{"a":true,{rest}"#),
            format!(r#"{{"a":false,{rest}"#),
            r#"{"a":true,"b":"EUR"}"#.to_owned()
        ]
    );
}

#[test]
fn a_type_that_holds_itself_has_values_that_end() {
    assert_eq!(
        of("Tree"),
        [r#"{"leaf":true,"more":[],"other":null}"#, r#"{"leaf":false,"more":[],"other":null}"#],
    );
    assert_eq!(of("Endless"), Vec::<String>::new());
    assert_eq!(of("Endless?"), ["null"]);
}

#[test]
fn what_is_not_known_is_told() {
    let types = Types::new();
    let made = examples(&"{a: opaque, b: str(own)?}".parse().unwrap(), &types);
    assert_eq!(made.len(), 2);
    assert!(made.iter().all(|example| !example.is_complete));
    assert!(examples(&"{a: u8}".parse().unwrap(), &types).iter().all(|made| made.is_complete));
}

#[test]
fn types_that_share_types_are_made_in_bounded_time() {
    let mut types = Types::from([("T0".into(), "i64?".parse().unwrap())]);
    for level in 1..40 {
        let text = format!("{{a: T{0}, b: T{0}}}", level - 1);
        types.insert(format!("T{level}"), text.parse().unwrap());
    }
    for name in ["T10", "T39"] {
        let made = examples(&name.parse().unwrap(), &types);
        assert!((1..=MAX_EXAMPLES).contains(&made.len()), "{name}: {}", made.len());
    }
}

proptest! {
    /// So that no change is found where there is none.
    #[test]
    fn each_example_of_a_shape_fits_it(shape in shapes()) {
        let types = Types::new();
        for Example { json, .. } in examples(&shape, &types) {
            let value = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(fits(&value, &shape, &types), Ok(()), "{} as {}", json, shape);
        }
    }
}
