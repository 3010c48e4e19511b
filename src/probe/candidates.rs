//! [`Trial`]: a value that is tried at a place, and the values that are tried first.

use serde_json::{Value, json};

use super::path::at_mut;
use atomic_phases_compat::TEXTS;

/// Of the texts that are tried those that tell kinds apart; the others are of the same forms.
const MAX_TEXTS: usize = 12;

/// A value that is tried, and the place in it that was changed last: what is refused is mostly that.
#[derive(Clone)]
pub(super) struct Trial {
    pub(super) value: Value,
    pub(super) cursor: Option<Vec<String>>,
}

impl Trial {
    /// A value with another one inside of it.
    pub(super) fn with(value: &Value, place: &[String], inner: Value) -> Option<Self> {
        let mut value = value.clone();
        *at_mut(&mut value, place)? = inner;
        Some(Self { value, cursor: Some(place.to_vec()) })
    }
}

/// A value of each kind.
pub(super) fn kinds() -> Vec<Value> {
    let plain = json!([null, true, 0, 1, 0.5, [], {}]);
    let texts = TEXTS.iter().take(MAX_TEXTS).map(|(_, text)| Value::from(*text));
    plain.as_array().into_iter().flatten().cloned().chain(texts).collect()
}

/// Integers of which each width takes one that no narrower one takes.
pub(super) fn integers() -> impl Iterator<Item = Value> {
    const SIGNED: [i64; 8] =
        [-1, 1 << 8, 1 << 16, 1 << 32, -129, -32_769, -2_147_483_649, i64::MIN];
    SIGNED.into_iter().map(Value::from).chain([u64::MAX.into()])
}
