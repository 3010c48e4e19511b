//! Arrays and objects of the canonical form; objects are put in order when they are complete.

use std::borrow::Cow;
use std::ops::Range;

use serde::ser::{
    self, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant,
};

use super::{Canonical, Written};
use crate::fingerprint::error::{FingerprintError, FingerprintRule, Step};
use crate::fingerprint::{map_key, scalars};

type Done = Result<(), FingerprintError>;
type Outcome = Result<Written, FingerprintError>;

/// An array that is being written.
pub(in crate::fingerprint) struct Elements<'a> {
    inner: Canonical<'a>,
    count: usize,
    closing: &'static str,
}

impl<'a> Elements<'a> {
    pub(in crate::fingerprint) fn open(inner: Canonical<'a>, closing: &'static str) -> Self {
        inner.out.push(b'[');
        Self { inner, count: 0, closing }
    }

    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        let Canonical { out, depth } = &mut self.inner;
        if self.count > 0 {
            out.push(b',');
        }
        value
            .serialize(Canonical { out, depth: *depth })
            .and_then(Written::required)
            .map_err(|error| error.within(Step::Index(self.count)))?;
        self.count += 1;
        Ok(())
    }

    fn close(self) -> Outcome {
        self.inner.out.extend_from_slice(self.closing.as_bytes());
        Ok(Written::Value)
    }
}

/// An object that is being written, its members in the order in which they come.
pub(in crate::fingerprint) struct Members<'a> {
    inner: Canonical<'a>,
    /// Where in the output its first member begins.
    start: usize,
    members: Vec<Member>,
    /// The key of a map's entry whose value is still to come.
    key: Option<Cow<'static, str>>,
    closing: &'static str,
}

struct Member {
    name: Name,
    /// Where its `"name":value` stands in the output.
    text: Range<usize>,
}

enum Name {
    /// From the source code.
    Field(&'static str),
    /// From the request.
    Entry(Cow<'static, str>),
}

impl Name {
    fn as_str(&self) -> &str {
        match self {
            Self::Field(name) => name,
            Self::Entry(name) => name,
        }
    }

    fn step(&self) -> Step {
        match self {
            Self::Field(name) => Step::Field(name),
            Self::Entry(_) => Step::Entry,
        }
    }
}

impl<'a> Members<'a> {
    pub(in crate::fingerprint) fn open(inner: Canonical<'a>, closing: &'static str) -> Self {
        inner.out.push(b'{');
        let start = inner.out.len();
        Self { inner, start, members: Vec::new(), key: None, closing }
    }

    fn member<T: Serialize + ?Sized>(&mut self, name: Name, value: &T) -> Done {
        let Canonical { out, depth } = &mut self.inner;
        let before = out.len();
        if !self.members.is_empty() {
            out.push(b',');
        }
        let begin = out.len();
        scalars::write_string(out, name.as_str());
        out.push(b':');
        let written = value
            .serialize(Canonical { out, depth: *depth })
            .map_err(|error| error.within(name.step()))?;
        match written {
            Written::Value => self.members.push(Member { name, text: begin..out.len() }),
            Written::LeftOut => out.truncate(before),
        }
        Ok(())
    }

    fn close(mut self) -> Outcome {
        // By the bytes of the names. Most structs and every BTreeMap are in order already.
        if !self.members.is_sorted_by(|a, b| a.name.as_str() < b.name.as_str()) {
            self.members.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
            self.refuse_duplicates()?;
            self.reorder();
        }
        self.inner.out.extend_from_slice(self.closing.as_bytes());
        Ok(Written::Value)
    }

    fn refuse_duplicates(&self) -> Done {
        let twice =
            self.members.windows(2).find(|pair| pair[0].name.as_str() == pair[1].name.as_str());
        match twice {
            None => Ok(()),
            Some(pair) => {
                Err(FingerprintError::new(FingerprintRule::DuplicateMember)
                    .within(pair[0].name.step()))
            }
        }
    }

    fn reorder(&mut self) {
        let out = &mut *self.inner.out;
        let mut ordered = Vec::with_capacity(out.len() - self.start);
        for member in &self.members {
            if !ordered.is_empty() {
                ordered.push(b',');
            }
            ordered.extend_from_slice(&out[member.text.clone()]);
        }
        out.truncate(self.start);
        out.append(&mut ordered);
    }
}

/// A struct that is being written, or one of the two that serde_json uses as a disguise.
pub(in crate::fingerprint) enum Structure<'a> {
    Members(Members<'a>),
    /// A `serde_json::Number` under `arbitrary_precision`: one field, the number's source text.
    Number(&'a mut Vec<u8>),
    /// A `serde_json::value::RawValue`: one field, the JSON text. It counts as that text, white
    /// space and member order included, for that is what the handler sees.
    RawText(&'a mut Vec<u8>),
}

impl SerializeStruct for Structure<'_> {
    type Ok = Written;
    type Error = FingerprintError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Done {
        match self {
            Self::Members(members) => members.member(Name::Field(name), value),
            Self::Number(out) => scalars::write_number_token(out, &map_key::text(value)?),
            Self::RawText(out) => {
                scalars::write_string(out, &map_key::text(value)?);
                Ok(())
            }
        }
    }

    fn end(self) -> Outcome {
        match self {
            Self::Members(members) => members.close(),
            Self::Number(_) | Self::RawText(_) => Ok(Written::Value),
        }
    }
}

impl SerializeMap for Members<'_> {
    type Ok = Written;
    type Error = FingerprintError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Done {
        self.key = Some(map_key::text(key).map_err(|error| error.within(Step::Entry))?);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
        match self.key.take() {
            Some(key) => self.member(Name::Entry(key), value),
            None => Err(ser::Error::custom("a value without a key")),
        }
    }

    fn end(self) -> Outcome {
        self.close()
    }
}

impl SerializeStructVariant for Members<'_> {
    type Ok = Written;
    type Error = FingerprintError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Done {
        self.member(Name::Field(name), value)
    }

    fn end(self) -> Outcome {
        self.close()
    }
}

/// The four traits of an array, which differ in the name of one method.
macro_rules! elements {
    ($($of:ident::$method:ident,)*) => {
        $(impl $of for Elements<'_> {
            type Ok = Written;
            type Error = FingerprintError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Done {
                self.element(value)
            }

            fn end(self) -> Outcome {
                self.close()
            }
        })*
    };
}

elements! {
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
}
