//! [`Field`]: a member of an object, and what it is where it is absent.

use std::fmt::{self, Write};

use serde_json::Value;

use super::{REST, Shape};

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in JSON.
    pub name: String,
    /// Names under which it is read, too.
    pub aliases: Vec<String>,
    /// Whether it may be absent.
    pub optional: bool,
    /// What it is then.
    pub default: Absent,
    /// Whether it is not part of what makes two requests the same: an `Unfingerprinted`.
    pub unfingerprinted: bool,
    /// Its value.
    pub shape: Shape,
}

/// What a member is that is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Absent {
    /// `null`, where it may be that; else not known.
    #[default]
    Unknown,
    /// This.
    Is(Value),
    /// Another value each time: by chance, or by the clock.
    ByChance,
    /// What is not written where it is that: this, or what is not known.
    LeftOut(Option<Value>),
    /// Something else than `null`, and it is not written where it is that.
    Apart,
}

/// Where members that the type does not know are kept.
pub(super) const KEPT: &str = "*";

/// Before the value of a member that is not part of the fingerprint.
pub(super) const UNFINGERPRINTED: &str = "unfingerprinted ";

impl Absent {
    /// Those that have no value.
    pub(super) const WORDS: [(&'static str, Self); 2] =
        [("by chance", Self::ByChance), ("apart", Self::Apart)];

    /// Before the value of one that is left out.
    pub(super) const LEFT_OUT: &'static str = "left out";

    /// Instead of that value, where it is not known.
    pub(super) const NOT_KNOWN: &'static str = "?";

    /// What a member of this shape mostly is that is left out: nothing.
    #[must_use]
    pub fn nothing(shape: &Shape) -> Option<Value> {
        match shape {
            Shape::Option(_) => Some(Value::Null),
            Shape::List(_) => Some(Value::Array(Vec::new())),
            Shape::Map(..) => Some(Value::Object(serde_json::Map::new())),
            _ => None,
        }
    }

    /// Whether a type writes the object without the member.
    pub(crate) fn is_left_out(&self) -> bool {
        matches!(self, Self::LeftOut(_) | Self::Apart)
    }
}

/// What becomes of members that a type does not know, and how it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// What becomes of them.
    pub unknown: Unknown,
    /// Whether it is read from an object only, and not from an array of its members.
    pub by_name: bool,
}

/// What becomes of members that a type does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// They are passed over.
    #[default]
    PassedOver,
    /// They are refused.
    Refused,
    /// They are kept, and written again.
    Kept,
}

impl Field {
    /// What each member is that a type keeps without knowing it.
    #[must_use]
    pub fn rest(shape: Shape) -> Self {
        Self {
            name: REST.to_owned(),
            aliases: Vec::new(),
            optional: true,
            default: Absent::LeftOut(None),
            unfingerprinted: false,
            shape,
        }
    }

    /// Its place in an object.
    pub(crate) fn place(&self, path: &str) -> String {
        match self.name == REST {
            true => format!("{path}.{KEPT}"),
            false => format!("{path}.{}", self.name),
        }
    }
}

impl Manner {
    pub(super) fn marks(self) -> impl Iterator<Item = &'static str> {
        let unknown = match self.unknown {
            Unknown::PassedOver => None,
            Unknown::Refused => Some("!"),
            Unknown::Kept => Some(KEPT),
        };
        unknown.into_iter().chain(self.by_name.then_some("#"))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name == REST {
            return write!(f, "{KEPT}: {}", self.shape);
        }
        super::name(f, &self.name)?;
        for alias in &self.aliases {
            f.write_char('|')?;
            super::name(f, alias)?;
        }
        f.write_str(if self.optional { "?: " } else { ": " })?;
        if self.unfingerprinted {
            f.write_str(UNFINGERPRINTED)?;
        }
        write!(f, "{}", self.shape)?;
        match &self.default {
            Absent::Unknown => Ok(()),
            Absent::Is(default) => write!(f, " = {default}"),
            Absent::LeftOut(value) => {
                write!(f, " = {}", Absent::LEFT_OUT)?;
                match value {
                    value if *value == Absent::nothing(&self.shape) => Ok(()),
                    Some(value) => write!(f, " {value}"),
                    None => write!(f, " {}", Absent::NOT_KNOWN),
                }
            }
            word => {
                let words = Absent::WORDS;
                let known = words.iter().find(|(_, absent)| absent == word);
                write!(f, " = {}", known.map_or("", |(word, _)| word))
            }
        }
    }
}
