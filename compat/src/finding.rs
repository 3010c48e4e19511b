//! [`Finding`]: one thing that a change does, and the three forms in which findings are shown.

use std::fmt::Write;

use crate::levels::Levels;
use crate::lint::{Level, Lint};
use crate::lock::Lock;

/// One thing that a change of a definition does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Which.
    pub lint: Lint,
    /// The definition, by the name that rows have.
    pub definition: String,
    /// Its version.
    pub version: u32,
    /// The phase, by the name that it has now, or had if it is gone.
    pub phase: Option<String>,
    /// The job, by its name, where staged ones are affected and no rows.
    pub job: Option<String>,
    /// The name that it had, where one is missed.
    pub earlier: Option<String>,
    /// What was changed.
    pub change: String,
    /// What happens to rows in flight.
    pub in_flight: String,
    /// What happens at a rollback, and on nodes of the build before while the new one is rolled out.
    pub rollback: String,
    /// The recovery points at which rows are affected.
    pub points: Vec<String>,
}

impl Finding {
    /// What code has found that reads a locked sample itself.
    #[must_use]
    pub fn of_code(lint: Lint, lock: &Lock, phase: Option<String>) -> Self {
        Self {
            lint,
            definition: lock.definition.clone(),
            version: lock.version,
            phase,
            job: None,
            earlier: None,
            change: "a locked sample shows it".to_owned(),
            in_flight: "each row with such values fails until the attempt cap".to_owned(),
            rollback: "the previous build continues its rows".to_owned(),
            points: Vec::new(),
        }
    }

    /// What happens to clients' retries and to replays.
    #[must_use]
    pub fn retries(&self) -> &'static str {
        self.lint.retries()
    }

    /// What to write instead.
    #[must_use]
    pub fn instead(&self) -> String {
        let instead = self.lint.instead();
        self.earlier
            .as_ref()
            .map_or_else(|| instead.to_owned(), |earlier| instead.replace("old_name", earlier))
    }
}

/// Whether a change with these findings must not be deployed as it is.
#[must_use]
pub fn blocks(findings: &[Finding], levels: &Levels) -> bool {
    findings.iter().any(|finding| levels.of(finding.lint) >= Level::Deny)
}

fn sorted<'f>(findings: &'f [Finding], levels: &Levels) -> Vec<(Level, &'f Finding)> {
    let mut sorted: Vec<_> =
        findings.iter().map(|finding| (levels.of(finding.lint), finding)).collect();
    sorted.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
    sorted
}

fn place(finding: &Finding) -> String {
    let Finding { definition, version, phase, .. } = finding;
    match phase {
        Some(phase) => format!("{definition}@{version}, phase {phase}"),
        None => format!("{definition}@{version}"),
    }
}

/// For people, the worst first. A note is one line.
#[must_use]
pub fn text(findings: &[Finding], levels: &Levels) -> String {
    let mut out = String::new();
    for (level, finding) in sorted(findings, levels) {
        let _ = writeln!(out, "{level}[{}] {}: {}", finding.lint, place(finding), finding.change);
        if level == Level::Allow {
            continue;
        }
        let instead = finding.instead();
        let lines = [
            ("rows in flight", finding.in_flight.as_str()),
            ("retries", finding.retries()),
            ("rollback", finding.rollback.as_str()),
            ("instead", instead.as_str()),
        ];
        for (what, line) in lines {
            let _ = writeln!(out, "  {what:<14}  {line}");
        }
    }
    out
}

/// For programs: one array.
#[must_use]
pub fn json(findings: &[Finding], levels: &Levels) -> String {
    let findings: Vec<_> = sorted(findings, levels)
        .into_iter()
        .map(|(level, finding)| {
            serde_json::json!({
                "lint": finding.lint.name(),
                "level": match level {
                    Level::Allow => "allow",
                    Level::Warn => "warn",
                    Level::Deny => "deny",
                    Level::Never => "never",
                },
                "definition": finding.definition,
                "version": finding.version,
                "phase": finding.phase,
                "job": finding.job,
                "change": finding.change,
                "in_flight": finding.in_flight,
                "retries": finding.retries(),
                "rollback": finding.rollback,
                "instead": finding.instead(),
                "points": finding.points,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(findings))
}

/// For GitHub Actions: one workflow command each, at `file` of the finding's definition.
#[must_use]
pub fn github(findings: &[Finding], levels: &Levels, folder: &str) -> String {
    let mut out = String::new();
    for (level, finding) in sorted(findings, levels) {
        let command = match level {
            Level::Allow => "notice",
            Level::Warn => "warning",
            Level::Deny | Level::Never => "error",
        };
        let file = format!("{folder}/{}", crate::file_name(&finding.definition, finding.version));
        let message = format!(
            "{}: {}\nrows in flight: {}\nretries: {}\nrollback: {}\ninstead: {}",
            place(finding),
            finding.change,
            finding.in_flight,
            finding.retries(),
            finding.rollback,
            finding.instead(),
        );
        let _ = writeln!(
            out,
            "::{command} file={},title={}::{}",
            escaped(&file).replace(',', "%2C").replace(':', "%3A"),
            finding.lint,
            escaped(&message)
        );
    }
    out
}

/// As the runner of GitHub Actions reads the data of a command.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}
