//! Parts of stored values that come and go, or are read as something else, where the value is read all the same.

use super::Pair;
use super::values::PARAMETERS;
use crate::Level;
use crate::alternatives::TakenOver;
use crate::finding::Finding;
use crate::lint::Lint;
use crate::lock::Locked;
use crate::members::{MemberChange, Typed, changes, changes_for_clients};

pub(super) const OUTPUT: &str = "its output";

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
        // What is stored has the default that it was born with. Who sends it again has not.
        let is_told = |change: &MemberChange| {
            let is_of_retries = matches!(
                change,
                MemberChange::DefaultChanged(_)
                    | MemberChange::ByChance(_)
                    | MemberChange::ToldApart(_)
                    | MemberChange::Fingerprinted(_)
                    | MemberChange::Closed(_)
            );
            what == PARAMETERS || !is_of_retries
        };
        let of_change = |change: MemberChange| {
            let earlier = match &change {
                MemberChange::Renamed(path, _) => path.rsplit('.').next().map(str::to_owned),
                _ => None,
            };
            let (lint, change, in_flight) = describe(change, what);
            let points = if lint.level() >= Level::Deny { behind() } else { Vec::new() };
            Finding {
                in_flight: in_flight.to_owned(),
                points,
                earlier,
                ..self.finding(lint, phase, change)
            }
        };
        let changes = if what == PARAMETERS { changes_for_clients } else { changes };
        changes(old, new).into_iter().filter(is_told).map(of_change).collect()
    }
}

/// Its lint, what it is, and what becomes of rows in flight.
pub(super) fn describe(change: MemberChange, what: &str) -> (Lint, String, &'static str) {
    let keeps = match what {
        PARAMETERS => "existing rows and their retries keep their fingerprint and derived keys",
        _ => "where it is not stored, it is read as its default",
    };
    let and_clients = match what {
        PARAMETERS => "; a client that sent it before it was known gets a mismatch",
        _ => "",
    };
    let unreadable = match what {
        PARAMETERS => Lint::RequestUnreadable,
        OUTPUT => Lint::OutputUnreadable,
        _ => Lint::JobUnreadable,
    };
    let of = |path: &str| match path {
        "" => what.to_owned(),
        path => format!("{path} of {what}"),
    };
    match change {
        MemberChange::Added(path) => (
            Lint::MemberAdded,
            format!("{path} of {what} is new, and may be absent: {keeps}{and_clients}"),
            "where it is not stored, it is read as its default",
        ),
        MemberChange::Dropped(path) => (
            Lint::MemberDropped,
            format!("what is stored as {} is passed over", of(&path)),
            "each row that has stored it continues without it",
        ),
        MemberChange::Renamed(path, now) => (
            Lint::MemberRenamed,
            format!("{path} of {what} is gone, and `{now}` has come, of the same form"),
            "what a row has stored under the earlier name is passed over, and its default is read",
        ),
        MemberChange::ReadAsAnother(path, TakenOver { wrote, reads }) => (
            Lint::AlternativeTaken,
            format!("{} that was stored as `{wrote}` is read as `{reads}`", of(&path)),
            "each row that has stored such a value continues with another alternative than it was written as",
        ),
        MemberChange::Rounded(path) => (
            Lint::NumberRounded,
            format!("{} is read as a float that has not all its digits", of(&path)),
            "each row that has stored such a number continues with another one",
        ),
        MemberChange::Hidden(path) => (
            Lint::AlternativeHidden,
            format!("no value is known of an alternative of {}", of(&path)),
            "a row whose value an earlier alternative takes now continues with that one",
        ),
        MemberChange::AliasDropped(path, alias) if what == PARAMETERS => (
            Lint::RetryRefused,
            format!("{path} of {what} is not read under its name `{alias}` any more"),
            "each row continues; what was stored under that name, by the build that wrote it so, is passed over, or does not decode",
        ),
        MemberChange::FormDropped(path) if what == PARAMETERS => (
            Lint::RetryRefused,
            format!("a form in which {} was read is no longer read", of(&path)),
            "each row continues; what was stored in that form, before the build that only read it, does not decode",
        ),
        MemberChange::AliasDropped(path, alias) => (
            Lint::AliasDropped,
            format!("{path} of {what} is not read under its name `{alias}` any more"),
            "what was stored under that name is passed over, or does not decode",
        ),
        MemberChange::FormDropped(path) => (
            Lint::AliasDropped,
            format!("a form in which {} was read is no longer read", of(&path)),
            "what was stored in that form, before the build that only read it, does not decode",
        ),
        MemberChange::ToldApart(path) => (
            Lint::RetryDiffers,
            format!("forms of {} that were read as the same are now distinguished", of(&path)),
            "each row continues with its stored value",
        ),
        MemberChange::Fingerprinted(path) => (
            Lint::RetryDiffers,
            format!("{path} of {what} was not part of the fingerprint, and now is"),
            "each row continues with its stored value",
        ),
        MemberChange::Closed(path) => (
            Lint::MembersRefused,
            format!("{} refuses members that it does not know", of(&path)),
            "every row continues",
        ),
        MemberChange::WasUnknown(path) => (
            unreadable,
            format!(
                "{path} of {what} has a type, and what was stored under that name was kept whatever it was"
            ),
            "each row that has stored something else there does not decode, until the attempt cap",
        ),
        MemberChange::Ruled(path) => (
            unreadable,
            format!("a rule has come that refuses what {} could be", of(&path)),
            "each row that has stored such a value does not decode, until the attempt cap",
        ),
        MemberChange::ByChance(path) => (
            Lint::FingerprintUnstable,
            format!("{} is another value each time that it is read", of(&path)),
            "each row continues with its original value",
        ),
        MemberChange::DefaultChanged(path) => (
            Lint::DefaultChanged,
            format!("{path} of {what} is another value where it is absent"),
            "each row continues with its original value",
        ),
        MemberChange::LeftOutChanged(path) => (
            Lint::DefaultChanged,
            format!(
                "{path} of {what} is another value where it is absent, and was not stored where it was that"
            ),
            "each row that has left it out continues with another value than it was born with, also in a call that it repeats",
        ),
        MemberChange::DefaultDropped(path) if what == PARAMETERS => (
            Lint::RetryRefused,
            format!("{path} of {what} could be absent, and has to be there"),
            "each row that has stored it continues",
        ),
        MemberChange::DefaultDropped(path) => (
            Lint::DefaultDropped,
            format!("{path} of {what} could be absent, and has to be there"),
            "what was stored before that member came does not decode",
        ),
    }
}
