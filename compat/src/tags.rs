//! The tag of a form of a type: its members that are one of some words.

use serde_json::Value;

use crate::shape::{OTHER, REST, Shape, Variant};

/// Whether an object has each of the fixed words that the objects of a form have, and there is one.
pub(crate) fn has_tag(form: &Shape, value: &Value) -> bool {
    let mut tags = tags(form).peekable();
    tags.peek().is_some()
        && tags.all(|(name, variants)| {
            let word = value.get(name).and_then(Value::as_str);
            word.is_some_and(|word| variants.iter().any(|variant| variant.name == word))
        })
}

/// The members of a form that are one of some words.
pub(crate) fn tags(form: &Shape) -> impl Iterator<Item = (&str, &[Variant])> {
    let fields = match form {
        Shape::Struct { fields, .. } => fields.as_slice(),
        _ => &[],
    };
    fields.iter().filter_map(|field| match &field.shape {
        Shape::Enum(variants)
            if is_set_of_words(variants) && !field.optional && field.name != REST =>
        {
            Some((field.name.as_str(), variants.as_slice()))
        }
        _ => None,
    })
}

fn is_set_of_words(variants: &[Variant]) -> bool {
    !variants.is_empty() && variants.iter().all(|v| v.content.is_none() && v.name != OTHER)
}
