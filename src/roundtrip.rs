//! Whether a value comes back from its stored form, and where it does not.
//!
//! Later attempts see what was stored, not what was returned (G5). JSON holds less than Rust: NaN and
//! `Some(None)` are both written as `null`, a skipped field is not written at all. Such a value is
//! refused before it is stored; found out after a crash, it would stop the request for good.
//!
//! A path names fields and positions. It never holds a value, and the key of a map is a value (G19).

mod position;
mod reason;
mod tree;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use self::tree::Node;
use crate::fingerprint::{self, Step};

/// Why a value does not come back, and where.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    /// From the value inwards.
    pub(crate) path: Vec<Step>,
    pub(crate) because: Because,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// It has no JSON form at all.
    NotWritten,
    /// A float that is NaN or infinite.
    NotFinite,
    /// What is written does not deserialize.
    NotRead,
    /// Another value is read.
    Differs,
    /// The same elements are read in another order.
    Order,
}

/// Whether the order of a sequence's elements is part of the value. A `HashSet` has another one each time
/// that it is read. That of a tuple or an array `[T; N]` always is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Counts,
    IsFree,
}

/// The stored form of a value that comes back from it.
pub(crate) fn stored<T: Serialize + DeserializeOwned>(value: &T) -> Result<Box<RawValue>, Loss> {
    let json = serde_json::value::to_raw_value(value).map_err(|_| not_written(value))?;
    let read = serde_json::from_str::<T>(json.get()).map_err(|error| {
        let written = tree::of(value);
        written.as_ref().and_then(not_finite).unwrap_or_else(|| Loss {
            path: written.map_or_else(Vec::new, |node| position::of(&error, json.get(), &node)),
            because: Because::NotRead,
        })
    })?;
    match difference(value, &read, Order::IsFree) {
        None => Ok(json),
        Some(loss) => Err(loss),
    }
}

/// The float in the value that is NaN or infinite. For values of which not each part is compared with what is read back.
pub(crate) fn float_written_as_null<T: Serialize>(value: &T, json: &[u8]) -> Option<Loss> {
    // Most values hold no null, and need no second serialization.
    let holds_null = json.windows(4).any(|bytes| bytes == b"null");
    holds_null.then(|| tree::of(value)).flatten().as_ref().and_then(not_finite)
}

/// The JSON of a value that is not read back as its own type. `None` if it has no JSON form, or contains a float that is
/// NaN or infinite.
pub(crate) fn raw_json<T: Serialize>(value: &T) -> Option<Box<RawValue>> {
    let json = serde_json::value::to_raw_value(value).ok()?;
    float_written_as_null(value, json.get().as_bytes()).is_none().then_some(json)
}

/// Where two values of one type differ.
pub(crate) fn difference<T: Serialize>(written: &T, read: &T, order: Order) -> Option<Loss> {
    let mut written = tree::of(written)?;
    let mut read = tree::of(read)?;
    let mut path = Vec::new();
    let because = first_difference(&mut written, &mut read, order, &mut path)?;
    path.reverse();
    Some(Loss { path, because })
}

fn not_written<T: Serialize>(value: &T) -> Loss {
    let path = fingerprint::bad_map_key(value).unwrap_or_default();
    Loss { path, because: Because::NotWritten }
}

fn not_finite(written: &Node) -> Option<Loss> {
    let mut path = Vec::new();
    written.find_not_finite(&mut path).then(|| {
        path.reverse();
        Loss { path, because: Because::NotFinite }
    })
}

/// The innermost place at which `a` and `b` differ; `path` receives it, the innermost step first. Of what it has
/// compared, it sorts what has no order.
fn first_difference(
    a: &mut Node,
    b: &mut Node,
    order: Order,
    path: &mut Vec<Step>,
) -> Option<Because> {
    match (a, b) {
        (Node::Some(a), Node::Some(b)) => first_difference(a, b, order, path),
        (Node::Named(a_name, a), Node::Named(b_name, b)) if a_name == b_name => {
            first_difference(a, b, order, path)
        }
        (Node::Variant(a_name, a), Node::Variant(b_name, b)) if a_name == b_name => {
            first_difference(a, b, order, path).inspect(|_| path.push(Step::Field(a_name)))
        }
        (Node::Tuple(a), Node::Tuple(b)) if a.len() == b.len() => {
            let mut places = a.iter_mut().zip(b).enumerate();
            places.find_map(|(index, (a, b))| {
                first_difference(a, b, order, path).inspect(|_| path.push(Step::Index(index)))
            })
        }
        (Node::Fields(a), Node::Fields(b)) if a.len() == b.len() => {
            a.iter_mut().zip(b).find_map(|((a_name, a), (b_name, b))| {
                let because = match a_name == b_name {
                    true => first_difference(a, b, order, path),
                    false => Some(Because::Differs),
                };
                because.inspect(|_| path.push(Step::Field(a_name)))
            })
        }
        (Node::Entries(a), Node::Entries(b)) if a.len() == b.len() => {
            // A map's entries have no order of their own.
            a.sort_unstable();
            b.sort_unstable();
            a.iter_mut().zip(b).find_map(|((a_key, a), (b_key, b))| {
                let because = match a_key == b_key {
                    true => first_difference(a, b, order, path),
                    false => Some(Because::Differs),
                };
                because.inspect(|_| path.push(Step::Entry))
            })
        }
        (Node::Elements(a), Node::Elements(b)) if a.len() == b.len() => {
            let mut within = Vec::new();
            let mut places = a.iter_mut().zip(b.iter_mut()).enumerate();
            let (index, because) = places.find_map(|(index, (a, b))| {
                first_difference(a, b, order, &mut within).map(|because| (index, because))
            })?;
            let permuted = because != Because::Order && {
                // What the elements hold may have no order either, as a set in a pair.
                let sorted = |nodes: &mut [Node]| {
                    nodes.iter_mut().for_each(Node::sort);
                    nodes.sort_unstable();
                };
                sorted(a);
                sorted(b);
                a == b
            };
            match (permuted, order) {
                (true, Order::IsFree) => None,
                (true, Order::Counts) => Some(Because::Order),
                (false, _) => {
                    path.append(&mut within);
                    path.push(Step::Index(index));
                    Some(because)
                }
            }
        }
        (a, b) if a == b => None,
        // JSON writes it as null, which an `Option` reads as `None`.
        (a, _) if a.is_not_finite() => Some(Because::NotFinite),
        _ => Some(Because::Differs),
    }
}

#[cfg(test)]
mod tests;
