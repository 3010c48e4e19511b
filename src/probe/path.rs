//! The way from a JSON value to a place in it: the names of members and the indexes of elements.

use serde_json::Value;

/// What stands at a place of a value.
pub(super) fn at<'v>(value: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Array(elements) => elements.get(step.parse::<usize>().ok()?),
        Value::Object(members) => members.get(step),
        _ => None,
    })
}

/// The same, to be changed.
pub(super) fn at_mut<'v>(value: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Array(elements) => elements.get_mut(step.parse::<usize>().ok()?),
        Value::Object(members) => members.get_mut(step),
        _ => None,
    })
}
