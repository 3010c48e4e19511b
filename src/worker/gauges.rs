//! What waits now, as gauges: of the one process that takes the census. What it no longer knows is not a number (`NaN`), so
//! that no alert and no sum uses an outdated value.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use crate::engine::StrandedBecause;
use crate::moment::wall_clock;
use crate::observe::metrics::{
    CENSUS, DUE, DUE_OLDEST, JOBS_DEAD_NOW, JOBS_OLDEST, JOBS_STAGED, NODES, STRANDED, WAITING,
    WAITING_OLDEST, WINDOW_END,
};
use crate::observe::{OTHER, seconds};
use crate::ops::{HeldBy, Tally};

/// What may hold a request that no holder runs, but for being stranded.
const HELD_BY: [HeldBy; 9] = [
    HeldBy::Accepted,
    HeldBy::EndedLease,
    HeldBy::BackOff,
    HeldBy::Paused,
    HeldBy::Due,
    HeldBy::UnknownAsked,
    HeldBy::UnknownUnasked,
    HeldBy::DeadLetter,
    HeldBy::DeadLetterUnknown,
];

/// For these, the longest wait is reported, too.
const FOR_OPERATORS: [HeldBy; 4] =
    [HeldBy::UnknownAsked, HeldBy::UnknownUnasked, HeldBy::DeadLetter, HeldBy::DeadLetterUnknown];

/// Why a row is stranded, as far as is seen without its values.
const STRANDED_BECAUSE: [StrandedBecause; 5] = [
    StrandedBecause::UnknownDefinition,
    StrandedBecause::UnknownVersion,
    StrandedBecause::UnknownRecoveryPoint,
    StrandedBecause::NotAskedHere,
    StrandedBecause::NewerForm,
];

/// All series are set each time, also to zero.
pub(crate) fn counted(definitions: &[&'static str], tally: &Tally) {
    show(definitions, Some(tally));
    CENSUS.set::<&str>(seconds(wall_clock()), []);
}

/// This process does not know them any more.
pub(crate) fn not_counted(definitions: &[&'static str]) {
    show(definitions, None);
    CENSUS.set::<&str>(f64::NAN, []);
}

fn show(definitions: &[&'static str], tally: Option<&Tally>) {
    let number = |count: Option<u32>| count.map_or(f64::NAN, f64::from);
    let time = |time: Option<DateTime<Utc>>| time.map_or(f64::NAN, seconds);
    let words = HELD_BY.iter().map(|held_by| held_by.as_str()).chain(["stranded"]);
    for held_by in words {
        for definition in definitions.iter().copied().chain([OTHER]) {
            let of = |known: &Tally| *known.waiting.get(&(definition, held_by)).unwrap_or(&0);
            WAITING.set(number(tally.map(of)), [definition, held_by]);
        }
    }
    for held_by in FOR_OPERATORS.map(HeldBy::as_str) {
        let oldest = tally.and_then(|known| known.oldest.get(held_by).copied());
        WAITING_OLDEST.set(time(oldest), [held_by]);
    }
    for because in STRANDED_BECAUSE.map(StrandedBecause::word) {
        let of = |known: &Tally| *known.stranded.get(because).unwrap_or(&0);
        STRANDED.set(number(tally.map(of)), [because]);
    }
    DUE.set::<&str>(number(tally.map(|known| known.due)), []);
    DUE_OLDEST.set::<&str>(time(tally.and_then(|known| known.oldest_due)), []);
    WINDOW_END.set::<&str>(time(tally.and_then(|known| known.next_window_end)), []);
    JOBS_STAGED.set::<&str>(number(tally.map(|known| known.jobs.staged)), []);
    JOBS_OLDEST.set::<&str>(time(tally.and_then(|known| known.jobs.oldest_due)), []);
    JOBS_DEAD_NOW.set::<&str>(number(tally.map(|known| known.jobs.dead)), []);
}

/// How many versions of definitions are reported at most: those of this process, and those of others that it has met.
const MAX_VERSIONS: usize = 500;

/// Which versions of definitions processes run.
#[derive(Debug)]
pub(crate) struct Versions {
    own: Vec<(&'static str, u32)>,
    /// What has been reported so far: it is still reported, as zero once no process runs it.
    told: BTreeSet<(&'static str, u32)>,
}

impl Versions {
    pub(crate) fn new(own: Vec<(&'static str, u32)>) -> Self {
        Self { told: own.iter().copied().collect(), own }
    }

    pub(crate) fn counted(&mut self, nodes: &BTreeMap<(String, u32), u32>) {
        let mut counts: BTreeMap<(&'static str, u32), u32> = BTreeMap::new();
        for ((name, version), processes) in nodes {
            // Of a definition that this process does not have, the name may be any text.
            let Some((name, _)) = self.own.iter().find(|(own, _)| own == name) else { continue };
            if self.told.len() < MAX_VERSIONS || self.told.contains(&(*name, *version)) {
                self.told.insert((*name, *version));
                counts.insert((*name, *version), *processes);
            }
        }
        for of in &self.told {
            NODES.set((*counts.get(of).unwrap_or(&0)).into(), Self::words(of));
        }
    }

    pub(crate) fn not_counted(&self) {
        self.told.iter().for_each(|of| NODES.set(f64::NAN, Self::words(of)));
    }

    fn words((name, version): &(&'static str, u32)) -> [Cow<'static, str>; 2] {
        [(*name).into(), version.to_string().into()]
    }
}
