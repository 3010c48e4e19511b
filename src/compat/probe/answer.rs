//! The deserializer that answers a type's questions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde_json::{Map, Value};

use super::access::{Chosen, Elements, Entries, Members};
use super::explore::{Fact, LeafId, Owner};
use super::search::Attempt;
use super::{Catalogue, Place};
use crate::compat::{Integer, OTHER, Shape, StrFormat, Variant};

/// Types that are nested deeper are not gone into.
const MAX_DEPTH: usize = 64;

/// More questions are not answered in one attempt.
const MAX_QUESTIONS: usize = 10_000;

/// What a type is offered in place of the outermost integer.
pub(super) const INTEGERS: [i128; 9] = [1, 0, 2, 10, 100, 1000, 2000, -1, 50];

/// No type has a member or a variant of that name.
pub(super) const UNKNOWN: &str = "$atomic_phases::private::Unknown";

/// Between the steps of a path.
const STEP: char = '\u{1}';

/// A question: the place where it was asked, and how many were asked there before it.
pub(super) type Key = (String, u32);

/// Whether `path` is inside of the place `outer`.
pub(super) fn is_inside(path: &str, outer: &str) -> bool {
    match outer {
        "" => !path.is_empty(),
        _ => path.strip_prefix(outer).is_some_and(|rest| rest.starts_with(STEP)),
    }
}

/// The greatest integer of a width that JSON of serde_json has, and 128 bits of a sign.
pub(super) fn widest(integer: Integer) -> i128 {
    match (integer.signed, integer.bits) {
        (_, 128) => i128::MAX,
        (true, bits) => (1 << (bits - 1)) - 1,
        (false, bits) => (1 << bits) - 1,
    }
}

/// An answer that was given.
pub(super) struct Asked {
    pub(super) key: Key,
    /// Which of how many candidates.
    pub(super) taken: usize,
    pub(super) of: usize,
    pub(super) ways: Ways,
}

/// What another answer to a question changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ways {
    /// A value.
    All,
    /// Whether something is there.
    Around,
    /// Which variant it is.
    Variants,
}

/// A place at which the type refused what it had been answered, and what had been asked for it.
pub(super) struct Frame {
    pub(super) path: String,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A place at which several values can be tried out.
pub(super) struct Leaf {
    pub(super) key: Key,
    pub(super) id: LeafId,
    pub(super) kind: LeafKind,
}

#[derive(Clone, Copy)]
pub(super) enum LeafKind {
    Text,
    Integer(Integer),
    Any,
    Enum,
}

/// An answer that is tried out.
#[derive(Clone, Copy)]
pub(super) enum Forced {
    Candidate(usize),
    Integer(i128),
    UnknownVariant,
}

struct Within {
    index: usize,
    variant: Option<usize>,
    depth: usize,
}

/// What the type was answered.
pub(super) struct Answers<'c> {
    catalogue: &'c mut Catalogue,
    words: &'c [String],
    /// Whether the least value is tried first.
    least: bool,

    // As long as a type is asked.
    pub(super) chosen: BTreeMap<Key, usize>,
    pub(super) blocked: BTreeSet<String>,
    pub(super) left_out: BTreeSet<String>,
    flattened: BTreeSet<String>,
    /// Of a pass.
    pub(super) tries: BTreeMap<String, usize>,
    orders: BTreeMap<Key, Vec<usize>>,
    pub(super) forced: Option<(Key, Forced)>,
    pub(super) was_forced: bool,

    // Of one attempt.
    pub(super) log: Vec<Asked>,
    /// The innermost first.
    pub(super) failed: Vec<Frame>,
    pub(super) why: Option<Refused>,
    pub(super) leaves: Vec<Leaf>,
    asked_at: BTreeMap<String, u32>,
    /// The named types that are being answered, the outermost first.
    within: Vec<Within>,
    path: Vec<String>,
    places: Vec<Place>,
    found: Vec<(usize, Shape)>,
}

impl<'c> Answers<'c> {
    pub(super) fn new(catalogue: &'c mut Catalogue, least: bool, words: &'c [String]) -> Self {
        Self {
            catalogue,
            words,
            least,
            chosen: BTreeMap::new(),
            blocked: BTreeSet::new(),
            left_out: BTreeSet::new(),
            flattened: BTreeSet::new(),
            tries: BTreeMap::new(),
            orders: BTreeMap::new(),
            forced: None,
            was_forced: false,
            log: Vec::new(),
            failed: Vec::new(),
            why: None,
            leaves: Vec::new(),
            asked_at: BTreeMap::new(),
            within: Vec::new(),
            path: Vec::new(),
            places: Vec::new(),
            found: Vec::new(),
        }
    }

    pub(super) fn catalogue(&mut self) -> &mut Catalogue {
        self.catalogue
    }

    pub(super) fn known(&self) -> &Catalogue {
        self.catalogue
    }

    /// Other variants come first than in the pass before.
    pub(super) fn begin_pass(&mut self) {
        self.tries.clear();
        for key in std::mem::take(&mut self.orders).into_keys() {
            self.chosen.remove(&key);
        }
    }

    /// A value of `T` by the answers of now.
    pub(super) fn attempt<T: Serialize + DeserializeOwned>(&mut self) -> Attempt {
        self.log.clear();
        self.failed.clear();
        self.why = None;
        self.leaves.clear();
        self.asked_at.clear();
        self.within.clear();
        self.path.clear();
        self.places.clear();
        self.found.clear();
        let (value, shape, input) = Question::framed(self, |question| T::deserialize(question));
        // As it would be read from a row.
        let read = |input: &Value| {
            let value: T = serde_json::from_str(&serde_json::to_string(input).ok()?).ok()?;
            serde_json::to_string(&value).ok()
        };
        let is_taken = value.is_ok();
        let sample = value.ok().and_then(|_| read(&input));
        if sample.is_none() && self.failed.is_empty() {
            let (path, start, end) = (String::new(), 0, self.log.len());
            self.failed.push(Frame { path, start, end });
        }
        Attempt { shape, is_taken, built: sample.map(|sample| (input, sample)) }
    }

    /// Remembers what the types of this attempt look like, and tells where they are in its value.
    pub(super) fn keep(&mut self) -> Vec<Place> {
        for (index, shape) in std::mem::take(&mut self.found) {
            let known = &mut self.catalogue.types[index].shape;
            *known = super::merged(std::mem::replace(known, Shape::Opaque), shape);
        }
        let places = std::mem::take(&mut self.places);
        for place in &places {
            let built = &mut self.catalogue.types[place.index].built;
            built.extend(place.variant.filter(|variant| !built.contains(variant)));
        }
        places
    }

    fn here(&self) -> String {
        self.path.join(&STEP.to_string())
    }

    pub(super) fn inside(&self, step: &str) -> String {
        match self.path.is_empty() {
            true => step.to_owned(),
            false => format!("{}{STEP}{step}", self.here()),
        }
    }

    /// What is tried where any value may be taken.
    pub(super) fn kinds(&self) -> Vec<Value> {
        any_of(&[])
    }

    fn place(&mut self, index: usize, variant: Option<usize>, members: &'static [&'static str]) {
        self.places.push(Place { index, variant, path: self.path.clone(), members });
    }

    pub(super) fn content_place(&mut self, place: (usize, usize), fields: &'static [&'static str]) {
        self.place(place.0, Some(place.1), fields);
    }

    fn enter(&mut self, index: usize, variant: Option<usize>) {
        if let Some(Within { index: outer, variant, .. }) = self.within.last() {
            self.catalogue.types[*outer].inside.entry(*variant).or_default().insert(index);
        }
        self.within.push(Within { index, variant, depth: self.path.len() });
    }

    /// The question that is asked now.
    fn key(&mut self) -> Key {
        let here = self.here();
        let nth = self.asked_at.entry(here.clone()).or_default();
        *nth += 1;
        (here, *nth)
    }

    fn leaf(&mut self, key: &Key, kind: LeafKind) -> Option<Fact> {
        let (owner, depth) = match self.within.last() {
            Some(Within { index, variant, depth }) => (Owner::Type(*index, *variant), *depth),
            None => (Owner::Probe(self.catalogue.probes), 0),
        };
        let path = self.path.get(depth..).unwrap_or_default().join(&STEP.to_string());
        let id = LeafId { owner, path, nth: key.1 };
        let fact = self.catalogue.facts.get(&id).cloned();
        self.leaves.push(Leaf { key: key.clone(), id, kind });
        fact
    }

    fn forced(&mut self, key: &Key) -> Option<Forced> {
        let forced = self.forced.as_ref().filter(|(wanted, _)| wanted == key).map(|(_, f)| *f);
        self.was_forced |= forced.is_some();
        forced
    }

    /// One of `of` candidates.
    fn choose(&mut self, key: Key, of: usize, ways: Ways) -> usize {
        let taken = self.chosen.get(&key).copied().unwrap_or_default().min(of.saturating_sub(1));
        self.log.push(Asked { key, taken, of, ways });
        taken
    }

    /// Whether something is there, or nothing: that comes first for the least value.
    fn chooses_some(&mut self) -> bool {
        let key = self.key();
        (self.choose(key, 2, Ways::Around) == 0) != self.least
    }

    /// Whether a type is being answered that holds itself: then there is none of what comes next.
    fn is_recursive(&self) -> bool {
        let Some((last, before)) = self.within.split_last() else { return false };
        before.iter().any(|outer| outer.index == last.index)
    }

    /// Whether the type is being answered already.
    pub(super) fn is_within(&self, index: usize) -> bool {
        self.within.iter().any(|outer| outer.index == index)
    }
}

/// One question of a type: what it wants is in `shape` then, what it was given in `input`.
pub(super) struct Question<'a, 'c> {
    pub(super) answers: &'a mut Answers<'c>,
    pub(super) shape: &'a mut Shape,
    pub(super) input: &'a mut Value,
}

impl<'a, 'c> Question<'a, 'c> {
    /// Asks at a place inside of this one.
    pub(super) fn inner<T>(
        answers: &mut Answers<'_>,
        step: impl Into<String>,
        ask: impl FnOnce(Question<'_, '_>) -> Result<T, Refused>,
    ) -> (Result<T, Refused>, Shape, Value) {
        answers.path.push(step.into());
        let is_too_much = answers.path.len() > MAX_DEPTH || answers.log.len() > MAX_QUESTIONS;
        let asked = match is_too_much {
            true => Question::framed(answers, |_| Err(Refused::Other)),
            false => Question::framed(answers, ask),
        };
        answers.path.pop();
        asked
    }

    fn framed<T>(
        answers: &mut Answers<'_>,
        ask: impl FnOnce(Question<'_, '_>) -> Result<T, Refused>,
    ) -> (Result<T, Refused>, Shape, Value) {
        let (mut shape, mut input) = (Shape::Opaque, Value::Null);
        let (start, depth) = (answers.log.len(), answers.within.len());
        let result = ask(Question { answers: &mut *answers, shape: &mut shape, input: &mut input });
        match &result {
            // It got over what was refused inside of it.
            Ok(_) => {
                answers.failed.clear();
                answers.why = None;
            }
            Err(why) => {
                answers.why.get_or_insert(*why);
                let (path, end) = (answers.here(), answers.log.len());
                answers.failed.push(Frame { path, start, end });
            }
        }
        answers.within.truncate(depth);
        (result, shape, input)
    }

    fn integer<'de, V: Visitor<'de>>(
        self,
        signed: bool,
        bits: u8,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        let integer = Integer::of(signed, bits);
        let key = answers.key();
        *shape = match answers.leaf(&key, LeafKind::Integer(integer)) {
            Some(Fact::Integer(None)) => Shape::Opaque,
            Some(Fact::Integer(Some(limited))) => Shape::Int(limited),
            _ => Shape::Int(integer),
        };
        // JSON that is kept as a value ends at 64 bits.
        let kept = Integer::of(signed, bits.min(64));
        let (least, most) = (kept.width_least(), widest(kept));
        let number = match answers.forced(&key) {
            Some(Forced::Integer(number)) => number,
            _ => {
                let outermost = if answers.least { [least, most] } else { [most, least] };
                let inner = INTEGERS.into_iter().filter(|number| (least..=most).contains(number));
                let mut candidates = vec![outermost[0]];
                candidates.extend(inner);
                candidates.push(outermost[1]);
                candidates[answers.choose(key, candidates.len(), Ways::All)]
            }
        };
        *input = match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => number.into(),
            (_, Ok(number)) => number.into(),
            _ => Value::Null,
        };
        match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) if signed => visitor.visit_i64(number),
            (_, Ok(number)) => visitor.visit_u64(number),
            _ if signed => visitor.visit_i128(number),
            _ => visitor.visit_u128(number.unsigned_abs()),
        }
    }

    fn float<'de, V: Visitor<'de>>(self, bits: u8, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Float(bits);
        let key = self.answers.key();
        let candidates = if self.answers.least {
            [-0.5, 0.0, 1.0, 0.5, 100.0]
        } else {
            [0.5, 1.0, 0.0, -0.5, 100.0]
        };
        let number = candidates[self.answers.choose(key, candidates.len(), Ways::All)];
        *self.input = number.into();
        visitor.visit_f64(number)
    }

    fn string<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        let key = answers.key();
        *shape = match answers.leaf(&key, LeafKind::Text) {
            Some(Fact::Text(format)) => Shape::Str(format),
            _ => Shape::Str(StrFormat::Own),
        };
        let nth = match answers.forced(&key) {
            Some(Forced::Candidate(nth)) => nth,
            _ => answers.choose(key, StrFormat::ALL.len() + answers.words.len(), Ways::All),
        };
        let example = match StrFormat::ALL.get(nth) {
            Some((_, _, example)) => example,
            None => answers.words[nth - StrFormat::ALL.len()].as_str(),
        };
        *input = example.into();
        visitor.visit_str(example)
    }

    pub(super) fn elements<'de, V: Visitor<'de>>(
        answers: &mut Answers<'_>,
        length: usize,
        visitor: V,
    ) -> (Result<V::Value, Refused>, Vec<Shape>, Value) {
        let mut elements =
            Elements { answers, left: length, shapes: Vec::new(), inputs: Vec::new() };
        let value = visitor.visit_seq(&mut elements);
        let Elements { shapes, inputs, .. } = elements;
        (value, shapes, Value::from(inputs))
    }

    pub(super) fn members<'de, V: Visitor<'de>>(
        answers: &mut Answers<'_>,
        fields: &'static [&'static str],
        visitor: V,
    ) -> (Result<V::Value, Refused>, Shape, Value) {
        let left = fields.iter();
        let mut members =
            Members { answers, left, next: None, fields: Vec::new(), inputs: Map::new() };
        let value = visitor.visit_map(&mut members);
        if let (Err(Refused::Duplicate), Some(name)) = (&value, members.next) {
            let member = members.answers.inside(name);
            members.answers.left_out.insert(member);
        }
        let Members { fields, inputs, .. } = members;
        (value, Shape::Struct { fields, closed: false }, Value::Object(inputs))
    }
}

/// Values of each kind, for a type that takes what comes.
fn any_of(words: &[String]) -> Vec<Value> {
    let plain = serde_json::json!([null, true, 0, 1, 0.5, [], {}]);
    let texts = StrFormat::ALL.iter().map(|(_, _, example)| Value::from(*example));
    let words = words.iter().map(|word| Value::from(word.as_str()));
    plain.as_array().into_iter().flatten().cloned().chain(texts).chain(words).collect()
}

impl<'de> Deserializer<'de> for Question<'_, '_> {
    type Error = Refused;

    /// Of a type that takes what comes: an enum that is not tagged from outside, or any value.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        let key = answers.key();
        *shape = match answers.leaf(&key, LeafKind::Any) {
            Some(Fact::Kinds { all: true, .. }) => Shape::Any,
            _ => Shape::Opaque,
        };
        let candidates = any_of(answers.words);
        let nth = match answers.forced(&key) {
            Some(Forced::Candidate(nth)) => nth,
            _ => answers.choose(key, candidates.len(), Ways::All),
        };
        *input = candidates[nth].clone();
        match &candidates[nth] {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::String(text) => visitor.visit_str(text),
            Value::Array(_) => Self::elements(answers, 0, visitor).0,
            Value::Object(_) => visitor.visit_map(&mut Entries::of(answers, 0)),
            Value::Number(number) => match number.as_u64() {
                Some(number) => visitor.visit_u64(number),
                None => visitor.visit_f64(0.5),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Bool;
        let key = self.answers.key();
        let value = (self.answers.choose(key, 2, Ways::All) == 0) != self.answers.least;
        *self.input = value.into();
        visitor.visit_bool(value)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 8, visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 16, visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 32, visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 64, visitor)
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(true, 128, visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 8, visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 16, visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 32, visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 64, visitor)
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.integer(false, 128, visitor)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.float(32, visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.float(64, visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Char;
        *self.input = "a".into();
        visitor.visit_char('a')
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.string(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Bytes;
        *self.input = Value::from(vec![97]);
        visitor.visit_bytes(b"a")
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        if answers.is_recursive() || !answers.chooses_some() {
            *shape = Shape::Option(Box::new(Shape::Opaque));
            return visitor.visit_none();
        }
        let mut inner = Shape::Opaque;
        let value = visitor.visit_some(Question { answers, shape: &mut inner, input });
        *shape = Shape::Option(Box::new(inner));
        value
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Null;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        let first = answers.inside("0");
        let is_empty = answers.is_recursive() || answers.blocked.contains(&first);
        let length = usize::from(!is_empty && answers.chooses_some());
        let (value, shapes, elements) = Self::elements(answers, length, visitor);
        *shape = Shape::List(Box::new(shapes.into_iter().next().unwrap_or(Shape::Opaque)));
        *input = elements;
        value
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let (value, mut shapes, input) = Self::elements(self.answers, length, visitor);
        shapes.resize(length, Shape::Opaque);
        *self.shape = Shape::Tuple(shapes);
        *self.input = input;
        value
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        let here = answers.here();
        let is_blocked = answers.blocked.iter().any(|path| is_inside(path, &here));
        let is_empty = answers.is_recursive() || is_blocked;
        let length = usize::from(!is_empty && answers.chooses_some());
        let mut entries = Entries::of(answers, length);
        let read = visitor.visit_map(&mut entries);
        let Entries { key, value, inputs, is_flattened, .. } = entries;
        *shape = Shape::Map(Box::new(key), Box::new(value));
        *input = Value::Object(inputs);
        if is_flattened {
            answers.flattened.insert(here.clone());
        }
        // The members of a flattened type are not those of a map.
        if answers.flattened.contains(&here) {
            *shape = Shape::Opaque;
        }
        read
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        let index = answers.catalogue.index_of::<V>(name, fields, false);
        answers.enter(index, None);
        answers.place(index, None, fields);
        let depth = answers.within.len();
        let (value, of_members, members) = Self::members(answers, fields, visitor);
        answers.within.truncate(depth - 1);
        answers.found.push((index, of_members));
        *shape = Shape::Named(answers.catalogue.types[index].name.clone());
        *input = members;
        value
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let Self { answers, shape, input } = self;
        let index = answers.catalogue.index_of::<V>(name, variants, true);
        *shape = Shape::Named(answers.catalogue.types[index].name.clone());
        let is_within = answers.is_within(index);
        let key = answers.key();
        if !answers.orders.contains_key(&key) {
            let order = answers.order_of_variants(index, variants.len());
            answers.orders.insert(key.clone(), order);
        }
        let mut order = answers.orders.get(&key).cloned().unwrap_or_default();
        order.retain(|variant| {
            let content = answers.inside(variants[*variant]);
            !answers.blocked.contains(&content)
        });
        if order.is_empty() {
            return Err(if is_within { Refused::NotYet } else { Refused::Other });
        }
        let fact = answers.leaf(&key, LeafKind::Enum);
        let is_tried_out = answers.forced(&key).is_some();
        let variant = order[answers.choose(key, order.len(), Ways::Variants)];
        answers.enter(index, Some(variant));
        answers.place(index, Some(variant), &[]);
        let depth = answers.within.len();
        let name = variants[variant];
        let (mut content, mut inner) = (None, Value::Null);
        let value = visitor.visit_enum(Chosen {
            answers: &mut *answers,
            place: (index, variant),
            name: if is_tried_out { UNKNOWN } else { name },
            content: &mut content,
            input: &mut inner,
        });
        answers.within.truncate(depth - 1);
        *input = match content {
            None => name.into(),
            Some(_) => Value::Object([(name.to_owned(), inner)].into_iter().collect()),
        };
        let mut known = vec![Variant { name: name.to_owned(), content }];
        if fact == Some(Fact::Open(true)) {
            known.push(Variant { name: OTHER.to_owned(), content: None });
        }
        answers.found.push((index, Shape::Enum(known)));
        value
    }

    /// The name of a member that was not asked for by name: a flattened type.
    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused::Flattened)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        *self.shape = Shape::Any;
        visitor.visit_unit()
    }
}

/// Why the type did not take an answer, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Of two names of one member one is too much.
    Duplicate,
    /// A member is not there.
    Missing,
    /// It holds itself, and no variant of it is known to come to an end.
    NotYet,
    /// It asks for names that it does not tell.
    Flattened,
    Other,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Other
    }

    fn duplicate_field(_: &'static str) -> Self {
        Self::Duplicate
    }

    fn missing_field(_: &'static str) -> Self {
        Self::Missing
    }
}
