//! The lock files of a git revision.

use std::path::Path;
use std::process::{Command, Stdio};

/// The files of `folder` at `revision`, by name. None where the folder is not there.
pub(crate) fn files(
    package: &Path,
    revision: &str,
    folder: &Path,
) -> Result<Vec<(String, String)>, String> {
    // A revision that begins with a dash would be an option.
    let commit = git(
        package,
        &["rev-parse", "--verify", "--end-of-options", &format!("{revision}^{{commit}}")],
    )?;
    let commit = commit.trim();
    let place = format!("./{}/", folder.display());
    let listed = git(package, &["ls-tree", "-z", "--name-only", commit, "--", &place])?;
    let mut files = Vec::new();
    for path in listed.split('\0') {
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.contains('@') && name.ends_with(".toml") {
            let text = git(package, &["cat-file", "blob", &format!("{commit}:./{path}")])?;
            files.push((name.to_owned(), text));
        }
    }
    Ok(files)
}

fn git(package: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(package)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("git cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("git: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    String::from_utf8(output.stdout).map_err(|_| "a lock file is not UTF-8".to_owned())
}
