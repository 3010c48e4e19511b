//! [`Node`]: a value as serde tells it, with all that JSON drops.

use serde::de::value::Error;
use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use crate::fingerprint::Step;

/// A value. Two are equal exactly if serde sees no difference.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    /// `None`, or a unit.
    Null,
    Some(Box<Node>),
    Bool(bool),
    Integer(i128),
    Large(u128),
    /// Its bits.
    Float(u64),
    Text(String),
    Bytes(Vec<u8>),
    /// A struct, by its name: the variants of an untagged enum differ in nothing else.
    Named(&'static str, Box<Node>),
    /// A variant of an enum. JSON writes it as an object around its content.
    Variant(&'static str, Box<Node>),
    /// A variant without content, which JSON writes as its name.
    UnitVariant(&'static str),
    /// Of a sequence, which may be a set.
    Elements(Vec<Node>),
    /// Of a tuple or an array, whose positions mean something.
    Tuple(Vec<Node>),
    Fields(Vec<(&'static str, Node)>),
    Entries(Vec<(Node, Node)>),
}

/// `None` where a `Serialize` implementation fails.
pub(super) fn of<T: Serialize + ?Sized>(value: &T) -> Option<Node> {
    value.serialize(Tree).ok()
}

impl Node {
    pub(super) fn is_not_finite(&self) -> bool {
        match self {
            Self::Float(bits) => !f64::from_bits(*bits).is_finite(),
            Self::Some(inner) | Self::Named(_, inner) => inner.is_not_finite(),
            _ => false,
        }
    }

    /// Looks for a float without a JSON form; `path` receives its place, the innermost step first.
    pub(super) fn find_not_finite(&self, path: &mut Vec<Step>) -> bool {
        let (found, step) = match self {
            Self::Variant(name, inner) => (inner.find_not_finite(path), Step::Field(name)),
            Self::Elements(elements) | Self::Tuple(elements) => {
                let found = elements.iter().position(|element| element.find_not_finite(path));
                (found.is_some(), Step::Index(found.unwrap_or_default()))
            }
            Self::Fields(fields) => {
                let found = fields.iter().find(|(_, field)| field.find_not_finite(path));
                (found.is_some(), Step::Field(found.map_or("", |(name, _)| name)))
            }
            Self::Entries(entries) => {
                (entries.iter().any(|(_, value)| value.find_not_finite(path)), Step::Entry)
            }
            Self::Some(inner) | Self::Named(_, inner) => return inner.find_not_finite(path),
            _ => return self.is_not_finite(),
        };
        if found {
            path.push(step);
        }
        found
    }

    /// Puts what has no order of its own in order, the innermost first: two nodes are equal after it if they differ in the
    /// order of sets alone.
    pub(super) fn sort(&mut self) {
        match self {
            Self::Some(inner) | Self::Named(_, inner) | Self::Variant(_, inner) => inner.sort(),
            Self::Tuple(elements) => elements.iter_mut().for_each(Self::sort),
            Self::Elements(elements) => {
                elements.iter_mut().for_each(Self::sort);
                elements.sort_unstable();
            }
            Self::Fields(fields) => fields.iter_mut().for_each(|(_, field)| field.sort()),
            Self::Entries(entries) => {
                entries.iter_mut().for_each(|(_, value)| value.sort());
                entries.sort_unstable();
            }
            _ => {}
        }
    }

    /// The steps that lead to the member or element at each level of the JSON text.
    pub(super) fn step_by_step(&self, indices: &[usize], path: &mut Vec<Step>) {
        if let Self::Some(inner) | Self::Named(_, inner) = self {
            return inner.step_by_step(indices, path);
        }
        let Some((&index, rest)) = indices.split_first() else { return };
        let (step, inner) = match self {
            Self::Variant(name, inner) => (Step::Field(name), Some(&**inner)),
            Self::Elements(elements) | Self::Tuple(elements) => {
                (Step::Index(index), elements.get(index))
            }
            Self::Fields(fields) => match fields.get(index) {
                Some((name, field)) => (Step::Field(name), Some(field)),
                None => return,
            },
            Self::Entries(entries) => (Step::Entry, entries.get(index).map(|(_, value)| value)),
            _ => return,
        };
        path.push(step);
        if let Some(inner) = inner {
            inner.step_by_step(rest, path);
        }
    }
}

struct Tree;

type Outcome = Result<Node, Error>;
type Done = Result<(), Error>;

/// A compound value that is being built, and what it becomes in the end.
struct Building<T> {
    parts: Vec<T>,
    of: Of,
}

/// What a compound value is the content of.
enum Of {
    Nothing,
    Struct(&'static str),
    Variant(&'static str),
}

impl<T> Building<T> {
    fn begin(of: Of) -> Result<Self, Error> {
        Ok(Self { parts: Vec::new(), of })
    }

    fn finish(self, compound: fn(Vec<T>) -> Node) -> Outcome {
        let node = compound(self.parts);
        Ok(match self.of {
            Of::Nothing => node,
            Of::Struct(name) => Node::Named(name, Box::new(node)),
            Of::Variant(name) => Node::Variant(name, Box::new(node)),
        })
    }
}

type Elements = Building<Node>;
type Fields = Building<(&'static str, Node)>;

struct Entries {
    entries: Vec<(Node, Node)>,
    key: Option<Node>,
}

macro_rules! integers {
    ($($method:ident: $type:ty,)*) => {
        $(fn $method(self, value: $type) -> Outcome { Ok(Node::Integer(value.into())) })*
    };
}

impl Serializer for Tree {
    type Ok = Node;
    type Error = Error;
    type SerializeSeq = Elements;
    type SerializeTuple = Elements;
    type SerializeTupleStruct = Elements;
    type SerializeTupleVariant = Elements;
    type SerializeMap = Entries;
    type SerializeStruct = Fields;
    type SerializeStructVariant = Fields;

    integers! {
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32,
        serialize_u64: u64,
    }

    fn serialize_u128(self, value: u128) -> Outcome {
        Ok(i128::try_from(value).map_or(Node::Large(value), Node::Integer))
    }

    fn serialize_bool(self, value: bool) -> Outcome {
        Ok(Node::Bool(value))
    }

    fn serialize_f32(self, value: f32) -> Outcome {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Outcome {
        Ok(Node::Float(value.to_bits()))
    }

    fn serialize_char(self, value: char) -> Outcome {
        Ok(Node::Text(value.into()))
    }

    fn serialize_str(self, value: &str) -> Outcome {
        Ok(Node::Text(value.to_owned()))
    }

    fn serialize_bytes(self, value: &[u8]) -> Outcome {
        Ok(Node::Bytes(value.to_vec()))
    }

    fn serialize_none(self) -> Outcome {
        Ok(Node::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Outcome {
        value.serialize(self).map(|inner| Node::Some(Box::new(inner)))
    }

    fn serialize_unit(self) -> Outcome {
        Ok(Node::Null)
    }

    fn serialize_unit_struct(self, name: &'static str) -> Outcome {
        Ok(Node::Named(name, Box::new(Node::Null)))
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Outcome {
        Ok(Node::UnitVariant(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Outcome {
        value.serialize(self).map(|inner| Node::Named(name, Box::new(inner)))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Outcome {
        value.serialize(self).map(|inner| Node::Variant(variant, Box::new(inner)))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Elements, Error> {
        Building::begin(Of::Nothing)
    }

    fn serialize_tuple(self, _: usize) -> Result<Elements, Error> {
        Building::begin(Of::Nothing)
    }

    fn serialize_tuple_struct(self, name: &'static str, _: usize) -> Result<Elements, Error> {
        Building::begin(Of::Struct(name))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Elements, Error> {
        Building::begin(Of::Variant(variant))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries, Error> {
        Ok(Entries { entries: Vec::new(), key: None })
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Fields, Error> {
        Building::begin(Of::Struct(name))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Fields, Error> {
        Building::begin(Of::Variant(variant))
    }
}

/// The traits of an array, and those of a struct.
macro_rules! elements {
    ($($of:ident::$method:ident => $node:ident,)*) => {
        $(impl $of for Elements {
            type Ok = Node;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
                self.parts.push(value.serialize(Tree)?);
                Ok(())
            }

            fn end(self) -> Outcome {
                self.finish(Node::$node)
            }
        })*
    };
}

elements! {
    SerializeSeq::serialize_element => Elements,
    SerializeTuple::serialize_element => Tuple,
    SerializeTupleStruct::serialize_field => Tuple,
    SerializeTupleVariant::serialize_field => Tuple,
}

macro_rules! fields {
    ($($of:ident,)*) => {
        $(impl $of for Fields {
            type Ok = Node;
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Done {
                self.parts.push((name, value.serialize(Tree)?));
                Ok(())
            }

            fn end(self) -> Outcome {
                self.finish(Node::Fields)
            }
        })*
    };
}

fields! { SerializeStruct, SerializeStructVariant, }

impl SerializeMap for Entries {
    type Ok = Node;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Done {
        self.key = Some(key.serialize(Tree)?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        let key = self.key.take().ok_or_else(|| Error::custom("a value without a key"))?;
        self.entries.push((key, value.serialize(Tree)?));
        Ok(())
    }

    fn end(self) -> Outcome {
        Ok(Node::Entries(self.entries))
    }
}
