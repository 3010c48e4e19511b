//! [`Catalogue`]: what is known of the types that were met.

use std::collections::{BTreeMap, BTreeSet};

use super::asked::{KEY, LeafId};
use super::fact::{Fact, Talked};
use super::path::at;
use super::{Built, Place};
use atomic_phases_compat::{Absent, Field, List, Shape, Types, Variant};

/// The named types that were met so far, by what tells them apart: two types may have one name.
#[derive(Default)]
pub(crate) struct Catalogue {
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

/// What a type with a name is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedKind {
    Struct,
    Enum,
}

pub(super) struct NamedType {
    pub(super) name: String,
    pub(super) identity: Identity,
    pub(super) kind: NamedKind,
    pub(super) shape: Shape,
    /// Variants that were built, or cannot be, in that order.
    pub(super) built: Vec<usize>,
    /// The named types that are inside of it, or of this variant of it.
    pub(super) inside: BTreeMap<Option<usize>, BTreeSet<usize>>,
    /// Whether the members of the type, or of these variants of it, were changed one by one.
    pub(super) refined: BTreeSet<Option<usize>>,
    /// Names that were left out because their member had come under another one.
    /// Variants that are written under another name.
    pub(super) only_read: BTreeSet<usize>,
    pub(super) other_names: BTreeMap<Option<usize>, BTreeMap<&'static str, OtherName>>,
}

/// A name of a member that was asked for under another one.
#[derive(Clone, Copy)]
pub(super) struct OtherName {
    pub(super) asked: &'static str,
    /// Whether it is what the type calls the member, and the other one its alias.
    pub(super) is_its_own: bool,
}

impl Catalogue {
    pub(super) fn index_of(
        &mut self,
        visitor: &'static str,
        name: &'static str,
        members: &'static [&'static str],
        kind: NamedKind,
    ) -> usize {
        let identity = Identity { name, members, visitor };
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
            kind,
            shape: Shape::Opaque,
            built: Vec::new(),
            inside: BTreeMap::new(),
            refined: BTreeSet::new(),
            only_read: BTreeSet::new(),
            other_names: BTreeMap::new(),
        });
        self.types.len() - 1
    }

    /// The enums, with the names of their variants.
    pub(super) fn enums(&self) -> impl Iterator<Item = (String, Shape)> {
        self.types.iter().filter(|known| known.kind == NamedKind::Enum).map(|known| {
            let variant =
                |name: &&str| Variant { name: (*name).to_owned(), content: None, only_read: false };
            let variants = known.identity.members.iter().map(variant).collect();
            (known.name.clone(), Shape::Enum(variants))
        })
    }

    /// Variants of this value that were read under another name than they are written: their aliases.
    pub(super) fn other_variants(&mut self, built: &Built) {
        let Ok(written) = serde_json::from_str::<serde_json::Value>(&built.sample) else { return };
        for Place { index, variant, path, .. } in &built.places {
            let known = &mut self.types[*index];
            let names = known.identity.members;
            // The key of a map is that of its only entry.
            let path = path.strip_suffix(&[KEY.to_owned()]).unwrap_or(path);
            let name = |value: &serde_json::Value| -> Option<&'static str> {
                let here = at(value, path)?;
                let mut keys = here.as_object().into_iter().flat_map(|members| members.keys());
                let name = here.as_str().or_else(|| keys.next().map(String::as_str))?;
                names.iter().copied().find(|known| *known == name)
            };
            if let (Some(variant), Some(read), Some(written)) =
                (variant, name(&built.input), name(&written))
                && read != written
                && names.get(*variant) == Some(&read)
            {
                known.only_read.insert(*variant);
            }
        }
    }

    pub(super) fn shape_of(&self, name: &str) -> Option<&Shape> {
        self.types.iter().find(|known| known.name == name).map(|known| &known.shape)
    }

    /// Whether a variant of this type, or of one inside of it, is still to be built.
    pub(super) fn is_incomplete(&self, index: usize, seen: &mut BTreeSet<usize>) -> bool {
        let named = &self.types[index];
        let is_missing =
            named.kind == NamedKind::Enum && named.built.len() < named.identity.members.len();
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
    pub(crate) fn types_of<'s>(&self, shapes: impl IntoIterator<Item = &'s Shape>) -> Types {
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
                        variants.push(Variant {
                            name: (*name).to_owned(),
                            content,
                            only_read: false,
                        });
                    }
                }
                variants.sort_by_key(|variant| order(&variant.name).unwrap_or(usize::MAX));
                for (index, variant) in variants.iter_mut().enumerate() {
                    variant.only_read = named.only_read.contains(&index);
                    if let Some(Shape::Struct { fields, .. }) = &mut variant.content {
                        other_names(fields, named.other_names.get(&Some(index)));
                    }
                    if let Some(content) = &mut variant.content
                        && !named.refined.contains(&Some(index))
                    {
                        assume_optional(content);
                    }
                }
                // As they stand in the file.
                variants.sort_by_key(|variant| variant.only_read);
            }
            if !named.refined.contains(&None) {
                assume_optional(&mut named.shape);
            }
            if let Shape::Struct { fields, .. } = &mut named.shape {
                other_names(fields, named.other_names.get(&None));
                // None is forgotten: of one that was not come to nothing is known.
                for name in named.identity.members {
                    let is_it = |field: &Field| {
                        field.name == *name || field.aliases.iter().any(|alias| alias == name)
                    };
                    if !fields.iter().any(is_it) {
                        fields.push(not_known(name));
                    }
                }
                let place = |field: &Field| {
                    let mut names = field.aliases.iter().chain([&field.name]);
                    names.find_map(|name| order(name)).unwrap_or(usize::MAX)
                };
                fields.sort_by_key(place);
            }
        }
    }
}

/// Names that no value has shown to be those of a member, because there is none, or it is written otherwise each time.
fn other_names(fields: &mut [Field], names: Option<&BTreeMap<&'static str, OtherName>>) {
    for (name, OtherName { asked, is_its_own }) in names.into_iter().flatten() {
        let is_known =
            |field: &Field| field.name == *name || field.aliases.iter().any(|alias| alias == name);
        if fields.iter().any(is_known) {
            continue;
        }
        let is_it = |field: &&mut Field| {
            field.name == *asked || field.aliases.iter().any(|alias| alias == asked)
        };
        let Some(field) = fields.iter_mut().find(is_it) else { continue };
        let mut other = (*name).to_owned();
        if *is_its_own && field.name == *asked {
            std::mem::swap(&mut field.name, &mut other);
        }
        field.aliases.push(other);
        field.aliases.sort_unstable();
    }
}

fn not_known(name: &str) -> Field {
    Field {
        name: name.to_owned(),
        aliases: Vec::new(),
        optional: true,
        default: Absent::Unknown,
        unfingerprinted: false,
        shape: Shape::Opaque,
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
