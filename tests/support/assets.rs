//! Third-party programs that tests run, from their registries into the target folder; and the note if one cannot be
//! installed.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prints it around the test harness, which shows no output of a test that passes.
pub fn skipped(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {why}");
}

pub const NOT_TO_BE_HAD: &str = "it cannot be had here";

/// A folder for them, kept from one run to the next.
pub fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub fn succeeds(program: impl AsRef<OsStr>, arguments: &[&str], dir: &Path) -> bool {
    let output = Command::new(program).args(arguments).current_dir(dir).output();
    output.is_ok_and(|output| output.status.success())
}

/// Python with these packages, in a virtual environment in `dir`.
pub fn python(dir: &Path, packages: &[&str]) -> Option<PathBuf> {
    let python = dir.join("python/bin/python");
    let pip = [&["-m", "pip", "install", "-q", "--disable-pip-version-check"], packages].concat();
    let is_there = python.exists() || succeeds("python3", &["-m", "venv", "python"], dir);
    (is_there && succeeds(&python, &pip, dir)).then_some(python)
}
