use super::*;

fn misfit(shape: &str, json: &str) -> Option<String> {
    let types = Types::from([("Point".into(), "{lat: f64, lon: f64}".parse().unwrap())]);
    let value = serde_json::from_str(json).unwrap();
    fits(&value, &shape.parse().unwrap(), &types).err().map(|misfit| misfit.path)
}

#[test]
fn what_a_type_reads_fits() {
    for (shape, json) in [
        ("any", "[null]"),
        ("u8", "255"),
        ("i64", "-9223372036854775808"),
        ("u64", "18446744073709551615"),
        ("u128", "18446744073709551615"),
        ("u128", "340282366920938463463374607431768211455"),
        ("i128", "-170141183460469231731687303715884105728"),
        ("u8(1..100)", "100"),
        ("i8(!0)", "-1"),
        ("str(own)", "\"x\""),
        ("enum {A, \"*\"}", "\"B\""),
        ("f64", "1"),
        ("char", "\"ß\""),
        ("str", "\"\""),
        ("str(uuid)", "\"00000000-0000-4000-8000-000000000000\""),
        ("u8?", "null"),
        ("[u8?]", "[1, null]"),
        ("(u8, str)", "[1, \"a\"]"),
        ("map<i8, bool>", "{\"-1\": true}"),
        ("{a: u8, b?: u8}", "{\"a\": 1, \"c\": null}"),
        ("{a: u8, b|c: u8, !}", "{\"a\": 1, \"c\": 2}"),
        ("{a: u8, b: u8}", "[1, 2]"),
        ("enum {A, B: u8}", "\"A\""),
        ("enum {A, B: u8}", "{\"B\": 1}"),
        ("Point", "{\"lat\": 1, \"lon\": 0.5}"),
        ("union {u8, str}", "1"),
        ("union {u8, str}", "\"\""),
        ("union {str; u8}", "1"),
        ("union {{is: enum {A}, a: u8}, {is: enum {B}}}", "{\"is\": \"B\", \"c\": 1}"),
        ("union {{is: enum {A}, a: u8}, {}}", "{\"is\": \"C\"}"),
    ] {
        assert_eq!(misfit(shape, json), None, "{json} as {shape}");
    }
}

#[test]
fn what_a_type_does_not_read_is_told_with_its_place() {
    for (shape, json, path) in [
        ("u8", "256", ""),
        ("u8", "-1", ""),
        ("u64", "1.5", ""),
        ("u64", "340282366920938463463374607431768211455", ""),
        ("u128", "1.5", ""),
        ("u8(1..100)", "0", ""),
        ("u8(1..100)", "101", ""),
        ("i8(!0)", "0", ""),
        ("enum {A, \"*\"}", "{\"B\": 1}", ""),
        ("i64", "18446744073709551615", ""),
        ("char", "\"\"", ""),
        ("str", "null", ""),
        ("str(uuid)", "\"\"", ""),
        ("[u8]", "[1, null]", "[1]"),
        ("(u8, str)", "[1]", ""),
        ("map<i8, bool>", "{\"a\": true}", ""),
        ("map<str, bool>", "{\"a\": 1}", "[key]"),
        ("{a: u8, b?: u8}", "{\"b\": 1}", ".a"),
        ("{a: u8, !}", "{\"a\": 1, \"c\": null}", ""),
        ("{a|b: u8}", "{\"a\": 1, \"b\": 1}", ".a"),
        ("i128", "340282366920938463463374607431768211455", ""),
        ("enum {A, B: u8}", "\"C\"", ""),
        ("enum {A, B: u8}", "{\"B\": \"1\"}", ".B"),
        ("enum {A, B: u8}", "\"B\"", ""),
        ("{at: Point}", "{\"at\": {\"lat\": 1}}", ".at.lon"),
        ("union {u8, str}", "true", ""),
        ("{a: union {u8, [str]}}", "{\"a\": [1]}", ".a"),
        ("union {{is: enum {A}, a: u8}, {is: enum {B}}}", "{\"is\": \"C\"}", ""),
        ("union {{is: enum {A}, a: u8}, {is: enum {B}}}", "{\"is\": \"A\", \"a\": \"\"}", ".a"),
    ] {
        assert_eq!(misfit(shape, json).as_deref(), Some(path), "{json} as {shape}");
    }
}
