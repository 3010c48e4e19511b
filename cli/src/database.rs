//! What the rows of a database say, read without the application's code.

use std::fmt::Write;
use std::time::Duration;

use atomic_phases::compat::{InFlight, Left, LeftJobs};
use atomic_phases::engine::StrandedBecause;

use crate::Failure;
use crate::arguments::{Format, Lease};
use crate::open::{on, open};
use crate::plain::plain;

/// Where the unfinished requests stand.
pub(crate) fn in_flight(url: &str, lease: Lease) -> Result<InFlight, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let in_flight = runtime.block_on(async {
        let database = open(url).await?;
        let read = match lease.lease.map(Duration::from_secs) {
            Some(lease) => on!(database, store => InFlight::read_with_lease(&store, lease).await),
            None => on!(database, store => InFlight::read(&store).await),
        };
        Ok::<_, Failure>(read?)
    })?;
    if in_flight.truncated && lease.lease.is_none() {
        eprintln!(
            "note: without --lease, a lease of a day is assumed. If more than a hundred thousand requests are younger, pass the \
             longest lease of your services: --lease 30, if they set none"
        );
    }
    Ok(in_flight)
}

/// Of a database of which only a part was read.
const UNREAD: &str = "there are more unfinished rows or staged jobs than were read";

/// The rows that a build would leave alone, one line for each place, the staged jobs that it would not deliver, one for
/// each name, and whether there are more than were read.
pub(crate) fn report(
    left: &[Left],
    jobs: &[LeftJobs],
    is_truncated: bool,
    format: Format,
) -> String {
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
    let unread = is_truncated.then(|| ("rows_unread", UNREAD.to_owned()));
    let mut out = String::new();
    match format {
        Format::Text => {
            let lines = rows.chain(staged).chain(unread);
            lines.for_each(|(_, line)| out.extend([plain(&line).as_str(), "\n"]));
        }
        Format::Github => {
            for (title, line) in rows.chain(staged).chain(unread) {
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
            let unread =
                unread.map(|_| serde_json::json!({ "truncated": true, "because": UNREAD }));
            let all = rows.chain(jobs).chain(unread);
            let _ = writeln!(out, "{:#}", serde_json::Value::from_iter(all));
        }
    }
    out
}
