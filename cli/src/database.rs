//! What the rows of a database say, read without the application's code.

use std::fmt::Write;

use atomic_phases::compat::{InFlight, Left, LeftJobs};
use atomic_phases::store::UnknownStatus;

use crate::Failure;
use crate::arguments::Format;
use crate::open::{on, open};
use crate::plain::plain;

/// Where the unfinished requests stand.
pub(crate) fn in_flight(url: &str) -> Result<InFlight, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let database = open(url).await?;
        Ok(on!(database, store => InFlight::read(&store).await)?)
    })
}

/// The rows that a build would leave alone, one line for each place, and the staged jobs that it would not
/// deliver, one for each name.
pub(crate) fn shown(
    left: &[Left],
    unknown: &[UnknownStatus],
    jobs: &[LeftJobs],
    format: Format,
) -> String {
    let rows = left.iter().map(|left| {
        let rows = &left.rows;
        let place =
            format!("{}@{}, recovery point {}", rows.definition, rows.version, rows.recovery_point);
        let remedy = left.because.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        ("rows_stranded", format!("{} rows of {place}: {}{remedy}", rows.rows, left.because))
    });
    let rows = rows.chain(unknown.iter().map(|rows| {
        let UnknownStatus { definition, version, recovery_point, status, rows, .. } = rows;
        let place = format!("{definition}@{version}, recovery point {recovery_point}");
        let line = format!("{rows} rows of {place}: a later build wrote their status, `{status}`");
        ("rows_stranded", line)
    }));
    let staged = jobs.iter().map(|left| {
        ("jobs_stranded", format!("{} staged jobs `{}`: {}", left.jobs, left.name, left.because))
    });
    let mut out = String::new();
    match format {
        Format::Text => {
            rows.chain(staged).for_each(|(_, line)| out.extend([plain(&line).as_str(), "\n"]));
        }
        Format::Github => {
            for (title, line) in rows.chain(staged) {
                // As the runner of GitHub Actions reads it.
                let line = plain(&line).replace('%', "%25");
                let _ = writeln!(out, "::error title={title}::{line}");
            }
        }
        Format::Json => {
            let rows = left.iter().map(|left| {
                serde_json::json!({
                    "definition": left.rows.definition,
                    "version": left.rows.version,
                    "recovery_point": left.rows.recovery_point,
                    "rows": left.rows.rows,
                    "because": left.because.as_str(),
                })
            });
            let unknown = unknown.iter().map(|rows| {
                serde_json::json!({
                    "definition": rows.definition,
                    "version": rows.version,
                    "recovery_point": rows.recovery_point,
                    "rows": rows.rows,
                    "because": "unknown_status",
                    "status": rows.status,
                })
            });
            let rows = rows.chain(unknown);
            let jobs = jobs.iter().map(|left| {
                serde_json::json!({
                    "job": left.name,
                    "jobs": left.jobs,
                    "because": left.because.as_str(),
                })
            });
            let _ = writeln!(out, "{:#}", serde_json::Value::from_iter(rows.chain(jobs)));
        }
    }
    out
}
