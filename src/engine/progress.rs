//! [`Progress`]: where a stored row stands in the phase list that this process knows.

use crate::definition::{Definition, STARTED};
use crate::phase::Outputs;

/// How many phases are done. A row may have been written under another phase list: phases that were
/// renamed (`was`) or added behind its recovery point do not touch it; anything else leaves it to a
/// node that knows it (G14).
pub(crate) fn phases_done(
    definition: &Definition,
    recovery_point: &str,
    outputs: &Outputs,
) -> Option<usize> {
    let done = outputs.len();
    let known = outputs.phases().enumerate().all(|(index, name)| {
        definition.phases.get(index).is_some_and(|phase| phase.is_called(name))
    });
    let stands_there = match done.checked_sub(1) {
        None => recovery_point == STARTED,
        Some(last) => {
            definition.phases.get(last).is_some_and(|phase| phase.is_called(recovery_point))
        }
    };
    // The last phase has a reply and no output: a row that has all outputs is of another list.
    (known && stands_there && done < definition.phases.len()).then_some(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{Isolation, Phase, PhaseKind};

    const fn local(name: &'static str, was: &'static [&'static str]) -> Phase {
        let kind = PhaseKind::Local(Isolation::ReadCommitted);
        Phase { name, was, kind, batch: false, commit: false, timeout: None }
    }

    fn done(phases: &'static [Phase], point: &str, stored: &[&str]) -> Option<usize> {
        let mut outputs = Outputs::default();
        for name in stored {
            outputs.push(name, serde_json::value::to_raw_value(&()).unwrap());
        }
        phases_done(&Definition { name: "d", version: 1, phases }, point, &outputs)
    }

    #[test]
    fn g14_a_row_of_the_same_list_resumes_after_its_recovery_point() {
        const LIST: &[Phase] = &[local("a", &[]), local("b", &[]), local("c", &[])];
        assert_eq!(done(LIST, "started", &[]), Some(0));
        assert_eq!(done(LIST, "a", &["a"]), Some(1));
        assert_eq!(done(LIST, "b", &["a", "b"]), Some(2));
    }

    #[test]
    fn g14_renamed_and_added_phases_do_not_strand_a_row() {
        const RENAMED: &[Phase] = &[local("first", &["a"]), local("b", &[]), local("c", &[])];
        assert_eq!(done(RENAMED, "a", &["a"]), Some(1));
        const LONGER: &[Phase] =
            &[local("a", &[]), local("new", &[]), local("b", &[]), local("c", &[])];
        assert_eq!(done(LONGER, "a", &["a"]), Some(1));
    }

    #[test]
    fn g14_a_row_that_this_list_cannot_explain_is_left_alone() {
        const LIST: &[Phase] =
            &[local("a", &[]), local("new", &[]), local("b", &[]), local("c", &[])];
        assert_eq!(done(LIST, "b", &["a", "b"]), None, "a phase was put before its recovery point");
        assert_eq!(done(LIST, "gone", &["a", "gone"]), None, "its phase was removed");
        assert_eq!(done(LIST, "b", &["a"]), None, "edited by hand");
        assert_eq!(done(LIST, "a", &[]), None, "outputs are missing");
        const SHORT: &[Phase] = &[local("a", &[])];
        assert_eq!(done(SHORT, "a", &["a"]), None, "nothing is left to reply");
    }
}
