//! Rows of the build before the last one, which the last one could still read.

use super::*;

builds! {
    form_text { pub struct P { pub cents: String } }
    form_both {
        #[serde(untagged)]
        pub enum Cents { Number(u32), Text(String) }
        pub struct P { pub cents: Cents }
    }
    form_number { pub struct P { pub cents: u32 } }
    lenient { pub struct P { #[serde(deserialize_with = "number_or_text")] pub cents: u32 } }
    opt_old { pub struct P { pub cents: u8, pub tip: Option<u8> } }
    opt_alias { pub struct P { pub cents: u8, #[serde(alias = "tip")] pub gratuity: Option<u8> } }
    opt_new { pub struct P { pub cents: u8, pub gratuity: Option<u8> } }
}

fn number_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    match form_both::Cents::deserialize(from)? {
        form_both::Cents::Number(number) => Ok(number),
        form_both::Cents::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

/// The build before the last has written a row; the last two builds are compared, as in a deploy.
async fn is_told<X: Held, B: Held, A: Held>(first: &str) {
    for step in [diff::<X, B>(), locked::<X, B>()] {
        assert!(level(&step) < Level::Deny, "the first step: {:#?}", lints(&step));
    }
    let between = meets::<X, B>(first, first).await;
    assert!(between.row.is_some(), "the build between reads it: {between:?}");
    let seen = meets::<X, A>(first, first).await;
    let says = [diff::<B, A>(), locked::<B, A>()];
    let is_told = says.iter().all(|findings| level(findings) >= Level::Warn);
    let is_kept = seen.row.as_ref().is_some_and(|row| row.contains('7'));
    assert!(is_kept || is_told, "{} => {}: {seen:?}, {says:#?}", shape::<B>(), shape::<A>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_only_read_is_missed_when_it_goes() {
    is_told::<named_old::P, named_alias::P, named_new::P>(r#"{"note":7}"#).await;
    is_told::<opt_old::P, opt_alias::P, opt_new::P>(r#"{"cents":1,"tip":7}"#).await;
    is_told::<cents_text::P, lenient::P, form_number::P>(r#"{"cents":"7"}"#).await;
}

rule!(NaturalText of String, v => v.parse::<u32>().is_ok());

builds! {
    cents_text { pub struct P { pub cents: NaturalText } }
    named_old { pub struct P { pub note: u8 } }
    named_alias { pub struct P { #[serde(alias = "note")] pub memo: u8 } }
    named_new { pub struct P { pub memo: u8 } }
}
