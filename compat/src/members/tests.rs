use super::MemberChange::*;
use super::*;

fn of(old: &str, new: &str) -> Vec<MemberChange> {
    let types = |leaf: &str| {
        let tree = "{leaf: Leaf, more: [Tree]}".parse().unwrap();
        Types::from([("Tree".into(), tree), ("Leaf".into(), leaf.parse().unwrap())])
    };
    let (one, other) = (types("{a: u8}"), types("{a: u8, b?: u8?}"));
    let (old, new) = (old.parse().unwrap(), new.parse().unwrap());
    changes(Typed { shape: &old, types: &one }, Typed { shape: &new, types: &other })
}

#[test]
fn members_that_are_passed_over_are_told_with_their_place() {
    assert_eq!(of("{a: u8, b?: u8?}", "{a: u8, b?: u8?}"), []);
    assert_eq!(of("{a: u8}", "{a: u8, b?: u8?}"), [Added(".b".into())]);
    assert_eq!(of("{a: u8}", "{a: u8, b: u8}"), [], "it is not read at all");
    assert_eq!(of("{a: u8, b: str}", "{a: u8}"), [Dropped(".b".into())]);
    let closed = [Closed(String::new())];
    assert_eq!(of("{a: u8, b: str}", "{a: u8, !}"), closed, "it is refused");
    assert_eq!(of("{a?: u8?}", "{b?: u8?}"), [Renamed(".a".into(), "b".into())]);
    assert_eq!(of("{a?: u8?}", "{b|a?: u8?}"), []);
    let two = [Dropped(".a".into()), Added(".b".into())];
    assert_eq!(of("{a?: u8?}", "{b?: str?}"), two, "one has never been the other");
    assert_eq!(of("{a?: u8}", "{a: u8}"), [DefaultDropped(".a".into())]);
    assert_eq!(of("{a?: u8 = 1}", "{a?: u8 = 2}"), [DefaultChanged(".a".into())]);
    assert_eq!(of("{a?: u8? }", "{a?: u8? = 2}"), [DefaultChanged(".a".into())]);
    assert_eq!(of("{a?: u8 = 1}", "{a?: u16 = 1}"), []);
    assert_eq!(of("{a: u8}", "{a?: u8 = 1}"), []);
    assert_eq!(of("{a?: [u8]}", "{a?: [u8] = 1}"), [], "it is not known");
    let gone = AliasDropped(".b".into(), "a".into());
    assert_eq!(of("{b|a: u8}", "{b: u8}"), std::slice::from_ref(&gone));
    let own = [gone.clone(), Added(".a".into())];
    assert_eq!(of("{b|a: u8}", "{b: u8, a?: u8?}"), own, "a member of its own");
    assert_eq!(of("{b|a|c: u8}", "{b|c: u8}"), [gone]);
    assert_eq!(of("union {str; u8}", "str"), [FormDropped(String::new())]);
    assert_eq!(of("union {u8; str(one~one)}", "u8"), [FormDropped(String::new())]);
    assert_eq!(of("union {str; u8}", "union {u8; str}"), []);
    assert_eq!(of("[f32]", "[f64]"), [ToldApart("[]".into())]);
    for (old, new, place) in
        [("{a?: u8 = 1}", "{a?: u8 = by chance}", ".a"), ("[u8]", "unordered<u8>", "")]
    {
        assert_eq!(of(old, new), [ByChance(place.into())], "{old} -> {new}");
    }
    let added_by_chance = [Added(".a".into()), ByChance(".a".into())];
    assert_eq!(of("{}", "{a?: u8 = by chance}"), added_by_chance);
    assert_eq!(of("{a?: u8?}", "{a?: u8?? = apart}"), [DefaultChanged(".a".into())]);
    assert_eq!(of("{a?: [u8] = []}", "{a?: [u8]?}"), [DefaultChanged(".a".into())]);
    for (old, new) in [
        ("{a?: u8? = left out}", "{a?: u8 = 0}"),
        ("{a?: u8? = left out}", "{a?: u8? = 5}"),
        ("{a?: u8 = left out 7}", "{a?: u8 = 2}"),
        ("{a?: u8 = left out 7}", "{a?: u8 = left out 2}"),
        ("{a?: [u8] = left out}", "{a?: [u8]? = left out}"),
    ] {
        assert_eq!(of(old, new), [LeftOutChanged(".a".into())], "{old} -> {new}");
    }
    for (old, new) in [
        ("{a?: bool = false}", "{a?: bool? = left out}"),
        ("{a?: u32 = 5}", "{a?: u32? = left out}"),
        ("{a?: u8? = left out}", "{a?: u8?? = apart}"),
    ] {
        assert_eq!(of(old, new), [DefaultChanged(".a".into())], "{old} -> {new}");
    }
    for (old, new) in [
        ("{a?: [u8] = left out}", "{a?: [u8] = []}"),
        ("{a?: [u8] = []}", "{a?: [u8] = left out}"),
        ("{a?: u8?}", "{a?: u8? = left out}"),
        ("{a?: u8 = left out 7}", "{a?: u16 = 7}"),
        ("{a?: u8 = left out ?}", "{a?: u8 = left out ?}"),
        // What does not count makes no mismatch.
        ("{a?: u8 = 7}", "{a?: unfingerprinted u8 = 2}"),
        ("{a: str(uuid)}", "{a: unfingerprinted str}"),
    ] {
        assert_eq!(of(old, new), [], "{old} -> {new}");
    }
    let counts = "{at: unfingerprinted str}";
    assert_eq!(of(counts, "{at: str}"), [Fingerprinted(".at".into())]);
    assert_eq!(of(counts, "{sent|at: str}"), [Fingerprinted(".sent".into())]);
    assert_eq!(of("{at: str}", counts), []);
    assert_eq!(of(counts, "{}"), [Dropped(".at".into())]);
    for (old, new, place) in [
        ("str(date-time)", "str(offset-date-time)", ""),
        ("str(~padded)", "str", ""),
        ("{a: str(uuid)}", "{a: str}", ".a"),
        ("set<u8>", "[u8]", ""),
        ("sorted<u8>", "[u8]", ""),
        ("{a|b: u8, !}", "map<str, u8>", ".*"),
        ("{a: u8}", "map<str, u8>", ".*"),
        ("map<str(uuid), u8>", "map<str, u8>", "[key]"),
        ("u32(~1000)", "u32", ""),
        ("f64(~1.234)", "f64", ""),
        ("enum {EUR, USD; eur}", "str", ""),
        ("enum {EUR; eur}", "enum {EUR, eur}", ".eur"),
        ("str(naive-date)", "str", ""),
        ("str(ip)", "str", ""),
        ("{a: u8}", "{a: u8, *}", ".*"),
        ("enum {A, *}", "enum {A, B, *}", ".B"),
    ] {
        assert_eq!(of(old, new), [ToldApart(place.into())], "{old} -> {new}");
    }
    assert_eq!(of("{a: u8, !}", "map<str, u8>"), []);
    assert_eq!(of("enum {EUR; eur}", "enum {EUR}"), [FormDropped(".eur".into())]);
    assert_eq!(of("str(offset-date-time)", "str(date-time)"), []);
    assert_eq!(of("str", "enum {A, *}"), [Dropped(String::new())]);
    assert_eq!(of("{a: u8, *}", "{a: u8}"), [Dropped(".*".into())]);
    assert_eq!(of("{a: u8, *}", "{a: u8, b?: str?, *}")[0], WasUnknown(".b".into()));
    assert_eq!(of("{a: u8, *}", "{a: u8, b?: any, *}"), [Added(".b".into())]);
    assert_eq!(of("(u8, u8)", "(u8, u8) but [[2, 1]]"), [Ruled(String::new())]);
    assert_eq!(of("(u8, u8) but [[2, 1]]", "(u8, u8) but [[3, 1]]"), []);
    assert_eq!(of("Tree", "Tree"), [Added(".leaf.b".into())]);
    assert_eq!(of("[{a: u8}?]", "[{}]"), [Dropped("[].a".into())]);
    assert_eq!(of("enum {A: {x: u8}}", "enum {A: {}}"), [Dropped(".A.x".into())]);
    assert_eq!(of("enum {A, B}", "enum {A, *}"), [Dropped(".B".into())]);
    assert_eq!(of("enum {A, B}", "enum {A, \"*\"}"), [], "a name, and no mark: B is not read");
    let tagged = "union {{is: enum {A}, x: u8}, {is: enum {B}}}";
    assert_eq!(of(tagged, tagged), []);
    let without = "union {{is: enum {A}}, {is: enum {B}, y?: u8?}}";
    assert_eq!(of(tagged, without), [Dropped(".x".into()), Added(".y".into())]);
    assert_eq!(of("{x: u8}", "union {[u8], {x: u8, y?: u8}}"), [Added(".y".into())]);
    let (wrote, reads) = ("u64".to_owned(), "u8".to_owned());
    let taken = ReadAsAnother(".x".into(), TakenOver { wrote, reads });
    assert_eq!(of("{x: u64}", "{x: union {u8, u64}}"), [taken]);
    assert_eq!(of("{x: u8}?", "{x: union {u8, enum {}}}"), [Hidden(".x".into())]);
    let (wrote, reads) = ("str(naive-date)".to_owned(), "str".to_owned());
    let places = [
        ReadAsAnother(String::new(), TakenOver { wrote, reads }),
        Hidden(String::new()),
        ToldApart(String::new()),
    ];
    assert_eq!(of("union {str(naive-date), str}", "union {str, enum {}}"), places);
    for (old, new) in [("u64", "f64"), ("i128", "f64"), ("u32", "f32"), ("f64", "f32")] {
        let (old, new) = (format!("[{old}]"), format!("[{new}]"));
        assert_eq!(of(&old, &new), [Rounded("[]".into())], "{old} -> {new}");
    }
    for (old, new) in [("u32", "f64"), ("u64(1..9000)", "f32"), ("f64", "f64")] {
        assert_eq!(of(old, new), [], "{old} -> {new}");
    }
}
