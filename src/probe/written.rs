//! [`Written`]: a value as its type writes it, with the width of integers and what is an `Option`, which JSON
//! does not have.

mod spy;

use serde::Serialize;

use self::spy::Spy;
use atomic_phases_compat::Shape;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    /// A value without parts.
    Leaf(Shape),
    None,
    Some(Box<Written>),
    /// What is not part of the fingerprint.
    Unfingerprinted(Box<Written>),
    List(Vec<Written>),
    Tuple(Vec<Written>),
    /// A map with any keys.
    Map(Vec<(String, Written)>),
    /// With the name of its type, if that is told.
    Struct(&'static str, Vec<(String, Written)>),
    Variant(&'static str, Option<Box<Written>>),
}

impl Written {
    pub(super) fn of(value: &impl Serialize) -> Option<Self> {
        value.serialize(Spy).ok()
    }

    /// What stands at a place.
    pub(super) fn at(&self, path: &[String]) -> Option<&Self> {
        let here = match self {
            Self::Some(inner) | Self::Unfingerprinted(inner) => return inner.at(path),
            here => here,
        };
        let Some((step, rest)) = path.split_first() else { return Some(here) };
        let inner = match here {
            Self::List(elements) | Self::Tuple(elements) => {
                elements.get(step.parse::<usize>().ok()?)
            }
            Self::Map(members) | Self::Struct(_, members) => {
                members.iter().find(|(name, _)| name == step).map(|(_, member)| member)
            }
            Self::Variant(name, Some(content)) if name == step => Some(&**content),
            _ => None,
        };
        inner?.at(rest)
    }

    /// The members of this object that are not part of the fingerprint.
    pub(super) fn unfingerprinted(&self) -> impl Iterator<Item = &str> {
        let members = match self {
            Self::Struct(_, members) => members.as_slice(),
            _ => &[],
        };
        let is_out = |(_, member): &&(String, Self)| matches!(member, Self::Unfingerprinted(_));
        members.iter().filter(is_out).map(|(name, _)| name.as_str())
    }

    /// Whether a place is inside of an object that is of the type of one around it: of the same name, or, where
    /// names are not told, with the same members.
    pub(super) fn holds_itself(&self, path: &[String]) -> bool {
        let around: Vec<(&str, Vec<&String>)> =
            (0..=path.len()).filter_map(|length| self.at(&path[..length])?.identity()).collect();
        around.iter().enumerate().any(|(index, (name, members))| {
            let is_same = |(other, others): &(&str, Vec<&String>)| {
                (!name.is_empty() && name == other) || members == others
            };
            around[..index].iter().any(is_same)
        })
    }

    fn identity(&self) -> Option<(&str, Vec<&String>)> {
        match self {
            Self::Struct(name, members) => {
                Some((name, members.iter().map(|(name, _)| name).collect()))
            }
            _ => None,
        }
    }
}
