//! What the rows of a database say, read without the application's code.

use std::fmt::Write;

use atomic_phases::compat::{InFlight, Left, LeftJobs};
use atomic_phases::engine::StrandedBecause;

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
pub(crate) fn shown(left: &[Left], jobs: &[LeftJobs], format: Format) -> String {
    let rows = left.iter().map(|left| {
        let Left { definition, version, recovery_point, status, rows, because, .. } = left;
        let status = match because {
            StrandedBecause::NewerForm => format!(", status `{status}`"),
            _ => String::new(),
        };
        let remedy = because.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        let place = format!("{definition}@{version}, recovery point {recovery_point}{status}");
        ("rows_stranded", format!("{rows} rows of {place}: {because}{remedy}"))
    });
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
                    "definition": left.definition,
                    "version": left.version,
                    "recovery_point": left.recovery_point,
                    "status": left.status,
                    "rows": left.rows,
                    "because": left.because.as_str(),
                })
            });
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
