//! [`Place`]: where in a block the server is, and what a block sets for its session.

use std::fmt::{self, Display, Formatter};

use super::session::Session;
use super::waits::WAIT_A_SECOND;

/// Where in the block the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has executed nothing.
    Nowhere,
    Reservation,
    /// At the savepoint that marks the transaction.
    Mark,
    Phase,
    Engine,
    /// The update was executed, and found no row.
    Guard,
    Commit,
}

/// What a block sets for its session, several settings at a time. In a block, a `SET` is as many statements as it has settings,
/// each of which costs as much as another short one; prepared under a name, it is one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Settings {
    /// Of a phase's statements, which come next.
    Phase,
    /// Of the engine's own, behind them.
    Engine,
    /// Of a session at rest.
    Rest,
}

impl Place {
    /// What the block stores in `@atomic_phases`: before the statements that it is about, and so never too late.
    pub(super) const fn number(self) -> i64 {
        match self {
            Self::Nowhere => 0,
            Self::Reservation => 1,
            Self::Phase => 2,
            Self::Engine => 3,
            Self::Guard => 4,
            Self::Commit => 5,
            Self::Mark => 6,
        }
    }

    /// An unknown number counts as the `COMMIT`.
    pub(super) fn of(number: Option<i64>) -> Self {
        [Self::Nowhere, Self::Reservation, Self::Mark, Self::Phase, Self::Engine, Self::Guard]
            .into_iter()
            .find(|place| Some(place.number()) == number)
            .unwrap_or(Self::Commit)
    }
}

impl Settings {
    /// The name of the statement, where the connection has it prepared.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Phase => "atomic_phases_phase",
            Self::Engine => "atomic_phases_engine",
            Self::Rest => "atomic_phases_rest",
        }
    }

    pub(super) fn text(self, session: &Session) -> String {
        match self {
            Self::Phase => come_to_with(Place::Phase, &session.server_lock_wait()).to_string(),
            Self::Engine => come_to_with(Place::Engine, WAIT_A_SECOND).to_string(),
            Self::Rest => session.at_rest_in_a_block().to_owned(),
        }
    }
}

/// The text that prepares what blocks set, under names: for a session that may have [named settings](Session::name_settings).
pub(super) fn preparing_settings(session: &Session) -> String {
    let prepare = |settings: Settings| {
        let text = settings.text(session).replace('\'', "''");
        format!("PREPARE {} FROM '{text}'", settings.name())
    };
    [Settings::Phase, Settings::Engine, Settings::Rest].map(prepare).join("; ")
}

/// The statement that notes where the block is, with the settings of a `SET`.
pub(super) struct Note<'a> {
    place: Place,
    settings: &'a str,
}

pub(super) fn come_to(place: Place) -> Note<'static> {
    Note { place, settings: "" }
}

pub(super) fn come_to_with(place: Place, set: &str) -> Note<'_> {
    Note { place, settings: set.strip_prefix("SET ").unwrap_or(set) }
}

impl Display for Note<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let comma = if self.settings.is_empty() { "" } else { ", " };
        write!(f, "SET @atomic_phases = {}{comma}{}", self.place.number(), self.settings)
    }
}
