//! A clock that a test sets for a separate process: Debian's libfaketime.
//!
//! Only the wall clock is moved, as by an administrator, NTP or another machine after a failover;
//! `CLOCK_MONOTONIC` never jumps in reality. libfaketime cannot change `CLOCK_BOOTTIME`, with which the engine
//! measures leases, because rustix calls the kernel without libc. Without `FAKETIME_DONT_FAKE_MONOTONIC`, it
//! replaces both of libc's clocks by the wall clock: seconds since 1970.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub struct Clock {
    dir: tempfile::TempDir,
}

impl Clock {
    /// A clock without an offset.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The database's user must be able to read it, too.
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), everybody).unwrap();
        let clock = Self { dir };
        clock.set(0.0);
        clock
    }

    /// From now on, this many seconds ahead of the machine's clock.
    pub fn set(&self, ahead: f64) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, format!("{ahead:+.3}s\n")).unwrap();
        // Atomically, so that no process reads half a line.
        std::fs::rename(new, self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("clock")
    }

    /// The environment of a process that uses this clock.
    pub fn variables(&self) -> Vec<(String, String)> {
        let file = self.file().display().to_string();
        let variables = [
            ("LD_PRELOAD", library().as_str()),
            ("FAKETIME_TIMESTAMP_FILE", &file),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        variables.to_vec()
    }
}

fn library() -> String {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
        .expect("no libfaketime: Debian's package `faketime` has it; tests/run installs it")
        .display()
        .to_string()
}
