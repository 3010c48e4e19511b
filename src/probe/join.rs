//! Forms that are one, or differ in the alternatives of one member only.

use serde_json::Value;

use atomic_phases_compat::{List, OTHER, Shape, Variant};

/// What values of a form look like, and one of them.
pub(super) type Form = (Shape, Value);

/// Adds a form, unless it is known, or is another one that differs in the alternatives of one member.
pub(super) fn add(forms: &mut Vec<Form>, (shape, value): Form) {
    for (known, _) in forms.iter_mut() {
        if let Some(joined) = joined(known, &shape) {
            *known = joined;
            return;
        }
    }
    forms.push((shape, value));
}

/// One shape of two that differ in one set of alternatives at most.
fn joined(one: &Shape, other: &Shape) -> Option<Shape> {
    match (one, other) {
        (one, other) if one == other => Some(one.clone()),
        (Shape::Enum(one), Shape::Enum(other)) if !is_open(one) && !is_open(other) => {
            let mut all = one.clone();
            for variant in other {
                match all.iter_mut().find(|known| known.name == variant.name) {
                    None => all.push(variant.clone()),
                    Some(known) => {
                        known.content = match (&known.content, &variant.content) {
                            (Some(one), Some(other)) => Some(joined(one, other)?),
                            (one, other) => one.clone().or_else(|| other.clone()),
                        }
                    }
                }
            }
            Some(Shape::Enum(all))
        }
        (Shape::Option(one), Shape::Option(other)) => match (&**one, &**other) {
            (Shape::Opaque, shape) | (shape, Shape::Opaque) => {
                Some(Shape::Option(Box::new(shape.clone())))
            }
            (one, other) => Some(Shape::Option(Box::new(joined(one, other)?))),
        },
        (Shape::List(one), Shape::List(other)) => {
            let element = Box::new(joined(&one.element, &other.element)?);
            Some(Shape::List(List { element, ..one.clone() }))
        }
        (
            Shape::Struct { fields: one, manner },
            Shape::Struct { fields: other, manner: other_manner },
        ) => {
            let same = one.len() == other.len()
                && manner == other_manner
                && one.iter().zip(other).all(|(one, other)| one.name == other.name);
            let mut differing = one.iter().zip(other).filter(|(one, other)| one != other);
            let (before, after) = differing.next()?;
            if !same || differing.next().is_some() {
                return None;
            }
            let shape = joined(&before.shape, &after.shape)?;
            let optional = before.optional || after.optional;
            let mut fields = one.clone();
            let field = fields.iter_mut().find(|field| field.name == before.name)?;
            (field.shape, field.optional) = (shape, optional);
            Some(Shape::Struct { fields, manner: *manner })
        }
        _ => None,
    }
}

fn is_open(variants: &[Variant]) -> bool {
    variants.iter().any(|variant| variant.name == OTHER)
}
