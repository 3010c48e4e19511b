//! A [`Shape`] from its text.

use std::fmt;

use super::{Field, Integer, Shape, StrFormat, Variant, is_name};

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
                let Some(format) = StrFormat::named(&name) else {
                    return Err(self.expected("a form of strings that this version knows"));
                };
                self.need(")")?;
                Shape::Str(format)
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
            "union" => {
                self.need("{")?;
                let (mut written, mut read) = (Vec::new(), Vec::new());
                let mut forms = &mut written;
                while !self.take("}") {
                    if self.take(";") {
                        forms = &mut read;
                    }
                    forms.push(self.shape()?);
                    if !self.take(",") && !self.rest.trim_start().starts_with([';', '}']) {
                        return Err(self.expected("`,`, `;` or `}`"));
                    }
                }
                Shape::Union { written, read }
            }
            _ => match Integer::named(&name) {
                Some(integer) => Shape::Int(self.limits(integer)?),
                None => Shape::Named(name),
            },
        })
    }

    /// `(1..100, !0)` behind the name of an integer.
    fn limits(&mut self, mut integer: Integer) -> Result<Integer, ShapeError> {
        if !self.take("(") {
            return Ok(integer);
        }
        let Some((limits, rest)) = self.rest.split_once(')') else {
            return Err(self.expected("`)`"));
        };
        for limit in limits.split(',').map(str::trim) {
            if limit == "!0" {
                integer.zero = false;
                continue;
            }
            let bound = |text: &str| match text {
                "" => Ok(None),
                digits => digits.parse().map(Some),
            };
            match limit.split_once("..").map(|(least, most)| (bound(least), bound(most))) {
                Some((Ok(least), Ok(most))) => (integer.least, integer.most) = (least, most),
                _ => return Err(self.expected("limits such as 1..100 or !0")),
            }
        }
        self.rest = rest;
        Ok(integer)
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
            let shape = self.shape()?;
            let default = if self.take("=") { Some(self.json()?) } else { None };
            fields.push(Field { name, aliases, optional, default, shape });
            if !self.take(",") {
                self.need("}")?;
                break;
            }
        }
        Ok(Shape::Struct { fields, closed })
    }

    /// A value, up to where it ends.
    fn json(&mut self) -> Result<serde_json::Value, ShapeError> {
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter();
        match values.next() {
            Some(Ok(value)) => {
                self.rest = &self.rest[values.byte_offset()..];
                Ok(value)
            }
            _ => Err(self.expected("a value in JSON")),
        }
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
