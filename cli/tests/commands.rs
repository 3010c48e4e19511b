//! The commands on a git repository with lock files, with their exit codes.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

const LOCK: &str = r#"format = 1
definition = "rides.create"
version = 1
state = "current"

[request]
shape = "{user_id: i64}"

[[request.sample]]
json = '{"user_id":1}'
fingerprint = "v1:a"

[[phase]]
name = "ride_created"
kind = "local"
output = "{id: i64}"
samples = ['{"id":1}']

[[phase]]
name = "charge_created"
kind = "foreign"
effect = "idempotent"
window = "24h"
provider_key = "charge_created"
output = "null"

[[phase]]
name = "receipt_staged"
kind = "local"
output = "reply"
"#;

struct Repository(tempfile::TempDir);

impl Repository {
    /// With one lock file, committed and tagged as `deployed`.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let it = Self(dir);
        it.git(&["init", "-q"]);
        it.write("app/Cargo.toml", "[package]\nname = \"app\"\n");
        it.write("app/phases/rides.create@1.toml", LOCK);
        it.write("app/phases/README", "no lock file");
        it.git(&["add", "."]);
        it.git(&["-c", "user.name=a", "-c", "user.email=a@a", "commit", "-qm", "deployed"]);
        it.git(&["tag", "deployed"]);
        it
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn git(&self, arguments: &[&str]) {
        let status = Command::new("git").current_dir(self.path()).args(arguments).status();
        assert!(status.unwrap().success(), "git {arguments:?}");
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn change(&self, from: &str, to: &str) {
        let text = LOCK.replacen(from, to, 1);
        assert_ne!(text, LOCK, "{from}");
        self.write("app/phases/rides.create@1.toml", &text);
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } =
            Command::new(env!("CARGO_BIN_EXE_cargo-atomic-phases"))
                .current_dir(self.path().join("app"))
                .arg("atomic-phases")
                .args(arguments)
                .output()
                .unwrap();
        let text = [stdout, stderr].concat();
        (status.code().unwrap(), String::from_utf8(text).unwrap())
    }

    fn diff(&self, format: &str) -> (i32, String) {
        self.run(&["diff", "--against", "deployed", "--format", format])
    }
}

#[test]
fn what_is_deployed_is_compared_with_what_will_be() {
    let it = Repository::new();
    let same = "no change that a stored row can see, by the lock files; whether they agree with the code, \
        `cargo test` says\n";
    assert_eq!(it.diff("text"), (0, same.to_owned()));
    it.change(
        "[[phase]]",
        "[[phase]]\nname = \"checked\"\nkind = \"local\"\noutput = \"null\"\n\n[[phase]]",
    );
    let (code, text) = it.diff("text");
    assert_eq!(code, 6, "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "error[phase_inserted] rides.create@1, phase checked: it is new, before ride_created"
    );
    assert_eq!(
        lines[1],
        "  rows in flight  rows that stand at ride_created, charge_created are left alone"
    );
    assert!(lines[4].starts_with("  instead         insert it in a new version"), "{text}");
}

#[test]
fn the_level_of_the_manifest_decides_whether_a_deploy_stops() {
    let it = Repository::new();
    it.change("\"24h\"", "\"48h\"");
    assert_eq!(it.diff("text").0, 6);
    let lints = "[package.metadata.atomic-phases.lints]\nwindow_widened = \"warn\"\n";
    it.write("app/Cargo.toml", lints);
    let (code, text) = it.diff("text");
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("warning[window_widened]"), "{text}");
    it.write("app/Cargo.toml", &lints.replace("window_widened", "phase_renamed"));
    let (code, text) = it.diff("text");
    assert_eq!(code, 1);
    assert!(text.contains("no setting changes `phase_renamed`"), "{text}");
}

#[test]
fn programs_and_github_read_their_own_formats() {
    let it = Repository::new();
    it.change("name = \"charge_created\"", "name = \"charged\"");
    it.change("provider_key = \"charge_created\"", "provider_key = \"charged\"");
    let text = LOCK.replace("charge_created", "charged");
    it.write("app/phases/rides.create@1.toml", &text);
    let (code, json) = it.diff("json");
    assert_eq!(code, 6);
    let findings: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(findings[0]["lint"], "phase_renamed");
    assert_eq!(findings[0]["level"], "never");
    assert_eq!(findings[0]["points"], serde_json::json!(["ride_created", "charge_created"]));
    let (code, commands) = it.diff("github");
    assert_eq!(code, 6);
    let begin = "::error file=phases/rides.create@1.toml,title=phase_renamed::rides.create@1, phase charged: it was charge_created";
    assert!(commands.starts_with(begin), "{commands}");
    assert_eq!(commands.lines().count(), 1, "one command a line: {commands}");
}

#[test]
fn a_version_goes_when_it_is_retired() {
    let it = Repository::new();
    let second = LOCK.replace("version = 1", "version = 2");
    it.write("app/phases/rides.create@2.toml", &second);
    std::fs::remove_file(it.path().join("app/phases/rides.create@1.toml")).unwrap();
    let (code, text) = it.diff("text");
    assert_eq!(code, 6);
    assert!(text.starts_with("error[version_dropped] rides.create@1"), "{text}");
    it.write("app/phases/rides.create@1.toml", LOCK);
    assert_eq!(it.diff("text").0, 0, "both are there");
    it.git(&["add", "-A"]);
    it.git(&["-c", "user.name=a", "-c", "user.email=a@a", "commit", "-qm", "both"]);
    it.git(&["tag", "both"]);
    assert_eq!(it.run(&["retire", "rides.create", "1"]).0, 0);
    let (code, text) = it.diff("text");
    assert_eq!((code, text.contains("error[version_dropped]")), (6, true), "in one deploy: {text}");
    let (code, text) = it.run(&["diff", "--against", "both"]);
    assert_eq!((code, text.contains("error")), (0, false), "{text}");
    assert!(text.contains("note[version_drained]"), "no file says that no row is left: {text}");
    assert!(it.run(&["retire", "rides.create", "1"]).1.contains("is retired since 20"));
    assert_eq!(it.run(&["retire", "rides.create", "9"]).0, 4);
}

#[test]
fn each_lint_is_explained() {
    let it = Repository::new();
    let (code, all) = it.run(&["explain"]);
    assert_eq!(code, 0);
    for line in all.lines() {
        let lint = line.split_whitespace().next().unwrap();
        let (code, text) = it.run(&["explain", lint]);
        assert_eq!(code, 0);
        assert!(text.contains(lint) && text.contains("instead   "), "{text}");
    }
    assert_eq!(it.run(&["explain", "no_such"]).0, 4);
}

/// A typing error in a pipeline must not let a deploy pass.
#[test]
fn where_no_lock_file_is_read_nothing_is_fine() {
    let it = Repository::new();
    let (code, told) = it.run(&["diff", "--against", "deployed", "--folder", "phase"]);
    assert_eq!(code, 1);
    assert!(told.contains("no lock file in phase, neither at deployed nor now"), "{told}");
    let absolute = it.path().join("app/phases");
    let absolute = absolute.to_str().unwrap();
    let (code, told) = it.run(&["diff", "--against", "deployed", "--folder", absolute]);
    assert_eq!((code, told.contains("relative")), (1, true), "{told}");
    it.git(&["rm", "-q", "--cached", "-r", "app/phases"]);
    it.git(&["-c", "user.name=a", "-c", "user.email=a@a", "commit", "-qm", "none"]);
    it.git(&["tag", "before"]);
    let (code, told) = it.run(&["diff", "--against", "before"]);
    assert_eq!((code, told.contains("before has no lock file")), (1, true), "{told}");
    let (code, told) = it.run(&["diff", "--against", "before", "--first"]);
    assert_eq!((code, told.starts_with("note[definition_added]")), (0, true), "{told}");
}

#[test]
fn mistakes_end_with_their_codes() {
    let it = Repository::new();
    assert_eq!(it.run(&["diff"]).0, 2, "usage");
    assert_eq!(it.run(&["diff", "--against", "no-such-tag"]).0, 1);
    assert_eq!(it.run(&["diff", "--against=--help"]).0, 1, "no option for git");
    assert_eq!(it.run(&["diff", "--against", "deployed", "--manifest-path", "none.toml"]).0, 1);
    it.change("\"24h\"", "\"a day\"");
    let (code, text) = it.diff("text");
    assert_eq!(code, 1);
    assert!(
        text.contains("rides.create@1.toml cannot be read: phase charge_created: `window`"),
        "{text}"
    );
    it.write("app/phases/rides.create@1.toml", &LOCK.replace("version = 1", "version = 3"));
    assert!(it.diff("text").1.contains("belongs into rides.create@3.toml"));
}
