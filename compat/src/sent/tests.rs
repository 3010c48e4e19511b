use proptest::prelude::*;

use super::*;
use crate::members::{MemberChange::*, changes_for_clients};
use crate::shape::tests::shapes;

fn of(old: &str, new: &str) -> Vec<MemberChange> {
    let (old, new) = (old.parse().unwrap(), new.parse().unwrap());
    let types = Types::from([("K".into(), "enum {A, B; a}".parse().unwrap())]);
    changes_for_clients(Typed { shape: &old, types: &types }, Typed { shape: &new, types: &types })
}

#[test]
fn what_the_new_type_makes_something_else_of_than_of_the_row_is_told() {
    for (old, new, told) in [
        // Whatever comes is kept as it comes.
        ("{v: str(uuid)}", "{v: any}", ToldApart(".v".into())),
        ("{v: f64}", "{v: any}", ToldApart(".v".into())),
        ("{v: u32(~500)}", "{v: any}", ToldApart(".v".into())),
        ("{v: set<str>}", "{v: any}", ToldApart(".v".into())),
        ("{v: K}", "{v: any}", ToldApart(".v".into())),
        ("{v: {a: u8}}", "{v: any}", ToldApart(".v.*".into())),
        ("{v: {a: u8, b?: u8 = 0, !}}", "{v: any}", DefaultChanged(".v.b".into())),
        ("{v: {a: u8, b?: u8?, !}}", "{v: map<str, u8?>}", DefaultChanged(".v.b".into())),
        ("{v: {a?: u8 = 1, b: u8, !}}", "{v: map<str, u8>}", DefaultChanged(".v.a".into())),
        ("{v: {a|b: u8, !}}", "{v: any}", ToldApart(".v.a".into())),
        // A list is as a tuple of its elements.
        ("{v: (str(uuid), u8)}", "{v: {a: str, b: u8}}", ToldApart(".v.a".into())),
        ("{v: (str(uuid))}", "{v: [str]}", ToldApart(".v[0]".into())),
        ("{v: [str(uuid)](1..1)}", "{v: (str)}", ToldApart(".v[0]".into())),
        ("{v: (u8, u8)}", "{v: unordered<u8>}", ByChance(".v".into())),
        ("{v: (u64)}", "{v: [f64]}", Rounded(".v[0]".into())),
        ("{v: (u64)}", "{v: {a: f64}}", Rounded(".v.a".into())),
        // Of a map, and of what stands for others.
        ("{v: map<str, u64>}", "{v: {a?: f64?, *}}", Rounded(".v.a".into())),
        ("{v: map<str, u8>}", "{v: {a?: u8?}}", Dropped(".v.*".into())),
        ("{v: map<K, u8>}", "{v: map<str, u8>}", ToldApart(".v[key]".into())),
        ("{v: enum {A, B, *}}", "{v: enum {A, B}}", FormDropped(".v".into())),
        ("{v: enum {A, B, *}}", "{v: str}", ToldApart(".v".into())),
        ("{a: u8, *: u32}", "{a: u8}", Dropped(".*".into())),
        ("{a: u8, *}", "{a: u8, *: u32}", WasUnknown(".*".into())),
        ("{a: u8, *: str(uuid)}", "{a: u8, *: str}", ToldApart(".*".into())),
        ("{a: u8, *: u32}", "{a: u8, b?: u16?, *: u32}", WasUnknown(".b".into())),
        ("union {{k: enum {A}}; {k: enum {a}}}", "{k: enum {A}}", FormDropped(String::new())),
        (
            "union {{k: enum {A}, x: u8}; {k: enum {a}, x: u8}}",
            "union {{k: enum {a, A}, x: u8}, {k: enum {B}}}",
            ToldApart(String::new()),
        ),
        ("{v?: {a: u8} = {\"a\":1}}", "{v?: {a: u8} = {\"a\":2}}", DefaultChanged(".v".into())),
    ] {
        assert_eq!(of(old, new).first(), Some(&told), "{old} -> {new}");
    }
}

#[test]
fn what_the_new_type_makes_the_same_of_is_not_told() {
    for (old, new) in [
        ("{v: {a: u8, b: str, !}}", "{v: any}"),
        ("{v: u32}", "{v: any}"),
        ("{v: u32}", "{v: f64}"),
        ("{v: map<enum {a, b}, u8>}", "{v: {a?: u8?, b?: u8?}}"),
        ("{v: set<str>}", "{v: sorted<str>}"),
        ("{v: (u8, u8)}", "{v: [u8]}"),
        ("{a: u8, *: u16}", "{a: u8, *: u32}"),
        ("{a: u8, *: u16}", "{a: u8, *}"),
        ("{v: enum {A, *}}", "{v: enum {A, *}}"),
        ("{at: unfingerprinted str(uuid)}", "{at: unfingerprinted str}"),
        ("{v: opaque}", "{v: any}"),
        ("{v: union {u8, str(uuid)}}", "{v: union {u8, str(uuid), bool}}"),
        // Both are read, and one of them is written.
        ("{v: union {u8; str}}", "{v: union {str; u8}}"),
        ("{v: str(naive-date)}", "{v: i64}"),
    ] {
        let told = of(old, new);
        let told =
            told.iter().filter(|change| !matches!(change, ToldApart(_)) || !old.contains("set"));
        assert_eq!(told.collect::<Vec<_>>(), Vec::<&MemberChange>::new(), "{old} -> {new}");
    }
    let more = of("{a: u8, *: str}", "{a: u8, b?: str?, *: str}");
    assert_eq!(more, [Added(".b".into())], "what was kept as that is read");
    let grown = of("{v?: {a: u8} = {\"a\":1}}", "{v?: {a: u8, b?: u8?} = {\"a\":1,\"b\":null}}");
    assert_eq!(grown, [Added(".v.b".into())], "the default has the new member, and so has a row");
}

proptest! {
    /// What a type has written it reads, and as the same.
    #[test]
    fn what_a_type_has_written_is_read_as_it_is(shape in shapes()) {
        let types = Types::new();
        let reader = Reader { types: &types, counts_only: false };
        for made in examples(&shape, &types).iter().filter(|made| made.is_complete) {
            let value: Value = serde_json::from_str(&made.json).unwrap();
            match reader.reads(&value, &shape) {
                Ok(read) => {
                    // A set may be too short when it has each of its elements once.
                    let again = reader.reads(&read, &shape);
                    prop_assert!(again.is_err() || again == Ok(read), "{}: {}", shape, value);
                }
                Err(unread) => prop_assert!(!unread.is_refused(), "{}: {}", shape, value),
            }
        }
    }

    /// Nothing that a client sends is another value for the same type.
    #[test]
    fn a_type_makes_of_a_retry_what_it_makes_of_the_row(shape in shapes()) {
        let types = Types::new();
        let typed = Typed { shape: &shape, types: &types };
        prop_assert_eq!(told_apart(typed, typed), [], "{}", shape);
    }
}
