//! The shape of one value that a place takes: told by what its type writes of it, and by what is taken instead of
//! each of its parts.

use std::mem::discriminant;

use serde_json::Value;

use super::asked::UNKNOWN;
use super::candidates::{Trial, kinds};
use super::explore::limits;
use super::forms::{Asking, Echo, Path};
use super::join::{Form, add};
use super::path::{at, at_mut};
use super::refine::{constant, left_out};
use super::written::Written;
use atomic_phases_compat::{
    Absent, Field, Float, Integer, Letter, List, Manner, Order, Shape, StrFormat, TEXTS, Types,
    Unknown, Variant, examples,
};

/// With so many elements, and read so often, a list shows whether its order is by chance.
const MAX_ELEMENTS: usize = 6;
const MAX_READS: usize = 8;

impl Asking<'_, '_> {
    /// What is at a place of a value, told by what the type writes there and by what it takes in its place.
    pub(super) fn shape(
        &mut self,
        base: &Value,
        path: &mut Path,
        written: &Written,
    ) -> Option<Shape> {
        if self.any.contains(path) {
            return Some(Shape::Any);
        }
        match written {
            Written::Some(inner) => {
                return Some(Shape::Option(Box::new(self.shape(base, path, inner)?)));
            }
            Written::Unfingerprinted(inner) => return self.shape(base, path, inner),
            _ => {}
        }
        // A type that holds itself would need a name for what is there.
        if self.whole.as_ref().is_some_and(|whole| whole.holds_itself(path)) {
            return Some(Shape::Opaque);
        }
        let others = self.of_other_kinds(base, path)?;
        if !others.is_empty() {
            return self.of_several_kinds(base, path, written, others);
        }
        Some(match written {
            Written::None | Written::Some(_) | Written::Unfingerprinted(_) => {
                Shape::Option(Box::new(Shape::Opaque))
            }
            Written::Leaf(_) => {
                let value = at(base, path)?.clone();
                self.scalar(base, &path.clone(), &value, Some(written.clone()))?
            }
            Written::List(elements) => {
                let element = match elements.first() {
                    Some(first) => self.inner(base, path, "0", first)?,
                    None => Shape::Opaque,
                };
                let order = self.order_of(base, path, &element);
                Shape::List(List { order, ..List::of(element) })
            }
            Written::Tuple(elements) => {
                let elements = elements.iter().enumerate();
                let shapes: Option<Vec<Shape>> = elements
                    .map(|(index, part)| self.inner(base, path, &index.to_string(), part))
                    .collect();
                Shape::Tuple(shapes?)
            }
            Written::Map(members) => {
                let value = match members.first() {
                    Some((name, first)) => self.inner(base, path, name, first)?,
                    None => Shape::Opaque,
                };
                let key = match members.first().is_some_and(|(name, _)| name == "a") {
                    true => Shape::Str(StrFormat::ANY),
                    false => Shape::Opaque,
                };
                Shape::Map(Box::new(key), Box::new(value))
            }
            Written::Struct(_, members) => self.members(base, path, members)?,
            Written::Variant(name, content) => {
                let content = match content {
                    Some(content) => Some(self.inner(base, path, name, content)?),
                    None => None,
                };
                Shape::Enum(vec![Variant { name: (*name).to_owned(), content, only_read: false }])
            }
        })
    }

    /// What is kept of the order of elements: told by some that are given forwards, backwards, and twice.
    fn order_of(&mut self, base: &Value, path: &[String], element: &Shape) -> Order {
        let made = examples(element, &Types::new()).into_iter().filter(|made| made.is_complete);
        let made = made.take(MAX_ELEMENTS).filter_map(|made| serde_json::from_str(&made.json).ok());
        let forwards: Vec<Value> = made.collect();
        let mut written = |list: Vec<Value>| -> Option<Value> {
            let trial = Trial::with(base, path, list.into())?;
            at(&self.echo(&trial.value)?.json, path).cloned()
        };
        let (Some(first), true) = (written(forwards.clone()), forwards.len() > 1) else {
            return Order::Kept;
        };
        if (0..MAX_READS).any(|_| written(forwards.clone()).as_ref() != Some(&first)) {
            return Order::Chance;
        }
        let backwards = forwards.iter().rev().cloned().collect();
        if written(backwards).as_ref() != Some(&first) {
            return Order::Kept;
        }
        let twice = written(vec![forwards[0].clone(), forwards[0].clone()]);
        match twice.as_ref().and_then(Value::as_array).map(Vec::len) {
            Some(1) => Order::Set,
            _ => Order::Sorted,
        }
    }

    /// Values of other kinds that a part of a value can be, one of each.
    fn of_other_kinds(&mut self, base: &Value, path: &[String]) -> Option<Vec<Value>> {
        let here = at(base, path)?;
        let mut others: Vec<Value> = Vec::new();
        for kind in kinds() {
            let is_known = |known: &Value| discriminant(known) == discriminant(&kind);
            if path.is_empty() || kind.is_null() || is_known(here) || others.iter().any(is_known) {
                continue;
            }
            let trial = Trial::with(base, path, kind.clone())?;
            if self.takes(&trial.value)
                && self.echo(&trial.value).is_some_and(|echo| at(&echo.json, path) == Some(&kind))
            {
                others.push(kind);
            }
        }
        Some(others)
    }

    /// What is there of each of its kinds, where none has parts; else it would need a name for what is there.
    fn of_several_kinds(
        &mut self,
        base: &Value,
        path: &[String],
        written: &Written,
        others: Vec<Value>,
    ) -> Option<Shape> {
        let here = at(base, path)?.clone();
        let mut forms = Vec::new();
        let all = std::iter::once((here, Some(written.clone())));
        let mut all: Vec<_> = all.chain(others.into_iter().map(|other| (other, None))).collect();
        // Whichever of them stands in the value that was begun with.
        let kinds = kinds();
        let kind_of =
            |value: &Value| kinds.iter().position(|kind| discriminant(kind) == discriminant(value));
        all.sort_by_key(|(value, _)| kind_of(value));
        for (value, written) in all {
            if value.is_array() || value.is_object() || value.is_null() {
                return Some(Shape::Opaque);
            }
            let trial = Trial::with(base, path, value.clone())?;
            let written = match written {
                Some(written) => written,
                None => self.echo(&trial.value)?.written.at(path)?.clone(),
            };
            forms.extend(self.scalar(&trial.value, path, &value, Some(written)));
        }
        forms.dedup();
        Some(Shape::Union { written: forms, read: Vec::new() })
    }

    fn inner(
        &mut self,
        base: &Value,
        path: &mut Path,
        step: &str,
        written: &Written,
    ) -> Option<Shape> {
        path.push(step.to_owned());
        let shape = self.shape(base, path, written);
        path.pop();
        shape
    }

    fn members(
        &mut self,
        base: &Value,
        path: &mut Path,
        members: &[(String, Written)],
    ) -> Option<Shape> {
        let mut fields = Vec::new();
        for (name, written) in members {
            let shape = self.inner(base, path, name, written)?;
            let mut without = base.clone();
            at_mut(&mut without, path)?.as_object_mut()?.remove(name);
            let optional = self.is_optional(base, &without, path, name);
            let absent = optional.then(|| self.default(base, &without, path, name, &shape));
            let default = absent.flatten();
            let default = default.unwrap_or_default();
            let unfingerprinted = matches!(written, Written::Unfingerprinted(_));
            let (name, aliases) = (name.clone(), Vec::new());
            fields.push(Field { name, aliases, optional, default, unfingerprinted, shape });
        }
        let by_name = self.is_by_name(base, path, &fields)?;
        let (unknown, rest) = self.unknown_members(base, path)?;
        fields.extend(rest.map(Field::rest));
        let manner = Manner { unknown, by_name };
        Some(Shape::Struct { fields, manner })
    }

    /// What becomes of members that the type does not know; and what each of them is, where it is not anything.
    fn unknown_members(
        &mut self,
        base: &Value,
        path: &mut Path,
    ) -> Option<(Unknown, Option<Shape>)> {
        let (mut taken, mut kept) = (0, 0);
        let kinds = kinds();
        for unknown in &kinds {
            let mut with_unknown = base.clone();
            let object = at_mut(&mut with_unknown, path)?.as_object_mut()?;
            object.insert(UNKNOWN.to_owned(), unknown.clone());
            taken += usize::from(self.takes(&with_unknown));
            let is_kept = self.echo(&with_unknown).is_some_and(|echo| {
                at(&echo.json, path).and_then(|object| object.get(UNKNOWN)) == Some(unknown)
            });
            kept += usize::from(is_kept);
        }
        if kept == kinds.len() {
            return Some((Unknown::Kept, None));
        }
        if taken == kinds.len() && kept == 0 {
            return Some((Unknown::PassedOver, None));
        }
        Some(match self.rest(base, path) {
            Some(rest) => (Unknown::Kept, Some(rest)),
            None if kept > 0 => (Unknown::Kept, Some(Shape::Opaque)),
            None if taken > 0 => (Unknown::PassedOver, None),
            None => (Unknown::Refused, None),
        })
    }

    /// What a member is that the type keeps without knowing it, of a map that is flattened.
    fn rest(&mut self, base: &Value, path: &mut Path) -> Option<Shape> {
        let place: Path = path.iter().cloned().chain([UNKNOWN.to_owned()]).collect();
        let mut trials = Vec::new();
        for kind in kinds() {
            let mut value = base.clone();
            at_mut(&mut value, path)?.as_object_mut()?.insert(UNKNOWN.to_owned(), kind);
            trials.push(Trial { value, cursor: Some(place.clone()) });
        }
        let first = self.kept(trials, &place)?;
        let first = self.filled(first.clone()).unwrap_or(first);
        let mut values = vec![first.clone()];
        for name in self.answers.variants_at(self.leaf, &first, &place).into_iter().flatten() {
            values.extend(self.with_variant(&first, &place, name));
        }
        let mut forms: Vec<Form> = Vec::new();
        for value in values {
            let written = self.echo(&value)?.written.at(&place)?.clone();
            let shape = self.inner(&value, path, UNKNOWN, &written)?;
            add(&mut forms, (shape, value));
        }
        let mut forms: Vec<Shape> = forms.into_iter().map(|(shape, _)| shape).collect();
        let shape = match forms.len() {
            1 => forms.remove(0),
            _ => Shape::Union { written: forms, read: Vec::new() },
        };
        let none = Trial::with(&first, &place, Value::Null)?.value;
        let may_be_none = self.echo(&none).is_some_and(|echo| echo.json == none);
        Some(match (may_be_none, shape) {
            (true, shape) if !matches!(shape, Shape::Option(_)) => Shape::Option(Box::new(shape)),
            (_, shape) => shape,
        })
    }

    /// Whether an array of its members is not read.
    fn is_by_name(&mut self, base: &Value, path: &[String], fields: &[Field]) -> Option<bool> {
        let object = at(base, path)?.as_object()?;
        let parts: Vec<Value> =
            fields.iter().filter_map(|field| object.get(&field.name)).cloned().collect();
        let array = Trial::with(base, path, Value::from(parts))?;
        Some(!self.takes(&array.value))
    }

    /// Whether the alternative that takes the value takes it without a member, too: another one may.
    fn is_optional(&mut self, base: &Value, without: &Value, path: &[String], name: &str) -> bool {
        let Some(refusals) = self.refusals(without) else { return false };
        let is_written = |echo: Echo| at(&echo.json, path).is_some_and(|it| it.get(name).is_some());
        self.refusals(base) == Some(refusals) || self.echo(without).is_some_and(is_written)
    }

    /// What a member is that is not there.
    fn default(
        &mut self,
        base: &Value,
        without: &Value,
        path: &[String],
        name: &str,
        shape: &Shape,
    ) -> Option<Absent> {
        let first = self.echo(without)?.json;
        let again = self.echo(without)?.json;
        Some(match (at(&first, path)?.get(name), at(&again, path)?.get(name)) {
            (Some(first), Some(again)) if first != again => Absent::ByChance,
            (Some(first), Some(again)) => {
                constant(first, again, shape).map(Absent::Is).unwrap_or_default()
            }
            _ => Absent::LeftOut(left_out(shape, |value| {
                let member: Path = path.iter().cloned().chain([name.to_owned()]).collect();
                let trial = Trial::with(base, &member, value.clone());
                let echo = trial.and_then(|trial| self.echo(&trial.value));
                echo.and_then(|echo| Some(at(&echo.json, path)?.get(name).is_none())) == Some(true)
            })),
        })
    }

    /// `written` where the type writes what it reads.
    pub(super) fn scalar(
        &mut self,
        base: &Value,
        path: &[String],
        value: &Value,
        written: Option<Written>,
    ) -> Option<Shape> {
        let written = match written {
            Some(Written::Some(inner)) => Some(*inner),
            written => written,
        };
        Some(match (value, written) {
            (Value::Null, _) => Shape::Null,
            (Value::Bool(_), _) => Shape::Bool,
            (Value::String(name), Some(Written::Variant(..))) => {
                Shape::Enum(vec![Variant { name: name.clone(), content: None, only_read: false }])
            }
            (Value::String(name), written) => {
                if let Some(Written::Leaf(Shape::Char(_))) = written {
                    return Some(Shape::Char(Letter::default()));
                }
                if self.answers.variants_at(self.leaf, base, path).is_some() {
                    return Some(Shape::Enum(vec![Variant {
                        name: name.clone(),
                        content: None,
                        only_read: false,
                    }]));
                }
                let unknown = Trial::with(base, path, UNKNOWN.into())?;
                if written.is_some() && self.takes(&unknown.value) {
                    // It is read as another: a tag with `#[serde(other)]`, whose variants are not told.
                    let echo = self.echo(&unknown.value)?;
                    if at(&echo.json, path)?.as_str() != Some(UNKNOWN) {
                        return None;
                    }
                }
                if path.is_empty() {
                    return Some(Shape::Str(self.format_of_alternative(name)));
                }
                let mut taken = Vec::new();
                for (nth, (_, text)) in TEXTS.into_iter().enumerate() {
                    let trial = Trial::with(base, path, text.into())?;
                    if !self.takes(&trial.value) {
                        continue;
                    }
                    let echo = self.echo(&trial.value);
                    let written = echo.and_then(|echo| at(&echo.json, path).cloned());
                    taken.push((nth, written.is_some_and(|written| written != *text)));
                }
                Shape::Str(StrFormat::of(taken))
            }
            (Value::Number(_), Some(Written::Leaf(Shape::Int(integer)))) => {
                self.limited(base, path, integer)
            }
            (Value::Number(_), Some(Written::Leaf(shape @ Shape::Float(_)))) => shape,
            (Value::Number(number), _) if number.is_f64() => Shape::Float(Float::of(64)),
            (Value::Number(_), _) => self.limited(base, path, Integer::of(true, 128)),
            (Value::Array(_) | Value::Object(_), _) => return None,
        })
    }

    fn limited(&mut self, base: &Value, path: &[String], integer: Integer) -> Shape {
        let takes = |number: i128| {
            let number = match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => Value::from(number),
                (_, Ok(number)) => Value::from(number),
                // JSON that is kept as a value ends there.
                _ => return false,
            };
            let trial = Trial::with(base, path, number);
            trial.is_some_and(|trial| self.takes(&trial.value))
        };
        let wide = integer.bits > 64;
        let limited = limits(integer, takes);
        match limited {
            Some(limited) if wide => {
                let kept = Integer::of(integer.signed, 64);
                let is_whole = limited.most == Some(i128::from(u64::MAX))
                    && limited.least == integer.signed.then(|| kept.width_least());
                Shape::Int(if is_whole && !integer.signed { integer } else { limited })
            }
            Some(limited) => Shape::Int(limited),
            None => Shape::Opaque,
        }
    }
}
