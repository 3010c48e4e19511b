//! What a place looks like that keeps to itself what it is made of: told by the [values](super::talk) that it
//! takes, changed member by member, and by what its type [writes](Written) of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::answer::Answers;
use super::asked::{Forced, Leaf};
use super::candidates::{Trial, kinds};
use super::fact::Talked;
use super::join::{Form, add};
use super::path::at;
use super::written::Written;
use atomic_phases_compat::{Field, Shape};

/// More forms are not told apart.
const MAX_FORMS: usize = 64;

/// So many members of one value are filled at most.
const MAX_FILLED: usize = 32;

pub(super) type Path = Vec<String>;

/// What a place looks like, and a value of each of its forms.
pub(super) struct Forms {
    pub(super) shape: Shape,
    pub(super) values: Vec<Value>,
}

/// A value as its type writes it.
pub(super) struct Echo {
    pub(super) json: Value,
    pub(super) written: Written,
}

/// One place of a type, as far as it is known.
pub(super) struct Asking<'a, 'c> {
    pub(super) answers: &'a mut Answers<'c>,
    pub(super) leaf: &'a Leaf,
    path: Path,
    /// Members that take everything.
    pub(super) any: BTreeSet<Path>,
    /// The value whose shape is asked for, as it is written.
    pub(super) whole: Option<Written>,
}

impl Answers<'_> {
    /// `None` where a value that the place takes is not written as it was read, or there is none.
    pub(super) fn forms(&mut self, leaf: &Leaf) -> Option<Forms> {
        let Talked::Takes(values) = self.talk_with(leaf) else {
            return Some(Forms { shape: Shape::Any, values: Vec::new() });
        };
        let path = self.path_of(&leaf.key.0);
        let mut asking = Asking { answers: self, leaf, path, any: BTreeSet::new(), whole: None };
        let (mut forms, mut read): (Vec<Form>, Vec<Form>) = Default::default();
        let hidden = asking.hidden(&values);
        for value in values {
            let (written, only_read) = asking.forms_of(&value)?;
            written.into_iter().for_each(|form| add(&mut forms, form));
            only_read.into_iter().for_each(|form| add(&mut read, form));
        }
        read.retain(|(shape, _)| !forms.iter().any(|(written, _)| written == shape));
        if forms.is_empty() || forms.len() + read.len() > MAX_FORMS {
            return None;
        }
        asking.as_tried(&mut forms);
        asking.in_order(&mut forms);
        let values = forms.iter().chain(&read).map(|(_, value)| value.clone()).collect();
        let shapes = |forms: Vec<Form>| forms.into_iter().map(|(shape, _)| shape);
        let (mut written, read): (Vec<_>, Vec<_>) =
            (shapes(forms).collect(), shapes(read).collect());
        // Of an alternative without a value nothing is known but that it is there.
        written.extend(std::iter::repeat_n(Shape::Enum(Vec::new()), hidden));
        let shape = match written.len() {
            1 if read.is_empty() => written.remove(0),
            _ => Shape::Union { written, read },
        };
        Some(Forms { shape, values })
    }
}

impl Asking<'_, '_> {
    pub(super) fn takes(&mut self, value: &Value) -> bool {
        self.answers.gives(self.leaf, value)
    }

    pub(super) fn echo(&mut self, value: &Value) -> Option<Echo> {
        let attempt = self.answers.with_forced(self.leaf, Forced::Given(value.clone()));
        let written: Value = serde_json::from_str(&attempt.built?.1).ok()?;
        let json = at(&written, &self.path)?.clone();
        let written = self.answers.written.take()?.at(&self.path)?.clone();
        Some(Echo { json, written })
    }

    /// The forms of which this value is one, and those that are read and never written. `None`: they cannot be
    /// told.
    fn forms_of(&mut self, value: &Value) -> Option<(Vec<Form>, Vec<Form>)> {
        let Echo { json, written } = self.echo(value)?;
        let is_scalar = |value: &Value| !value.is_object() && !value.is_array();
        if is_scalar(value) {
            if json == *value {
                let shape = self.scalar(value, &[], value, Some(written))?;
                return Some((vec![(shape, json)], Vec::new()));
            }
            let shape = self.scalar(value, &[], value, None)?;
            let written = match self.echo(&json)?.json == json && is_scalar(&json) {
                true => self.forms_of(&json)?.0,
                false => Vec::new(),
            };
            return Some((written, vec![(shape, value.clone())]));
        }
        let base = self.filled(json)?;
        let mut values = vec![base.clone()];
        let mut other_names: Vec<(Path, &str, Value)> = Vec::new();
        let written = self.echo(&base)?.written;
        for place in places(&base).into_iter().filter(|place| !written.holds_itself(place)) {
            if !matches!(at(&base, &place), Some(Value::String(_) | Value::Object(_))) {
                continue;
            }
            let here = self.answers.variants_at(self.leaf, &base, &place);
            for name in here.into_iter().flatten() {
                let Some(value) = self.with_variant(&base, &place, name) else { continue };
                // It is another name of one that is written.
                if at(&value, &place)
                    .and_then(Value::as_str)
                    .is_some_and(|written| written != *name)
                {
                    other_names.push((place.clone(), name, value.clone()));
                }
                values.push(value);
            }
        }
        let mut forms: Vec<Form> = Vec::new();
        for value in values {
            let Echo { json, written } = self.echo(&value)?;
            self.whole = Some(written.clone());
            let shape = self.shape(&json, &mut Vec::new(), &written)?;
            add(&mut forms, (shape, json));
        }
        let mut read: Vec<Form> = Vec::new();
        for (place, name, value) in other_names {
            let written = self.echo(&value)?.written;
            let sent = Trial::with(&value, &place, name.into())?.value;
            self.whole = Some(written.clone());
            let mut shape = self.shape(&value, &mut Vec::new(), &written)?;
            if under_another_name(&mut shape, &place, name).is_some() && self.takes(&sent) {
                add(&mut read, (shape, sent));
            }
        }
        Some((forms, read))
    }

    /// By their tag, as it was declared.
    fn in_order(&mut self, forms: &mut [Form]) {
        let Some((Shape::Struct { fields, .. }, value)) = forms.first().cloned() else { return };
        for Field { name, .. } in fields {
            let word = |form: &Shape| {
                let Shape::Struct { fields, .. } = form else { return None };
                let tag = fields.iter().find(|field| field.name == name)?;
                let Shape::Enum(variants) = &tag.shape else { return None };
                variants.first().map(|variant| variant.name.clone())
            };
            if forms.iter().all(|(form, _)| word(form).is_some())
                && let Some(names) =
                    self.answers.variants_at(self.leaf, &value, std::slice::from_ref(&name))
            {
                forms.sort_by_key(|(form, _)| {
                    names.iter().position(|n| word(form).as_deref() == Some(*n))
                });
                return;
            }
        }
    }

    /// The value with another variant at a place, as it is written.
    pub(super) fn with_variant(
        &mut self,
        base: &Value,
        place: &[String],
        name: &str,
    ) -> Option<Value> {
        let bare = Trial::with(base, place, name.into())?;
        let mut holding = Trial::with(base, place, json!({ name: null }))?;
        holding.cursor.as_mut()?.push(name.to_owned());
        let leaf = self.leaf;
        let found = self.answers.first(leaf, vec![bare, holding], |_, _| true)?;
        let json = self.echo(&found)?.json;
        self.filled(json)
    }

    /// The value with something in each of its members that is empty; `None` where it is not read as written.
    pub(super) fn filled(&mut self, mut base: Value) -> Option<Value> {
        if self.echo(&base)?.json != base {
            return None;
        }
        let mut seen: BTreeSet<Path> = BTreeSet::new();
        for _ in 0..MAX_FILLED {
            let written = self.echo(&base)?.written;
            let is_empty = |place: &Path| {
                at(&base, place).is_some_and(is_empty) && !written.holds_itself(place)
            };
            let mut empty = places(&base).into_iter().filter(is_empty);
            let Some(place) = empty.find(|place| !seen.contains(place)) else { break };
            if let Some(filled) = self.filled_at(&base, &place) {
                base = filled;
            }
            seen.insert(place);
        }
        Some(base)
    }

    fn filled_at(&mut self, base: &Value, place: &Path) -> Option<Value> {
        let (wrap, step): (fn(Value) -> Value, _) = match at(base, place)? {
            Value::Array(_) => (|inner| json!([inner]), Some("0")),
            Value::Object(_) => (|inner| json!({ "a": inner }), Some("a")),
            _ => (|inner| inner, None),
        };
        let inner: Path = place.iter().cloned().chain(step.map(str::to_owned)).collect();
        let trials: Vec<Trial> = kinds()
            .into_iter()
            .filter_map(|kind| {
                let trial = Trial::with(base, place, wrap(kind))?;
                Some(Trial { cursor: Some(inner.clone()), ..trial })
            })
            .collect();
        // What takes each kind, and gives it back, is of no form.
        let is_kept = |asking: &mut Self, trial: &Trial| {
            asking.takes(&trial.value)
                && asking.echo(&trial.value).is_some_and(|echo| echo.json == trial.value)
        };
        if trials.iter().all(|trial| is_kept(self, trial)) {
            self.any.insert(inner);
            return None;
        }
        self.kept(trials, &inner)
    }

    /// The first value of which something is kept at this place, as it is written.
    pub(super) fn kept(&mut self, trials: Vec<Trial>, place: &[String]) -> Option<Value> {
        let mut echoes = Vec::new();
        let (leaf, path) = (self.leaf, self.path.clone());
        self.answers.first(leaf, trials, |answers, value| {
            let mut asking =
                Asking { answers, leaf, path: path.clone(), any: BTreeSet::new(), whole: None };
            let echo = asking.echo(value).map(|echo| echo.json);
            let is_filled = |json: &Value| at(json, place).is_some_and(|part| !part.is_null());
            echoes = echo.into_iter().filter(is_filled).collect();
            echoes.first().is_some_and(|json| asking.takes(json))
        })?;
        echoes.pop()
    }
}

/// The shape with another variant at a place, of the same form.
fn under_another_name(shape: &mut Shape, place: &[String], name: &str) -> Option<()> {
    match (shape, place.split_first()) {
        (Shape::Enum(variants), None) => variants.first_mut()?.name = name.to_owned(),
        (Shape::Struct { fields, .. }, Some((step, place))) => {
            let field = fields.iter_mut().find(|field| field.name == *step)?;
            return under_another_name(&mut field.shape, place, name);
        }
        _ => return None,
    }
    Some(())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(elements) => elements.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// The places in a value, the outer ones first.
fn places(value: &Value) -> Vec<Path> {
    fn walk(value: &Value, path: &mut Path, found: &mut Vec<Path>) {
        found.push(path.clone());
        let parts: Vec<(String, &Value)> = match value {
            Value::Array(elements) => {
                elements.iter().enumerate().map(|(index, part)| (index.to_string(), part)).collect()
            }
            Value::Object(members) => {
                members.iter().map(|(name, part)| (name.clone(), part)).collect()
            }
            _ => Vec::new(),
        };
        for (step, part) in parts {
            path.push(step);
            walk(part, path, found);
            path.pop();
        }
    }
    let mut found = Vec::new();
    walk(value, &mut Vec::new(), &mut found);
    found
}
