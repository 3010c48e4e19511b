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

const READ_AS_DEFAULT: &str = "where it is not stored, it is read as its default";

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
            let (lint, change, in_flight) = describe(&change, what);
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
pub(super) fn describe(change: &MemberChange, what: &str) -> (Lint, String, &'static str) {
    (lint(change, what), text(change, what), in_flight(change, what))
}

fn lint(change: &MemberChange, what: &str) -> Lint {
    match change {
        MemberChange::Added(_) => Lint::MemberAdded,
        MemberChange::Dropped(_) => Lint::MemberDropped,
        MemberChange::Renamed(..) => Lint::MemberRenamed,
        MemberChange::ReadAsAnother(..) => Lint::AlternativeTaken,
        MemberChange::Rounded(_) => Lint::NumberRounded,
        MemberChange::Hidden(_) => Lint::AlternativeHidden,
        // A client that still sends such parameters is refused.
        MemberChange::AliasDropped(..)
        | MemberChange::FormDropped(_)
        | MemberChange::DefaultDropped(_)
            if what == PARAMETERS =>
        {
            Lint::RetryRefused
        }
        MemberChange::AliasDropped(..) | MemberChange::FormDropped(_) => Lint::AliasDropped,
        MemberChange::DefaultDropped(_) => Lint::DefaultDropped,
        MemberChange::ToldApart(_) | MemberChange::Fingerprinted(_) => Lint::RetryDiffers,
        MemberChange::Closed(_) => Lint::MembersRefused,
        MemberChange::WasUnknown(_) | MemberChange::Ruled(_) => match what {
            PARAMETERS => Lint::RequestUnreadable,
            OUTPUT => Lint::OutputUnreadable,
            _ => Lint::JobUnreadable,
        },
        MemberChange::ByChance(_) => Lint::FingerprintUnstable,
        MemberChange::DefaultChanged(_) | MemberChange::LeftOutChanged(_) => Lint::DefaultChanged,
    }
}

/// What it is.
fn text(change: &MemberChange, what: &str) -> String {
    let of = |path: &str| match path {
        "" => what.to_owned(),
        path => format!("{path} of {what}"),
    };
    match change {
        MemberChange::Added(path) if what == PARAMETERS => format!(
            "{path} of {what} is new, and may be absent: existing rows and their retries keep their fingerprint and \
             derived keys; a client that sent it before it was known gets a mismatch"
        ),
        MemberChange::Added(path) => {
            format!("{path} of {what} is new, and may be absent: {READ_AS_DEFAULT}")
        }
        MemberChange::Dropped(path) => format!("what is stored as {} is passed over", of(path)),
        MemberChange::Renamed(path, now) => {
            format!("{path} of {what} is gone, and `{now}` has come, of the same form")
        }
        MemberChange::ReadAsAnother(path, TakenOver { wrote, reads }) => {
            format!("{} that was stored as `{wrote}` is read as `{reads}`", of(path))
        }
        MemberChange::Rounded(path) => {
            format!("{} is read as a float that has not all its digits", of(path))
        }
        MemberChange::Hidden(path) => {
            format!("no value is known of an alternative of {}", of(path))
        }
        MemberChange::AliasDropped(path, alias) => {
            format!("{path} of {what} is not read under its name `{alias}` any more")
        }
        MemberChange::FormDropped(path) => {
            format!("a form in which {} was read is no longer read", of(path))
        }
        MemberChange::ToldApart(path) => {
            format!("forms of {} that were read as the same are now distinguished", of(path))
        }
        MemberChange::Fingerprinted(path) => {
            format!("{path} of {what} was not part of the fingerprint, and now is")
        }
        MemberChange::Closed(path) => {
            format!("{} refuses members that it does not know", of(path))
        }
        MemberChange::WasUnknown(path) => format!(
            "{path} of {what} has a type, and what was stored under that name was kept whatever it was"
        ),
        MemberChange::Ruled(path) => {
            format!("a rule has come that refuses what {} could be", of(path))
        }
        MemberChange::ByChance(path) => {
            format!("{} is another value each time that it is read", of(path))
        }
        MemberChange::DefaultChanged(path) => {
            format!("{path} of {what} is another value where it is absent")
        }
        MemberChange::LeftOutChanged(path) => format!(
            "{path} of {what} is another value where it is absent, and was not stored where it was that"
        ),
        MemberChange::DefaultDropped(path) => {
            format!("{path} of {what} could be absent, and has to be there")
        }
    }
}

/// What becomes of rows in flight.
fn in_flight(change: &MemberChange, what: &str) -> &'static str {
    let is_of_parameters = what == PARAMETERS;
    match change {
        MemberChange::Added(_) => READ_AS_DEFAULT,
        MemberChange::Dropped(_) => "each row that has stored it continues without it",
        MemberChange::Renamed(..) => {
            "what a row has stored under the earlier name is passed over, and its default is read"
        }
        MemberChange::ReadAsAnother(..) => {
            "each row that has stored such a value continues with another alternative than it was written as"
        }
        MemberChange::Rounded(_) => {
            "each row that has stored such a number continues with another one"
        }
        MemberChange::Hidden(_) => {
            "a row whose value an earlier alternative takes now continues with that one"
        }
        MemberChange::AliasDropped(..) if is_of_parameters => {
            "each row continues; what was stored under that name, by the build that wrote it so, is passed over, or does not decode"
        }
        MemberChange::FormDropped(_) if is_of_parameters => {
            "each row continues; what was stored in that form, before the build that only read it, does not decode"
        }
        MemberChange::AliasDropped(..) => {
            "what was stored under that name is passed over, or does not decode"
        }
        MemberChange::FormDropped(_) => {
            "what was stored in that form, before the build that only read it, does not decode"
        }
        MemberChange::ToldApart(_) | MemberChange::Fingerprinted(_) => {
            "each row continues with its stored value"
        }
        MemberChange::Closed(_) => "every row continues",
        MemberChange::WasUnknown(_) => {
            "each row that has stored something else there does not decode, until the attempt cap"
        }
        MemberChange::Ruled(_) => {
            "each row that has stored such a value does not decode, until the attempt cap"
        }
        MemberChange::ByChance(_) | MemberChange::DefaultChanged(_) => {
            "each row continues with its original value"
        }
        MemberChange::LeftOutChanged(_) => {
            "each row that has left it out continues with another value than it was born with, also in a call that it repeats"
        }
        MemberChange::DefaultDropped(_) if is_of_parameters => {
            "each row that has stored it continues"
        }
        MemberChange::DefaultDropped(_) => {
            "what was stored before that member came does not decode"
        }
    }
}
