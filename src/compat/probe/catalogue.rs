//! [`Catalogue`]: what is known of the types that were met.

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};

use super::explore::{Fact, LeafId};
use super::talk::Talked;
use crate::compat::{List, Shape, Types, Variant};

/// The named types that were met so far, by what tells them apart: two types may have one name.
#[derive(Default)]
pub(in crate::compat) struct Catalogue {
    pub(super) types: Vec<NamedType>,
    /// What was tried out, place by place.
    pub(super) facts: BTreeMap<LeafId, Fact>,
    /// Values that the rules of places refuse, which no rule of one of their parts does.
    pub(super) rules: BTreeMap<LeafId, Vec<serde_json::Value>>,
    /// What places take that are asked as a whole.
    pub(super) talked: BTreeMap<LeafId, Talked>,
    /// How many types were probed, so that places of no named type are told apart.
    pub(super) probes: usize,
}

/// What tells two types apart: the name and the members that serde gives, and the type of the visitor that
/// asks, which knows the module and the types that it is generic over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) name: &'static str,
    pub(super) members: &'static [&'static str],
    pub(super) visitor: &'static str,
}

pub(super) struct NamedType {
    pub(super) name: String,
    pub(super) identity: Identity,
    pub(super) is_enum: bool,
    pub(super) shape: Shape,
    /// Variants that were built, or cannot be, in that order.
    pub(super) built: Vec<usize>,
    /// The named types that are inside of it, or of this variant of it.
    pub(super) inside: BTreeMap<Option<usize>, BTreeSet<usize>>,
    /// Whether the members of the type, or of these variants of it, were changed one by one.
    pub(super) refined: BTreeSet<Option<usize>>,
}

impl Catalogue {
    pub(super) fn index_of<V>(
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

    pub(super) fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.types.iter().find(|known| known.name == name).map(|known| &known.shape)
    }

    /// Whether a variant of this type, or of one inside of it, is still to be built.
    pub(super) fn is_incomplete(&self, index: usize, seen: &mut BTreeSet<usize>) -> bool {
        let named = &self.types[index];
        let is_missing = named.is_enum && named.built.len() < named.identity.members.len();
        is_missing
            || (seen.insert(index)
                && named.inside.values().flatten().any(|inner| self.is_incomplete(*inner, seen)))
    }

    /// Whether there is something to be built inside of this variant.
    pub(super) fn leads_on(&self, index: usize, variant: usize) -> bool {
        let mut inside = self.types[index].inside.get(&Some(variant)).into_iter().flatten();
        inside.any(|inner| self.is_incomplete(*inner, &mut BTreeSet::from([index])))
    }

    /// The types that these shapes name, and those that those name.
    pub(in crate::compat) fn types_of<'s>(
        &self,
        shapes: impl IntoIterator<Item = &'s Shape>,
    ) -> Types {
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
    pub(super) fn finish(&mut self) {
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
                let place = |field: &crate::compat::Field| {
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
        Shape::Option(inner) | Shape::Rule { of: inner, .. } => names_in(inner, names),
        Shape::List(List { element, .. }) => names_in(element, names),
        Shape::Tuple(elements) => elements.iter().for_each(|shape| names_in(shape, names)),
        Shape::Union { written, read } => {
            written.iter().chain(read).for_each(|shape| names_in(shape, names));
        }
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
