//! `cargo atomic-phases` as a user has it: a program in a folder of PATH, called by cargo, in a package outside of
//! this repository.
//!
//! The long form installs it from the checkout and locks the requests of an application that depends on the
//! library, which builds both: `.ci/night`. `INSTALL_TARGET` names a folder to build in.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A folder of its own, with a git repository and the program in `bin/`.
struct Folder {
    dir: tempfile::TempDir,
    /// The folder for its builds.
    target: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let it = Self { dir, target };
        it.write("app/.gitignore", "target\n");
        it.run("git", &["init", "-q"]);
        it
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(file)).unwrap()
    }

    fn commit(&self, tag: &str) {
        self.run("git", &["add", "."]);
        let names = ["-c", "user.name=a", "-c", "user.email=a@a.example"];
        self.run("git", &[&names[..], &["commit", "-qm", tag]].concat());
        self.run("git", &["tag", tag]);
    }

    /// In `app/`; the exit code and what is printed.
    fn run(&self, program: &str, arguments: &[&str]) -> (i32, String) {
        let before = std::env::var_os("PATH").unwrap_or_default();
        let folders =
            std::iter::once(self.dir.path().join("bin")).chain(std::env::split_paths(&before));
        let path: OsString = std::env::join_paths(folders).unwrap();
        let mut command = Command::new(program);
        command.current_dir(self.dir.path().join("app")).args(arguments);
        command.env("PATH", path).env("CARGO_TARGET_DIR", &self.target).env("CI", "true");
        for (name, _) in std::env::vars_os() {
            // Cargo sets these variables for another package.
            let is_of_cargo = |name: &str| name.starts_with("CARGO_") || name.contains("_LOCK");
            let is_kept = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_TARGET_DIR"];
            if name.to_str().is_some_and(|name| is_of_cargo(name) && !is_kept.contains(&name)) {
                command.env_remove(name);
            }
        }
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
    }

    fn atomic_phases(&self, arguments: &[&str]) -> (i32, String) {
        self.run(env!("CARGO"), &[&["atomic-phases"], arguments].concat())
    }
}

const MANIFEST: &str =
    "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n";

/// A test that works like `locked!`: it writes the files when it is asked to.
const WRITES: &str = r#"
#[test]
fn requests_are_locked() {
    assert_eq!(std::env::var("ATOMIC_PHASES_LOCK").as_deref(), Ok("update"));
    assert!(std::env::var_os("CI").is_none());
    std::fs::write("phases/rides.create@1.toml", include_str!("lock.toml")).unwrap();
}
"#;

#[test]
fn cargo_calls_the_commands_in_a_package_of_its_own() {
    let it = Folder::new();
    std::fs::create_dir(it.dir.path().join("bin")).unwrap();
    let program = it.dir.path().join("bin/cargo-atomic-phases");
    std::fs::copy(env!("CARGO_BIN_EXE_cargo-atomic-phases"), program).unwrap();
    let lock = include_str!("rides.create@1.toml");
    it.write("app/Cargo.toml", MANIFEST);
    it.write("app/src/lib.rs", WRITES);
    it.write("app/src/lock.toml", lock);
    it.write("app/phases/README", "what rows can see");
    let (code, told) = it.atomic_phases(&["lock", "--", "--offline"]);
    assert_eq!(code, 0, "{told}");
    the_commands_work(&it, "rides.create");
}

/// On the lock files of a definition that was locked a moment ago.
fn the_commands_work(it: &Folder, definition: &str) {
    let file = format!("app/phases/{definition}@1.toml");
    let locked = it.read(&file);
    it.commit("v1");
    let diff = || it.atomic_phases(&["diff", "--against", "v1"]);
    let (code, told) = diff();
    assert!(
        code == 0 && told.starts_with("no change that a stored row can see, by the lock"),
        "{told}"
    );
    let first = locked.split("[[phase]]\nname = \"").nth(1).unwrap().split('"').next().unwrap();
    it.write(&file, &locked.replace(&format!("\"{first}\""), "\"renamed\""));
    let (code, told) = diff();
    assert_eq!(code, 6, "{told}");
    assert!(told.starts_with("error (never)[phase_renamed]"), "{told}");
    it.write(&file, &locked);
    let (code, told) = it.atomic_phases(&["explain", "phase_renamed"]);
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("was = \"old_name\""), "{told}");
    let (code, told) = it.atomic_phases(&["retire", definition, "1"]);
    assert_eq!(code, 0, "{told}");
    assert!(it.read(&file).contains("state = \"retired\""));
    let (code, told) = it.atomic_phases(&["--help"]);
    assert_eq!(code, 0, "{told}");
}

const APPLICATION: &str = r#"
use atomic_phases::compat::Definitions;
use atomic_phases::store::Sqlite;
use atomic_phases::{PhaseResult, Reply, Tx, atomic_phases, phase};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct CreateOrder {
    pub cents: u32,
}

#[atomic_phases(name = "orders.create", version = 1)]
impl CreateOrder {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<()> {
        let _ = tx;
        Ok(())
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        let _ = tx;
        Ok(Reply::new(201))
    }
}

pub fn definitions() -> Definitions<Sqlite> {
    Definitions::new().with::<CreateOrder>()
}

#[test]
fn requests_are_locked() {
    atomic_phases::locked!(definitions());
}
"#;

#[test]
#[ignore = "builds the command and an application: some minutes"]
fn it_is_installed_from_a_checkout_and_locks_an_application() {
    let mut it = Folder::new();
    if let Some(target) = std::env::var_os("INSTALL_TARGET") {
        it.target = target.into();
    }
    let root = Path::new(ROOT).canonicalize().unwrap();
    let cli = root.join("cli");
    let into = it.dir.path().to_str().unwrap();
    // Its dependencies are available: this test was built with them.
    let install = ["install", "--path", cli.to_str().unwrap(), "--root", into, "--debug"];
    let (code, told) = it.run(env!("CARGO"), &[&install[..], &["--locked", "--offline"]].concat());
    assert_eq!(code, 0, "{told}");
    for program in ["cargo-atomic-phases", "atomic-phases"] {
        assert!(it.dir.path().join("bin").join(program).is_file(), "{told}");
    }
    let library = format!(
        "{MANIFEST}\n[dependencies]\natomic-phases = {{ path = {root:?} }}\n\
         serde = {{ version = \"1\", features = [\"derive\"] }}\n"
    );
    it.write("app/Cargo.toml", &library);
    it.write("app/src/lib.rs", APPLICATION);
    // So that no dependency is newer than those with which the repository is tested.
    it.write("app/Cargo.lock", &std::fs::read_to_string(root.join("Cargo.lock")).unwrap());
    let (code, told) = it.atomic_phases(&["lock", "--", "--offline"]);
    assert_eq!(code, 0, "{told}");
    the_commands_work(&it, "orders.create");
}
