//! In which order the alternatives of a type are tried: serde takes the first of an `untagged` enum that fits. It is
//! told by what is [said](super::hints) before a value is taken, because each alternative that refuses it makes an
//! error.

use std::collections::BTreeSet;

use serde_json::Value;

use super::candidates::kinds;
use super::forms::Asking;
use super::hints::Hint;
use super::join::Form;
use atomic_phases_compat::{StrFormat, TEXTS};

impl Asking<'_, '_> {
    /// How often it is refused before it is taken; `None` where it is not.
    pub(super) fn refusals(&mut self, value: &Value) -> Option<usize> {
        let is_taken = self.takes(value);
        let heard = std::mem::take(&mut self.answers.heard);
        is_taken.then_some(heard.len())
    }

    /// The alternative that is tried first comes first.
    pub(super) fn as_tried(&mut self, forms: &mut [Form]) {
        forms.sort_by_cached_key(|(_, value)| self.refusals(value));
    }

    /// The strings that the alternative takes which takes this one.
    pub(super) fn format_of_alternative(&mut self, text: &str) -> StrFormat {
        let Some(here) = self.refusals(&text.into()) else { return StrFormat::OWN };
        let mut taken: Vec<(usize, bool, usize)> = Vec::new();
        for (nth, (_, example)) in TEXTS.into_iter().enumerate() {
            let Some(refusals) = self.refusals(&example.into()) else { continue };
            let echo = self.echo(&example.into());
            taken.push((nth, echo.is_some_and(|echo| echo.json != example), refusals));
        }
        // What alternatives before it take first, they write as they do.
        let format = |is_of_it: &dyn Fn(usize) -> bool| {
            let of_it = taken.iter().filter(|(.., refusals)| is_of_it(*refusals));
            let trial = |(nth, is_changed, refusals): &(usize, bool, usize)| {
                (*nth, *is_changed && *refusals == here)
            };
            StrFormat::of(of_it.map(trial))
        };
        let (of_it, up_to_it) =
            (format(&|refusals| refusals == here), format(&|refusals| refusals <= here));
        match (of_it.is_known(), up_to_it.is_known()) {
            (false, true) => up_to_it,
            _ => of_it,
        }
    }

    /// How many alternatives are known by their refusals only: none of these values is theirs.
    pub(super) fn hidden(&mut self, values: &[Value]) -> usize {
        let found: BTreeSet<usize> =
            values.iter().filter_map(|value| self.refusals(value)).collect();
        let mut least = None;
        for kind in kinds() {
            if self.takes(&kind) {
                continue;
            }
            // Each alternative refuses by its own words, and the type as a whole by others.
            let heard = std::mem::take(&mut self.answers.heard);
            let alternatives = heard.iter().filter(|hint| **hint != Hint::Other).count();
            least = Some(least.map_or(alternatives, |least: usize| least.min(alternatives)));
        }
        least.unwrap_or_default().saturating_sub(found.len())
    }
}
