//! [`Shape`]: what values of a type look like in their stored form, as one line that is made to be
//! reviewed in a diff.
//!
//! | text | JSON |
//! |---|---|
//! | `bool` `i64` `u8` `f64` `char` `str` `bytes` | as serde_json reads them |
//! | `str(uuid)` | a string of that form |
//! | `null` | a unit |
//! | `T?` | `T` or `null` |
//! | `[T]` `(A, B)` `map<K, V>` | arrays, and an object with any keys |
//! | `{a: T, b\|c?: U}` | an object; `b` may be called `c`, or be absent; with a `!` at its end, other members are refused |
//! | `enum {A, B: T}` | `"A"`, or `{"B": T}` |
//! | `Name` | the type of that name in `[types]` |
//! | `any` | anything |
//! | `opaque` | a type that could not be probed: only its samples tell |

use std::collections::BTreeMap;
use std::fmt::{self, Write};

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
    Int {
        /// Whether it has a sign.
        signed: bool,
        /// 8 to 128.
        bits: u8,
    },
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
    /// Its value.
    pub shape: Shape,
}

/// A variant of an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name in JSON.
    pub name: String,
    /// What it holds, if anything.
    pub content: Option<Shape>,
}

/// Which strings a type takes, as far as probing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrFormat {
    /// Any.
    Any,
    /// Any but the empty one.
    NotEmpty,
    /// A UUID.
    Uuid,
    /// RFC 3339.
    DateTime,
    /// Date and time without an offset.
    LocalDateTime,
    /// `2000-01-01`.
    Date,
    /// `00:00:00`.
    Time,
    /// A number in a string.
    Number,
    /// A URL.
    Url,
    /// An address of IP.
    Ip,
    /// A mail address.
    Mail,
    /// ISO 4217.
    Currency,
}

impl StrFormat {
    /// All of them with a string of each, the widest first.
    pub const ALL: [(Self, &'static str, &'static str); 12] = [
        (Self::Any, "", ""),
        (Self::NotEmpty, "not-empty", "a"),
        (Self::Uuid, "uuid", "00000000-0000-4000-8000-000000000000"),
        (Self::DateTime, "date-time", "2000-01-01T00:00:00Z"),
        (Self::LocalDateTime, "local-date-time", "2000-01-01T00:00:00"),
        (Self::Date, "date", "2000-01-01"),
        (Self::Time, "time", "00:00:00"),
        (Self::Number, "number", "1"),
        (Self::Url, "url", "https://a.example/"),
        (Self::Ip, "ip", "127.0.0.1"),
        (Self::Mail, "mail", "a@a.example"),
        (Self::Currency, "currency", "USD"),
    ];

    /// A string of this form.
    #[must_use]
    pub fn example(self) -> &'static str {
        Self::ALL.iter().find(|(format, ..)| *format == self).map_or("", |(_, _, example)| example)
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(format, ..)| *format == self).map_or("", |(_, name, _)| name)
    }

    /// Whether `text` has this form, by its pattern of digits and marks: enough to tell the forms apart.
    pub(crate) fn recognises(self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::NotEmpty => !text.is_empty(),
            Self::Uuid => {
                text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
            }
            Self::DateTime => is_like(text, "0000-00-00T00:00:00") && has_offset(text),
            Self::LocalDateTime => is_like(text, "0000-00-00T00:00:00") && !has_offset(text),
            Self::Date => text.len() == 10 && is_like(text, "0000-00-00"),
            Self::Time => is_like(text, "00:00:00"),
            Self::Number => text.parse::<f64>().is_ok(),
            Self::Url => text.contains("://"),
            Self::Ip => text.parse::<std::net::IpAddr>().is_ok(),
            Self::Mail => text.contains('@'),
            Self::Currency => text.len() == 3 && text.chars().all(|c| c.is_ascii_uppercase()),
        }
    }
}

/// Whether `text` begins like `pattern`, in which `0` is any digit.
fn is_like(text: &str, pattern: &str) -> bool {
    text.len() >= pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
            b'0' => byte.is_ascii_digit(),
            mark => byte.eq_ignore_ascii_case(&mark),
        })
}

fn has_offset(text: &str) -> bool {
    let time = text.get(19..).unwrap_or_default();
    time.ends_with(['Z', 'z']) || time.contains(['+', '-'])
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Opaque => f.write_str("opaque"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int { signed: true, bits } => write!(f, "i{bits}"),
            Self::Int { signed: false, bits } => write!(f, "u{bits}"),
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
                    write!(f, "{}", field.shape)
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
        false => f.write_str(&serde_json::Value::from(name).to_string()),
    }
}

fn is_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_' || char == '-' || char == '.'
}

/// A text that is no shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeError {
    /// What was expected, and where.
    pub message: String,
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ShapeError {}

/// Shapes are not nested deeper than this, so that no file overflows the stack.
const MAX_DEPTH: usize = 100;

impl std::str::FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let mut parser = Parser { text, rest: text, depth: 0 };
        let shape = parser.shape()?;
        match parser.rest.trim_start() {
            "" => Ok(shape),
            _ => Err(parser.expected("the end")),
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    rest: &'t str,
    depth: usize,
}

impl Parser<'_> {
    fn expected(&self, what: &str) -> ShapeError {
        let at = self.text.len() - self.rest.len();
        ShapeError { message: format!("a shape has {what} at byte {at} of `{}`", self.text) }
    }

    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn need(&mut self, token: &str) -> Result<(), ShapeError> {
        match self.take(token) {
            true => Ok(()),
            false => Err(self.expected(&format!("`{token}`"))),
        }
    }

    fn name(&mut self) -> Result<String, ShapeError> {
        let rest = self.rest.trim_start();
        if rest.starts_with('"') {
            let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            let Some(Ok(name)) = names.next() else { return Err(self.expected("a JSON string")) };
            self.rest = &rest[names.byte_offset()..];
            return Ok(name);
        }
        let end = rest.find(|char| !is_name(char)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected("a name"));
        }
        self.rest = &rest[end..];
        Ok(rest[..end].to_owned())
    }

    fn shape(&mut self) -> Result<Shape, ShapeError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.expected("no more levels than a hundred"));
        }
        let mut shape = self.plain()?;
        while self.take("?") {
            shape = Shape::Option(Box::new(shape));
        }
        self.depth -= 1;
        Ok(shape)
    }

    fn plain(&mut self) -> Result<Shape, ShapeError> {
        if self.take("[") {
            let element = self.shape()?;
            self.need("]")?;
            return Ok(Shape::List(Box::new(element)));
        }
        if self.take("(") {
            return self.list(")", Self::shape).map(Shape::Tuple);
        }
        if self.take("{") {
            return self.members();
        }
        let name = self.name()?;
        Ok(match name.as_str() {
            "any" => Shape::Any,
            "opaque" => Shape::Opaque,
            "null" => Shape::Null,
            "bool" => Shape::Bool,
            "char" => Shape::Char,
            "bytes" => Shape::Bytes,
            "f32" => Shape::Float(32),
            "f64" => Shape::Float(64),
            "str" if self.take("(") => {
                let name = self.name()?;
                let known = StrFormat::ALL.iter().find(|(_, known, _)| *known == name);
                let Some((format, ..)) = known else {
                    return Err(self.expected("a form of strings that this version knows"));
                };
                self.need(")")?;
                Shape::Str(*format)
            }
            "str" => Shape::Str(StrFormat::Any),
            "map" => {
                self.need("<")?;
                let key = self.shape()?;
                self.need(",")?;
                let value = self.shape()?;
                self.need(">")?;
                Shape::Map(Box::new(key), Box::new(value))
            }
            "enum" => {
                self.need("{")?;
                Shape::Enum(self.list("}", |parser| {
                    let name = parser.name()?;
                    let content = match parser.take(":") {
                        true => Some(parser.shape()?),
                        false => None,
                    };
                    Ok(Variant { name, content })
                })?)
            }
            _ => match integer(&name) {
                Some(shape) => shape,
                None => Shape::Named(name),
            },
        })
    }

    fn members(&mut self) -> Result<Shape, ShapeError> {
        let mut fields = Vec::new();
        let mut closed = false;
        while !self.take("}") {
            if self.take("!") {
                closed = true;
                self.need("}")?;
                break;
            }
            let name = self.name()?;
            let mut aliases = Vec::new();
            while self.take("|") {
                aliases.push(self.name()?);
            }
            let optional = self.take("?");
            self.need(":")?;
            fields.push(Field { name, aliases, optional, shape: self.shape()? });
            if !self.take(",") {
                self.need("}")?;
                break;
            }
        }
        Ok(Shape::Struct { fields, closed })
    }

    fn list<T>(
        &mut self,
        end: &str,
        mut item: impl FnMut(&mut Self) -> Result<T, ShapeError>,
    ) -> Result<Vec<T>, ShapeError> {
        let mut items = Vec::new();
        while !self.take(end) {
            items.push(item(self)?);
            if !self.take(",") {
                self.need(end)?;
                break;
            }
        }
        Ok(items)
    }
}

fn integer(name: &str) -> Option<Shape> {
    let (signed, bits) = match name.split_at_checked(1)? {
        ("i", bits) => (true, bits),
        ("u", bits) => (false, bits),
        _ => return None,
    };
    let bits = ["8", "16", "32", "64", "128"].contains(&bits).then(|| bits.parse().ok())??;
    Some(Shape::Int { signed, bits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shapes() -> impl Strategy<Value = Shape> {
        let leaf = prop_oneof![
            Just(Shape::Any),
            Just(Shape::Opaque),
            Just(Shape::Null),
            Just(Shape::Bool),
            Just(Shape::Char),
            Just(Shape::Bytes),
            Just(Shape::Float(32)),
            (any::<bool>(), prop::sample::select(vec![8u8, 16, 32, 64, 128]))
                .prop_map(|(signed, bits)| Shape::Int { signed, bits }),
            (0..StrFormat::ALL.len()).prop_map(|index| Shape::Str(StrFormat::ALL[index].0)),
            "[A-Z][a-z_0-9]{0,4}".prop_map(Shape::Named),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let aliases = prop::collection::vec("[a-z]{1,3}|\\PC{0,3}", 0..3);
            let field = ("[a-z]{1,3}|\\PC{0,3}", aliases, any::<bool>(), inner.clone()).prop_map(
                |(name, aliases, optional, shape)| Field { name, aliases, optional, shape },
            );
            let variant = ("[A-Z]{1,3}|\\PC{0,3}", prop::option::of(inner.clone()))
                .prop_map(|(name, content)| Variant { name, content });
            let boxed = inner.clone().prop_map(Box::new);
            prop_oneof![
                boxed.clone().prop_map(Shape::Option),
                boxed.clone().prop_map(Shape::List),
                prop::collection::vec(inner, 0..3).prop_map(Shape::Tuple),
                (boxed.clone(), boxed).prop_map(|(key, value)| Shape::Map(key, value)),
                (prop::collection::vec(field, 0..3), any::<bool>())
                    .prop_map(|(fields, closed)| Shape::Struct { fields, closed }),
                prop::collection::vec(variant, 0..3).prop_map(Shape::Enum),
            ]
        })
    }

    proptest! {
        #[test]
        fn each_shape_comes_back_from_its_text(shape in shapes()) {
            let text = shape.to_string();
            prop_assert_eq!(text.parse::<Shape>(), Ok(shape), "{}", text);
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in "[\\[\\](){}?:,!<>a-z\" ]{0,40}|\\PC{0,20}") {
            let _ = text.parse::<Shape>();
        }
    }

    #[test]
    fn a_deep_text_does_not_overflow_the_stack() {
        assert!("[".repeat(100_000).parse::<Shape>().is_err());
    }

    #[test]
    fn each_form_of_strings_recognises_its_example_and_few_others() {
        for (format, name, example) in StrFormat::ALL {
            assert!(format.recognises(example), "{name}");
        }
        for format in [StrFormat::Uuid, StrFormat::DateTime, StrFormat::Date, StrFormat::Number] {
            let others = StrFormat::ALL.iter().filter(|(other, ..)| *other != format);
            for (_, name, example) in others {
                assert!(!format.recognises(example), "{format:?} takes {name}");
            }
        }
    }
}
