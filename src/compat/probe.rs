//! [`probe`]: what the stored form of a type looks like, found by asking its `Deserialize`.
//!
//! A deserializer that has no input answers each question of the type with a value of its own: the
//! greatest integer, one element, the next variant. Where the type refuses one (a string that has to be
//! a UUID), the next candidate is tried at that place ([`search`]), and where it refuses all of them that
//! place is `blocked`: it is left out, the rest of the type is asked all the same, and its form is `str(own)`
//! or `opaque`. Which strings and integers a place takes is tried out one by one ([`explore`]). What the type
//! took is then JSON, which serde_json has to read, and which is changed member by member to see what the
//! type takes as well ([`refine`]). Where there is no such value, the application can give a sample.

mod access;
mod answer;
mod explore;
mod refine;
mod search;

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::answer::Answers;
use self::explore::{Fact, LeafId};
use super::{Shape, Types, Variant};

/// So many values of a type stand in its lock file at most. Its shape knows all variants.
const MAX_SAMPLES: usize = 12;

/// So many values of a type are asked for at most.
const MAX_PASSES: usize = 2000;

/// What was found out about one type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Probed {
    pub(super) shape: Shape,
    /// Values as the type writes them, in JSON.
    pub(super) samples: Vec<String>,
}

/// The named types that were met so far, by what tells them apart: two types may have one name.
#[derive(Default)]
pub(super) struct Catalogue {
    types: Vec<NamedType>,
    /// What was tried out, place by place.
    facts: BTreeMap<LeafId, Fact>,
    /// How many types were probed, so that places of no named type are told apart.
    probes: usize,
}

/// What tells two types apart: the name and the members that serde gives, and the type of the visitor that
/// asks, which knows the module and the types that it is generic over.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    name: &'static str,
    members: &'static [&'static str],
    visitor: &'static str,
}

struct NamedType {
    name: String,
    identity: Identity,
    is_enum: bool,
    shape: Shape,
    /// Variants that were built, or cannot be, in that order.
    built: Vec<usize>,
    /// The named types that are inside of it, or of this variant of it.
    inside: BTreeMap<Option<usize>, BTreeSet<usize>>,
    /// Whether the members of the type, or of these variants of it, were changed one by one.
    refined: BTreeSet<Option<usize>>,
}

impl Catalogue {
    fn index_of<V>(
        &mut self,
        name: &'static str,
        members: &'static [&'static str],
        is_enum: bool,
    ) -> usize {
        let identity = Identity { name, members, visitor: type_name::<V>() };
        if let Some(index) = self.types.iter().position(|known| known.identity == identity) {
            return index;
        }
        let plain: String =
            name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let is_taken = |name: &str| {
            name.is_empty()
                || self.types.iter().any(|known| known.name == name)
                || name.parse() != Ok(Shape::Named(name.to_owned()))
        };
        let mut unique = plain.clone();
        let mut number = 2;
        while is_taken(&unique) {
            unique = format!("{plain}_{number}");
            number += 1;
        }
        self.types.push(NamedType {
            name: unique,
            identity,
            is_enum,
            shape: Shape::Opaque,
            built: Vec::new(),
            inside: BTreeMap::new(),
            refined: BTreeSet::new(),
        });
        self.types.len() - 1
    }

    fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.types.iter().find(|known| known.name == name).map(|known| &known.shape)
    }

    /// Whether a variant of this type, or of one inside of it, is still to be built.
    fn is_incomplete(&self, index: usize, seen: &mut BTreeSet<usize>) -> bool {
        let named = &self.types[index];
        let is_missing = named.is_enum && named.built.len() < named.identity.members.len();
        is_missing
            || (seen.insert(index)
                && named.inside.values().flatten().any(|inner| self.is_incomplete(*inner, seen)))
    }

    /// Whether there is something to be built inside of this variant.
    fn leads_on(&self, index: usize, variant: usize) -> bool {
        let mut inside = self.types[index].inside.get(&Some(variant)).into_iter().flatten();
        inside.any(|inner| self.is_incomplete(*inner, &mut BTreeSet::from([index])))
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

    /// What is known of each type, as it was declared: members in their order, and the variants that could
    /// not be built.
    fn finish(&mut self) {
        for named in &mut self.types {
            let order = |name: &str| named.identity.members.iter().position(|known| *known == name);
            if let Shape::Enum(variants) = &mut named.shape {
                for name in named.identity.members {
                    if !variants.iter().any(|variant| variant.name == *name) {
                        let content = Some(Shape::Opaque);
                        variants.push(Variant { name: (*name).to_owned(), content });
                    }
                }
                variants.sort_by_key(|variant| order(&variant.name).unwrap_or(usize::MAX));
                for (index, variant) in variants.iter_mut().enumerate() {
                    if let Some(content) = &mut variant.content
                        && !named.refined.contains(&Some(index))
                    {
                        assume_optional(content);
                    }
                }
            }
            if !named.refined.contains(&None) {
                assume_optional(&mut named.shape);
            }
            if let Shape::Struct { fields, .. } = &mut named.shape {
                let place = |field: &super::Field| {
                    let mut names = field.aliases.iter().chain([&field.name]);
                    names.find_map(|name| order(name)).unwrap_or(usize::MAX)
                };
                fields.sort_by_key(place);
            }
        }
    }
}

/// Of a type of which no value could be built: serde takes an `Option` that is absent as `None`.
fn assume_optional(shape: &mut Shape) {
    if let Shape::Struct { fields, .. } = shape {
        for field in fields {
            field.optional |= matches!(field.shape, Shape::Option(_));
        }
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
    catalogue.probes += 1;
    let mut samples: Vec<String> = given.to_vec();
    let words = words(given);
    let mut shape = Shape::Opaque;
    // A pass for each variant that was not built yet, then one with as little as the type takes.
    for least in [false, true] {
        let mut answers = Answers::new(catalogue, least, &words);
        for _ in 0..MAX_PASSES {
            let known = answers.built();
            let pass = answers.settle::<T>();
            shape = merged(shape, pass.shape.clone());
            if let Some(built) = &pass.built {
                refine::refine::<T>(answers.catalogue(), built);
                let room = MAX_SAMPLES - usize::from(!least);
                for sample in std::iter::once(&built.sample).chain(&built.others) {
                    if samples.len() < room && !samples.contains(sample) {
                        samples.push(sample.clone());
                    }
                }
            }
            if least || answers.built() == known {
                break;
            }
        }
    }
    catalogue.finish();
    // Its own name is of no interest to those who read the file.
    if let Shape::Named(name) = &shape
        && let Some(inner) = catalogue.shape_of(name)
    {
        shape = inner.clone();
    }
    Probed { shape, samples }
}

/// The strings in samples: what the type takes, where it has a rule of its own.
fn words(samples: &[String]) -> Vec<String> {
    fn of(value: Value, words: &mut Vec<String>) {
        match value {
            Value::String(text) if !words.contains(&text) => words.push(text),
            Value::Array(elements) => elements.into_iter().for_each(|value| of(value, words)),
            Value::Object(members) => members.into_iter().for_each(|(_, value)| of(value, words)),
            _ => {}
        }
    }
    let mut words = Vec::new();
    let values = samples.iter().filter_map(|sample| serde_json::from_str(sample).ok());
    values.for_each(|value| of(value, &mut words));
    words
}

/// What one attempt found out: in each case what was asked, and a value where the type took one.
struct Pass {
    shape: Shape,
    built: Option<Built>,
}

/// One value of a type.
struct Built {
    /// What the type was given.
    input: Value,
    places: Vec<Place>,
    /// The value as the type writes it.
    sample: String,
    /// Values that differ in what a place took that takes several kinds.
    others: Vec<String>,
}

/// Where in a value a named type is, or a variant of one.
struct Place {
    index: usize,
    variant: Option<usize>,
    path: Vec<String>,
    /// The names that its members may have; none where it is no struct.
    members: &'static [&'static str],
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
            let mut variants: Vec<Variant> = Vec::new();
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
