//! The commands that hold lock files against the rows of a database.

use std::path::Path;

use atomic_phases::compat::{InFlight, Locks, State, file_name};

use crate::arguments::{Database, Format, Lease};
use crate::files::BY_THE_FILES;
use crate::{End, Failure, database, date};

pub(crate) fn check(folder: &Path, database: &Database, format: Format) -> Result<End, Failure> {
    let locks = Locks::read(folder)?;
    // Where no file is looked at, nothing is fine.
    if locks.is_empty() {
        return Err(format!(
            "there is no lock file in {}: `cargo atomic-phases lock` writes them",
            folder.display()
        )
        .into());
    }
    let in_flight = database::in_flight(&database.database_url, database.lease)?;
    let (left, jobs) = (in_flight.left_by(&locks), in_flight.jobs_left_by(&locks));
    // A row that was not read may be left alone, too.
    let is_fine = left.is_empty() && jobs.is_empty() && !in_flight.truncated;
    print!("{}", database::report(&left, &jobs, in_flight.truncated, format));
    if format == Format::Text && is_fine {
        println!("no unfinished row would be left alone, and no staged job, {BY_THE_FILES}");
    }
    for jobs in in_flight.jobs.iter().filter(|jobs| jobs.unread > 0) {
        let (unread, name) = (jobs.unread, &jobs.name);
        eprintln!(
            "note: the arguments of {unread} jobs `{name}` were not read: sealed, or long, or many"
        );
    }
    Ok(if is_fine { End::Fine } else { End::Found })
}

pub(crate) fn drained(
    folder: &Path,
    name: &str,
    version: u32,
    database: &Database,
) -> Result<End, Failure> {
    let locks = Locks::read(folder)?;
    // A name that is mistyped has no rows either.
    if locks.get(name, version).is_none() {
        eprintln!("there is no {} in {}", file_name(name, version), folder.display());
        return Ok(End::NoSuch);
    }
    let in_flight = database::in_flight(&database.database_url, database.lease)?;
    let left = unfinished(&in_flight, &locks, name, version);
    match &left {
        None => println!("{name}@{version} has no unfinished row in this database"),
        Some(left) => println!("{name}@{version} has {left}"),
    }
    Ok(if left.is_none() { End::Fine } else { End::Found })
}

/// What of a version there is still to do, if anything.
fn unfinished(in_flight: &InFlight, locks: &Locks, name: &str, version: u32) -> Option<String> {
    let jobs = in_flight.jobs_only_of(locks, name, version);
    match in_flight.rows_of(name, version) {
        0 if jobs > 0 => Some(format!("{jobs} staged jobs that no other version stages")),
        0 if in_flight.truncated => {
            Some("no unfinished row among those read, and there are more".to_owned())
        }
        0 => None,
        rows => Some(format!("{rows} unfinished rows")),
    }
}

pub(crate) fn retire(
    folder: &Path,
    name: &str,
    version: u32,
    database_url: Option<&str>,
    lease: Lease,
) -> Result<End, Failure> {
    let mut locks = Locks::read(folder)?;
    let Some(lock) = locks.get(name, version) else {
        eprintln!("there is no {} in {}", file_name(name, version), folder.display());
        return Ok(End::NoSuch);
    };
    if let State::Retired(since) = &lock.state {
        println!("{name}@{version} is retired since {since}");
        return Ok(End::Fine);
    }
    if let Some(url) = database_url {
        let in_flight = database::in_flight(url, lease)?;
        if let Some(left) = unfinished(&in_flight, &locks, name, version) {
            eprintln!("refused: {name}@{version} has {left}");
            return Ok(End::Refused);
        }
    }
    if let Some(lock) = locks.get_mut(name, version) {
        lock.state = State::Retired(date::today());
    }
    locks.write(folder)?;
    println!(
        "{name}@{version} is retired: its code may go. Unfinished rows of it, if there are any, are left alone."
    );
    Ok(End::Fine)
}
