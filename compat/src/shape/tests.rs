use super::*;
use proptest::prelude::*;

fn integers() -> impl Strategy<Value = Integer> {
    let widths = (any::<bool>(), prop::sample::select(vec![8u8, 16, 32, 64, 128]));
    let limits = (prop::option::of(0..5i128), prop::option::of(5..100i128), any::<bool>());
    (widths, limits).prop_map(|((signed, bits), (least, most, zero))| Integer {
        least: least.filter(|_| !signed || bits > 8),
        most,
        zero,
        ..Integer::of(signed, bits)
    })
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
    variants
}

/// Shapes of every kind, for the tests of what works on them.
pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        Just(Shape::Any),
        Just(Shape::Opaque),
        Just(Shape::Null),
        Just(Shape::Bool),
        Just(Shape::Char),
        Just(Shape::Bytes),
        Just(Shape::Float(32)),
        integers().prop_map(Shape::Int),
        (0..StrFormat::ALL.len()).prop_map(|index| Shape::Str(StrFormat::ALL[index].0)),
        Just(Shape::Str(StrFormat::Own)),
        "[A-Z][a-z_0-9]{0,4}".prop_map(Shape::Named),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let aliases = prop::collection::vec("[a-z]{1,3}|\\PC{0,3}", 0..3);
        let default = prop_oneof![
            Just(None),
            any::<i32>().prop_map(|number| Some(number.into())),
            "\\PC{0,3}".prop_map(|text| Some(text.into())),
        ];
        let field = ("[a-z]{1,3}|\\PC{0,3}", aliases, any::<bool>(), default, inner.clone());
        let field = field.prop_map(|(name, aliases, optional, default, shape)| Field {
            name,
            aliases,
            optional,
            default,
            shape,
        });
        let variant = ("[A-Z]{1,3}|\\PC{0,3}", prop::option::of(inner.clone()))
            .prop_map(|(name, content)| Variant { name, content });
        let boxed = inner.clone().prop_map(Box::new);
        prop_oneof![
            boxed.clone().prop_map(Shape::Option),
            boxed.clone().prop_map(Shape::List),
            (
                prop::collection::vec(inner.clone(), 0..3),
                prop::collection::vec(inner.clone(), 0..2)
            )
                .prop_map(|(written, read)| Shape::Union { written, read }),
            prop::collection::vec(inner, 0..3).prop_map(Shape::Tuple),
            (boxed.clone(), boxed).prop_map(|(key, value)| Shape::Map(key, value)),
            (prop::collection::vec(field, 0..3), any::<bool>())
                .prop_map(|(fields, closed)| Shape::Struct { fields: distinct(fields), closed }),
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
}

#[test]
fn each_form_of_strings_recognises_its_example_and_few_others() {
    for (format, name, example) in StrFormat::ALL {
        assert!(format.recognises(example), "{name}");
    }
    for format in [StrFormat::Uuid, StrFormat::DateTime, StrFormat::Date, StrFormat::Number] {
        let others = StrFormat::ALL.iter().filter(|(other, ..)| *other != format);
        for (_, name, example) in others {
            assert!(!format.recognises(example), "{format:?} takes {name}");
        }
    }
}
