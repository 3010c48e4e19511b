use super::*;
use proptest::prelude::*;

fn integers() -> impl Strategy<Value = Integer> {
    let widths = (any::<bool>(), prop::sample::select(vec![8u8, 16, 32, 64, 128]));
    let refused = prop::sample::subsequence(INTEGERS.to_vec(), 0..4);
    let limits = (prop::option::of(0..5i128), prop::option::of(5..100i128), refused);
    (widths, limits).prop_map(|((signed, bits), (least, most, refused))| {
        let least = least.filter(|_| !signed || bits > 8);
        Integer::of(signed, bits).without(refused).within(least, most)
    })
}

fn formats() -> impl Strategy<Value = StrFormat> {
    let texts: Vec<usize> = (0..TEXTS.len()).collect();
    let known = ["", "not-empty", "own", "uuid", "date-time", "date", "number", "ip", "currency"];
    prop_oneof![
        prop::sample::select(known.to_vec()).prop_map(|name| StrFormat::named(name).unwrap()),
        (prop::sample::subsequence(texts, 0..=TEXTS.len()), any::<u64>()).prop_map(
            |(taken, changed)| {
                StrFormat::of(taken.into_iter().map(|nth| (nth, changed & (1 << nth) != 0)))
            }
        ),
    ]
}

fn lists(element: impl Strategy<Value = Box<Shape>>) -> impl Strategy<Value = Shape> {
    let order = prop::sample::select(vec![Order::Kept, Order::Sorted, Order::Set, Order::Chance]);
    let lengths = (0..3u32, prop::option::of(3..6u32));
    (element, order, lengths).prop_map(|(element, order, (least, most))| {
        Shape::List(List { element, length: Length { least, most }, order })
    })
}

fn manners() -> impl Strategy<Value = Manner> {
    let unknown = prop::sample::select(vec![Unknown::PassedOver, Unknown::Refused, Unknown::Kept]);
    (unknown, any::<bool>()).prop_map(|(unknown, by_name)| Manner { unknown, by_name })
}

/// With what a type keeps without knowing it.
fn with_rest(mut fields: Vec<Field>, manner: Manner, rest: Option<Shape>) -> Shape {
    fields.extend(rest.filter(|_| manner.unknown == Unknown::Kept).map(Field::rest));
    Shape::Struct { fields, manner }
}

/// No two members are read from one name.
fn distinct(fields: Vec<Field>) -> Vec<Field> {
    let mut used = std::collections::BTreeSet::new();
    let mut is_new = |name: &String| used.insert(name.clone());
    let mut all = Vec::new();
    for mut field in fields {
        if is_new(&field.name) {
            field.aliases.retain(&mut is_new);
            all.push(field);
        }
    }
    all
}

fn distinct_variants(mut variants: Vec<Variant>) -> Vec<Variant> {
    let mut used = std::collections::BTreeSet::new();
    variants.retain(|variant| used.insert(variant.name.clone()));
    variants.sort_by_key(|variant| variant.only_read);
    variants
}

/// Shapes of every kind, for the tests of what works on them.
pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        Just(Shape::Any),
        Just(Shape::Opaque),
        Just(Shape::Null),
        Just(Shape::Bool),
        prop::sample::subsequence((0..LETTERS.len()).collect::<Vec<_>>(), 0..3)
            .prop_map(|refused| Shape::Char(Letter::default().without(refused))),
        Just(Shape::Bytes),
        prop::sample::subsequence((0..FLOATS.len()).collect::<Vec<_>>(), 0..3)
            .prop_map(|refused| Shape::Float(Float::of(32).without(refused))),
        integers().prop_map(Shape::Int),
        formats().prop_map(Shape::Str),
        // `T0` to `T2` are those that a test of builds has: types that hold each other, and themselves.
        "T[0-2]|[A-Z][a-z_0-9]{0,4}".prop_map(Shape::Named),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let aliases = prop::collection::vec("[a-z]{1,3}|\\PC{0,3}", 0..3);
        let default = prop_oneof![
            Just(Absent::Unknown),
            Just(Absent::ByChance),
            Just(Absent::LeftOut(None)),
            Just(Absent::LeftOut(Some(7.into()))),
            Just(Absent::LeftOut(Some(Value::Null))),
            Just(Absent::Apart),
            any::<i32>().prop_map(|number| Absent::Is(number.into())),
            "\\PC{0,3}".prop_map(|text| Absent::Is(text.into())),
        ];
        let marks = (any::<bool>(), any::<bool>());
        let field = ("[a-z]{1,3}|\\PC{0,3}", aliases, marks, default, inner.clone());
        let field = field.prop_map(|(name, aliases, marks, default, shape)| Field {
            name,
            aliases,
            optional: marks.0 || default.is_left_out(),
            default,
            unfingerprinted: marks.1,
            shape,
        });
        let variant = ("[A-Z]{1,3}|\\PC{0,3}", prop::option::of(inner.clone()), any::<bool>())
            .prop_map(|(name, content, only_read)| Variant { name, content, only_read });
        let boxed = inner.clone().prop_map(Box::new);
        prop_oneof![
            boxed.clone().prop_map(Shape::Option),
            lists(boxed.clone()),
            (boxed.clone(), any::<u8>()).prop_map(|(of, refused)| Shape::Rule {
                of,
                refused: vec![refused.into(), serde_json::json!({ "b": refused, "a": [] })],
            }),
            (
                prop::collection::vec(inner.clone(), 0..3),
                prop::collection::vec(inner.clone(), 0..2)
            )
                .prop_map(|(written, read)| Shape::Union { written, read }),
            prop::collection::vec(inner.clone(), 0..3).prop_map(Shape::Tuple),
            (boxed.clone(), boxed).prop_map(|(key, value)| Shape::Map(key, value)),
            (prop::collection::vec(field, 0..3), manners(), prop::option::of(inner.clone()))
                .prop_map(|(fields, manner, rest)| with_rest(distinct(fields), manner, rest)),
            prop::collection::vec(variant, 0..3).prop_map(distinct_variants).prop_map(Shape::Enum),
        ]
    })
}

proptest! {
    #[test]
    fn each_shape_comes_back_from_its_text(shape in shapes()) {
        let text = shape.to_string();
        prop_assert_eq!(text.parse::<Shape>(), Ok(shape), "{}", text);
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in "[\\[\\](){}?:,!<>a-z\" ]{0,40}|\\PC{0,20}") {
        let _ = text.parse::<Shape>();
    }
}

#[test]
fn a_deep_text_does_not_overflow_the_stack() {
    assert!("[".repeat(100_000).parse::<Shape>().is_err());
    for mark in ["?", " but []"] {
        assert!(format!("str{}", mark.repeat(1_000_000)).parse::<Shape>().is_err());
        // Nor where each level has a part of them.
        let (open, close) = ("[".repeat(90), format!("{}]", mark.repeat(90)).repeat(90));
        assert!(format!("{open}str{close}").parse::<Shape>().is_err());
    }
    let (open, close) = ("[".repeat(90), "?]".repeat(90));
    assert!(format!("{open}str{close}").parse::<Shape>().is_ok());
}

#[test]
fn each_form_of_strings_recognises_what_it_takes_and_few_others() {
    let form = |name: &str| StrFormat::named(name).unwrap();
    for name in ["uuid", "date-time", "date", "time", "number", "integer", "url", "ip", "mail"] {
        assert!(form(name).examples().all(|text| form(name).recognises(text)), "{name}");
        assert_eq!(form(name).to_string(), name);
        assert!(!form(name).recognises(""), "{name}");
    }
    assert!(form("uuid").recognises("67e55044-10b1-426f-9247-bb680e5fe0c8"));
    assert!(form("date-time").recognises("2026-11-22T21:00:00.123456789Z"));
    for (name, other) in [("date", "2026-11-22T21:00:00Z"), ("number", "x"), ("ip", "a.example")] {
        assert!(!form(name).recognises(other), "{name} takes {other}");
    }
}

#[test]
fn a_form_without_a_name_says_what_of_the_trials_it_takes() {
    for text in
        ["str(!long)", "str(USD+EUR)", "str(utc)", "str(~padded)", "str(uuid-simple~uuid-simple)"]
    {
        assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
    }
    for text in ["str(unheard-of)", "str(!unheard-of)", "str(uuid~unheard-of)"] {
        assert!(text.parse::<Shape>().is_err(), "{text}");
    }
}
