//! [`Report`]: the result of an exploration, and the script of the case that failed.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::case::{CASE, Case, Driver};
use super::mode::{Fault, Mode};
use super::points::Point;

/// The case that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) case: Case,
    pub(crate) wrong: String,
}

/// The result of an exploration. It prints as one line, followed by the script of the failed case, if there
/// is one.
#[derive(Clone, Debug)]
#[must_use = "call assert_ok()"]
pub struct Report {
    name: &'static str,
    passed: Vec<Point>,
    cases: u32,
    interleavings: u32,
    modes: BTreeMap<Mode, u32>,
    unknown: u32,
    failure: Option<Failure>,
    took: Duration,
}

impl Report {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            passed: Vec::new(),
            cases: 0,
            interleavings: 0,
            modes: BTreeMap::new(),
            unknown: 0,
            failure: None,
            took: Duration::ZERO,
        }
    }

    pub(crate) fn clean_run(&mut self, passed: Vec<Point>) {
        self.passed = passed;
    }

    pub(crate) fn count(&mut self, case: &Case) {
        self.cases += 1;
        match case {
            Case::Crashes { faults, .. } => {
                // The first half of a failover makes no case by itself.
                let faults = faults.iter().flatten().filter(|fault| fault.mode != Mode::Replicated);
                for fault in faults {
                    *self.modes.entry(fault.mode).or_default() += 1;
                }
            }
            Case::Turns { .. } => self.interleavings += 1,
        }
        progress(self.name, self.cases);
    }

    /// Cases of this mode were asked for: it is listed even if the request has none.
    pub(crate) fn list(&mut self, mode: Mode) {
        self.modes.entry(mode).or_default();
    }

    pub(crate) fn count_unknown(&mut self) {
        self.unknown += 1;
    }

    pub(crate) fn end(&mut self, failure: Option<Failure>, took: Duration) {
        (self.failure, self.took) = (failure, took);
        if self.cases >= PROGRESS_EVERY && std::io::stderr().is_terminal() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// How many points the clean run passed.
    #[must_use]
    pub fn points(&self) -> usize {
        self.passed.len()
    }

    /// The points that the clean run passed, in order: the engine's, and those that the phases' author
    /// wrote with [`crash_point!`](crate::crash_point).
    #[must_use]
    pub fn passed(&self) -> &[Point] {
        &self.passed
    }

    /// How many cases were run.
    #[must_use]
    pub fn cases(&self) -> u32 {
        self.cases
    }

    /// How many of them interleaved two workers.
    #[must_use]
    pub fn interleavings(&self) -> u32 {
        self.interleavings
    }

    /// How many of them ended with an unknown outcome, which is correct for the engine.
    #[must_use]
    pub fn unknown(&self) -> u32 {
        self.unknown
    }

    /// How long all of it took, by this machine's clock.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.took
    }

    /// What went wrong in the first case that failed.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| failure.wrong.as_str())
    }

    /// Panics if a case failed, and prints its script.
    #[track_caller]
    #[expect(clippy::panic, reason = "this is how a test fails")]
    pub fn assert_ok(&self) {
        if self.failure.is_some() {
            panic!("{self}");
        }
    }
}

const PROGRESS_EVERY: u32 = 50;

/// Progress, if the output is a terminal.
fn progress(name: &str, cases: u32) {
    let mut stderr = std::io::stderr();
    if cases.is_multiple_of(PROGRESS_EVERY) && stderr.is_terminal() {
        let _ = write!(stderr, "\r{name}: {cases} cases");
        let _ = stderr.flush();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} points", self.name, self.passed.len())?;
        let own = self.passed.iter().filter(|point| point.is_own());
        let own: Vec<String> = own.map(ToString::to_string).collect();
        if !own.is_empty() {
            write!(f, " (of its own {})", own.join(", "))?;
        }
        let failed = u32::from(self.failure.is_some());
        write!(f, ", {} cases, {failed} failed, {} unknown", self.cases, self.unknown)?;
        write!(f, ", {:.1} s", self.took.as_secs_f64())?;
        let mut shares: Vec<String> =
            self.modes.iter().map(|(mode, cases)| format!("{} {cases}", mode.as_str())).collect();
        if self.interleavings > 0 {
            shares.push(format!("interleavings of two workers {}", self.interleavings));
        }
        if !shares.is_empty() {
            write!(f, " ({})", shares.join(", "))?;
        }
        match &self.failure {
            Some(failure) => write!(f, "\n\n{failure}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, wrong } = self;
        write!(f, "failed: {wrong}\n\nscript:")?;
        match case {
            clean if *clean == Case::CLEAN => return write!(f, "\n  nothing: it is the clean run"),
            Case::Crashes { faults, driver } => {
                for (attempt, faults) in faults.iter().enumerate() {
                    let told: Vec<String> = faults.iter().map(describe).collect();
                    let told = match told.is_empty() {
                        true => "nothing goes wrong".to_owned(),
                        false => told.join("; then "),
                    };
                    write!(f, "\n  attempt {}: {told}", attempt + 1)?;
                }
                let driver = match driver {
                    Driver::Retry => "the client retries",
                    Driver::Workers => "the workers drive it on",
                };
                write!(f, "\n  then leases expire, and {driver} until it is settled")?;
            }
            Case::Turns { turns, second } => {
                for (index, turn) in turns.iter().enumerate() {
                    let (at, times) = (&turn.point, visit(turn.visit));
                    write!(f, "\n  worker {} runs up to {at}{times}", index % 2 + 1)?;
                    if turn.expires {
                        f.write_str("; each lease expires")?;
                    }
                }
                let second = match second {
                    Driver::Retry => "a retry of the client",
                    Driver::Workers => "a background worker",
                };
                let next = turns.len() % 2 + 1;
                write!(
                    f,
                    "\n  worker {next} runs to its end, then the other; worker 2 is {second}"
                )?;
            }
        }
        // Libtest names a test's thread after it.
        let thread = std::thread::current();
        let test = thread.name().filter(|name| *name != "main").unwrap_or("…");
        write!(f, "\n\nagain: {CASE}='{case}' cargo test -- --exact {test}")
    }
}

fn visit(visit: u32) -> String {
    match visit {
        0 => String::new(),
        visit => format!(" (visit {})", visit + 1),
    }
}

fn describe(fault: &Fault) -> String {
    let what = match fault.mode {
        Mode::Panic => "the engine panics",
        Mode::Drop => "a crash",
        Mode::Abort => "the process ends",
        Mode::Stop => "the process stands still",
        Mode::CutConnection => "the database connection is cut",
        Mode::NotSent => "the commit is lost on its way, unnoticed",
        Mode::AckLost => "the commit's answer is lost",
        Mode::Serialization => "a serialization failure",
        Mode::Deadlock => "a deadlock",
        Mode::Stall => "it stalls past its lease, another takes over, then it continues",
        Mode::Duplicate => "a duplicate comes meanwhile",
        Mode::OutOfTouch => {
            "its commit gets no answer, and another holds the key before it can ask"
        }
        Mode::Outrun => "its commit gets no answer, and another runs to its end before it can ask",
        Mode::CallFails => "the foreign call fails without effect",
        Mode::Replicated => "from here on, a standby receives no commit",
        Mode::RowLost => {
            "the foreign call has its effect, the database is lost, and the standby takes its place"
        }
        Mode::ReadFails => "the store cannot be read",
        Mode::AnswerLost => "the foreign call has its effect, and its answer is lost",
    };
    format!("at {}{}: {what}", fault.point, visit(fault.visit))
}
