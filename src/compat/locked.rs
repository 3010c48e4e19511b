//! [`locked!`](crate::locked): the test that compares the lock files with the code.

use std::fmt::Write;
use std::path::Path;

use super::{Definitions, Finding, Levels, Lint, Locks, blocks, compare_with, text};
use crate::error::Causes;
use crate::store::Store;

/// `update` writes the lock files anew; `off` checks nothing.
const VARIABLE: &str = "ATOMIC_PHASES_LOCK";

/// Fails the test if the lock files differ from the code. The message says what the change does to requests
/// in progress, shows a diff, and says what to do.
///
/// ```
/// # mod my_app {
/// #     use atomic_phases::{compat::Definitions, store::Sqlite};
/// #     pub fn definitions() -> Definitions<Sqlite, ()> { Definitions::new() }
/// # }
/// #[test]
/// fn requests_are_locked() {
///     atomic_phases::locked!(my_app::definitions());
/// }
/// ```
///
/// The files are in `phases/` beside Cargo.toml, one for each definition and version; commit them. A second
/// argument names another folder. A definition without a file gets one, if no other file has to change for it. A
/// further version of a definition is not written by itself: the version before it is *draining* from then on, which its
/// file must say. `ATOMIC_PHASES_LOCK=update cargo test` updates the files, and `ATOMIC_PHASES_LOCK=off` checks nothing; both
/// compile the crate again, because `#[atomic_phases]` then does not compare it with the files. If `CI` is set, no file is
/// ever written.
///
/// By updating a file you state that no row of the former form is left, or that it was never deployed. `cargo
/// atomic-phases diff --against <what is deployed>` shows whether that is so.
#[allow(clippy::test_attr_in_doctest, reason = "the example is a test")]
#[macro_export]
macro_rules! locked {
    ($definitions:expr) => {
        $crate::locked!($definitions, "phases")
    };
    ($definitions:expr, $folder:expr) => {
        if let ::std::result::Result::Err(error) = $crate::compat::check_locks(
            &$definitions,
            ::std::path::Path::new(::std::env!("CARGO_MANIFEST_DIR")),
            ::std::path::Path::new($folder),
            &$crate::compat::Mode::of_environment(),
        ) {
            ::std::panic!("{error}");
        }
    };
}

/// What [`check_locks`] does with files that differ from the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Fails.
    Check,
    /// Fails; a definition without a file gets one, if no other file differs.
    CheckOrCreate,
    /// Writes them.
    Update,
    /// Ignores them.
    Off,
}

impl Mode {
    /// The mode that `ATOMIC_PHASES_LOCK` and `CI` select.
    #[must_use]
    pub fn of_environment() -> Self {
        let is_set = |name| {
            std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "false")
        };
        match std::env::var(VARIABLE).as_deref() {
            Ok("off") => Self::Off,
            _ if is_set("CI") => Self::Check,
            Ok("update") => Self::Update,
            _ => Self::CheckOrCreate,
        }
    }
}

/// Why a check of the lock files failed.
#[derive(Debug)]
pub struct NotLocked(String);

impl std::fmt::Display for NotLocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotLocked {}

/// What [`locked!`](crate::locked) calls: `manifest` is the folder of Cargo.toml, `folder` that of the lock
/// files, relative to it.
///
/// # Errors
/// [`NotLocked`]: what differs, what it does, and what to do.
pub fn check_locks<S: Store, A: Send + Sync + 'static>(
    definitions: &Definitions<S, A>,
    manifest: &Path,
    folder: &Path,
    mode: &Mode,
) -> Result<(), NotLocked> {
    if *mode == Mode::Off {
        return Ok(());
    }
    let refused = |error: &(dyn std::error::Error + 'static)| NotLocked(Causes(error).to_string());
    let levels = match std::fs::read_to_string(manifest.join("Cargo.toml")) {
        Ok(text) => Levels::from_manifest(&text).map_err(|error| refused(&error))?,
        Err(_) => Levels::default(),
    };
    let path = manifest.join(folder);
    let before = Locks::read(&path).map_err(|error| refused(&error))?;
    let now = with_kept(definitions.locks(), &before, *mode);
    let findings = findings(definitions, &before, &now);
    let (new, changed) = differing(&before, &now);
    let write = match mode {
        Mode::Update => true,
        Mode::CheckOrCreate => changed.is_empty() && !blocks(&findings, &levels),
        Mode::Check | Mode::Off => false,
    };
    if write {
        let written = now.write(&path).map_err(|error| refused(&error))?;
        let mut out = String::new();
        for file in written {
            let _ = writeln!(out, "written: {}/{file}", folder.display());
        }
        out.push_str(&text(&findings, &levels));
        // Not by `eprintln!`: of a test that passes that is not shown.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), out.as_bytes());
        return Ok(());
    }
    if new.is_empty() && changed.is_empty() && !blocks(&findings, &levels) {
        return Ok(());
    }
    Err(NotLocked(explained(&findings, &levels, &[new, changed].concat(), folder)))
}

/// The locks of now, with those of versions that are not registered any more: a retired one stays as it
/// is, and another one is missed, unless the files are written anew.
fn with_kept(mut now: Locks, before: &Locks, mode: Mode) -> Locks {
    for lock in before.iter() {
        let is_gone = now.get(&lock.definition, lock.version).is_none();
        if is_gone && (!lock.is_live() || mode == Mode::Update) {
            now.insert(lock.clone());
        }
    }
    now
}

/// What the change does, as the code of now sees it: it reads what was locked itself, and that decides.
fn findings<S: Store, A: Send + Sync + 'static>(
    definitions: &Definitions<S, A>,
    before: &Locks,
    now: &Locks,
) -> Vec<Finding> {
    let mut findings = compare_with(before, now, definitions);
    for lock in before.iter().filter(|lock| lock.is_live()) {
        let is_unstable = |json: &str| {
            let first = definitions.fingerprint(lock, json);
            first.is_some() && first != definitions.fingerprint(lock, json)
        };
        if lock.request_samples.iter().any(|sample| is_unstable(&sample.json)) {
            findings.push(Finding::of_code(Lint::FingerprintUnstable, lock, None));
        }
    }
    findings
}

/// Files of definitions that have none, and files that say something else, each with its text of before and
/// of now.
type Differing = Vec<(String, String, String)>;

fn differing(before: &Locks, now: &Locks) -> (Differing, Differing) {
    let (mut new, mut changed) = (Vec::new(), Vec::new());
    for lock in now.iter() {
        let name = super::file_name(&lock.definition, lock.version);
        match before.get(&lock.definition, lock.version) {
            None => new.push((name, String::new(), lock.to_toml())),
            Some(there) if there != lock => changed.push((name, there.to_toml(), lock.to_toml())),
            Some(_) => {}
        }
    }
    (new, changed)
}

fn explained(
    findings: &[Finding],
    levels: &Levels,
    differing: &[(String, String, String)],
    folder: &Path,
) -> String {
    let mut out = String::from("the lock files do not say what the code says\n\n");
    out.push_str(&text(findings, levels));
    for (name, before, now) in differing {
        let _ = write!(out, "\n--- {}/{name}\n{}", folder.display(), diff(before, now));
    }
    if differing.is_empty() {
        out.push_str("\nNo file is to be written for this: do what stands at `instead`.\n");
        return out;
    }
    let remedy = match blocks(findings, levels) {
        true => {
            "Do what stands at `instead`. If the definition was never deployed, or no row of the former \
             form is left, accept the change:"
        }
        false => "No row is lost by this. Review the change, and accept it:",
    };
    let _ = write!(
        out,
        "\n{remedy}\n\n    {VARIABLE}=update cargo test\n\nand commit the files. (In CI nothing is written.)\n"
    );
    out
}

/// The lines that differ, with one line around them.
fn diff(before: &str, now: &str) -> String {
    let (before, now): (Vec<_>, Vec<_>) = (before.lines().collect(), now.lines().collect());
    // Lengths of the longest common subsequences of what is left of both.
    let mut common = vec![vec![0usize; now.len() + 1]; before.len() + 1];
    for i in (0..before.len()).rev() {
        for j in (0..now.len()).rev() {
            common[i][j] = match before[i] == now[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines: Vec<(char, &str)> = Vec::new();
    while i < before.len() || j < now.len() {
        if i < before.len() && j < now.len() && before[i] == now[j] {
            lines.push((' ', before[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == now.len() || (i < before.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', before[i]));
            i += 1;
        } else {
            lines.push(('+', now[j]));
            j += 1;
        }
    }
    let is_near = |index: usize| {
        let around = index.saturating_sub(1)..=(index + 1).min(lines.len() - 1);
        lines[around].iter().any(|(mark, _)| *mark != ' ')
    };
    let near = lines.iter().enumerate().filter(|(index, _)| is_near(*index));
    near.map(|(_, (mark, line))| format!("{mark} {line}\n")).collect()
}
