//! `Unfingerprinted`: what is left out, and where that is refused.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{refused, text};
use crate::fingerprint::{FingerprintRule, Unfingerprinted};

#[test]
fn an_unfingerprinted_member_is_left_out_wherever_it_stands() {
    #[derive(Serialize)]
    struct Payment {
        z: Unfingerprinted<u8>,
        amount: u8,
        b: Unfingerprinted<Option<u8>>,
        #[serde(flatten)]
        inner: Inner,
        a: Wrapped,
    }
    #[derive(Serialize)]
    struct Inner {
        m: Unfingerprinted<&'static str>,
        n: u8,
    }
    #[derive(Serialize)]
    struct Wrapped(Box<Unfingerprinted<u8>>);
    let inner = Inner { m: "x".into(), n: 2 };
    let a = Wrapped(Box::new(9.into()));
    let payment = Payment { z: 1.into(), amount: 5, b: None.into(), inner, a };
    assert_eq!(text(&payment), r#"{"amount":5,"n":2}"#);

    #[derive(Serialize)]
    enum Kind {
        Card { at: Unfingerprinted<u8> },
    }
    assert_eq!(text(&Kind::Card { at: 1.into() }), r#"{"Card":{}}"#);
    assert_eq!(text(&BTreeMap::from([("k", Unfingerprinted(1))])), "{}");
}

/// What the documentation warns of: serde takes the wrapper off.
#[test]
fn a_flattened_unfingerprinted_counts() {
    #[derive(Serialize)]
    struct Outer {
        #[serde(flatten)]
        inner: Unfingerprinted<BTreeMap<&'static str, u8>>,
    }
    assert_eq!(text(&Outer { inner: BTreeMap::from([("a", 1)]).into() }), r#"{"a":1}"#);
}

#[test]
fn an_unfingerprinted_that_is_no_member_is_refused() {
    #[derive(Serialize)]
    struct Optional {
        at: Option<Unfingerprinted<u8>>,
    }
    #[derive(Serialize)]
    enum Kind {
        At(Unfingerprinted<u8>),
    }
    let one = Unfingerprinted(1_u8);
    assert_eq!(refused(&one), (String::new(), FingerprintRule::NotAMember));
    assert_eq!(refused(&[one]), ("[0]".into(), FingerprintRule::NotAMember));
    assert_eq!(refused(&(2, one)), ("[1]".into(), FingerprintRule::NotAMember));
    assert_eq!(refused(&Kind::At(one)), ("At".into(), FingerprintRule::NotAMember));
    assert_eq!(refused(&Optional { at: Some(one) }), ("at".into(), FingerprintRule::NotAMember));
    assert_eq!(refused(&BTreeMap::from([(one, 1)])).1, FingerprintRule::NotAMember);
}
