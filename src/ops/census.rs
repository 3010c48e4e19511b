//! [`Tally`]: what a census found, as the gauges say it. A pure function of the counted rows and the definitions
//! that are registered here.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::request::phases;
use super::why::{HeldBy, next_window};
use crate::definition::Definition;
use crate::engine::{Core, StrandedBecause};
use crate::moment::wall_clock;
use crate::observe::OTHER;
use crate::store::census::{Census, CensusGroup, JobCensus, LOOKED_INTO};
use crate::store::{Status, Store};

/// How much is unfinished and does not run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// By definition and by what holds them.
    pub(crate) waiting: BTreeMap<(&'static str, &'static str), u32>,
    /// Since when the first waits, by what holds it: of those that wait for a reconcile function or an operator.
    pub(crate) oldest: BTreeMap<&'static str, DateTime<Utc>>,
    /// How many a worker could go on with now, and since when it could with the first.
    pub(crate) due: u32,
    pub(crate) oldest_due: Option<DateTime<Utc>>,
    /// By why this process does not go on with them.
    pub(crate) stranded: BTreeMap<&'static str, u32>,
    /// When the first of the calls that are to be repeated may not be any more (G11): of those that have waited for half
    /// of that time.
    pub(crate) next_window_end: Option<DateTime<Utc>>,
    pub(crate) jobs: JobCensus,
}

/// What holds the requests of a group, as [`why`](super::Ops::why) says it of each; `None`: a holder runs them.
fn held_by(group: &CensusGroup, stranded: Option<StrandedBecause>) -> Option<HeldBy> {
    Some(match (group.status.as_str(), &group.open_intent) {
        ("dead_letter", None) => HeldBy::DeadLetter,
        ("dead_letter", Some(_)) => HeldBy::DeadLetterUnknown,
        ("in_progress", _) if group.is_held => return None,
        (LOOKED_INTO, _) if group.is_held => HeldBy::UnknownAsked,
        _ if stranded.is_some() => HeldBy::Stranded(stranded?),
        ("unknown", Some(_)) if group.is_due.is_some() => HeldBy::UnknownAsked,
        (LOOKED_INTO, _) => HeldBy::UnknownAsked,
        ("unknown", _) => HeldBy::UnknownUnasked,
        ("in_progress", _) => HeldBy::EndedLease,
        ("failed_retryable", _) if group.is_paused => HeldBy::Paused,
        ("failed_retryable", _) if group.is_due == Some(true) => HeldBy::Due,
        ("failed_retryable", _) => HeldBy::BackOff,
        ("pending", _) => HeldBy::Accepted,
        // A status of a later build.
        _ => HeldBy::Stranded(StrandedBecause::NewerForm),
    })
}

impl<S: Store> Core<S> {
    pub(crate) fn tally(&self, census: &Census) -> Tally {
        let now = self.clock.reads().unwrap_or_else(wall_clock);
        let mut tally = Tally { jobs: census.jobs, ..Tally::default() };
        for group in &census.groups {
            let known = self.known_definition(&group.definition, group.version);
            let stranded = self.strands(group);
            let name = self.known_name(&group.definition).unwrap_or(OTHER);
            let window_end = known.as_ref().and_then(|known| self.window_end(group, known, now));
            let held_by = held_by(group, stranded);
            tally.add(group, name, held_by, window_end);
        }
        tally
    }

    /// Why this process goes on with none of the group's requests, as far as it is seen without their values.
    pub(crate) fn strands(&self, group: &CensusGroup) -> Option<StrandedBecause> {
        if Status::parse(&group.status).is_none() && group.status != LOOKED_INTO {
            // A status of a later build.
            return Some(StrandedBecause::NewerForm);
        }
        self.stranded_by_place((&group.definition, group.version), &group.into())
    }

    /// When the next call of the group's first request may not be repeated any more, if it has one and half of the time
    /// for it has passed: of a retry of the usual kind there is nothing to tell, however short its window is.
    fn window_end(
        &self,
        group: &CensusGroup,
        definition: &Definition,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let is_settled = matches!(group.status.as_str(), "unknown" | LOOKED_INTO | "dead_letter");
        let mut phases = phases(&group.into(), Some(definition)).into_iter();
        if is_settled || !phases.any(|phase| phase.may_have_been_called()) {
            return None;
        }
        let margin = self.settings.window_margin;
        let (_, whole) = next_window(definition, &group.recovery_point, margin)?;
        let whole = TimeDelta::from_std(whole).ok()?;
        let end = group.advanced_at.checked_add_signed(whole)?;
        (now >= end - whole / 2).then_some(end)
    }
}

impl Tally {
    fn add(
        &mut self,
        group: &CensusGroup,
        definition: &'static str,
        held_by: Option<HeldBy>,
        window_end: Option<DateTime<Utc>>,
    ) {
        let earlier = |known: Option<DateTime<Utc>>, time: DateTime<Utc>| {
            Some(known.map_or(time, |known| known.min(time)))
        };
        if let Some(end) = window_end {
            self.next_window_end = earlier(self.next_window_end, end);
        }
        let Some(held_by) = held_by else { return };
        *self.waiting.entry((definition, held_by.as_str())).or_default() += group.rows;
        match held_by {
            HeldBy::Stranded(because) => {
                *self.stranded.entry(because.word()).or_default() += group.rows;
            }
            HeldBy::UnknownAsked
            | HeldBy::UnknownUnasked
            | HeldBy::DeadLetter
            | HeldBy::DeadLetterUnknown => {
                let oldest = self.oldest.entry(held_by.as_str()).or_insert(group.oldest);
                *oldest = group.oldest.min(*oldest);
            }
            _ if group.is_due == Some(true) => {
                self.due += group.rows;
                self.oldest_due = earlier(self.oldest_due, group.oldest);
            }
            _ => {}
        }
    }
}
