//! [`Report`]: what an exploration came to, and the script of the case that failed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::plan::{Fault, Mode};

/// The environment variable that makes an explorer run one case only.
pub(crate) const CASE: &str = "ATOMIC_PHASES_CASE";

/// Who drives the request on after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Retry,
    Workers,
}

/// What goes wrong, attempt by attempt, and who drives on. Printed, and parsed, as
/// `booked/after_commit#0=drop; charged/before_call#0=panic; workers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) faults: Vec<Fault>,
    pub(crate) driver: Driver,
}

impl Case {
    pub(crate) fn of_the_environment() -> Option<Self> {
        Self::parse(&std::env::var(CASE).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut case = Self { faults: Vec::new(), driver: Driver::Retry };
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                "workers" => case.driver = Driver::Workers,
                "retry" => case.driver = Driver::Retry,
                fault => case.faults.push(fault.parse().ok()?),
            }
        }
        Some(case)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            write!(f, "{fault}; ")?;
        }
        f.write_str(match self.driver {
            Driver::Retry => "retry",
            Driver::Workers => "workers",
        })
    }
}

/// The case that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) case: Case,
    pub(crate) wrong: String,
}

/// What an exploration came to.
#[derive(Clone, Debug)]
#[must_use = "call assert_ok()"]
pub struct Report {
    name: &'static str,
    pub(crate) points: usize,
    cases: u32,
    modes: BTreeMap<Mode, u32>,
    pub(crate) unknown: u32,
    pub(crate) failure: Option<Failure>,
    pub(crate) took: Duration,
}

impl Report {
    pub(crate) fn new(name: &'static str) -> Self {
        let (modes, failure, took) = (BTreeMap::new(), None, Duration::ZERO);
        Self { name, points: 0, cases: 0, modes, unknown: 0, failure, took }
    }

    pub(crate) fn count(&mut self, case: &Case) {
        self.cases += 1;
        for fault in &case.faults {
            *self.modes.entry(fault.mode).or_default() += 1;
        }
        progress(self.name, self.cases);
    }

    /// How many points the clean run passed.
    #[must_use]
    pub fn points(&self) -> usize {
        self.points
    }

    /// How many cases were run.
    #[must_use]
    pub fn cases(&self) -> u32 {
        self.cases
    }

    /// How many of them ended with an outcome that nobody knows, which is an honest end.
    #[must_use]
    pub fn unknown(&self) -> u32 {
        self.unknown
    }

    /// What went wrong in the first case that failed.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.wrong.as_str())
    }

    /// Panics where a case failed, with its script.
    #[track_caller]
    #[expect(clippy::panic, reason = "this is how a test fails")]
    pub fn assert_ok(&self) {
        if self.failure.is_some() {
            panic!("{self}");
        }
    }
}

/// While somebody looks on, how far it is.
fn progress(name: &str, cases: u32) {
    use std::io::{IsTerminal, Write};
    let mut stderr = std::io::stderr();
    if cases.is_multiple_of(50) && stderr.is_terminal() {
        let _ = write!(stderr, "\r{name}: {cases} cases");
        let _ = stderr.flush();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = u32::from(self.failure.is_some());
        write!(
            f,
            "{}: {} points, {} cases, {failed} failed, {} unknown, {:.1} s",
            self.name,
            self.points,
            self.cases,
            self.unknown,
            self.took.as_secs_f64()
        )?;
        if !self.modes.is_empty() {
            let modes = self.modes.iter().map(|(mode, cases)| format!("{} {cases}", mode.as_str()));
            write!(f, " ({})", modes.collect::<Vec<_>>().join(", "))?;
        }
        let Some(Failure { case, wrong }) = &self.failure else { return Ok(()) };
        write!(f, "\n\nfailed: {wrong}\n\nscript:")?;
        for (attempt, fault) in case.faults.iter().enumerate() {
            write!(f, "\n  attempt {}: {}", attempt + 1, told(fault))?;
        }
        let driver = match case.driver {
            Driver::Retry => "the client retries",
            Driver::Workers => "the workers drive it on",
        };
        write!(f, "\n  then leases expire, and {driver} until it is settled")?;
        write!(f, "\n\nagain: {CASE}='{case}' cargo test …")
    }
}

fn told(fault: &Fault) -> String {
    let what = match fault.mode {
        Mode::Panic => "the engine panics",
        Mode::Drop => "a crash",
        Mode::Abort => "the process ends",
        Mode::CutConnection => "the database connection is cut",
        Mode::NotSent => "the commit is lost on its way, unnoticed",
        Mode::AckLost => "the commit's answer is lost",
        Mode::Serialization => "a serialization failure",
        Mode::Deadlock => "a deadlock",
        Mode::Stall => "it stalls past its lease, another takes over, then it goes on",
        Mode::Duplicate => "a duplicate comes meanwhile",
        Mode::CallFails => "the foreign call fails without effect",
        Mode::AnswerLost => "the foreign call has its effect, and its answer is lost",
    };
    match fault.visit {
        0 => format!("at {}: {what}", fault.point),
        visit => format!("at {} (visit {}): {what}", fault.point, visit + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_parsed_as_it_is_printed() {
        let text = "booked/after_commit#0=drop; charged/before_call#2=panic; workers";
        assert_eq!(Case::parse(text).unwrap().to_string(), text);
        assert!(Case::parse("booked/nowhere=drop").is_none());
    }
}
