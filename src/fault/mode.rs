//! [`Mode`] and [`Fault`]: the faults at a point.

use std::fmt;
use std::str::FromStr;

use super::points::{NoSuchPoint, Place, Point, STORE};
use crate::definition::{Definition, EffectClass, PhaseKind, STARTED};

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Mode {
    /// The engine panics, as it would from a defect.
    Panic,
    /// The future is dropped, as by a runtime that shuts down. It leaves what a crash leaves.
    Drop,
    /// The process ends immediately. Only for a separate process: see [`ENV`](crate::fault::ENV).
    Abort,
    /// The process stops itself (`SIGSTOP`) until it receives a `SIGCONT`. Only for a separate process, on
    /// Unix.
    Stop,
    /// The server closes the connection of the open transaction. PostgreSQL only.
    CutConnection,
    /// The commit never arrives, and the engine gets no answer.
    NotSent,
    /// The commit is done, and its answer is lost.
    AckLost,
    /// The database rolls the transaction back: a serialization failure.
    Serialization,
    /// The database rolls the transaction back: a deadlock.
    Deadlock,
    /// The holder stalls for longer than its lease. Another takes over and finishes; then the first
    /// continues, and believes that it still holds the key.
    Stall,
    /// The holder stalls for a moment, and a duplicate arrives meanwhile.
    Duplicate,
    /// A commit gets no answer: before the commit, it never arrives; after it, its answer is lost. Before the
    /// holder can resolve the outcome, its lease has expired and another holds the key.
    OutOfTouch,
    /// A commit gets no answer, as in [`OutOfTouch`](Self::OutOfTouch). Before the holder can resolve the
    /// outcome, another has taken over and finished.
    Outrun,
    /// The foreign call fails without an effect at the provider.
    CallFails,
    /// The foreign call has its effect at the provider, and its answer is lost.
    AnswerLost,
    /// From here on, a standby receives no commit. Nothing happens until [`RowLost`](Self::RowLost).
    Replicated,
    /// The call has its effect at the provider, and the database fails over to a standby that received nothing since
    /// the point of [`Replicated`](Self::Replicated): commits that were acknowledged are lost, and perhaps the key's
    /// row with them. The engine then promises only one effect at a provider that honors the derived key (G1).
    RowLost,
    /// A read of the store fails, once. It has a point of its own, `(store)/look` for example, at which
    /// nothing else happens.
    ReadFails,
}

const MODES: [(Mode, &str); 18] = [
    (Mode::Panic, "panic"),
    (Mode::Drop, "drop"),
    (Mode::Abort, "abort"),
    (Mode::Stop, "stop"),
    (Mode::CutConnection, "cut_connection"),
    (Mode::NotSent, "not_sent"),
    (Mode::AckLost, "ack_lost"),
    (Mode::Serialization, "serialization"),
    (Mode::Deadlock, "deadlock"),
    (Mode::Stall, "stall"),
    (Mode::Duplicate, "duplicate"),
    (Mode::OutOfTouch, "out_of_touch"),
    (Mode::Outrun, "outrun"),
    (Mode::CallFails, "call_fails"),
    (Mode::AnswerLost, "answer_lost"),
    (Mode::Replicated, "replicated"),
    (Mode::RowLost, "row_lost"),
    (Mode::ReadFails, "read_fails"),
];

impl Mode {
    /// Every mode of a point at which a request may crash, after which the engine keeps all of its promises: all but
    /// [`Replicated`](Self::Replicated) and [`RowLost`](Self::RowLost), [`ReadFails`](Self::ReadFails), and
    /// [`Abort`](Self::Abort) and [`Stop`](Self::Stop), which need a separate process.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let is_for_all = |mode: &Self| {
            !mode.is_of_a_failover() && *mode != Self::ReadFails && !mode.needs_a_process()
        };
        MODES.iter().map(|(mode, _)| *mode).filter(is_for_all).collect()
    }

    /// The names of those that need no explorer.
    pub(super) fn names_for_a_process() -> String {
        let names = MODES.iter().filter(|(mode, _)| !mode.needs_an_explorer());
        names.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }

    /// Its name: `ack_lost`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        MODES.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    pub(super) fn is_of_a_competitor(self) -> bool {
        matches!(self, Self::Stall | Self::Duplicate | Self::OutOfTouch | Self::Outrun)
    }

    /// Whether it is one of the two halves of a failover. Neither is a fault by itself.
    pub(super) fn is_of_a_failover(self) -> bool {
        matches!(self, Self::Replicated | Self::RowLost)
    }

    /// Whether it can happen at this point. `concurrent`: whether others can work with the database
    /// while a transaction is open.
    pub(crate) fn is_legal_at(
        self,
        point: &Point,
        definition: &Definition,
        concurrent: bool,
    ) -> bool {
        if (self == Self::ReadFails) != (point.phase == STORE) {
            return false;
        }
        match self {
            Self::Panic | Self::Drop | Self::Abort | Self::Stop | Self::ReadFails => true,
            Self::CutConnection => {
                concurrent
                    && point.place == Place::BeforeBody
                    && definition.is_in_transaction(point)
            }
            Self::NotSent => is_before_a_commit(point),
            Self::AckLost => is_after_a_commit(point),
            // Its transaction is gone by the time that it stands still.
            Self::OutOfTouch | Self::Outrun => {
                is_before_a_commit(point) || is_after_a_commit(point)
            }
            Self::Serialization | Self::Deadlock => point.place == Place::BeforeCommit,
            // While the row is locked, none can take it over: there is nothing to continue against.
            Self::Stall if definition.is_row_locked_at(point) => false,
            Self::Stall | Self::Duplicate => concurrent || !definition.is_in_transaction(point),
            Self::CallFails => point.place == Place::BeforeCall,
            Self::AnswerLost => point.place == Place::AfterCall,
            Self::Replicated => point.place == Place::BeforePhase,
            // A call that is at most once is made again where its intent is lost, whatever the phase does (G2).
            Self::RowLost => point.place == Place::AfterCall && may_be_repeated(point, definition),
        }
    }

    /// Whether it is of a whole process, which the explorer's own must survive.
    pub(super) fn needs_a_process(self) -> bool {
        matches!(self, Self::Abort | Self::Stop)
    }

    /// Whether it needs help from outside of the process: an explorer, or its script.
    pub(crate) fn needs_an_explorer(self) -> bool {
        self == Self::Drop || self.is_of_a_competitor() || self.is_of_a_failover()
    }
}

/// Whether the provider of this call honors its key.
fn may_be_repeated(point: &Point, definition: &Definition) -> bool {
    definition.phases.iter().any(|phase| {
        phase.is_called(&point.phase)
            && matches!(phase.kind, PhaseKind::Foreign(EffectClass::Idempotent { .. }))
    })
}

fn is_before_a_commit(point: &Point) -> bool {
    matches!(point.place, Place::BeforeCommit | Place::BeforeIntent | Place::BeforeRelease)
}

fn is_after_a_commit(point: &Point) -> bool {
    matches!(point.place, Place::AfterCommit | Place::AfterIntent | Place::AfterRelease)
}

/// One fault at one visit of one point. Printed, and parsed, as `charge_created/after_call#0=drop`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Fault {
    /// The point.
    pub point: Point,
    /// The number of the visit, from 0: a phase that runs again passes its points again.
    pub visit: u32,
    /// The kind of fault.
    pub mode: Mode,
}

impl Fault {
    /// Why a process that has an engine with these definitions may never meet it, as far as that is known.
    pub(super) fn why_in_vain(
        &self,
        definitions: &[Definition],
        concurrent: bool,
    ) -> Option<String> {
        let Point { phase, place } = &self.point;
        let is_of_all = [STORE, STARTED].contains(&phase.as_str());
        let has_it = |definition: &&Definition| {
            is_of_all || definition.phases.iter().any(|of_it| of_it.is_called(phase))
        };
        let mut having = definitions.iter().filter(has_it).peekable();
        if having.peek().is_none() {
            return Some(format!("no registered definition has a phase {phase}"));
        }
        if !having.any(|definition| self.mode.is_legal_at(&self.point, definition, concurrent)) {
            return Some(format!("{} is not possible at this point", self.mode.as_str()));
        }
        match place {
            Place::Own(name) if phase != STORE => Some(format!(
                "the engine has no point {name}, so the phase must have crash_point!({name:?})"
            )),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}={}", self.point, self.visit, self.mode.as_str())
    }
}

impl FromStr for Fault {
    type Err = NoSuchPoint;

    fn from_str(text: &str) -> Result<Self, NoSuchPoint> {
        let parsed = || {
            let (point, mode) = text.rsplit_once('=')?;
            let (mode, _) = MODES.iter().find(|(_, name)| *name == mode)?;
            let (point, visit) = point.rsplit_once('#').unwrap_or((point, "0"));
            Some(Self { point: point.parse().ok()?, visit: visit.parse().ok()?, mode: *mode })
        };
        parsed().ok_or_else(|| NoSuchPoint(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_parsed_as_it_is_printed() {
        for (mode, _) in MODES {
            let fault = Fault { point: Point::new("a", Place::AfterCall), visit: 3, mode };
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        let short: Fault = "a/after_call=drop".parse().unwrap();
        assert_eq!(short.visit, 0);
        for bad in ["", "a/after_call", "a/after_call#x=drop", "a/after_call#0=dropp", "=drop"] {
            assert!(bad.parse::<Fault>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fault_that_a_process_may_never_meet_is_reported() {
        use crate::definition::{Isolation, Phase};
        const BOOKED: Phase = Phase {
            name: "booked",
            was: &[],
            kind: PhaseKind::Local(Isolation::ReadCommitted),
            commit: false,
            timeout: None,
            reconciles: false,
        };
        const BOOK: Definition = Definition { name: "rides.book", version: 1, phases: &[BOOKED] };
        let in_vain = |text: &str| text.parse::<Fault>().unwrap().why_in_vain(&[BOOK], true);
        for met in
            ["booked/before_commit=abort", "started/before_phase=abort", "(store)/look=read_fails"]
        {
            assert_eq!(in_vain(met), None, "{met}");
        }
        for (never, why) in [
            ("typo/after_call=abort", "no registered definition has a phase typo"),
            ("booked/before_body=ack_lost", "ack_lost is not possible at this point"),
            ("booked/before_comit=abort", "the engine has no point before_comit, so"),
        ] {
            assert!(in_vain(never).unwrap().starts_with(why), "{never}");
        }
        let modes = Mode::names_for_a_process();
        assert!(modes.contains("abort, stop") && !modes.contains("row_lost"), "{modes}");
    }
}
