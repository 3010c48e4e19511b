//! A [`Shape`] from its text.

use std::fmt;

use super::members::UNFINGERPRINTED;
use super::{
    Absent, Field, Float, INTEGERS, Integer, Length, Letter, List, Manner, OTHER, Order, Shape,
    StrFormat, Unknown, Variant, is_name,
};

/// A text that is not a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

/// Nor is a shape higher, with what is written behind each of its levels.
const MAX_HEIGHT: usize = 300;

impl std::str::FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let mut parser = Parser { text, rest: text, depth: 0, height: 0 };
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
    /// Of the highest shape so far within the one that is read.
    height: usize,
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
        let beside = std::mem::take(&mut self.height);
        let mut shape = self.plain()?;
        loop {
            self.height += 1;
            if self.height > MAX_HEIGHT {
                return Err(self.expected("no more levels and marks than three hundred"));
            }
            if self.take("?") {
                shape = Shape::Option(Box::new(shape));
            } else if self.take("but") {
                let serde_json::Value::Array(refused) = self.json()? else {
                    return Err(self.expected("an array of what is refused"));
                };
                shape = Shape::Rule { of: Box::new(shape), refused };
            } else {
                break;
            }
        }
        self.depth -= 1;
        self.height = self.height.max(beside);
        Ok(shape)
    }

    fn plain(&mut self) -> Result<Shape, ShapeError> {
        if self.take("[") {
            return self.list_of("]", Order::Kept);
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
            "bytes" => Shape::Bytes,
            "char" => {
                let mut refused = self.marks()?.into_iter();
                let letter = refused.try_fold(Letter::default(), |letter, mark| {
                    letter.refusing(mark.strip_prefix('!')?)
                });
                Shape::Char(self.known(letter)?)
            }
            "f32" | "f64" => {
                let float = Float::of(if name == "f32" { 32 } else { 64 });
                let float = self.marks()?.into_iter().try_fold(float, |float, mark| {
                    match mark.strip_prefix('~') {
                        Some(name) => float.marked(name, |float, nth| float.changing(nth)),
                        None => {
                            float.marked(mark.strip_prefix('!')?, |float, nth| float.without(nth))
                        }
                    }
                });
                Shape::Float(self.known(float)?)
            }
            "str" => {
                let text = self.within_parentheses()?.unwrap_or_default();
                let format = StrFormat::from_text(text);
                Shape::Str(self.known(format)?)
            }
            "set" | "sorted" | "unordered" => {
                self.need("<")?;
                let order = match name.as_str() {
                    "set" => Order::Set,
                    "sorted" => Order::Sorted,
                    _ => Order::Chance,
                };
                return self.list_of(">", order);
            }
            "map" => {
                self.need("<")?;
                let key = self.shape()?;
                self.need(",")?;
                let value = self.shape()?;
                self.need(">")?;
                Shape::Map(Box::new(key), Box::new(value))
            }
            "enum" => self.variants()?,
            "union" => self.forms()?,
            _ => match Integer::named(&name) {
                Some(integer) => Shape::Int(self.limits(integer)?),
                None => Shape::Named(name),
            },
        })
    }

    /// Behind `enum`. Those behind a semicolon are only read.
    fn variants(&mut self) -> Result<Shape, ShapeError> {
        self.need("{")?;
        let (mut variants, mut only_read) = (Vec::new(), false);
        while !self.take("}") {
            only_read |= self.take(";");
            variants.push(self.variant(only_read)?);
            self.end_of_alternative()?;
        }
        Ok(Shape::Enum(variants))
    }

    /// Behind `union`. Those behind a semicolon are only read.
    fn forms(&mut self) -> Result<Shape, ShapeError> {
        self.need("{")?;
        let (mut written, mut read) = (Vec::new(), Vec::new());
        let mut forms = &mut written;
        while !self.take("}") {
            if self.take(";") {
                forms = &mut read;
            }
            forms.push(self.shape()?);
            self.end_of_alternative()?;
        }
        Ok(Shape::Union { written, read })
    }

    fn end_of_alternative(&mut self) -> Result<(), ShapeError> {
        match self.take(",") || self.rest.trim_start().starts_with([';', '}']) {
            true => Ok(()),
            false => Err(self.expected("`,`, `;` or `}`")),
        }
    }

    fn variant(&mut self, only_read: bool) -> Result<Variant, ShapeError> {
        if self.take("*") {
            return Ok(Variant { name: OTHER.to_owned(), content: None, only_read });
        }
        let name = self.name()?;
        let content = match self.take(":") {
            true => Some(self.shape()?),
            false => None,
        };
        Ok(Variant { name, content, only_read })
    }

    /// What stands in parentheses behind a word, if there are some.
    fn within_parentheses(&mut self) -> Result<Option<&str>, ShapeError> {
        if !self.take("(") {
            return Ok(None);
        }
        let Some((within, rest)) = self.rest.split_once(')') else {
            return Err(self.expected("`)`"));
        };
        self.rest = rest;
        Ok(Some(within))
    }

    fn known<T>(&self, found: Option<T>) -> Result<T, ShapeError> {
        found.ok_or_else(|| self.expected("trials that this version knows, before the end"))
    }

    /// The parts of `(!a, ~b)`.
    fn marks(&mut self) -> Result<Vec<String>, ShapeError> {
        let within = self.within_parentheses()?;
        let marks = within.map(|within| within.split(',').map(|mark| mark.trim().to_owned()));
        Ok(marks.into_iter().flatten().collect())
    }

    /// `(1..100, !0)` behind the name of an integer.
    fn limits(&mut self, mut integer: Integer) -> Result<Integer, ShapeError> {
        let Some(limits) = self.within_parentheses()?.map(str::to_owned) else {
            return Ok(integer);
        };
        for limit in limits.split(',').map(str::trim) {
            if let Some(refused) = limit.strip_prefix('!') {
                let trial = refused.parse().ok().filter(|trial| INTEGERS.contains(trial));
                integer = integer.without([self.known(trial)?]);
                continue;
            }
            if let Some(changed) = limit.strip_prefix('~') {
                let trial = changed.parse().ok().filter(|trial| INTEGERS.contains(trial));
                integer = integer.changing([self.known(trial)?]);
                continue;
            }
            match range(limit) {
                Some((least, most)) => (integer.least, integer.most) = (least, most),
                None => return Err(self.expected("limits such as 1..100 or !0")),
            }
        }
        Ok(integer)
    }

    /// A list from its element on, and its length.
    fn list_of(&mut self, end: &str, order: Order) -> Result<Shape, ShapeError> {
        let element = Box::new(self.shape()?);
        self.need(end)?;
        let length = match self.within_parentheses()?.map(range) {
            None => Length::default(),
            Some(Some((least, most))) => {
                let short = |length: i128| u32::try_from(length).ok();
                Length { least: least.and_then(short).unwrap_or(0), most: most.and_then(short) }
            }
            Some(None) => return Err(self.expected("a length such as 1..100")),
        };
        Ok(Shape::List(List { element, length, order }))
    }

    fn members(&mut self) -> Result<Shape, ShapeError> {
        let mut fields = Vec::new();
        let mut manner = Manner::default();
        while !self.take("}") {
            let mark = ["!", "*", "#"].into_iter().find(|mark| self.take(mark));
            match mark {
                Some("!") => manner.unknown = Unknown::Refused,
                Some("*") => {
                    manner.unknown = Unknown::Kept;
                    if self.take(":") {
                        fields.push(Field::rest(self.shape()?));
                    }
                }
                Some(_) => manner.by_name = true,
                None => fields.push(self.member()?),
            }
            if !self.take(",") {
                self.need("}")?;
                break;
            }
        }
        Ok(Shape::Struct { fields, manner })
    }

    fn member(&mut self) -> Result<Field, ShapeError> {
        let name = self.name()?;
        let mut aliases = Vec::new();
        while self.take("|") {
            aliases.push(self.name()?);
        }
        let optional = self.take("?");
        self.need(":")?;
        let unfingerprinted = self.take(UNFINGERPRINTED);
        let shape = self.shape()?;
        let default = match self.take("=") {
            false => Absent::Unknown,
            true if self.take(Absent::LEFT_OUT) => Absent::LeftOut(self.left_out(&shape)?),
            true => match Absent::WORDS.into_iter().find(|(word, _)| self.take(word)) {
                Some((_, absent)) => absent,
                None => Absent::Is(self.json()?),
            },
        };
        Ok(Field { name, aliases, optional, default, unfingerprinted, shape })
    }

    /// What a member is that is left out.
    fn left_out(&mut self, shape: &Shape) -> Result<Option<serde_json::Value>, ShapeError> {
        if self.take(Absent::NOT_KNOWN) {
            return Ok(None);
        }
        match self.rest.trim_start().starts_with([',', '}']) {
            true => Ok(Absent::nothing(shape)),
            false => self.json().map(Some),
        }
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

/// `1..100`, of which each side may be left out.
fn range(text: &str) -> Option<(Option<i128>, Option<i128>)> {
    let bound = |text: &str| match text {
        "" => Some(None),
        digits => digits.parse().ok().map(Some),
    };
    let (least, most) = text.split_once("..")?;
    Some((bound(least)?, bound(most)?))
}
