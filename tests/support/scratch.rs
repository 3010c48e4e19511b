//! Folders for files that a test needs until its process ends; they are removed however it ends.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

/// The folder, and the process that removes it, which reads from a pipe that the end of this process closes.
static ALL: LazyLock<(tempfile::TempDir, Child)> = LazyLock::new(|| {
    let dir = tempfile::Builder::new().prefix("atomic-phases-files-").tempdir().unwrap();
    let watchdog = Command::new("sh")
        .args(["-c", "read _; rm -rf \"$0\""])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (dir, watchdog)
});

/// A new and empty one.
pub fn dir() -> PathBuf {
    tempfile::tempdir_in(ALL.0.path()).unwrap().keep()
}
