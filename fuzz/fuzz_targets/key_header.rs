//! Any bytes as the `Idempotency-Key` header: no panic; what is accepted is a key, reads back from
//! its quoted form, and is never taken for an absent header.

#![no_main]

use atomic_phases::http::{KeyHeaderError, KeySyntax, parse_key};
use atomic_phases::key::MAX_KEY_LENGTH;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &[u8]| {
    let strict = parse_key(value, KeySyntax::Quoted);
    let lenient = parse_key(value, KeySyntax::QuotedOrBare);
    assert_ne!(lenient, Err(KeyHeaderError::Missing));
    if let Ok(key) = &strict {
        assert_eq!(lenient.as_ref(), Ok(key), "both read a quoted form the same");
    }
    let Ok(key) = lenient else { return };
    let text = key.as_str();
    assert!((1..=MAX_KEY_LENGTH).contains(&text.len()));
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
    let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    assert_eq!(parse_key(quoted.as_bytes(), KeySyntax::Quoted), Ok(key));
});
