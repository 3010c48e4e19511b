//! The changes: a type before and after, and values of rows that the old build wrote.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::{By, Change, change};

/// Types with the same name in two builds.
macro_rules! builds {
    ($($module:ident { $($items:item)* })*) => {
        $(mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)] $items)*
        })*
    };
}

macro_rules! changes {
    (@by) => { By::Shape };
    (@by sample) => { By::Sample };
    (@by alternative) => { By::Alternative };
    ($($what:literal $(by $by:ident)?: $before:ty => $after:ty, $($value:literal),+;)*) => {
        /// Runs all changes.
        pub(super) async fn changes() -> Vec<Change> {
            vec![$({
                let by = changes!(@by $($by)?);
                Box::pin(change::<$before, $after>($what, &[$($value),+], by)).await
            }),*]
        }
    };
}

builds! {
    plain { pub struct Pay { pub cents: u32, pub tip: Option<u32> } }
    with_note { pub struct Pay { pub cents: u32, pub tip: Option<u32>, pub note: Option<String> } }
    with_default {
        pub struct Pay { pub cents: u32, pub tip: Option<u32>, #[serde(default)] pub seats: u8 }
    }
    with_required { pub struct Pay { pub cents: u32, pub tip: Option<u32>, pub currency: String } }
    renamed { pub struct Pay { pub cents: u32, pub gratuity: Option<u32> } }
    renamed_with_alias {
        pub struct Pay { pub cents: u32, #[serde(alias = "tip")] pub gratuity: Option<u32> }
    }
    without_tip { pub struct Pay { pub cents: u32 } }
    closed {
        #[serde(deny_unknown_fields)]
        pub struct Pay { pub cents: u32, pub tip: Option<u32> }
    }
    closed_without_tip {
        #[serde(deny_unknown_fields)]
        pub struct Pay { pub cents: u32 }
    }
    skipped { pub struct Pay { pub cents: u32, #[serde(skip)] pub tip: Option<u32> } }
    not_written {
        pub struct Pay {
            pub cents: u32,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub tip: Option<u32>,
        }
    }
    required_tip { pub struct Pay { pub cents: u32, pub tip: u32 } }
    tip_with_default { pub struct Pay { pub cents: u32, #[serde(default)] pub tip: u32 } }
    two_words { pub struct Pay { pub user_id: u32, pub in_cents: u32 } }
    camel {
        #[serde(rename_all = "camelCase")]
        pub struct Pay { pub user_id: u32, pub in_cents: u32 }
    }
    camel_with_aliases {
        #[serde(rename_all = "camelCase")]
        pub struct Pay {
            #[serde(alias = "user_id")]
            pub user_id: u32,
            #[serde(alias = "in_cents")]
            pub in_cents: u32,
        }
    }
    newtype { pub struct Cents(pub u32); pub struct Pay { pub cents: Cents, pub tip: Option<u32> } }
    transparent {
        #[serde(transparent)]
        pub struct Cents { pub cents: u32 }
        pub struct Pay { pub cents: Cents, pub tip: Option<u32> }
    }
    boxed { pub struct Pay { pub cents: Box<u32>, pub tip: Box<Option<u32>> } }
    point { pub struct Point { pub lat: u8, pub lon: u8 } pub struct Pay { pub at: Point, pub by: u8 } }
    point_tuple { pub struct Point(pub u8, pub u8); pub struct Pay { pub at: Point, pub by: u8 } }
    flat {
        pub struct Point { pub lat: u8, pub lon: u8 }
        pub struct Pay { #[serde(flatten)] pub at: Point, pub by: u8 }
    }
    flat_twice {
        pub struct Point { pub lat: u8, pub lon: u16 }
        pub struct Pay { #[serde(flatten)] pub at: Point, pub by: u8 }
    }
    flat_narrow {
        pub struct Point { pub lat: u8, pub lon: bool }
        pub struct Pay { #[serde(flatten)] pub at: Point, pub by: u8 }
    }
    by_two { pub enum By { Card, Cash } pub struct Pay { pub by: By } }
    by_three { pub enum By { Card, Cash, Bank } pub struct Pay { pub by: By } }
    by_renamed { pub enum By { Card, #[serde(rename = "Coins")] Cash } pub struct Pay { pub by: By } }
    by_cash { pub enum By { Card, Cash(u8) } pub struct Pay { pub by: By } }
    by_coins { pub enum By { Card, #[serde(alias = "Cash")] Coins(u8) } pub struct Pay { pub by: By } }
    by_other { pub enum By { Card, #[serde(other)] Unknown } pub struct Pay { pub by: By } }
    by_data { pub enum By { Card { last: u16 }, Cash } pub struct Pay { pub by: By } }
    by_more_data {
        pub enum By { Card { last: u16, brand: Option<String> }, Cash }
        pub struct Pay { pub by: By }
    }
    by_less_data { pub enum By { Card { last: u8 }, Cash } pub struct Pay { pub by: By } }
    by_tag {
        #[serde(tag = "kind")]
        pub enum By { Card { last: u16 }, Cash }
        pub struct Pay { pub by: By }
    }
    by_tag_narrow {
        #[serde(tag = "kind")]
        pub enum By { Card { last: bool }, Cash }
        pub struct Pay { pub by: By }
    }
    by_content {
        #[serde(tag = "kind", content = "of")]
        pub enum By { Card { last: u16 }, Cash }
        pub struct Pay { pub by: By }
    }
    by_tag_with_brand {
        #[serde(tag = "kind")]
        pub enum By { Card { last: u16, brand: Option<String> }, Cash }
        pub struct Pay { pub by: By }
    }
    by_tag_more {
        #[serde(tag = "kind")]
        pub enum By { Card { last: u16 }, Cash, Bank { iban: String } }
        pub struct Pay { pub by: By }
    }
    by_content_narrow {
        #[serde(tag = "kind", content = "of")]
        pub enum By { Card { last: u8 }, Cash }
        pub struct Pay { pub by: By }
    }
    flat_with_height {
        pub struct Point { pub lat: u8, pub lon: u8, pub height: Option<u8> }
        pub struct Pay { #[serde(flatten)] pub at: Point, pub by: u8 }
    }
    flat_with_level {
        pub struct Point { pub lat: u8, pub lon: u8, pub level: Option<u8> }
        pub struct Pay { #[serde(flatten)] pub at: Point, pub by: u8 }
    }
    not_flat { pub struct Pay { pub lat: u8, pub lon: u8, pub by: u8 } }
    either_or_more {
        #[serde(untagged)]
        pub enum Cents { Number(u32), Text(String), Parts(Vec<u32>) }
        pub struct Pay { pub cents: Cents, pub tip: Option<u32> }
    }
    nested {
        pub enum Card { Debit, Credit }
        pub enum Bank { Sepa, Swift }
        pub enum By { Card(Card), Bank(Bank) }
        pub struct Pay { pub by: By }
    }
    nested_without {
        pub enum Card { Debit, Credit }
        pub enum Bank { Sepa }
        pub enum By { Card(Card), Bank(Bank) }
        pub struct Pay { pub by: By }
    }
    either {
        #[serde(untagged)]
        pub enum Cents { Number(u32), Text(String) }
        pub struct Pay { pub cents: Cents, pub tip: Option<u32> }
    }
    whole {
        #[serde(untagged)]
        pub enum Cents { Text(String), Whole(u64) }
        pub struct Pay { pub cents: Cents }
    }
    part_or_whole {
        #[serde(untagged)]
        pub enum Cents { Text(String), Part(u8), Whole(u64) }
        pub struct Pay { pub cents: Cents }
    }
    whole_or_part {
        #[serde(untagged)]
        pub enum Cents { Text(String), Whole(u64), Part(u8) }
        pub struct Pay { pub cents: Cents }
    }
    signed {
        #[serde(untagged)]
        pub enum Cents { Text(String), Whole(u64), Owed(i64) }
        pub struct Pay { pub cents: Cents }
    }
    day_or_text {
        #[serde(untagged)]
        pub enum When { Day(chrono::NaiveDate), Text(String) }
        pub struct Pay { pub when: When }
    }
    text_or_day {
        #[serde(untagged)]
        pub enum When { Text(String), Day(chrono::NaiveDate) }
        pub struct Pay { pub when: When }
    }
    card {
        #[serde(untagged)]
        pub enum By { Card { last: u16 } }
        pub struct Pay { pub by: By }
    }
    tipped_or_card {
        #[serde(untagged)]
        pub enum By { Tipped { last: u16, tip: u8 }, Card { last: u16 } }
        pub struct Pay { pub by: By }
    }
    card_or_bank {
        #[serde(untagged)]
        pub enum By { Card { last: u16 }, Bank { iban: String } }
        pub struct Pay { pub by: By }
    }
    decimal { pub struct Pay { pub cents: super::super::Decimal, pub tip: Option<u32> } }
    text { pub struct Pay { pub cents: String, pub tip: Option<u32> } }
    tree { pub struct Pay { pub cents: u32, pub parts: Vec<Pay> } }
    tree_with_note { pub struct Pay { pub cents: u32, pub parts: Vec<Pay>, pub note: Option<u8> } }
    tree_with_required { pub struct Pay { pub cents: u32, pub parts: Vec<Pay>, pub note: u8 } }
    range { pub struct Range<T> { pub from: T, pub to: T }
        pub struct Pay { pub seats: Range<u8>, pub days: Range<String> } }
    range_narrow { pub struct Range<T> { pub from: T, pub to: T }
        pub struct Pay { pub seats: Range<u8>, pub days: Range<chrono::NaiveDate> } }
    own { pub struct Pay { #[serde(deserialize_with = "lower")] pub currency: String, pub cents: i64 } }
    own_narrow {
        pub struct Pay { #[serde(deserialize_with = "lower")] pub currency: String, pub cents: u8 }
    }
    own_with_note {
        pub struct Pay {
            #[serde(deserialize_with = "lower")]
            pub currency: String,
            pub cents: i64,
            pub note: Option<u8>,
        }
    }
    at { pub struct Pay { pub at: chrono::DateTime<chrono::Utc> } }
    at_seconds {
        pub struct Pay {
            #[serde(with = "chrono::serde::ts_seconds")]
            pub at: chrono::DateTime<chrono::Utc>,
        }
    }
    at_text { pub struct Pay { pub at: String } }
}

/// Three lower-case letters: a rule that probing cannot find.
fn lower<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    match text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_lowercase()) {
        true => Ok(text),
        false => Err(serde::de::Error::custom("three lower-case letters")),
    }
}

changes! {
    "a member is added: `Option<T>`":
        plain::Pay => with_note::Pay, r#"{"cents":1,"tip":2}"#;
    "a member is added, with `#[serde(default)]`":
        plain::Pay => with_default::Pay, r#"{"cents":1,"tip":2}"#;
    "a required member is added":
        plain::Pay => with_required::Pay, r#"{"cents":1,"tip":2}"#;
    "an optional member is renamed":
        plain::Pay => renamed::Pay, r#"{"cents":1,"tip":2}"#;
    "an optional member is renamed, with `#[serde(alias)]`":
        plain::Pay => renamed_with_alias::Pay, r#"{"cents":1,"tip":2}"#;
    "a member is removed":
        plain::Pay => without_tip::Pay, r#"{"cents":1,"tip":2}"#;
    "a member gets `#[serde(skip)]`":
        plain::Pay => skipped::Pay, r#"{"cents":1,"tip":2}"#;
    "`deny_unknown_fields` is added":
        plain::Pay => closed::Pay, r#"{"cents":1,"tip":2}"#;
    "a member is removed from a type with `deny_unknown_fields`":
        plain::Pay => closed_without_tip::Pay, r#"{"cents":1,"tip":2}"#;
    "`skip_serializing_if` is added":
        plain::Pay => not_written::Pay, r#"{"cents":1,"tip":2}"#, r#"{"cents":1,"tip":null}"#;
    "`Option<T>` becomes `T`":
        plain::Pay => required_tip::Pay, r#"{"cents":1,"tip":2}"#, r#"{"cents":1,"tip":null}"#;
    "`T` becomes `Option<T>`":
        required_tip::Pay => plain::Pay, r#"{"cents":1,"tip":2}"#;
    "`#[serde(default)]` is removed":
        tip_with_default::Pay => required_tip::Pay, r#"{"cents":1,"tip":2}"#;
    "`rename_all` is added":
        two_words::Pay => camel::Pay, r#"{"user_id":1,"in_cents":2}"#;
    "`rename_all` is added, with an alias for each member":
        two_words::Pay => camel_with_aliases::Pay, r#"{"user_id":1,"in_cents":2}"#;
    "`i64` becomes `i32`": i64 => i32, "1", "2147483648";
    "`u32` becomes `i32`": u32 => i32, "1", "4294967295";
    "`u128` becomes `u64`": u128 => u64, "1", "1180591620717411303424";
    "`u32` becomes `u64`": u32 => u64, "4294967295";
    "`u64` becomes `NonZeroU64`": u64 => NonZeroU64, "1", "0";
    "`NonZeroU64` becomes `u64`": NonZeroU64 => u64, "1";
    "`u32` becomes `f64`": u32 => f64, "1";
    "`u64` becomes `f64`": u64 => f64, "1", "9007199254740993";
    "`f64` becomes `f32`": f64 => f32, "0.5", "0.1234567890123";
    "`f64` becomes `i64`": f64 => i64, "1.5";
    "`u32` becomes `String`": plain::Pay => text::Pay, r#"{"cents":1,"tip":2}"#;
    "`u32` becomes an untagged enum of `u32` and `String`":
        plain::Pay => either::Pay, r#"{"cents":1,"tip":2}"#;
    "an alternative of an untagged enum is removed":
        either::Pay => plain::Pay, r#"{"cents":1,"tip":2}"#, r#"{"cents":"x","tip":2}"#;
    "`String` becomes an enum": String => by_two::By, r#""Card""#, r#""Coupon""#;
    "`String` becomes a date": String => chrono::NaiveDate, r#""2000-01-01""#, r#""""#;
    "a date becomes `String`": chrono::NaiveDate => String, r#""2000-01-01""#;
    "a time becomes seconds, by `with`":
        at::Pay => at_seconds::Pay, r#"{"at":"2000-01-01T00:00:00Z"}"#;
    "a time becomes `String`": at::Pay => at_text::Pay, r#"{"at":"2000-01-01T00:00:00Z"}"#;
    "`T` becomes a newtype of `T`": plain::Pay => newtype::Pay, r#"{"cents":1,"tip":2}"#;
    "`T` becomes a `transparent` struct": plain::Pay => transparent::Pay, r#"{"cents":1,"tip":2}"#;
    "`T` becomes `Box<T>`": plain::Pay => boxed::Pay, r#"{"cents":1,"tip":2}"#;
    "`Option<T>` becomes `Option<Option<T>>`":
        Option<u8> => Option<Option<u8>>, "1", "null";
    "a struct becomes a tuple": point::Pay => point_tuple::Pay, r#"{"at":{"lat":1,"lon":2},"by":3}"#;
    "a tuple becomes a struct of as many members": point_tuple::Pay => point::Pay, r#"{"at":[1,2],"by":3}"#;
    "a tuple becomes a `Vec`": (u8, u8) => Vec<u8>, "[1,2]";
    "a `Vec` becomes a tuple": Vec<u8> => (u8, u8), "[1,2]", "[]";
    "keys of a map become numbers":
        BTreeMap<String, u8> => BTreeMap<u16, u8>, r#"{"1":1}"#, r#"{"a":1}"#;
    "keys of a map become strings": BTreeMap<u16, u8> => BTreeMap<String, u8>, r#"{"1":1}"#;
    "a struct is flattened": point::Pay => flat::Pay, r#"{"at":{"lat":1,"lon":2},"by":3}"#;
    "a member of a flattened struct is widened":
        flat::Pay => flat_twice::Pay, r#"{"lat":1,"lon":2,"by":3}"#;
    "a member of a flattened struct gets another type":
        flat::Pay => flat_narrow::Pay, r#"{"lat":1,"lon":2,"by":3}"#;
    "an optional member of a flattened struct is added":
        flat::Pay => flat_with_height::Pay, r#"{"lat":1,"lon":2,"by":3}"#;
    "an optional member of a flattened struct is renamed":
        flat_with_height::Pay => flat_with_level::Pay, r#"{"lat":1,"lon":2,"height":9,"by":3}"#;
    "a flattened struct is replaced by its members":
        flat::Pay => not_flat::Pay, r#"{"lat":1,"lon":2,"by":3}"#;
    "a variant is added": by_two::Pay => by_three::Pay, r#"{"by":"Card"}"#;
    "a variant is removed": by_three::Pay => by_two::Pay, r#"{"by":"Card"}"#, r#"{"by":"Bank"}"#;
    "a variant is renamed": by_two::Pay => by_renamed::Pay, r#"{"by":"Cash"}"#;
    "a variant is renamed, with `#[serde(alias)]`":
        by_cash::Pay => by_coins::Pay, r#"{"by":{"Cash":7}}"#;
    "a variant is removed, and `#[serde(other)]` is added": by_two::Pay => by_other::Pay, r#"{"by":"Cash"}"#;
    "a unit variant gets data": by_two::Pay => by_data::Pay, r#"{"by":"Card"}"#;
    "a member of a variant is added: `Option<T>`":
        by_data::Pay => by_more_data::Pay, r#"{"by":{"Card":{"last":9}}}"#;
    "a member of a variant is narrowed":
        by_data::Pay => by_less_data::Pay, r#"{"by":{"Card":{"last":999}}}"#;
    "a variant inside a variant is removed":
        nested::Pay => nested_without::Pay, r#"{"by":{"Bank":"Swift"}}"#;
    "`tag` is added": by_data::Pay => by_tag::Pay, r#"{"by":{"Card":{"last":9}}}"#, r#"{"by":"Cash"}"#;
    "`content` is added to a `tag`":
        by_tag::Pay => by_content::Pay, r#"{"by":{"kind":"Card","last":9}}"#;
    "a member of a tagged variant gets another type":
        by_tag::Pay => by_tag_narrow::Pay, r#"{"by":{"kind":"Card","last":9}}"#;
    "a tagged variant is added": by_tag::Pay => by_tag_more::Pay, r#"{"by":{"kind":"Cash"}}"#;
    "a tagged variant is removed":
        by_tag_more::Pay => by_tag::Pay, r#"{"by":{"kind":"Cash"}}"#,
        r#"{"by":{"kind":"Bank","iban":"x"}}"#;
    "a member of a tagged variant is added: `Option<T>`":
        by_tag::Pay => by_tag_with_brand::Pay, r#"{"by":{"kind":"Card","last":9}}"#;
    "a member of a tagged variant is removed":
        by_tag_with_brand::Pay => by_tag::Pay,
        r#"{"by":{"kind":"Card","last":9,"brand":"b"}}"#;
    "the `content` of a tagged variant is narrowed":
        by_content::Pay => by_content_narrow::Pay, r#"{"by":{"kind":"Card","of":{"last":999}}}"#;
    "an alternative is added to an untagged enum":
        either::Pay => either_or_more::Pay, r#"{"cents":1,"tip":2}"#;
    "an alternative is added in front of others in an untagged enum, and accepts what another one wrote" by alternative:
        whole::Pay => part_or_whole::Pay, r#"{"cents":5}"#;
    "such an alternative is removed" by alternative: part_or_whole::Pay => whole::Pay, r#"{"cents":5}"#;
    "the alternatives of an untagged enum change places" by alternative:
        day_or_text::Pay => text_or_day::Pay, r#"{"when":"2000-01-01"}"#, r#"{"when":"x"}"#;
    "an alternative is added in front of others in an untagged enum, and accepts nothing that they wrote" by alternative:
        card::Pay => tipped_or_card::Pay, r#"{"by":{"last":1}}"#;
    "an alternative is added after the others in an untagged enum" by alternative:
        card::Pay => card_or_bank::Pay, r#"{"by":{"last":1}}"#;
    "one is added after the others that no value reaches" by alternative:
        whole::Pay => whole_or_part::Pay, r#"{"cents":5}"#;
    "one is added after the others, for other integers" by alternative:
        whole::Pay => signed::Pay, r#"{"cents":5}"#;
    "such an alternative for other integers is removed" by alternative:
        signed::Pay => whole::Pay, r#"{"cents":5}"#, r#"{"cents":-5}"#;
    "an integer becomes a decimal": plain::Pay => decimal::Pay, r#"{"cents":1,"tip":2}"#;
    "a decimal becomes an integer": decimal::Pay => plain::Pay, r#"{"cents":1.5,"tip":2}"#;
    "a decimal becomes `String`": decimal::Pay => text::Pay, r#"{"cents":"1.5","tip":2}"#;
    "a recursive type gets an optional member":
        tree::Pay => tree_with_note::Pay, r#"{"cents":1,"parts":[{"cents":2,"parts":[]}]}"#;
    "a recursive type gets a required member":
        tree::Pay => tree_with_required::Pay, r#"{"cents":1,"parts":[{"cents":2,"parts":[]}]}"#;
    "one instance of a generic type is narrowed":
        range::Pay => range_narrow::Pay,
        r#"{"seats":{"from":1,"to":2},"days":{"from":"a","to":"b"}}"#;
    "an optional member is added beside one with a rule of its own":
        own::Pay => own_with_note::Pay, r#"{"currency":"eur","cents":5}"#;
    "a member beside one with a rule of its own is narrowed":
        own::Pay => own_narrow::Pay, r#"{"currency":"eur","cents":999}"#;
}
