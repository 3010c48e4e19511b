//! [`Question`]: one question of a type, and the answers to those that have no parts of their own.

mod access;
mod deserializer;
mod parts;

use serde::de::{Deserializer, Visitor};
use serde_json::{Map, Value};

use self::access::{Elements, Members};
use super::answer::Answers;
use super::asked::{Forced, Frame, LeafKind, Ways, widest};
use super::fact::Fact;
use super::given::Given;
use super::hints::{self, Refused};
use atomic_phases_compat::{
    FLOATS, Float, INTEGERS, Integer, LETTERS, Letter, Manner, Shape, TEXTS,
};

/// Types that are nested deeper are not gone into.
const MAX_DEPTH: usize = 64;

/// More questions are not answered in one attempt.
const MAX_QUESTIONS: usize = 10_000;

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

    pub(super) fn framed<T>(
        answers: &mut Answers<'_>,
        ask: impl FnOnce(Question<'_, '_>) -> Result<T, Refused>,
    ) -> (Result<T, Refused>, Shape, Value) {
        let (mut shape, mut input) = (Shape::Opaque, Value::Null);
        let (start, depth) = (answers.log.len(), answers.within.len());
        let result = ask(Question { answers: &mut *answers, shape: &mut shape, input: &mut input });
        let shape = Self::ended(answers, result.as_ref().err(), shape, start, depth);
        (result, shape, input)
    }

    fn ended(
        answers: &mut Answers<'_>,
        refused: Option<&Refused>,
        shape: Shape,
        start: usize,
        depth: usize,
    ) -> Shape {
        if answers.listens_at.as_ref() == Some(&answers.here()) {
            answers.listens_at = None;
            answers.heard = hints::take_heard();
        }
        match refused {
            // It got over what was refused inside of it.
            None => {
                answers.failed.clear();
                answers.why = None;
            }
            Some(why) => {
                answers.within.truncate(depth);
                answers.why.get_or_insert(*why);
                let (path, end) = (answers.here(), answers.log.len());
                let id = answers.id_of(&(path.clone(), 0));
                answers.failed.push(Frame { path, id, start, end });
            }
        }
        answers.within.truncate(depth);
        match answers.rule_here() {
            Some(refused) => Shape::Rule { of: Box::new(shape), refused },
            None => shape,
        }
    }

    pub(super) fn integer<'de, V: Visitor<'de>>(
        self,
        signed: bool,
        bits: u8,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        let number = self.number(signed, bits);
        match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) if signed => visitor.visit_i64(number),
            (_, Ok(number)) => visitor.visit_u64(number),
            _ if signed => visitor.visit_i128(number),
            _ => visitor.visit_u128(number.unsigned_abs()),
        }
    }

    fn number(self, signed: bool, bits: u8) -> i128 {
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
        number
    }

    pub(super) fn float(self, bits: u8) -> f64 {
        let key = self.answers.key();
        *self.shape = match self.answers.leaf(&key, LeafKind::Float(bits)) {
            Some(Fact::Float(float)) => Shape::Float(float),
            _ => Shape::Float(Float::of(bits)),
        };
        let candidates = if self.answers.least {
            [-0.5, 0.0, 1.0, 0.5, 100.0]
        } else {
            [0.5, 1.0, 0.0, -0.5, 100.0]
        };
        let number = match self.answers.forced(&key) {
            Some(Forced::Candidate(nth)) => FLOATS[nth].1,
            _ => candidates[self.answers.choose(key, candidates.len(), Ways::All)],
        };
        *self.input = number.into();
        number
    }

    pub(super) fn letter(self) -> char {
        let key = self.answers.key();
        *self.shape = match self.answers.leaf(&key, LeafKind::Char) {
            Some(Fact::Char(letter)) => Shape::Char(letter),
            _ => Shape::Char(Letter::default()),
        };
        let nth = match self.answers.forced(&key) {
            Some(Forced::Candidate(nth)) => nth,
            _ => self.answers.choose(key, LETTERS.len(), Ways::All),
        };
        let letter = LETTERS[nth].1;
        *self.input = letter.to_string().into();
        letter
    }

    pub(super) fn text(self) -> &'c str {
        let Self { answers, shape, input } = self;
        let key = answers.key();
        *shape = match answers.leaf(&key, LeafKind::Text) {
            Some(Fact::Text(format)) => Shape::Str(format),
            _ => Shape::Opaque,
        };
        let nth = match answers.forced(&key) {
            Some(Forced::Candidate(nth)) => nth,
            _ => answers.choose(key, TEXTS.len() + answers.words.len(), Ways::All),
        };
        let words = answers.words;
        let example = match TEXTS.get(nth) {
            Some((_, text)) => text,
            None => words[nth - TEXTS.len()].as_str(),
        };
        *input = example.into();
        example
    }

    pub(super) fn elements<'de, V: Visitor<'de>>(
        answers: &mut Answers<'_>,
        length: usize,
        visitor: V,
    ) -> (Result<V::Value, Refused>, Vec<Shape>, Value) {
        Self::elements_like(answers, length, None, visitor)
    }

    /// `like_first`: all of them are asked for as the first is, at this place.
    pub(super) fn elements_like<'de, V: Visitor<'de>>(
        answers: &mut Answers<'_>,
        length: usize,
        like_first: Option<String>,
        visitor: V,
    ) -> (Result<V::Value, Refused>, Vec<Shape>, Value) {
        let (shapes, inputs) = (Vec::new(), Vec::new());
        let mut elements = Elements { answers, left: length, like_first, shapes, inputs };
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
        // Here, and not in what one of its members holds.
        if let (Err(Refused::Duplicate(of)), Some(next)) = (&value, members.next)
            && members.answers.failed.is_empty()
        {
            members.answers.leave_out(fields, next, of);
        }
        let Members { fields, inputs, .. } = members;
        (value, Shape::Struct { fields, manner: Manner::default() }, Value::Object(inputs))
    }

    /// Of a type that takes what comes and does not tell its members: one that is flattened, tagged or
    /// untagged, or any value.
    pub(super) fn whole<'de, V: Visitor<'de>>(
        self,
        visitor: V,
        ask: fn(Given<'_>, V) -> Result<V::Value, Refused>,
    ) -> Result<V::Value, Refused> {
        ask(Given(self.given()), visitor)
    }

    fn given(self) -> &'a Value {
        let Self { answers, shape, input } = self;
        let key = answers.key();
        *shape = match answers.leaf(&key, LeafKind::Any) {
            Some(Fact::Whole { shape, .. }) => shape,
            _ => Shape::Opaque,
        };
        let forced = answers.forced(&key);
        let is_forced = forced.is_some();
        let value = match forced {
            Some(Forced::Given(value)) => value,
            _ => {
                let mut candidates = answers.candidates(&answers.id_of(&key));
                candidates.swap_remove(answers.choose(key, candidates.len(), Ways::All))
            }
        };
        if is_forced {
            // Until the type at this place has come to its end, which is not here: it has got the parts only.
            answers.listens_at = Some(answers.here());
            hints::listen();
        }
        *input = value;
        input
    }

    pub(super) fn any<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.whole(visitor, |given, visitor| given.deserialize_any(visitor))
    }
}
