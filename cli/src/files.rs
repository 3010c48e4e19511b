//! The commands about lock files: as they are, as they were, and what is said of them.

use std::path::Path;
use std::process::Command;

use atomic_phases::compat::{Levels, Lint, Locks, blocks, compare, github, json, text};

use crate::arguments::{Arguments, Format};
use crate::plain::plain;
use crate::{End, Failure, git, with_causes};

pub(crate) fn lock(arguments: &Arguments, passed: &[String]) -> Result<End, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut test = Command::new(cargo);
    test.arg("test").arg("--manifest-path").arg(&arguments.manifest_path).args(passed);
    let status = test.env("ATOMIC_PHASES_LOCK", "update").env_remove("CI").status()?;
    match status.success() {
        true => Ok(End::Fine),
        false => Err("the tests failed; the lock files of those that passed are written".into()),
    }
}

/// No command reads the code, which may differ from files that were not updated. The test with `locked!` compares them.
pub(crate) const BY_THE_FILES: &str =
    "by the lock files; whether they agree with the code, `cargo test` says";

pub(crate) fn diff(
    arguments: &Arguments,
    package: &Path,
    (against, is_first): (&str, bool),
    format: Format,
) -> Result<End, Failure> {
    if arguments.folder.is_absolute() {
        return Err("--folder is beside the Cargo.toml, by a relative path".into());
    }
    let manifest = std::fs::read_to_string(&arguments.manifest_path)
        .map_err(|error| format!("{}: {error}", arguments.manifest_path.display()))?;
    let levels = Levels::from_manifest(&manifest)?;
    let old = Locks::from_files(git::files(package, against, &arguments.folder)?)
        .map_err(|error| format!("at {against}: {}", with_causes(&error)))?;
    let new = Locks::read(&package.join(&arguments.folder))?;
    // Where no file is looked at, nothing is fine.
    let folder = arguments.folder.display();
    if old.is_empty() && new.is_empty() {
        return Err(format!(
            "there is no lock file in {folder}, neither at {against} nor now: name another --folder"
        )
        .into());
    }
    if old.is_empty() && !is_first {
        return Err(format!(
            "{against} has no lock file in {folder}: was the package or the folder elsewhere? If these are the first: --first"
        )
        .into());
    }
    let findings = compare(&old, &new);
    match format {
        Format::Text if findings.is_empty() => {
            println!("no change that a stored row can see, {BY_THE_FILES}");
        }
        Format::Text => {
            text(&findings, &levels).lines().for_each(|line| println!("{}", plain(line)));
        }
        Format::Json => print!("{}", json(&findings, &levels)),
        Format::Github => {
            let folder = package.join(&arguments.folder);
            let folder = folder.strip_prefix(".").unwrap_or(&folder);
            print!("{}", github(&findings, &levels, &folder.display().to_string()));
        }
    }
    Ok(if blocks(&findings, &levels) { End::Found } else { End::Fine })
}

pub(crate) fn explain(name: Option<&str>) -> End {
    let Some(name) = name else {
        for lint in Lint::ALL {
            println!("{:<25} {}", lint.name(), lint.level());
        }
        return End::Fine;
    };
    let Some(lint) = Lint::named(name) else {
        eprintln!("there is no lint `{name}`; `cargo atomic-phases explain` lists them");
        return End::NoSuch;
    };
    println!("{}[{lint}]\n\n{}\n", lint.level(), lint.what());
    println!("retries   {}\ninstead   {}", lint.retries(), lint.instead());
    End::Fine
}
