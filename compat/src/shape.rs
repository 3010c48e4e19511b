//! [`Shape`]: what values of a type look like in their stored form, as one line that is made to be
//! reviewed in a diff.
//!
//! | text | JSON |
//! |---|---|
//! | `bool` `i64` `u8` `f64` `char` `str` `bytes` | as serde_json reads them |
//! | `u8(1..100)` `i64(!0)` | integers from 1 to 100, both included; any but zero |
//! | `str(uuid)` `str(own)` | a string of that form; of a form that is the type's own, which is not known |
//! | `null` | a unit |
//! | `T?` | `T` or `null` |
//! | `[T]` `(A, B)` `map<K, V>` | arrays, and an object with any keys |
//! | `{a: T, b\|c?: U = 1}` | an object; `b` may be called `c`, or be absent, and is `1` then; with a `!` at its end, other members are refused |
//! | `enum {A, B: T}` | `"A"`, or `{"B": T}`; with a `"*"` at its end, any other name is read, too |
//! | `union {A, B; C}` | what looks like one of these, the first that fits; behind the `;` stands what is read, too, and never written; `enum {}` is an alternative of which no value was found |
//! | `Name` | the type of that name in `[types]` |
//! | `any` | anything |
//! | `opaque` | a type that could not be probed: only its samples tell |

mod integer;
mod parse;
mod strings;

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde_json::Value;

pub use self::integer::Integer;
pub use self::parse::ShapeError;
pub use self::strings::StrFormat;

/// Named types.
pub type Types = BTreeMap<String, Shape>;

/// What values of a type look like; see the table of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Anything.
    Any,
    /// Not known.
    Opaque,
    /// `null`.
    Null,
    /// A truth value.
    Bool,
    /// An integer.
    Int(Integer),
    /// A number, of 32 or 64 bits.
    Float(u8),
    /// A string of one character.
    Char,
    /// A string.
    Str(StrFormat),
    /// Bytes.
    Bytes,
    /// Or `null`.
    Option(Box<Shape>),
    /// Any number of elements.
    List(Box<Shape>),
    /// These elements.
    Tuple(Vec<Shape>),
    /// An object with any keys.
    Map(Box<Shape>, Box<Shape>),
    /// An object with these members.
    Struct {
        /// In the order of the source.
        fields: Vec<Field>,
        /// Whether members that it does not know are refused.
        closed: bool,
    },
    /// One of these.
    Enum(Vec<Variant>),
    /// What looks like one of these: a type with a tag, or with none.
    Union {
        /// The forms that it writes, and reads, in the order in which they are tried.
        written: Vec<Shape>,
        /// Those that it only reads.
        read: Vec<Shape>,
    },
    /// A type by name.
    Named(String),
}

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in JSON.
    pub name: String,
    /// Names under which it is read, too.
    pub aliases: Vec<String>,
    /// Whether it may be absent.
    pub optional: bool,
    /// What it is then, where that is a constant and not `null`.
    pub default: Option<Value>,
    /// Its value.
    pub shape: Shape,
}

/// The name of the variant that is read from each name that the enum does not have: `#[serde(other)]`.
pub const OTHER: &str = "*";

/// A variant of an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name in JSON.
    pub name: String,
    /// What it holds, if anything.
    pub content: Option<Shape>,
}

impl Shape {
    /// The types that it names.
    pub(crate) fn names<'s>(&'s self, names: &mut Vec<&'s str>) {
        match self {
            Self::Named(name) => names.push(name),
            Self::Option(inner) | Self::List(inner) => inner.names(names),
            Self::Tuple(shapes) => shapes.iter().for_each(|shape| shape.names(names)),
            Self::Union { written, read } => {
                written.iter().chain(read).for_each(|shape| shape.names(names));
            }
            Self::Map(key, value) => [key, value].into_iter().for_each(|shape| shape.names(names)),
            Self::Struct { fields, .. } => fields.iter().for_each(|field| field.shape.names(names)),
            Self::Enum(variants) => {
                variants.iter().flat_map(|v| &v.content).for_each(|shape| shape.names(names));
            }
            _ => {}
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Opaque => f.write_str("opaque"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int(integer) => write!(f, "{integer}"),
            Self::Float(bits) => write!(f, "f{bits}"),
            Self::Char => f.write_str("char"),
            Self::Str(StrFormat::Any) => f.write_str("str"),
            Self::Str(format) => write!(f, "str({})", format.name()),
            Self::Bytes => f.write_str("bytes"),
            Self::Option(inner) => write!(f, "{inner}?"),
            Self::List(element) => write!(f, "[{element}]"),
            Self::Tuple(elements) => {
                f.write_char('(')?;
                separated(f, elements, |f, element| write!(f, "{element}"))?;
                f.write_char(')')
            }
            Self::Map(key, value) => write!(f, "map<{key}, {value}>"),
            Self::Struct { fields, closed } => {
                f.write_char('{')?;
                separated(f, fields, |f, field| {
                    name(f, &field.name)?;
                    for alias in &field.aliases {
                        f.write_char('|')?;
                        name(f, alias)?;
                    }
                    f.write_str(if field.optional { "?: " } else { ": " })?;
                    write!(f, "{}", field.shape)?;
                    match &field.default {
                        Some(default) => write!(f, " = {default}"),
                        None => Ok(()),
                    }
                })?;
                if *closed {
                    f.write_str(if fields.is_empty() { "!" } else { ", !" })?;
                }
                f.write_char('}')
            }
            Self::Enum(variants) => {
                f.write_str("enum {")?;
                separated(f, variants, |f, variant| {
                    name(f, &variant.name)?;
                    match &variant.content {
                        Some(content) => write!(f, ": {content}"),
                        None => Ok(()),
                    }
                })?;
                f.write_char('}')
            }
            Self::Union { written, read } => {
                f.write_str("union {")?;
                separated(f, written, |f, form| write!(f, "{form}"))?;
                if !read.is_empty() {
                    f.write_str("; ")?;
                    separated(f, read, |f, form| write!(f, "{form}"))?;
                }
                f.write_char('}')
            }
            Self::Named(type_name) => f.write_str(type_name),
        }
    }
}

fn separated<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    mut write: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        write(f, item)?;
    }
    Ok(())
}

/// A name as it is, or, if it holds other characters, as a JSON string.
fn name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    match !name.is_empty() && name.chars().all(is_name) {
        true => f.write_str(name),
        false => f.write_str(&Value::from(name).to_string()),
    }
}

fn is_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == '-' || char == '.'
}

#[cfg(test)]
pub(crate) mod tests;
