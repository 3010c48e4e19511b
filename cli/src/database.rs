//! What the rows of a database say, read without the application's code.

use std::fmt::Write;
use std::path::Path;

use atomic_phases::compat::{InFlight, Left};
use atomic_phases::{Postgres, Sqlite};

use crate::{Failure, Format};

/// Where the unfinished requests stand.
pub(crate) fn in_flight(url: &str) -> Result<InFlight, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match url.split_once("://") {
            Some(("postgres" | "postgresql", _)) => {
                Ok(InFlight::read(&Postgres::connect(url).await?).await?)
            }
            // It would be created.
            Some(("sqlite", path)) if !Path::new(path).is_file() => {
                Err(format!("there is no file {path}").into())
            }
            Some(("sqlite", path)) => Ok(InFlight::read(&Sqlite::connect(path).await?).await?),
            _ => Err("the URL of a database starts with postgres:// or sqlite://".into()),
        }
    })
}

/// The rows that a build would leave alone, one line for each place.
pub(crate) fn shown(left: &[Left], format: Format) -> String {
    let place = |left: &Left| {
        let rows = &left.rows;
        format!("{}@{}, recovery point {}", rows.definition, rows.version, rows.recovery_point)
    };
    let mut out = String::new();
    match format {
        Format::Text => {
            for left in left {
                let (place, because) = (place(left), left.because);
                let _ = writeln!(out, "{} rows of {place}: {because}", left.rows.rows);
            }
        }
        Format::Github => {
            for left in left {
                let (place, because) = (place(left), left.because);
                let _ = writeln!(
                    out,
                    "::error title=rows_stranded::{} rows of {place}: {because}",
                    left.rows.rows
                );
            }
        }
        Format::Json => {
            let left = left.iter().map(|left| {
                serde_json::json!({
                    "definition": left.rows.definition,
                    "version": left.rows.version,
                    "recovery_point": left.rows.recovery_point,
                    "rows": left.rows.rows,
                    "because": left.because.as_str(),
                })
            });
            let _ = writeln!(out, "{:#}", serde_json::Value::from_iter(left));
        }
    }
    out
}
