use super::*;

/// RFC 9651's String items, written by hand after its grammar and the working group's test vectors:
/// a value, and the content that it has as a String (`None`: it is none).
const STRINGS: &[(&str, Option<&str>)] = &[
    (r#""foo""#, Some("foo")),
    (r#"  "foo"  "#, Some("foo")),
    (r#""foo bar""#, Some("foo bar")),
    (r#""""#, Some("")),
    (r#""   ""#, Some("   ")),
    (r#""f\u{fc}\u{fc}""#, None),
    ("\"f\u{fc}\u{fc}\"", None),
    ("\"\t\"", None),
    ("\" \n \"", None),
    ("\"\u{7f}\"", None),
    ("'foo'", None),
    (r#""foo"#, None),
    (r#"""#, None),
    (r#""foo \"bar\" \\ baz""#, Some(r#"foo "bar" \ baz"#)),
    (r#""\"\\""#, Some(r#""\"#)),
    (r#""foo \,""#, None),
    (r#""foo \""#, None),
    (r#""foo \"#, None),
    (r#""foo"bar"#, None),
    (r#""foo" "bar""#, None),
    (r#""foo", "bar""#, None),
    (r#""foo";a=1"#, Some("foo")),
    (r#""foo";  a=1;b"#, Some("foo")),
    (r#""foo";a="x;y";c=?0;d=:YQ==:"#, Some("foo")),
    (r#""foo";"#, None),
    (r#""foo" ;a"#, None),
    (r#""foo";A=1"#, None),
    (r#""foo";a=é"#, None),
];

/// What a String has to be besides, to be a key.
fn is_key(content: &str) -> bool {
    (1..=255).contains(&content.len()) && content.bytes().all(|byte| byte.is_ascii_graphic())
}

#[test]
fn string_items_are_read_as_the_rfc_has_them() {
    for (value, content) in STRINGS {
        for syntax in [KeySyntax::Quoted, KeySyntax::QuotedOrBare] {
            let key = parse_key(value.as_bytes(), syntax);
            let expected = content.filter(|content| is_key(content));
            assert_eq!(key.as_ref().ok().map(IdempotencyKey::as_str), expected, "{value}");
        }
    }
}

#[test]
fn each_byte_in_a_string_is_taken_refused_or_escaped() {
    for byte in 0..=u8::MAX {
        let plain = [b'"', b'x', byte, b'y', b'"'];
        let taken = byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
        assert_eq!(parse_key(&plain, KeySyntax::Quoted).is_ok(), taken, "{byte:#x}");
        let escaped = [b'"', b'x', b'\\', byte, b'y', b'"'];
        let taken = b"\"\\".contains(&byte);
        assert_eq!(parse_key(&escaped, KeySyntax::Quoted).is_ok(), taken, "\\{byte:#x}");
    }
}

#[test]
fn a_bare_value_is_a_key_whatever_its_first_character() {
    for bare in
        ["8e03978e-40d5", "e039", "1", "1.5", "-1", "*", "a:b/c", "a=b", "order#17", "{x}", "_~"]
    {
        let key = parse_key(bare.as_bytes(), KeySyntax::QuotedOrBare).unwrap();
        assert_eq!(key.as_str(), bare);
        let quoted = format!("\"{bare}\"");
        assert_eq!(parse_key(quoted.as_bytes(), KeySyntax::QuotedOrBare).unwrap(), key);
        assert!(parse_key(bare.as_bytes(), KeySyntax::Quoted).is_err());
    }
}

#[test]
fn what_might_be_something_else_is_no_bare_value() {
    for value in [
        "?1",
        ":YQ==:",
        "@1659578233",
        "(a)",
        "(\"a\" \"b\")",
        "%\"x\"",
        "a,b",
        "a, b",
        "a;b=1",
        "a b",
        "a\tb",
        "a\"b",
        "a\\b",
        "a%20b",
        "%22a%22",
        "\u{fc}",
        "",
        " ",
        "\t",
        "'a'",
    ] {
        assert!(
            matches!(
                parse_key(value.as_bytes(), KeySyntax::QuotedOrBare),
                Err(KeyHeaderError::Malformed(_))
            ),
            "{value}"
        );
    }
}

#[test]
fn the_content_counts_255_characters() {
    let content = "x".repeat(255);
    let escaped = "\\\"".repeat(255);
    for value in [content.clone(), format!("\"{content}\""), format!("\"{escaped}\"")] {
        assert_eq!(
            parse_key(value.as_bytes(), KeySyntax::QuotedOrBare).unwrap().as_str().len(),
            255
        );
    }
    for value in [format!("{content}x"), format!("\"{content}x\""), format!("\"{escaped}\\\\\"")] {
        assert_eq!(
            parse_key(value.as_bytes(), KeySyntax::QuotedOrBare),
            Err(KeyHeaderError::TooLong)
        );
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic_and_what_is_a_key_reads_back(value in proptest::collection::vec(0u8.., 0..300)) {
        for syntax in [KeySyntax::Quoted, KeySyntax::QuotedOrBare] {
            match parse_key(&value, syntax) {
                Ok(key) => proptest::prop_assert!(is_key(key.as_str())),
                Err(error) => proptest::prop_assert_ne!(error, KeyHeaderError::Missing),
            }
        }
    }

    #[test]
    fn each_key_reads_back_from_its_echo(content in "[!-~]{1,255}") {
        let key = IdempotencyKey::new(content).unwrap();
        let quoted = quoted_form(&key).unwrap();
        proptest::prop_assert_eq!(&parse_key(quoted.as_bytes(), KeySyntax::Quoted).unwrap(), &key);
        let bare = bare_form(&key).unwrap();
        proptest::prop_assert_eq!(&parse_key(bare.as_bytes(), KeySyntax::QuotedOrBare).unwrap(), &key);
    }
}
