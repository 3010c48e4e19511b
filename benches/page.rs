//! The pages that the benches write.

use std::path::PathBuf;
use std::process::Command;

/// Where a page or a picture of this name is.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/bench").join(name)
}

/// Writes a page, with the commit that was measured, and prints it.
pub fn write(name: &str, text: &str) {
    let text = format!("{}\n\nMeasured on {}.\n", text.trim_end(), commit());
    std::fs::write(path(&format!("{name}.md")), &text).unwrap();
    println!("{text}");
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let folder = env!("CARGO_MANIFEST_DIR");
        let told = Command::new("git").args(["-C", folder]).args(arguments).output().ok()?;
        told.status.success().then(|| String::from_utf8_lossy(&told.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "a source without a commit".to_owned();
    };
    match git(&["status", "--porcelain", "--", "src", "benches", "Cargo.lock"]) {
        Some(changed) if changed.is_empty() => format!("commit {commit}"),
        _ => format!("commit {commit}, with changes"),
    }
}
