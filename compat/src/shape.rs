//! [`Shape`]: what values of a type look like in their stored form, as one line that is made to be
//! reviewed in a diff.
//!
//! | text | JSON |
//! |---|---|
//! | `bool` `i64` `u8` `f64` `char` `str` `bytes` | as serde_json reads them |
//! | `u8(1..100)` `i64(!0)` `f64(!-0.5)` `char(!1)` | integers from 1 to 100, both included; all but those behind a `!`, of [what was tried](INTEGERS) |
//! | `str(uuid)` `str(own)` | a string of that form; of a form that is the type's own, which is not known |
//! | `u32(~1000)` `f64(~1.234)` | a number, of which that is written as another one |
//! | `str(!long)` `str(USD+EUR~EUR)` | a string, but not that; of [what was tried](TEXTS) these, of which `EUR` is written otherwise than it is read |
//! | `null` | a unit |
//! | `T?` | `T` or `null` |
//! | `[T]` `[T](1..5)` `(A, B)` `map<K, V>` | arrays, of a length; and an object with any keys |
//! | `set<T>` `sorted<T>` `unordered<T>` | an array of which the order, and what is there twice, is not kept; the order only; one that is written in another order each time |
//! | `{a: T, b\|c?: U = 1}` | an object; `b` may be called `c`, or be absent, and is `1` then; with a `!` at its end other members are refused, with a `*` they are kept, with `*: T` they are each a `T`, with a `#` it is not read from an array |
//! | `{a?: T? = left out}` | of a member that is absent: it is not written where it is nothing, or, `left out 7`, that; `by chance`, it is another value each time; `apart`, it is not what `null` is |
//! | `{a: unfingerprinted T}` | of a member that is not part of what makes two requests the same |
//! | `enum {A, B: T}` | `"A"`, or `{"B": T}`; with a `*` at its end, any other name is read, too; behind a `;` stand names that are only read |
//! | `union {A, B; C}` | what looks like one of these, the first that fits; behind the `;` stands what is read, too, and never written; `enum {}` is an alternative of which no value was found |
//! | `T but [..]` | what looks like a `T`, by a rule that refuses these values, and perhaps others |
//! | `Name` | the type of that name in `[types]` |
//! | `any` | anything |
//! | `opaque` | a type that could not be probed: only its samples tell |

mod integer;
mod list;
mod members;
mod numbers;
mod parse;
mod strings;

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde_json::Value;

pub use self::integer::{INTEGERS, Integer};
pub use self::list::{Length, List, Order};
use self::members::KEPT;
pub use self::members::{Absent, Field, Manner, Unknown};
pub use self::numbers::{FLOATS, Float, LETTERS, Letter};
pub use self::parse::ShapeError;
pub use self::strings::{StrFormat, TEXTS};

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
    /// A number.
    Float(Float),
    /// A string of one character.
    Char(Letter),
    /// A string.
    Str(StrFormat),
    /// Bytes.
    Bytes,
    /// Or `null`.
    Option(Box<Shape>),
    /// Elements of one shape.
    List(List),
    /// These elements.
    Tuple(Vec<Shape>),
    /// An object with any keys.
    Map(Box<Shape>, Box<Shape>),
    /// An object with these members.
    Struct {
        /// In the order of the source.
        fields: Vec<Field>,
        /// What becomes of others, and how it is read.
        manner: Manner,
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
    /// By a rule of the type's own, which is seen by what it refuses.
    Rule {
        /// What it looks like.
        of: Box<Shape>,
        /// Values that look like it, and are refused.
        refused: Vec<Value>,
    },
    /// A type by name.
    Named(String),
}

/// The name, which is not a variant's, of that which is read from each name that the enum does not have:
/// `#[serde(other)]`.
pub const OTHER: &str = "\u{1}other";

/// The name, which is not a member's, of what the members are that a type keeps without knowing them: a map that is
/// flattened.
pub const REST: &str = "\u{1}rest";

/// A variant of an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name in JSON.
    pub name: String,
    /// What it holds, if anything.
    pub content: Option<Shape>,
    /// Whether it is another name of one that is written.
    pub only_read: bool,
}

impl Shape {
    /// The types that it names.
    pub(crate) fn names<'s>(&'s self, names: &mut Vec<&'s str>) {
        match self {
            Self::Named(name) => names.push(name),
            Self::Option(inner) | Self::Rule { of: inner, .. } => inner.names(names),
            Self::List(List { element, .. }) => element.names(names),
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
            Self::Float(float) => write!(f, "{float}"),
            Self::Char(letter) => write!(f, "{letter}"),
            Self::Str(StrFormat::ANY) => f.write_str("str"),
            Self::Str(format) => write!(f, "str({format})"),
            Self::Bytes => f.write_str("bytes"),
            Self::Option(inner) => write!(f, "{inner}?"),
            Self::List(list) => write!(f, "{list}"),
            Self::Tuple(elements) => {
                f.write_char('(')?;
                separated(f, elements, |f, element| write!(f, "{element}"))?;
                f.write_char(')')
            }
            Self::Map(key, value) => write!(f, "map<{key}, {value}>"),
            Self::Struct { fields, manner } => {
                f.write_char('{')?;
                separated(f, fields, |f, field| write!(f, "{field}"))?;
                let has_rest = fields.iter().any(|field| field.name == REST);
                let marks = manner.marks().filter(|mark| !(has_rest && *mark == KEPT));
                for (index, mark) in marks.enumerate() {
                    f.write_str(if fields.is_empty() && index == 0 { "" } else { ", " })?;
                    f.write_str(mark)?;
                }
                f.write_char('}')
            }
            Self::Enum(variants) => {
                f.write_str("enum {")?;
                let write = |f: &mut fmt::Formatter<'_>, variant: &&Variant| {
                    match variant.name == OTHER {
                        true => f.write_char('*')?,
                        false => name(f, &variant.name)?,
                    }
                    match &variant.content {
                        Some(content) => write!(f, ": {content}"),
                        None => Ok(()),
                    }
                };
                let (read, written): (Vec<_>, Vec<_>) =
                    variants.iter().partition(|variant| variant.only_read);
                separated(f, &written, write)?;
                if !read.is_empty() {
                    f.write_str("; ")?;
                    separated(f, &read, write)?;
                }
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
            Self::Rule { of, refused } => {
                let refused: Vec<Value> = refused.iter().map(sorted).collect();
                write!(f, "{of} but {}", Value::from(refused))
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

/// The same value with its members in the order of their names, so that the same code has the same bytes.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(elements) => elements.iter().map(sorted).collect(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), sorted(value)));
            let members: BTreeMap<String, Value> = members.collect();
            members.into_iter().collect::<serde_json::Map<_, _>>().into()
        }
        value => value.clone(),
    }
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
