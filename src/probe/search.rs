//! The search for a value that a type takes: what is changed where it refuses one.
//!
//! A failure belongs to the innermost place at which all questions were answered and the type refused the
//! whole: only answers within that place are changed. So the work grows with the number of places, and not
//! with the number of their combinations, and one place that refuses everything does not hide the others.

use super::answer::{Answers, Attempt};
use super::asked::{Frame, Ways, is_inside};
use super::hints::Refused;
use super::{Built, Pass};

/// So often a value is asked for in one pass at most.
const MAX_ATTEMPTS: usize = 5000;

/// So many answers are tried at one place at most.
const MAX_TRIES: usize = 200;

impl Answers<'_> {
    /// Finds a value of `T`, or what of it can be asked without one, and remembers it.
    pub(super) fn settle(&mut self) -> Pass {
        self.begin_pass();
        for _ in 0..MAX_ATTEMPTS {
            if self.attempt().built.is_some() {
                break;
            }
            // What was failed at is asked again afterwards.
            if self.converse() {
                continue;
            }
            if !self.step() {
                break;
            }
        }
        let (pass, is_built) = self.record();
        let others = if is_built { self.others() } else { Vec::new() };
        match pass {
            Pass { shape, built: Some(built) } => {
                Pass { shape, built: Some(Built { others, ..built }) }
            }
            pass => pass,
        }
    }

    /// Changes an answer after a failure: `false` where there is nothing left to change.
    fn step(&mut self) -> bool {
        let why = self.why.take();
        if why == Some(Refused::Flattened) || std::mem::take(&mut self.has_left_out) {
            // The type is asked as a whole; one of the two names is left out from now on.
            return true;
        }
        if why == Some(Refused::NotYet) {
            return self.another_variant();
        }
        for frame in std::mem::take(&mut self.failed) {
            if self.blocked.contains(&frame.path) {
                continue;
            }
            let holds_blocked = self.blocked.iter().any(|path| is_inside(path, &frame.path));
            let tries = self.tries.entry(frame.path.clone()).or_default();
            *tries += 1;
            let is_hopeless = holds_blocked && why == Some(Refused::Missing);
            let ways = if holds_blocked { Ways::Around } else { Ways::All };
            if !is_hopeless && *tries <= MAX_TRIES && self.advance(&frame, ways) {
                return true;
            }
            // Given up: from now on it is left out.
            self.begin_anew(&frame);
            self.record();
            self.blocked.insert(frame.path);
            return true;
        }
        false
    }

    /// A type holds itself, and none of its variants is known to come to an end: another one is tried, and
    /// only then an empty list, which would not show what is in it.
    fn another_variant(&mut self) -> bool {
        let frames = std::mem::take(&mut self.failed);
        for ways in [Ways::Variants, Ways::Around] {
            if frames.iter().any(|frame| self.advance(frame, ways)) {
                return true;
            }
        }
        false
    }

    /// Goes on to the next answers within a place, the last of them first.
    fn advance(&mut self, frame: &Frame, ways: Ways) -> bool {
        let asked = self.log.get(frame.start..frame.end).unwrap_or_default();
        let mut used_up = Vec::new();
        for question in asked.iter().rev() {
            if question.ways < ways {
                continue;
            }
            if question.taken + 1 < question.of {
                self.chosen.insert(question.key.clone(), question.taken + 1);
                self.chosen.retain(|key, _| !used_up.contains(key));
                return true;
            }
            used_up.push(question.key.clone());
        }
        false
    }

    /// The first answers again, within a place.
    fn begin_anew(&mut self, frame: &Frame) {
        let asked = self.log.get(frame.start..frame.end).unwrap_or_default();
        for question in asked {
            self.chosen.remove(&question.key);
        }
    }

    /// Tries out what the places of the last attempt take, and remembers what was seen of the types. Says
    /// whether there is a value.
    fn record(&mut self) -> (Pass, bool) {
        self.has_value = self.attempt().built.is_some();
        self.explore();
        let Attempt { shape, built, .. } = self.attempt();
        let places = self.keep();
        let built = built.map(|(input, sample)| {
            let others = Vec::new();
            Built { input, places, sample, others }
        });
        let is_built = built.is_some();
        (Pass { shape, built }, is_built)
    }

    /// How many variants are known, of all types.
    pub(super) fn built(&mut self) -> usize {
        let built = |named: &super::catalogue::NamedType| named.built.len();
        self.catalogue().types.iter().map(built).sum()
    }

    /// In which order the variants of an enum are asked for: those that were not built yet first, then those
    /// that lead to others.
    pub(super) fn order_of_variants(&self, index: usize, count: usize) -> Vec<usize> {
        let catalogue = self.known();
        let built = &catalogue.types[index].built;
        if self.is_within(index) {
            // It holds itself: what was built first is known to come to an end without the others.
            return built.clone();
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|variant| {
            let is_built = built.contains(variant);
            (is_built, is_built && !catalogue.leads_on(index, *variant))
        });
        order
    }
}
