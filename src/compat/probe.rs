//! [`probe`]: what the stored form of a type looks like, found by asking its `Deserialize`.
//!
//! A deserializer that has no input answers each question of the type with a value of its own: the
//! greatest integer, one element, the next variant. Where the type refuses one (a string that has to be
//! a UUID, an alias of a field that is there already), the next candidate is tried, by a search with
//! backtracking that is bounded. What the type took is then JSON, which serde_json has to read, and
//! which is changed member by member to see what the type takes as well. A type that takes nothing of
//! all this is `opaque`, and its form is told by samples that the application gives.

mod answer;
mod refine;

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::answer::Answers;
use super::{Shape, Types};

/// So many values of a type are asked for at most.
const MAX_SAMPLES: usize = 12;

/// So many attempts are made at most to find one.
const MAX_ATTEMPTS: usize = 3000;

/// What was found out about one type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Probed {
    pub(super) shape: Shape,
    /// Values as the type writes them, in JSON.
    pub(super) samples: Vec<String>,
}

/// The named types that were met so far, by what tells them apart: two types may have one name.
#[derive(Default)]
pub(super) struct Catalogue(Vec<NamedType>);

struct NamedType {
    name: String,
    /// As it says it itself, with the names of its fields or variants.
    identity: (&'static str, &'static [&'static str]),
    shape: Shape,
    /// Variants that were built.
    built: BTreeSet<usize>,
    /// Whether the members of the type, or of these variants of it, were changed one by one.
    refined: BTreeSet<Option<usize>>,
}

impl Catalogue {
    fn index_of(&mut self, name: &'static str, members: &'static [&'static str]) -> usize {
        let identity = (name, members);
        if let Some(index) = self.0.iter().position(|known| known.identity == identity) {
            return index;
        }
        let plain: String =
            name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let is_taken = |name: &str| {
            name.is_empty()
                || self.0.iter().any(|known| known.name == name)
                || name.parse() != Ok(Shape::Named(name.to_owned()))
        };
        let mut unique = plain.clone();
        let mut number = 2;
        while is_taken(&unique) {
            unique = format!("{plain}_{number}");
            number += 1;
        }
        self.0.push(NamedType {
            name: unique,
            identity,
            shape: Shape::Opaque,
            built: BTreeSet::new(),
            refined: BTreeSet::new(),
        });
        self.0.len() - 1
    }

    fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.0.iter().find(|known| known.name == name).map(|known| &known.shape)
    }

    /// The types that these shapes name, and those that those name.
    pub(super) fn types_of<'s>(&self, shapes: impl IntoIterator<Item = &'s Shape>) -> Types {
        let mut types = Types::new();
        let mut names: Vec<String> = Vec::new();
        shapes.into_iter().for_each(|shape| names_in(shape, &mut names));
        while let Some(name) = names.pop() {
            if let Some(shape) = self.shape_of(&name)
                && types.insert(name, shape.clone()).is_none()
            {
                names_in(shape, &mut names);
            }
        }
        types
    }
}

fn names_in(shape: &Shape, names: &mut Vec<String>) {
    match shape {
        Shape::Named(name) => names.push(name.clone()),
        Shape::Option(inner) | Shape::List(inner) => names_in(inner, names),
        Shape::Tuple(elements) => elements.iter().for_each(|shape| names_in(shape, names)),
        Shape::Map(key, value) => [key, value].into_iter().for_each(|shape| names_in(shape, names)),
        Shape::Struct { fields, .. } => {
            fields.iter().for_each(|field| names_in(&field.shape, names));
        }
        Shape::Enum(variants) => {
            variants.iter().flat_map(|v| &v.content).for_each(|shape| names_in(shape, names));
        }
        _ => {}
    }
}

/// Asks `T`. `given` are samples of the application, in JSON.
pub(super) fn probe<T: Serialize + DeserializeOwned>(
    catalogue: &mut Catalogue,
    given: &[String],
) -> Probed {
    let mut samples: Vec<String> = given.to_vec();
    let mut shape = Shape::Opaque;
    let mut known = 0;
    // A pass for each variant that was not built yet, then one with as little as the type takes.
    for least in [false, true] {
        while samples.len() < MAX_SAMPLES {
            let Some(pass) = pass::<T>(catalogue, least) else { break };
            refine::refine::<T>(catalogue, &pass);
            shape = merged(shape, pass.shape);
            if !samples.contains(&pass.sample) {
                samples.push(pass.sample);
            }
            let built = catalogue.0.iter().map(|named| named.built.len()).sum();
            if least || built == known {
                break;
            }
            known = built;
        }
    }
    // Its own name is of no interest to those who read the file.
    if let Shape::Named(name) = &shape
        && let Some(inner) = catalogue.shape_of(name)
    {
        shape = inner.clone();
    }
    Probed { shape, samples }
}

/// One value of a type.
struct Pass {
    shape: Shape,
    /// What the type was given.
    input: Value,
    places: Vec<Place>,
    /// The value as the type writes it.
    sample: String,
}

/// Where in a value a named type is, or a variant of one.
struct Place {
    index: usize,
    variant: Option<usize>,
    path: Vec<String>,
    /// The names that its members may have; none where it is no struct.
    members: &'static [&'static str],
}

fn pass<T: Serialize + DeserializeOwned>(catalogue: &mut Catalogue, least: bool) -> Option<Pass> {
    let mut answers = Answers::new(catalogue, least);
    for _ in 0..MAX_ATTEMPTS {
        if let Some((shape, input)) = answers.of::<T>()
            && let Ok(text) = serde_json::to_string(&input)
            && let Ok(value) = serde_json::from_str::<T>(&text)
            && let Ok(sample) = serde_json::to_string(&value)
        {
            let places = answers.keep();
            return Some(Pass { shape, input, places, sample });
        }
        if !answers.next() {
            return None;
        }
    }
    None
}

/// What two passes found out about one type.
fn merged(one: Shape, other: Shape) -> Shape {
    match (one, other) {
        (Shape::Opaque, shape) | (shape, Shape::Opaque) => shape,
        (Shape::Option(one), Shape::Option(other)) => Shape::Option(Box::new(merged(*one, *other))),
        (Shape::List(one), Shape::List(other)) => Shape::List(Box::new(merged(*one, *other))),
        (Shape::Map(one_key, one), Shape::Map(other_key, other)) => {
            Shape::Map(Box::new(merged(*one_key, *other_key)), Box::new(merged(*one, *other)))
        }
        (Shape::Tuple(one), Shape::Tuple(other)) if one.len() == other.len() => Shape::Tuple(
            one.into_iter().zip(other).map(|(one, other)| merged(one, other)).collect(),
        ),
        (Shape::Struct { fields: one, closed }, Shape::Struct { fields: mut other, .. }) => {
            let mut fields: Vec<super::Field> = Vec::new();
            for mut field in one {
                let is_same = |other: &super::Field| {
                    other.name == field.name || field.aliases.contains(&other.name)
                };
                if let Some(index) = other.iter().position(is_same) {
                    field.shape = merged(field.shape, other.remove(index).shape);
                }
                fields.push(field);
            }
            fields.extend(other);
            Shape::Struct { fields, closed }
        }
        (Shape::Enum(one), Shape::Enum(mut other)) => {
            let mut variants: Vec<super::Variant> = Vec::new();
            for mut variant in one {
                if let Some(index) = other.iter().position(|other| other.name == variant.name) {
                    let content = other.remove(index).content;
                    variant.content = match (variant.content, content) {
                        (Some(one), Some(other)) => Some(merged(one, other)),
                        (one, other) => one.or(other),
                    };
                }
                variants.push(variant);
            }
            variants.extend(other);
            Shape::Enum(variants)
        }
        (one, _) => one,
    }
}

#[cfg(test)]
mod tests;
