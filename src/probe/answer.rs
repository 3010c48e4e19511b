//! [`Answers`]: what a type was answered, and what is answered next.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::asked::{
    Asked, Forced, Frame, Key, Leaf, LeafId, LeafKind, Owner, STEP, Ways, is_inside,
};
use super::candidates::kinds;
use super::catalogue::OtherName;
use super::fact::{Fact, Talked};
use super::hints::{Hint, Refused};
use super::written::Written;
use super::{Catalogue, Place, ValueType};
use atomic_phases_compat::Shape;

pub(super) struct Within {
    pub(super) index: usize,
    variant: Option<usize>,
    depth: usize,
}

/// What was made of an attempt.
pub(super) struct Attempt {
    pub(super) shape: Shape,
    /// Whether the type took what it was given, be it as JSON or not.
    pub(super) is_taken: bool,
    /// What the type was given.
    pub(super) input: Value,
    /// What the type was given, and the value as it writes it.
    pub(super) built: Option<(Value, String)>,
}

/// What the type was answered.
pub(super) struct Answers<'c> {
    pub(super) of: ValueType,
    pub(super) catalogue: &'c mut Catalogue,
    /// Samples of the application, and the strings in them.
    pub(super) given: &'c [Value],
    pub(super) words: &'c [String],
    /// Whether the least value is tried first.
    pub(super) least: bool,

    // As long as a type is asked.
    pub(super) chosen: BTreeMap<Key, usize>,
    pub(super) blocked: BTreeSet<String>,
    pub(super) left_out: BTreeSet<String>,
    /// Whether one more name is left out since the last attempt.
    pub(super) has_left_out: bool,
    /// Places of types that are asked as a whole, because they do not tell their members.
    pub(super) wholes: BTreeSet<String>,
    /// Of a pass.
    pub(super) tries: BTreeMap<String, usize>,
    pub(super) orders: BTreeMap<Key, Vec<usize>>,
    pub(super) forced: Option<(Key, Forced)>,
    pub(super) was_forced: bool,
    /// Whether there is a value, so that what is refused beside what is tried is refused by a rule.
    pub(super) has_value: bool,

    // Of one attempt.
    pub(super) log: Vec<Asked>,
    /// The innermost first.
    pub(super) failed: Vec<Frame>,
    pub(super) why: Option<Refused>,
    pub(super) leaves: Vec<Leaf>,
    /// What was said of a value that is tried out, and how it is written.
    pub(super) heard: Vec<Hint>,
    pub(super) listens_at: Option<String>,
    pub(super) written: Option<Written>,
    asked_at: BTreeMap<String, u32>,
    /// The named types that are being answered, the outermost first.
    pub(super) within: Vec<Within>,
    pub(super) path: Vec<String>,
    places: Vec<Place>,
    pub(super) found: Vec<(usize, Shape)>,
}

impl<'c> Answers<'c> {
    pub(super) fn new(
        of: ValueType,
        catalogue: &'c mut Catalogue,
        least: bool,
        given: &'c [Value],
        words: &'c [String],
    ) -> Self {
        Self {
            of,
            catalogue,
            given,
            words,
            least,
            chosen: BTreeMap::new(),
            blocked: BTreeSet::new(),
            left_out: BTreeSet::new(),
            has_left_out: false,
            wholes: BTreeSet::new(),
            tries: BTreeMap::new(),
            orders: BTreeMap::new(),
            forced: None,
            was_forced: false,
            has_value: false,
            log: Vec::new(),
            failed: Vec::new(),
            why: None,
            leaves: Vec::new(),
            heard: Vec::new(),
            listens_at: None,
            written: None,
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

    /// A value of the type by the answers of now.
    pub(super) fn attempt(&mut self) -> Attempt {
        self.log.clear();
        self.has_left_out = false;
        self.failed.clear();
        self.why = None;
        self.leaves.clear();
        self.heard.clear();
        self.listens_at = None;
        self.written = None;
        self.asked_at.clear();
        self.within.clear();
        self.path.clear();
        self.places.clear();
        self.found.clear();
        let of = self.of;
        let (is_taken, shape, input) = of.answered(self);
        // As it would be read from a row.
        let json = is_taken.then(|| serde_json::to_string(&input).ok()).flatten();
        let sample = json.and_then(|json| of.rewritten(&json));
        if sample.is_none() && self.failed.is_empty() {
            let (path, start, end) = (String::new(), 0, self.log.len());
            let id = self.id_of(&(path.clone(), 0));
            self.failed.push(Frame { path, id, start, end });
        }
        let built = sample.map(|sample| (input.clone(), sample));
        Attempt { shape, is_taken, input, built }
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

    pub(super) fn here(&self) -> String {
        self.path.join(&STEP.to_string())
    }

    /// What the rule of this place refuses, if it has one.
    pub(super) fn rule_here(&self) -> Option<Vec<Value>> {
        let rules = &self.catalogue.rules;
        if rules.is_empty() {
            return None;
        }
        rules.get(&self.id_of(&(self.here(), 0))).cloned()
    }

    /// Whatever was asked within a place is asked for once more, as if it had not been.
    pub(super) fn ask_again(&mut self, place: &str) {
        self.asked_at.retain(|path, _| path != place && !is_inside(path, place));
    }

    /// The place around this one.
    pub(super) fn outside(&self) -> String {
        let steps = self.path.len().saturating_sub(1);
        self.path.get(..steps).unwrap_or_default().join(&STEP.to_string())
    }

    pub(super) fn inside(&self, step: &str) -> String {
        match self.path.is_empty() {
            true => step.to_owned(),
            false => format!("{}{STEP}{step}", self.here()),
        }
    }

    /// The steps of a place.
    pub(super) fn path_of(&self, place: &str) -> Vec<String> {
        match place {
            "" => Vec::new(),
            place => place.split(STEP).map(str::to_owned).collect(),
        }
    }

    /// What is tried where a type is asked as a whole.
    pub(super) fn candidates(&self, id: &LeafId) -> Vec<Value> {
        if let Some(Fact::Whole { values, .. }) = self.catalogue.facts.get(id)
            && !values.is_empty()
        {
            return values.clone();
        }
        match self.catalogue.talked.get(id) {
            Some(Talked::Takes(values)) if !values.is_empty() => values.clone(),
            _ => {
                let words = self.words.iter().map(|word| Value::from(word.as_str()));
                kinds().into_iter().chain(words).collect()
            }
        }
    }

    pub(super) fn place(
        &mut self,
        index: usize,
        variant: Option<usize>,
        members: &'static [&'static str],
    ) {
        self.places.push(Place { index, variant, path: self.path.clone(), members });
    }

    pub(super) fn content_place(&mut self, place: (usize, usize), fields: &'static [&'static str]) {
        self.place(place.0, Some(place.1), fields);
    }

    pub(super) fn enter(&mut self, index: usize, variant: Option<usize>) {
        if let Some(Within { index: outer, variant, .. }) = self.within.last() {
            self.catalogue.types[*outer].inside.entry(*variant).or_default().insert(index);
        }
        self.within.push(Within { index, variant, depth: self.path.len() });
    }

    /// The question that is asked now.
    pub(super) fn key(&mut self) -> Key {
        let here = self.here();
        let nth = self.asked_at.entry(here.clone()).or_default();
        *nth += 1;
        (here, *nth)
    }

    /// A name that is one of a member which has come under another name: `next` is it, and `of` what its type calls it.
    pub(super) fn leave_out(
        &mut self,
        fields: &[&'static str],
        next: &'static str,
        of: &'static str,
    ) {
        let member = self.inside(next);
        self.left_out.insert(member);
        self.has_left_out = true;
        // All names of one member stand side by side.
        let is_asked = |name: &&&'static str| !self.left_out.contains(&self.inside(name));
        let before = fields.iter().take_while(|name| **name != next);
        let asked = before.filter(is_asked).last().copied();
        if let (Some(asked), Some(within)) = (asked, self.within.last()) {
            let known = &mut self.catalogue.types[within.index];
            let names = known.other_names.entry(within.variant).or_default();
            names.insert(next, OtherName { asked, is_its_own: next == of });
        }
    }

    pub(super) fn leaf(&mut self, key: &Key, kind: LeafKind) -> Option<Fact> {
        let id = self.id_of(key);
        let fact = self.catalogue.facts.get(&id).cloned();
        self.leaves.push(Leaf { key: key.clone(), id, kind });
        fact
    }

    pub(super) fn id_of(&self, key: &Key) -> LeafId {
        let (owner, depth) = match self.within.last() {
            Some(Within { index, variant, depth }) => (Owner::Type(*index, *variant), *depth),
            None => (Owner::Probe(self.catalogue.probes), 0),
        };
        let path = self.path.get(depth..).unwrap_or_default().join(&STEP.to_string());
        LeafId { owner, path, nth: key.1 }
    }

    pub(super) fn forced(&mut self, key: &Key) -> Option<Forced> {
        let forced = self.forced.as_ref().filter(|(wanted, _)| wanted == key);
        let forced = forced.map(|(_, forced)| forced.clone());
        self.was_forced |= forced.is_some();
        forced
    }

    /// One of `of` candidates.
    pub(super) fn choose(&mut self, key: Key, of: usize, ways: Ways) -> usize {
        let taken = self.chosen.get(&key).copied().unwrap_or_default().min(of.saturating_sub(1));
        self.log.push(Asked { key, taken, of, ways });
        taken
    }

    /// Whether something is there, or nothing: that comes first for the least value.
    pub(super) fn chooses_some(&mut self) -> bool {
        let key = self.key();
        (self.choose(key, 2, Ways::Around) == 0) != self.least
    }

    /// Whether a type is being answered that holds itself: then there is none of what comes next.
    pub(super) fn is_recursive(&self) -> bool {
        let Some((last, before)) = self.within.split_last() else { return false };
        before.iter().any(|outer| outer.index == last.index)
    }

    /// Whether the type is being answered already.
    pub(super) fn is_within(&self, index: usize) -> bool {
        self.within.iter().any(|outer| outer.index == index)
    }
}
