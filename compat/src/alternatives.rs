//! [`taken_over`]: stored values that are read as another alternative of a type than the one that wrote them.
//!
//! serde tries the alternatives of an `untagged` enum in their order, and takes the first that fits. So a new one
//! in front, or another order, changes what stored values mean, and none of them fails. A [`Shape::Union`] has its
//! written forms in that order.

use serde_json::Value;

use crate::examples::{Example, examples};
use crate::fits::{fits, is_whole};
use crate::members::Typed;
use crate::shape::Shape;
use crate::tags::has_tag;

/// A value of one form is read as another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TakenOver {
    /// Which it was written as.
    pub(crate) wrote: String,
    /// Which reads it now.
    pub(crate) reads: String,
}

/// The forms that a type writes, as they are tried.
fn forms(shape: &Shape) -> &[Shape] {
    match shape {
        Shape::Union { written, .. } => written,
        only => std::slice::from_ref(only),
    }
}

/// Whether a form stands for an alternative of which no value was found.
pub(crate) fn has_no_value(form: &Shape) -> bool {
    matches!(form, Shape::Enum(variants) if variants.is_empty())
}

/// How many alternatives a type has of which no value was found.
pub(crate) fn hidden(shape: &Shape) -> usize {
    match shape {
        Shape::Union { written, .. } => written.iter().filter(|form| has_no_value(form)).count(),
        _ => 0,
    }
}

/// The first value that shows it: one of the old forms, or of the new ones where an old form has written such.
pub(crate) fn taken_over(old: Typed<'_>, new: Typed<'_>) -> Option<TakenOver> {
    let (before, now) = (forms(old.shape), forms(new.shape));
    let was_written = |value: &Value| is_whole(value, old.shape, old.types);
    let of_old = examples(old.shape, old.types);
    let of_new = examples(new.shape, new.types);
    let complete =
        |made: &Example| made.is_complete.then(|| serde_json::from_str(&made.json).ok())?;
    let values = of_old.iter().filter_map(complete);
    let values = values.chain(of_new.iter().filter_map(complete).filter(was_written));
    let mut reading: Vec<Option<usize>> = vec![None; before.len()];
    for value in values {
        let first = |forms: &[Shape], types| {
            forms.iter().position(|form| fits(&value, form, types).is_ok())
        };
        let (Some(wrote), Some(reads)) = (first(before, old.types), first(now, new.types)) else {
            continue;
        };
        let is_another = match now.iter().position(|form| *form == before[wrote]) {
            Some(same) => reads != same,
            // Its tag says which it is.
            None if has_tag(&before[wrote], &value) && has_tag(&now[reads], &value) => false,
            // It has changed: whatever reads one value of it has to read all, and be no other's.
            None => *reading[wrote].get_or_insert(reads) != reads || before.contains(&now[reads]),
        };
        if is_another {
            return Some(TakenOver {
                wrote: before[wrote].to_string(),
                reads: now[reads].to_string(),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Types;

    /// What is read as another, as `wrote -> reads`.
    fn of(old: &str, new: &str) -> Option<String> {
        let types = Types::new();
        let (old, new) = (old.parse().unwrap(), new.parse().unwrap());
        let taken =
            taken_over(Typed { shape: &old, types: &types }, Typed { shape: &new, types: &types });
        taken.map(|TakenOver { wrote, reads }| format!("{wrote} -> {reads}"))
    }

    #[test]
    fn a_value_that_another_alternative_takes_first_is_told() {
        for (old, new, told) in [
            ("u64", "union {u8, u64}", "u64 -> u8"),
            ("union {str, u64}", "union {str, u8, u64}", "u64 -> u8"),
            ("union {u8, u64}", "union {u64, u8}", "u8 -> u64"),
            ("union {u8, u64}", "u64", "u8 -> u64"),
            ("str", "union {str(date), str}", "str -> str(date)"),
            ("union {str(date), str}", "str", "str(date) -> str"),
            ("{at: str}", "union {{at: str(date)}, {at: str}}", "{at: str} -> {at: str(date)}"),
            ("union {u16, f64}", "union {u8, f64}", "u16 -> f64"),
            ("{a: u8}", "union {{a: u8, b?: u8?}, {a: u8}}", "{a: u8} -> {a: u8, b?: u8?}"),
        ] {
            assert_eq!(of(old, new).as_deref(), Some(told), "{old} => {new}");
        }
    }

    #[test]
    fn what_goes_on_as_what_it_was_is_not_told() {
        for (old, new) in [
            ("union {u8, u64}", "union {u8, u64}"),
            ("union {u8, str}", "union {u8, str, [u8]}"),
            ("union {u8, str}", "union {str, u8}"),
            ("union {u8, str}", "union {u16, str}"),
            ("u8", "union {u8, u64}"),
            ("union {u8, str}", "str"),
            ("str(date)", "str"),
            ("{a: u8}", "union {{a: u8, b: u8}, {a: u8}}"),
            ("{a: u8}", "union {{a: u8, b?: u8?}, str}"),
            // By their tags they were one form, of which one has got a member.
            (
                "{op: enum {A, B}, n: u8}",
                "union {{op: enum {A}, n: u8}, {op: enum {B}, n: u8, m?: u8?}}",
            ),
            // What is not known is of no form.
            ("union {[opaque], u8}", "union {[opaque], u8, [[u8]]}"),
        ] {
            assert_eq!(of(old, new), None, "{old} => {new}");
        }
    }
}
