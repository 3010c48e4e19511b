//! `atomic-phases` on a database without the application's code, on a service, and inside an application; its
//! output and its exit codes.

#![allow(clippy::unwrap_used, clippy::panic)]

/// The application, and the requests for all three ways.
#[path = "../../examples/application.rs"]
#[allow(dead_code)]
mod application;
#[path = "../../../tests/support/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../../../tests/support/mariadb.rs"]
#[allow(dead_code)]
mod mariadb;

mod acts;
mod every_way;
mod pages;
mod program;
mod services;
mod told_alike;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use atomic_phases::console::Api;
use atomic_phases::ops::{Actor, BulkAct, Filter, Permissions, Scopes, Selection, State};
use atomic_phases::store::{Mysql, Postgres, Sqlite, Store};
use atomic_phases::worker::{Announcer, DeliveryError, Enqueuer, Handlers, WorkerConfig};
use atomic_phases::{
    Engine, IdempotencyKey, Outcome, PhaseResult, Reply, Scope, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

use application::{CallPilot, End};

/// Of a build that is gone.
#[derive(Serialize, Deserialize)]
struct Leave;

#[atomic_phases(name = "pilots.leave", version = 2)]
impl<Db: Store> Leave {
    #[phase]
    async fn left(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        let _ = (self, tx);
        Ok(Reply::text(200, ""))
    }
}

/// Stages a job.
#[derive(Serialize, Deserialize)]
struct Thank;

#[atomic_phases(name = "pilots.thank", version = 1)]
impl<Db: Store> Thank {
    #[phase]
    async fn thanked(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        let _ = self;
        tx.stage_job("mail", &7)?;
        Ok(Reply::text(200, ""))
    }
}

async fn call<S: Store>(engine: &Engine<S>, key: &str, end: End) -> Outcome {
    let (scope, key) = (Scope::new("tenant-1").unwrap(), IdempotencyKey::new(key).unwrap());
    engine.call(&scope, &key, CallPilot { end, number: 9_007_199_254_740_993 }).await.unwrap()
}

/// One unknown outcome, one dead letter, one that is finished.
async fn with_requests<S: Store>(store: S) -> Engine<S> {
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).register::<CallPilot>().max_attempts(1).build().unwrap();
    assert!(matches!(call(&engine, "unknown", End::Unknown).await, Outcome::Unknown { .. }));
    assert!(matches!(call(&engine, "dead", End::Refused).await, Outcome::DeadLetter));
    assert!(matches!(call(&engine, "fine", End::Fine).await, Outcome::Finished(_)));
    engine
}

/// The command, with its target.
struct Run {
    program: PathBuf,
    way: Vec<String>,
    /// The folder of the program's profiles.
    settings: PathBuf,
}

impl Run {
    fn on(way: &[&str]) -> Self {
        Self {
            program: env!("CARGO_BIN_EXE_atomic-phases").into(),
            way: way.iter().map(|word| (*word).to_owned()).collect(),
            settings: "/nonexistent".into(),
        }
    }

    /// The same commands in an application.
    fn inside(database_url: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_atomic-phases")).parent().unwrap();
        let program = program.join("examples/application");
        let build = "cargo build --package atomic-phases-cli --example application";
        assert!(program.exists(), "not built: run `{build}` first");
        Self { program, ..Self::on(&["--database-url", database_url, "ops"]) }
    }

    /// Whether it has the application's code: not on a database alone.
    fn has_code(&self) -> bool {
        !matches!(&*self.way, [way, _] if way == "--database-url")
    }

    /// Exit code, standard output, and standard error.
    fn with(&self, input: &str, arguments: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(&self.program);
        for name in ["URL", "DATABASE_URL", "TOKEN", "PROFILE"] {
            command.env_remove(format!("ATOMIC_PHASES_{name}"));
        }
        let mut child = command
            .env("USER", "ada")
            .env("XDG_CONFIG_HOME", &self.settings)
            .args(&self.way)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that does not read its input may have ended by now.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn told(&self, arguments: &[&str]) -> (i32, String) {
        let (code, out, said) = self.with("", arguments);
        (code, if out.is_empty() { said } else { out })
    }

    #[track_caller]
    fn id(&self, state: &str) -> String {
        let (code, ids) = self.told(&["list", "--state", state, "-o", "ids"]);
        assert_eq!((code, ids.lines().count()), (0, 1), "{ids}");
        ids.trim().to_owned()
    }
}

/// The version of a request, as `show` prints it.
fn version(run: &Run, id: &str) -> String {
    let (_, told) = run.told(&["show", id]);
    let (_, behind) = told.lines().nth(1).unwrap().rsplit_once("· version ").unwrap();
    behind.to_owned()
}

/// The version of the only pause, as `pauses` lists it.
fn pause_version(run: &Run) -> String {
    let (_, told) = run.told(&["pauses", "-o", "jsonl"]);
    let pause: serde_json::Value = serde_json::from_str(&told).unwrap();
    pause["version"].as_str().unwrap().to_owned()
}

/// The cursor in a note.
#[track_caller]
fn cursor(note: &str) -> &str {
    let (_, cursor) = note.trim_end().rsplit_once("--after ").unwrap_or_else(|| panic!("{note}"));
    cursor
}
