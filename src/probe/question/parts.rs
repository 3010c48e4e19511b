//! What a [`Question`] for something with parts is answered, around the parts: compiled once, and not for each visitor.

use serde_json::{Map, Value};

use super::Question;
use crate::probe::asked::{Forced, LeafKind, UNKNOWN, Ways, is_inside};
use crate::probe::catalogue::NamedKind;
use crate::probe::fact::Fact;
use crate::probe::hints::Refused;
use atomic_phases_compat::{self as compat, OTHER, Shape, Variant};

/// How many elements are given, and whether each is asked for as the first is.
pub(super) struct List {
    pub(super) length: usize,
    pub(super) like_first: Option<String>,
    pub(super) seen: Seen,
}

/// What is known of a list.
pub(super) struct Seen(Option<Fact>);

impl Seen {
    pub(super) fn of(self, elements: Vec<Shape>) -> Shape {
        let element = elements.into_iter().next().unwrap_or(Shape::Opaque);
        Shape::List(match self.0 {
            Some(Fact::List(length, order)) => {
                compat::List { length, order, ..compat::List::of(element) }
            }
            _ => compat::List::of(element),
        })
    }
}

/// What the entries of a map came to.
pub(super) struct Found {
    pub(super) key: Shape,
    pub(super) value: Shape,
    pub(super) inputs: Map<String, Value>,
    /// Whether its keys are members of a struct.
    pub(super) is_flattened: bool,
}

/// The variant that is given.
pub(super) struct Drawn {
    pub(super) index: usize,
    pub(super) variant: usize,
    name: &'static str,
    /// Under which name.
    pub(super) told: &'static str,
    depth: usize,
    is_open: bool,
}

impl Question<'_, '_> {
    pub(super) fn flag(self) -> bool {
        *self.shape = Shape::Bool;
        let key = self.answers.key();
        let value = (self.answers.choose(key, 2, Ways::All) == 0) != self.answers.least;
        *self.input = value.into();
        value
    }

    pub(super) fn list(&mut self) -> List {
        let answers = &mut *self.answers;
        let first = answers.inside("0");
        let is_empty = answers.is_recursive() || answers.blocked.contains(&first);
        let mut length = usize::from(!is_empty && answers.chooses_some());
        let (mut like_first, mut seen) = (None, None);
        if !is_empty {
            let key = answers.key();
            seen = answers.leaf(&key, LeafKind::List);
            if let Some(Forced::Length(forced)) = answers.forced(&key) {
                (length, like_first) = (forced, Some(first));
            }
        }
        List { length, like_first, seen: Seen(seen) }
    }

    /// Whether the type is asked as a whole.
    pub(super) fn is_whole(&self) -> bool {
        self.answers.wholes.contains(&self.answers.here())
    }

    pub(super) fn count_of_entries(&mut self) -> usize {
        let here = self.answers.here();
        let is_blocked = self.answers.blocked.iter().any(|path| is_inside(path, &here));
        let is_empty = self.answers.is_recursive() || is_blocked;
        usize::from(!is_empty && self.answers.chooses_some())
    }

    pub(super) fn keep_entries(self, found: Found) {
        *self.shape = Shape::Map(Box::new(found.key), Box::new(found.value));
        *self.input = Value::Object(found.inputs);
        // The members of a flattened type are not those of a map.
        if found.is_flattened {
            let here = self.answers.here();
            self.answers.wholes.insert(here);
            *self.shape = Shape::Opaque;
        }
    }

    /// Which of the known types it is, and how many are around it.
    pub(super) fn enter_struct(
        &mut self,
        visitor: &'static str,
        name: &'static str,
        fields: &'static [&'static str],
    ) -> (usize, usize) {
        let index = self.answers.catalogue.index_of(visitor, name, fields, NamedKind::Struct);
        let depth = self.answers.within.len();
        self.answers.enter(index, None);
        self.answers.place(index, None, fields);
        (index, depth)
    }

    pub(super) fn keep_struct(self, (index, depth): (usize, usize), found: Shape, members: Value) {
        self.answers.within.truncate(depth);
        self.answers.found.push((index, found));
        *self.shape = Shape::Named(self.answers.catalogue.types[index].name.clone());
        *self.input = members;
    }

    pub(super) fn enter_variant(
        &mut self,
        visitor: &'static str,
        name: &'static str,
        variants: &'static [&'static str],
    ) -> Result<Drawn, Refused> {
        let Self { answers, shape, .. } = self;
        // The tag beside a content, whose type goes by it: both are asked as a whole.
        if visitor.contains("AdjacentlyTagged") {
            answers.wholes.insert(answers.outside());
            return Err(Refused::Flattened);
        }
        let index = answers.catalogue.index_of(visitor, name, variants, NamedKind::Enum);
        **shape = Shape::Named(answers.catalogue.types[index].name.clone());
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
        let is_open = answers.leaf(&key, LeafKind::Enum) == Some(Fact::Open(true));
        let is_tried_out = answers.forced(&key).is_some();
        let variant = order[answers.choose(key, order.len(), Ways::Variants)];
        let depth = answers.within.len();
        answers.enter(index, Some(variant));
        answers.place(index, Some(variant), &[]);
        let name = variants[variant];
        let told = if is_tried_out { UNKNOWN } else { name };
        Ok(Drawn { index, variant, name, told, depth, is_open })
    }

    pub(super) fn keep_variant(self, drawn: Drawn, content: Option<Shape>, inner: Value) {
        let Drawn { index, name, depth, is_open, .. } = drawn;
        self.answers.within.truncate(depth);
        *self.input = match content {
            None => name.into(),
            Some(_) => Value::Object([(name.to_owned(), inner)].into_iter().collect()),
        };
        let mut known = vec![Variant { name: name.to_owned(), content, only_read: false }];
        if is_open {
            known.push(Variant { name: OTHER.to_owned(), content: None, only_read: false });
        }
        self.answers.found.push((index, Shape::Enum(known)));
    }
}
