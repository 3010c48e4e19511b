//! Parts of stored values that come and go, or are read as something else, where the value is read all the same.

use super::Pair;
use super::values::PARAMETERS;
use crate::alternatives::TakenOver;
use crate::finding::Finding;
use crate::lint::Lint;
use crate::lock::Locked;
use crate::members::{MemberChange, Typed, changes};

impl Pair<'_> {
    /// Members that come and go where the stored value is read all the same.
    pub(super) fn members(
        &self,
        old: Typed<'_>,
        new: Typed<'_>,
        phase: Option<&Locked>,
        what: &str,
        behind: impl Fn() -> Vec<String>,
    ) -> Vec<Finding> {
        let keeps = match what {
            PARAMETERS => {
                "rows and retries keep the fingerprint and the derived keys that they were born with"
            }
            _ => "where it is not stored it reads as its default",
        };
        let of = |path: &str| match path {
            "" => what.to_owned(),
            path => format!("{path} of {what}"),
        };
        let of_change = |change: MemberChange| {
            let (lint, change, in_flight) = match change {
                MemberChange::Added(path) => (
                    Lint::MemberAdded,
                    format!("{path} of {what} is new, and may be absent: {keeps}"),
                    "where it is not stored it reads as its default",
                ),
                MemberChange::Dropped(path) => (
                    Lint::MemberDropped,
                    format!("what is stored as {path} of {what} is passed over"),
                    "each row that has stored it goes on without it",
                ),
                MemberChange::Renamed(path, now) => (
                    Lint::MemberRenamed,
                    format!("{path} of {what} is gone, and `{now}` has come, of the same form"),
                    "what a row has stored under the earlier name is passed over, and its default is read",
                ),
                MemberChange::ReadAsAnother(path, TakenOver { wrote, reads }) => (
                    Lint::AlternativeTaken,
                    format!("{} that was stored as `{wrote}` is read as `{reads}`", of(&path)),
                    "each row that has stored such a value goes on with another alternative than it was written as",
                ),
                MemberChange::Rounded(path) => (
                    Lint::NumberRounded,
                    format!("{} is read as a float that has not all its digits", of(&path)),
                    "each row that has stored such a number goes on with another one",
                ),
                MemberChange::Hidden(path) => (
                    Lint::AlternativeHidden,
                    format!("no value is known of an alternative of {}", of(&path)),
                    "a row whose value an earlier alternative takes now goes on with that one",
                ),
                MemberChange::AliasDropped(path, alias) => (
                    Lint::AliasDropped,
                    format!("{path} of {what} is not read under its name `{alias}` any more"),
                    "what was stored under that name is passed over, or does not decode",
                ),
                MemberChange::Widened(path) => (
                    Lint::NumberRounded,
                    format!("{} is read with digits that were not kept before", of(&path)),
                    "each row goes on with the number that it has stored",
                ),
                MemberChange::DefaultChanged(path) => (
                    Lint::DefaultChanged,
                    format!("{path} of {what} is another value where it is absent"),
                    "each row goes on with the value that it was born with",
                ),
                MemberChange::DefaultDropped(path) => (
                    Lint::DefaultDropped,
                    format!("{path} of {what} could be absent, and has to be there"),
                    "what was stored before that member came does not decode",
                ),
            };
            let points = match lint.level() >= crate::Level::Deny {
                true => behind(),
                false => Vec::new(),
            };
            Finding { in_flight: in_flight.to_owned(), points, ..self.finding(lint, phase, change) }
        };
        // What is stored has the default that it was born with. Who sends it again has not.
        let is_told = |change: &MemberChange| {
            what == PARAMETERS
                || !matches!(change, MemberChange::DefaultChanged(_) | MemberChange::Widened(_))
        };
        changes(old, new).into_iter().filter(is_told).map(of_change).collect()
    }
}
