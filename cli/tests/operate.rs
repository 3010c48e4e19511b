//! `atomic-phases` on a database without the application's code, on a service, and inside an application; its
//! output and its exit codes.

#![allow(clippy::unwrap_used, clippy::panic)]

/// The application, and the requests for all three ways.
#[path = "../examples/application.rs"]
#[allow(dead_code)]
mod application;
#[path = "../../tests/support/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../../tests/support/mariadb.rs"]
#[allow(dead_code)]
mod mariadb;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use atomic_phases::console::Api;
use atomic_phases::ops::{Actor, BulkAct, Filter, Permissions, Scopes, Selection, State};
use atomic_phases::store::Store;
use atomic_phases::worker::{Announcer, DeliveryError, Enqueuer, Handlers, WorkerConfig};
use atomic_phases::{
    Engine, IdempotencyKey, Mysql, Outcome, PhaseResult, Postgres, Reply, Scope, Sqlite, Tx,
    atomic_phases,
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
async fn scene<S: Store>(store: S) -> Engine<S> {
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

/// What all three ways print and do in the same way, with some acts done before.
fn asks_and_acts_after(run: &Run, acts_before: usize) {
    let (code, told) = run.told(&["status"]);
    assert_eq!(code, 6, "{told}");
    assert!(told.starts_with("waiting     1 unknown, 1 dead letters (oldest "), "{told}");
    assert!(told.ends_with("dead jobs   0\n"), "{told}");

    let (code, told) = run.told(&["list"]);
    assert_eq!((code, told.lines().count()), (0, 4), "{told}");
    let head: Vec<&str> = told
        .lines()
        .next()
        .unwrap()
        .split("  ")
        .filter(|head| !head.is_empty())
        .map(str::trim)
        .collect();
    assert_eq!(
        head,
        ["REQUEST", "DEFINITION", "STATE", "AT PHASE", "WHY", "TRIES", "SINCE", "NEXT"]
    );
    let (_, told) = run.told(&["list", "--state", "unknown"]);
    assert!(told.contains("pilots.call v1  unknown  called    no answer  1"), "{told}");
    // Without code nothing is stranded, and no process runs.
    let (code, told) = run.told(&["definitions"]);
    assert!(
        code == 0 && told.contains("pilots.call v1  noted called answered  0"),
        "{code} {told}"
    );
    let (code, told) = run.told(&["nodes"]);
    assert_eq!((code, told.lines().count()), (0, 1), "the head alone: {told}");
    let (_, told) = run.told(&["list", "--scope", "tenant-2", "-o", "json"]);
    assert_eq!(told, "[]\n");
    let (_, told) = run.told(&["list", "--limit", "2", "-o", "jsonl"]);
    assert_eq!(told.lines().count(), 2);
    let rows = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    assert!(rows.clone().all(|row| row["definition"] == "pilots.call"));

    let (unknown, dead) = (run.id("unknown"), run.id("dead_letter"));
    let (code, told) = run.told(&["why", &unknown]);
    assert_eq!(code, 0);
    assert!(told.starts_with("Whether the call of `called` was executed is unknown: no answer; its reconcile function is asked at "), "{told}");
    let (code, told) = run.told(&["show", &unknown]);
    assert_eq!(code, 0);
    assert!(told.contains("noted     local         done\n"), "{told}");
    assert!(told.contains("called    at_most_once  call_open\n"), "{told}");
    assert!(told.contains("attempt 1 at called: no answer\n"), "{told}");
    assert!(!told.contains("tenant-1"), "{told}");
    let (code, told, _) = run.with("dead\n", &["find", "--scope", "tenant-1", "-o", "ids"]);
    assert_eq!((code, told.trim()), (0, dead.as_str()));

    assert_eq!(run.told(&["show", "00000000-0000-4000-8000-000000000000"]).0, 4);
    for no_id in ["../overview", &dead[..8]] {
        let (code, told) = run.told(&["show", no_id]);
        assert_eq!((code, told.contains("36 characters")), (4, true), "{told}");
    }
    misspelt(run);
    assert_eq!(run.told(&["retry", &dead]).0, 2, "an act needs a reason");
    assert_eq!(run.told(&["erase", &dead, "--reason", "r"]).0, 2, "an erasure needs a word more");

    // An act on the seen version, which `show` prints.
    let seen = version(run, &unknown);
    let (_, told) = run.told(&["list", "--state", "unknown", "-o", "jsonl"]);
    assert!(told.contains(&format!("\"version\":\"{seen}\"")), "{told}");
    let two = ["retry", &dead, &unknown, "--version", &seen, "--reason", "r"];
    assert_eq!(run.told(&two).0, 2, "a version is of one");
    for other in [&seen, "", "no/version", "0\r\nx: y"] {
        let (code, told) =
            run.told(&["retry", &dead, "--version", other, "--reason", "by version"]);
        assert!(code == 5 && told.contains("moved on"), "{code} {told}");
    }

    // Some of several are refused, each with the reason.
    let ids = format!("{dead}\n{unknown}\n");
    let (code, told, said) = run.with(&ids, &["retry", "-", "--reason", "the line is up"]);
    assert_eq!((code, told), (8, format!("{dead} applied\n")));
    assert!(said.starts_with(&format!("{unknown} The act was refused: ")), "{said}");
    let (code, told) = run.told(&["retry", &dead, "--reason", "once more"]);
    assert_eq!((code, told), (0, format!("{dead} already\n")));
    let (code, _) = run.told(&["retry", &unknown, "--reason", "r"]);
    assert_eq!(code, 5);

    let finish = [
        "resolve",
        &unknown,
        "finish",
        "--status",
        "409",
        "--header",
        "content-type: text/plain",
        "--body",
        "by hand",
        "--reason",
        "ticket 7",
        "--version",
        &seen,
    ];
    assert_eq!(run.told(&finish), (0, format!("{unknown} applied\n")));
    // Another operator has read it, too, before it was finished.
    let erase = ["erase", &unknown, "--yes", "--reason", "asked by its owner", "--version", &seen];
    let (code, told) = run.told(&erase);
    assert!(code == 5 && told.contains("moved on"), "{code} {told}");
    let (code, told) = run.told(&["erase", &unknown, "--yes", "--reason", "asked by its owner"]);
    assert_eq!((code, told), (0, format!("{unknown} applied\n")));

    let expected = [
        ("erase", "applied", "ada"),
        ("erase", "refused", "ada"),
        ("resolve.finish", "applied", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "already", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "applied", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "refused", "ada"),
    ];
    let (code, told) = run.told(&["audit", "-o", "jsonl"]);
    assert_eq!(code, 0);
    let acts: Vec<serde_json::Value> =
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let acts: Vec<(&str, &str, &str)> = acts
        .iter()
        .map(|act| ["act", "outcome", "actor"].map(|name| act[name].as_str().unwrap()).into())
        .collect();
    assert_eq!(acts.len(), expected.len() + acts_before);
    assert_eq!(acts[..expected.len()], expected);
    assert_eq!(run.told(&["status"]).0, 0, "nothing waits any more");
}

/// The version of a request, as `show` prints it.
fn version(run: &Run, id: &str) -> String {
    let (_, told) = run.told(&["show", id]);
    let (_, behind) = told.lines().nth(1).unwrap().rsplit_once("· version ").unwrap();
    behind.to_owned()
}

/// The cursor in a note.
#[track_caller]
fn cursor(note: &str) -> &str {
    let (_, cursor) = note.trim_end().rsplit_once("--after ").unwrap_or_else(|| panic!("{note}"));
    cursor
}

/// A misspelt word is never answered as if nothing were stuck.
fn misspelt(run: &Run) {
    for (name, wrong) in [
        ("--state", "unknown,stuck"),
        ("--older-than", "5x"),
        ("--waiting-for", "m"),
        ("--limit", "0"),
    ] {
        let (code, _, said) = run.with("", &["list", name, wrong]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(name) && !said.contains("line 1"), "{said}");
    }
    let note = |words: &[&str]| {
        let (code, out, said) = run.with("", &[&["list"][..], words].concat());
        assert_eq!((code, out.lines().count()), (0, 1), "the head alone: {out}");
        said
    };
    for words in [["--definition", "pilot.call"], ["--phase", "caled"]] {
        let said = note(&words);
        let known = said.contains("pilots.call v1") && said.contains(words[1]);
        assert!(said.starts_with("note: no process") && known, "{said}");
    }
    let fine = ["--definition", "pilots.call", "--phase", "called", "--state", "running"];
    assert_eq!(note(&fine), "", "these are there, and none of them runs");
}

const OPERATING: &str = include_str!("../../docs/operating.md");

/// The commands that work on a database, as the page lists them.
fn on_a_database() -> BTreeSet<&'static str> {
    let (_, said) = OPERATING.split_once("what needs none of\nthe application's code:").unwrap();
    let (said, _) = said.split_once("What needs it").unwrap();
    let names = said.split('`').skip(1).step_by(2).filter(|name| *name != "stranded");
    names.map(|name| name.split(' ').next().unwrap()).collect()
}

/// Each of them is run: none lacks a permission, and none asks for the application's code.
fn does_what_needs_no_code(run: &Run) {
    let (dead, finished) = (run.id("dead_letter"), run.id("finished"));
    let none = "00000000-0000-4000-8000-000000000000";
    let because = ["--reason", "r"];
    let finish = ["resolve", none, "finish", "--status", "410"];
    let bulk = ["bulk", "retry", "--state", "dead_letter", "--because", "r", "--yes"];
    let commands: [(i32, Vec<&str>); 16] = [
        (6, vec!["status"]),
        (0, vec!["list"]),
        (4, vec!["find", "--scope", "tenant-1"]),
        (0, vec!["show", &dead]),
        (0, vec!["why", &dead]),
        (0, vec!["definitions"]),
        (0, vec!["nodes"]),
        (5, [&["retry", &finished][..], &because].concat()),
        (4, [&["erase", none, "--yes"][..], &because].concat()),
        (4, [&finish[..], &because].concat()),
        (0, vec!["pauses"]),
        (0, [&["unpause", "pilots.call", "called"][..], &because].concat()),
        (0, bulk.to_vec()),
        (0, vec!["jobs", "list"]),
        (0, vec!["audit"]),
        (0, vec!["migrate", "status"]),
    ];
    for (ends, words) in &commands {
        let (code, out, said) = run.with("none\n", words);
        assert_eq!(code, *ends, "{words:?}: {out}{said}");
        assert!(!said.contains("only the application"), "{words:?}: {said}");
        let was_already = out == "already\n" && words[0] == "unpause";
        assert_eq!(said.contains("no phase of these names"), was_already, "{words:?}: {said}");
    }
    let run_by_now: BTreeSet<&str> = commands.iter().map(|(_, words)| words[0]).collect();
    assert_eq!(run_by_now, on_a_database(), "what docs/operating.md lists");
    // No worker is running that would do it.
    let (_, bulk) = run.told(&["bulk", "list", "-o", "ids"]);
    let stop = ["bulk", "stop", bulk.trim(), "--reason", "a slip"];
    assert_eq!(run.told(&stop), (0, "applied\n".to_owned()));
}

/// A command that needs the application's code says so, and what to use instead.
fn says_what_needs_code(run: &Run) {
    let id = run.id("finished");
    for arguments in [
        &["reveal", &id, "--what", "key", "--reason", "r"][..],
        &["resolve", &id, "executed", "--phase", "called", "--output", "1", "--reason", "r"],
        &["resolve", &id, "not-executed", "--phase", "called", "--attempt", "1", "--reason", "r"],
        &["list", "--stranded"],
        &["pause", "pilots.call", "called", "--reason", "r"],
    ] {
        let (code, told) = run.told(arguments);
        assert_eq!(code, 2);
        assert!(told.contains("--url"), "{told}");
    }
}

/// What the application's code makes possible: with a service, and inside of the application.
fn does_what_needs_code(run: &Run) {
    let finished = run.id("finished");
    let reveal = |what| run.told(&["reveal", &finished, "--what", what, "--reason", "ticket 7"]);
    let (code, told) = reveal("parameters");
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("9007199254740993"), "a number keeps its digits: {told}");
    assert_eq!(reveal("key"), (0, "tenant-1\nfine\n".to_owned()));
    let pause = ["pause", "pilots.call", "called", "--for", "2h", "--reason", "the line is cut"];
    assert_eq!(run.told(&pause), (0, "applied\n".to_owned()));
    let (code, told) = run.told(&["pauses"]);
    assert_eq!((code, told.lines().count()), (0, 2), "{told}");
    assert!(told.contains("pilots.call  called") && told.contains("the line is cut"), "{told}");
    let (_, told) = run.told(&["pauses", "-o", "ids"]);
    assert_eq!(told, "pilots.call called\n", "as `unpause` takes it");
    let (_, told) = run.told(&["definitions", "-o", "ids"]);
    assert!(told.lines().any(|line| line == "pilots.call@1"), "{told}");
    let unpause = ["unpause", "pilots.call", "called", "--reason", "it is mended"];
    assert_eq!(run.told(&unpause), (0, "applied\n".to_owned()));
    assert_eq!(run.told(&unpause), (0, "already\n".to_owned()));
    let pause = ["pause", "pilots.call", "noted", "--reason", "r"];
    assert_eq!(run.told(&pause).0, 4, "a local phase is none");
    let unknown = run.id("unknown");
    let executed = |output| {
        let words = ["executed", "--phase", "called", "--output", output, "--reason", "r"];
        run.told(&[&["resolve", &*unknown][..], &words].concat())
    };
    let (code, told) = executed("{\"number\":1}");
    assert_eq!(code, 5, "{told}");
    assert!(told.contains("The output is of another type than the phase's"), "{told}");
    // As `asks_and_acts` finds it.
    let (code, told) = run.told(&["list", "--stranded"]);
    assert_eq!(code, 0, "{told}");
}

/// The second way: everything that needs no code.
fn on_a_database_alone(run: &Run) {
    says_what_needs_code(run);
    does_what_needs_no_code(run);
    let acts = run.told(&["audit", "-o", "jsonl"]).1.lines().count();
    asks_and_acts_after(run, acts);
}

/// The third way: everything, without a service.
async fn inside_of_an_application<S: Store>(url: &str, store: S) {
    let engine = scene(store).await;
    let run = Run::inside(url);
    let (code, told) = run.told(&["list", "--stranded"]);
    assert_eq!((code, told.lines().count()), (0, 1), "the head alone: {told}");
    does_what_needs_code(&run);
    // Its own audit is as long as that of the others.
    let acts = run.told(&["audit", "-o", "jsonl"]).1.lines().count();
    assert_eq!(acts, 7, "two reveals, three pauses, a refused pause, a refused word");
    asks_and_acts_after(&run, acts);
    assert!(matches!(call(&engine, "unknown", End::Unknown).await, Outcome::Erased));
    let (code, told) = run.told(&["migrate", "status"]);
    assert_eq!((code, &*told), (0, "no migration is missing\n"));
    for arguments in [&["status", "--url", "http://localhost"][..], &["config"], &["man"]] {
        assert_eq!(run.told(arguments).0, 2, "{arguments:?} is the program's alone");
    }
    let (code, told) = run.told(&["--help"]);
    assert!(
        code == 0 && told.contains("Exit codes: 0 fine") && told.contains("Usage: application ops"),
        "{told}"
    );
}

#[tokio::test]
async fn an_application_on_sqlite_has_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("app.db").display());
    inside_of_an_application(&url, Sqlite::connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn an_application_on_postgresql_has_every_command() {
    let url = cluster::new_database();
    inside_of_an_application(&url, Postgres::connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn an_application_on_mariadb_has_every_command() {
    let url = mariadb::new_database();
    inside_of_an_application(&url, Mysql::connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn an_applications_operator_may_what_the_application_says() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("app.db").display());
    let engine = scene(Sqlite::connect(&url).await.unwrap()).await;
    let ids = Run::inside(&url).id("dead_letter");
    let ended = async |may, scopes, words: &[&str]| {
        let actor = Actor::new("ada", may, scopes).unwrap();
        let words = ["myapp ops"].into_iter().chain(words.iter().copied());
        format!("{:?}", atomic_phases_cli::operate(&engine, actor, words).await)
    };
    let code = |code: u8| format!("{:?}", ExitCode::from(code));
    let retry = ["retry", &*ids, "--reason", "r"];
    assert_eq!(ended(Permissions::viewer(), Scopes::All, &["status"]).await, code(6));
    assert_eq!(ended(Permissions::viewer(), Scopes::All, &retry).await, code(3));
    let others = || Scopes::Prefix("tenant-2".to_owned());
    assert_eq!(ended(Permissions::admin(), others(), &["status"]).await, code(0));
    assert_eq!(ended(Permissions::admin(), others(), &retry).await, code(4));
    assert_eq!(ended(Permissions::admin(), Scopes::All, &["retri"]).await, code(2));
    assert_eq!(ended(Permissions::admin(), Scopes::All, &["--help"]).await, code(0));
    assert_eq!(ended(Permissions::responder(), Scopes::All, &retry).await, code(0));
}

#[tokio::test]
async fn what_waits_in_a_sqlite_file_is_told_and_settled() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let engine = scene(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    on_a_database_alone(&run);
    // The client receives the operator's answer, and the application makes the next attempt.
    assert!(matches!(call(&engine, "unknown", End::Unknown).await, Outcome::Erased));
    assert!(matches!(call(&engine, "dead", End::Refused).await, Outcome::DeadLetter));
}

#[tokio::test]
async fn what_waits_in_postgresql_is_told_and_settled() {
    let url = cluster::new_database();
    let _engine = scene(Postgres::connect(&url).await.unwrap()).await;
    let run = Run::on(&["--database-url", &url]);
    on_a_database_alone(&run);
}

#[tokio::test]
async fn what_waits_in_mariadb_is_told_and_settled() {
    let url = mariadb::new_database();
    let _engine = scene(Mysql::connect(&url).await.unwrap()).await;
    let run = Run::on(&["--database-url", &url]);
    on_a_database_alone(&run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_asked_with_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let engine = scene(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let before = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    let before = Engine::builder(before).register::<Leave>().build().unwrap();
    let (of, key) = (Scope::new("tenant-1").unwrap(), IdempotencyKey::new("leave").unwrap());
    before.call(&of, &key, Leave).accept().await.unwrap();
    let node = WorkerConfig::default().node("api-1", "9f2c1d");
    Announcer::new(&engine, node).run_once().await.unwrap();
    let api = Api::new(engine, |head| {
        let token = head.headers.get("authorization")?.to_str().ok()?;
        let may = match token {
            "Bearer secret" => Permissions::admin(),
            "Bearer weak" => Permissions::viewer(),
            _ => return None,
        };
        Some(Actor::new("ada", may, Scopes::All).unwrap())
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ops/", listener.local_addr().unwrap());
    let routes = axum::Router::new().nest("/ops", api.router());
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });

    let checked = tokio::task::spawn_blocking(move || {
        let as_whom = |token: &str| Run::on(&["--url", &url, "--token", token]);
        let (code, told) = as_whom("wrong").told(&["status"]);
        assert_eq!((code, told.contains("--token")), (3, true), "{told}");
        let weak = as_whom("weak");
        let id = weak.id("dead_letter");
        let (code, told) = weak.told(&["retry", &id, "--reason", "r"]);
        assert_eq!(code, 3, "{told}");
        assert!(
            told.contains("this needs the permission to act") || told.contains("permission to act"),
            "{told}"
        );

        let run = as_whom("secret");
        does_what_needs_code(&run);
        let (code, told) = run.told(&["nodes"]);
        assert_eq!((code, told.lines().count()), (0, 2), "{told}");
        assert!(
            told.contains("api-1") && told.contains("9f2c1d") && !told.contains("gone"),
            "{told}"
        );
        let (code, told) = run.told(&["definitions", "-o", "jsonl"]);
        assert_eq!((code, told.lines().count()), (6, 2), "a request is stranded: {told}");
        assert!(told.contains(r#""nodes":1"#) && told.contains(r#""stranded":1"#), "{told}");
        let (_, told) = run.told(&["definitions"]);
        assert!(
            told.contains("pilots.leave v2  left ") && told.contains("noted called answered"),
            "{told}"
        );
        let bulk = ["bulk", "retry", "--state", "dead_letter", "--because", "the line is mended"];
        let (code, out, said) = run.with("", &bulk);
        assert_eq!((code, out.lines().count()), (0, 1), "{said}");
        assert!(said.contains("retry: 1 requests, of which 1 stand") && said.contains("--plan"));
        assert_eq!(run.told(&["bulk", "list"]).1.lines().count(), 1, "a plan starts nothing");
        // Exactly the reviewed plan is started, once.
        let planned = [&bulk[..], &["--plan", out.trim()]].concat();
        let other = [&planned[..], &["--older-than", "0s", "--definition", "pilots.call"]].concat();
        let other: Vec<&str> =
            other.iter().map(|word| if *word == "retry" { "erase" } else { word }).collect();
        assert_eq!(run.told(&other).0, 5, "another act");
        let (code, started, said) = run.with("", &planned);
        assert_eq!((code, said.as_str()), (0, ""), "{started}");
        assert_eq!(run.told(&planned), (0, started.clone()), "sent again");
        let none = [&bulk[..], &["--plan", "none"]].concat();
        assert_eq!(run.told(&none).0, 5);
        assert_eq!(run.told(&[&planned[..], &["--yes"]].concat()).0, 2, "one of both");
        let started = started.trim();
        assert_eq!(run.told(&["bulk", "list"]).1.lines().count(), 2, "one bulk act");
        let (code, anew, said) = run.with("", &[&bulk[..], &["--yes"]].concat());
        assert!(
            code == 0 && anew.trim() != started && said.contains("which was made now"),
            "{said}"
        );
        assert_eq!(run.told(&["bulk", "stop", anew.trim(), "--reason", "r"]).0, 0);
        let (_, told) = run.told(&["bulk", "list"]);
        assert!(told.contains(started) && told.contains("under way, 0 of 1"), "{told}");
        let stop = ["bulk", "stop", started, "--reason", "a slip"];
        assert_eq!(run.told(&stop), (0, "applied\n".to_owned()));
        let (code, told) = run.told(&["bulk", "show", started]);
        assert!(code == 0 && told.contains("stopped by ada"), "{told}");
        assert_eq!(run.told(&["bulk", "retry", "--because", "r"]).0, 2, "a condition, or ids");
        assert_eq!(run.told(&["bulk", "show", "none"]).0, 4);
        let elsewhere = Run::on(&["--url", "http://example.invalid", "--token", "secret"]);
        let (code, told) = elsewhere.told(&["status"]);
        assert_eq!((code, told.contains("https")), (2, true), "{told}");
        let nobody = Run::on(&["--url", "http://127.0.0.1:9", "--timeout", "2"]);
        let (code, told) = nobody.told(&["status"]);
        assert_eq!((code, told.contains("audit")), (1, false), "nothing was to be done: {told}");
        let pause = ["pause", "pilots.call", "called", "--reason", "r"];
        let (code, told) = nobody.told(&pause);
        assert_eq!((code, told.contains("audit")), (1, true), "{told}");
    });
    checked.await.unwrap();
    server.abort();
}

/// A sign-in page, or another program's JSON: neither is taken for the answer that nothing is stuck.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_of_ours_is_no_good_news() {
    const PAGES: [(&str, &str); 4] = [
        ("html", "<html>Sign in</html>"),
        ("none", ""),
        ("other", r#"{"ok":true}"#),
        ("list", "[]"),
    ];
    let mut routes = axum::Router::new();
    for (path, page) in PAGES {
        routes = routes.nest(&format!("/{path}"), axum::Router::new().fallback(async move || page));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });
    let checked = tokio::task::spawn_blocking(move || {
        let (id, because) = ("00000000-0000-4000-8000-000000000000", ["--reason", "r"]);
        let acts: [&[&str]; 7] = [
            &["retry", id],
            &["erase", id, "--yes"],
            &["jobs", "discard", id],
            &["pause", "a", "b"],
            &["unpause", "a", "b"],
            &["bulk", "stop", id],
            &["reveal", id, "--what", "key"],
        ];
        let acts = acts.map(|act| [act, &because].concat());
        let reads: [&[&str]; 11] = [
            &["status"],
            &["list"],
            &["find", "--scope", "a"],
            &["show", id],
            &["why", id],
            &["definitions"],
            &["nodes"],
            &["pauses"],
            &["jobs", "list"],
            &["bulk", "list"],
            &["audit"],
        ];
        for (path, _) in PAGES {
            let run = Run::on(&["--url", &format!("http://{place}/{path}")]);
            for words in reads.iter().copied().chain(acts.iter().map(|act| &act[..])) {
                let (code, out, said) = run.with("k", words);
                assert_eq!((code, out.as_str()), (1, ""), "{path} {words:?}: {said}");
                assert!(said.contains("none of atomic-phases' API"), "{path} {words:?}: {said}");
            }
        }
    });
    checked.await.unwrap();
    server.abort();
}

/// The page of a gateway, or of another intermediary, does not tell the result of the act behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateways_page_says_where_to_look_for_the_act() {
    use axum::http::StatusCode;
    const PAGES: [(&str, u16, &str); 6] = [
        ("bad", 502, "<html>502 Bad Gateway</html>"),
        ("late", 504, ""),
        ("json", 504, r#"{"code":504,"message":"upstream request timeout"}"#),
        ("problem", 500, r#"{"code":"gateway_timeout","title":"Timeout","detail":"It is late."}"#),
        ("page", 200, "<html>Sign in</html>"),
        (
            "ours",
            503,
            r#"{"code":"unavailable","title":"Not available now",
                "detail":"Whether an act was done is in the audit. Look again."}"#,
        ),
    ];
    let mut routes = axum::Router::new();
    for (path, status, page) in PAGES {
        let seen = async || ([("etag", "\"v\"")], r#"{"id":"a"}"#);
        let told = async move || (StatusCode::from_u16(status).unwrap(), page);
        let service = axum::Router::new().route("/{*any}", axum::routing::get(seen).post(told));
        routes = routes.nest(&format!("/{path}"), service);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });
    let checked = tokio::task::spawn_blocking(move || {
        let id = "00000000-0000-4000-8000-000000000000";
        let acts: [&[&str]; 8] = [
            &["retry", id, "--reason", "r"],
            &["erase", id, "--yes", "--reason", "r"],
            &["resolve", id, "finish", "--status", "200", "--reason", "r"],
            &["jobs", "discard", id, "--reason", "r"],
            &["pause", "a", "b", "--reason", "r"],
            &["bulk", "retry", id, "--because", "r", "--plan", "v"],
            &["bulk", "stop", id, "--reason", "r"],
            &["reveal", id, "--what", "key", "--reason", "r"],
        ];
        let looks: [&[&str]; 3] =
            [&["list"], &["find", "--scope", "a"], &["bulk", "retry", id, "--because", "r"]];
        for (path, ..) in PAGES {
            let run = Run::on(&["--url", &format!("http://{place}/{path}")]);
            for act in acts {
                let (code, out, said) = run.with("", act);
                assert_eq!((code, out.as_str()), (1, ""), "{path} {act:?}: {said}");
                assert_eq!(said.matches("is in the audit").count(), 1, "{path} {act:?}: {said}");
                assert!(!said.contains(".."), "{said}");
            }
            for look in looks.iter().filter(|_| path != "ours") {
                let (code, out, said) = run.with("k", look);
                assert_eq!((code, out.as_str()), (1, ""), "{path} {look:?}: {said}");
                assert!(!said.contains("audit"), "nothing was to be done: {path} {said}");
            }
        }
    });
    checked.await.unwrap();
    server.abort();
}

/// A service that answers with these texts, by the beginning of the request. It closes each connection after its
/// answer.
fn service(answers: &'static [(&str, &str)]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            // The bodies here arrive together with their heads, or before the answer is read.
            while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut part).unwrap() {
                    0 => break,
                    read => request.extend(&part[..read]),
                }
            }
            let request = String::from_utf8(request).unwrap();
            let (_, answer) = answers.iter().find(|(start, _)| request.starts_with(start)).unwrap();
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

/// An operator with some scopes, whose requests come after ten thousand rows of other scopes.
#[test]
fn none_or_more_is_not_fine() {
    let run = Run::on(&[
        "--url",
        &service(&[(
            "GET /overview ",
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
         {\"unknown\":{\"number\":0,\"or_more\":true},\"dead_letters\":{\"number\":0,\"or_more\":true},\
         \"due\":{\"number\":0,\"or_more\":false},\"stranded\":{\"number\":0,\"or_more\":false},\
         \"dead_jobs\":{\"number\":0,\"or_more\":false},\"oldest_waiting\":null}",
        )]),
    ]);
    let (code, told) = run.told(&["status"]);
    assert_eq!((code, told.contains("0 or more unknown")), (6, true), "{told}");
}

/// The answer to an act breaks off: the outcome of the act is unknown.
#[test]
fn an_answer_that_breaks_off_says_where_to_look() {
    let run = Run::on(&[
        "--url",
        &service(&[
            (
                "GET ",
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\netag: \"v\"\r\nconnection: close\r\n\r\n\
             {\"id\":\"a\"}",
            ),
            (
                "POST ",
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"outc",
            ),
        ]),
    ]);
    let (code, told) =
        run.told(&["retry", "00000000-0000-4000-8000-000000000000", "--reason", "r"]);
    assert_eq!((code, told.contains("is in the audit")), (1, true), "{told}");
}

/// A reader of only the first line (`| head -1`), and a full disk.
#[tokio::test]
async fn a_reader_who_goes_ends_no_act_half_way() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let _engine = scene(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    let dead = run.id("dead_letter");
    let to = |out: Stdio, is_read: bool, arguments: &[&str]| {
        let mut command = Command::new(&run.program);
        command.env("USER", "ada").env("XDG_CONFIG_HOME", "/nonexistent").args(&run.way);
        let spawned =
            command.args(arguments).stdin(Stdio::piped()).stdout(out).stderr(Stdio::piped());
        let mut child = spawned.spawn().unwrap();
        if !is_read {
            drop(child.stdout.take());
        }
        let ids = format!("{dead}\n{dead}\n");
        let _ = child.stdin.take().unwrap().write_all(ids.as_bytes());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let retry = ["retry", "-", "--reason", "the line is up"];
    assert_eq!(to(Stdio::piped(), false, &retry), (Some(0), String::new()));
    let outcomes = |told: &str| told.matches(r#""act":"retry""#).count();
    assert_eq!(outcomes(&run.told(&["audit", "-o", "jsonl"]).1), 2, "each of both was done");
    for arguments in
        [&["list"][..], &["show", &dead, "-o", "json"], &["man"], &["completions", "bash"]]
    {
        assert_eq!(to(Stdio::piped(), false, arguments), (Some(0), String::new()), "{arguments:?}");
    }
    if cfg!(target_os = "linux") {
        let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let (code, said) = to(full(), true, &["list", "-o", "ids"]);
        assert_eq!((code, said.contains("could not be written")), (Some(1), true), "{said}");
    }
}

#[tokio::test]
async fn a_limit_is_kept_over_several_pages() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let engine = scene(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    let ada = Actor::new("ada", Permissions::admin(), Scopes::All).unwrap();
    let dead = Selection::Filter(Filter::new().states([State::DeadLetter]));
    // A page of bulk acts has a hundred.
    for _ in 0..205 {
        let _ = engine.ops(ada.clone()).start_bulk(BulkAct::Retry, &dead, 1, "r").await.unwrap();
    }
    for (limit, lines, is_all) in [("100", 100, false), ("203", 203, false), ("900", 205, true)] {
        let (code, told, said) = run.with("", &["bulk", "list", "--limit", limit, "-o", "ids"]);
        let ids: BTreeSet<&str> = told.lines().collect();
        assert_eq!((code, told.lines().count(), ids.len()), (0, lines, lines), "{limit}");
        assert_eq!(said.is_empty(), is_all, "{limit}: {said}");
    }
    let (mut ids, mut after, mut lines) = (BTreeSet::new(), None::<String>, Vec::new());
    loop {
        let on = after.take();
        let on: Vec<&str> = on.iter().flat_map(|cursor| ["--after", cursor.as_str()]).collect();
        let list = [&["bulk", "list", "--limit", "100", "-o", "ids"][..], &on].concat();
        let (code, told, said) = run.with("", &list);
        assert_eq!(code, 0, "{said}");
        lines.push(told.lines().count());
        ids.extend(told.lines().map(ToOwned::to_owned));
        if said.is_empty() {
            break;
        }
        after = Some(cursor(&said).to_owned());
    }
    assert_eq!((lines, ids.len()), (vec![100, 100, 5], 205), "each once");
}

/// As an operator with some scopes sees it, whose rows come after ten thousand rows of other scopes.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_behind_ten_thousand_rows_of_others_is_reached() {
    use axum::routing::{get, post};
    fn page(cursor: Option<&str>) -> &'static str {
        match cursor {
            None => r#"{"rows":[],"next":"-b_9","looked_to":"2026-11-22T12:00:00.000000Z"}"#,
            Some("-b_9") => r#"{"rows":[{"id":"a"}],"next":null,"looked_to":null}"#,
            Some(_) => "none of ours",
        }
    }
    let search = async |body: String| {
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        page(body["cursor"].as_str())
    };
    let list = async |uri: axum::http::Uri| {
        let mut parts = uri.query().unwrap_or_default().split('&');
        page(parts.find_map(|part| part.strip_prefix("cursor=")))
    };
    let mut routes = axum::Router::new().route("/requests/search", post(search));
    for path in ["/jobs", "/bulk", "/audit"] {
        routes = routes.route(path, get(list));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });
    let checked = tokio::task::spawn_blocking(move || {
        let run = Run::on(&["--url", &url]);
        let lists: [&[&str]; 5] = [
            &["list"],
            &["jobs", "list"],
            &["bulk", "list"],
            &["audit"],
            &["audit", "--request", "7"],
        ];
        for list in lists {
            let list = [list, &["-o", "ids"]].concat();
            let (code, told, said) = run.with("", &list);
            assert_eq!((code, told.as_str()), (0, ""), "{list:?}: {said}");
            assert!(said.contains("ten thousand") && said.contains("2026-11-22T12"), "{said}");
            let on = [&list[..], &["--after", cursor(&said)]].concat();
            assert_eq!(run.with("", &on), (0, "a\n".to_owned(), String::new()), "{list:?}");
        }
    });
    checked.await.unwrap();
    server.abort();
}

/// The command that should have listed the ids may have failed.
#[tokio::test]
async fn to_have_done_nothing_for_want_of_ids_is_not_fine() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let _engine = scene(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    let acts: [&[&str]; 6] = [
        &["retry", "-", "--reason", "r"],
        &["erase", "-", "--yes", "--reason", "r"],
        &["jobs", "retry", "-", "--reason", "r"],
        &["jobs", "discard", "-", "--reason", "r"],
        &["bulk", "retry", "-", "--because", "r"],
        &["bulk", "erase", "-", "--because", "r", "--yes"],
    ];
    for act in acts {
        for input in ["", "\n  \n"] {
            let (code, out, said) = run.with(input, act);
            assert_eq!((code, out.as_str()), (4, ""), "{act:?}: {said}");
            assert!(said.contains("no id on the standard input"), "{act:?}: {said}");
        }
    }
    // A resolution is about one request, and the standard input may contain its output.
    let dead = run.id("dead_letter");
    let words: [&[&str]; 4] = [
        &["executed", "--phase", "called", "--output", "-"],
        &["not-executed", "--phase", "called", "--attempt", "1"],
        &["finish", "--status", "200", "--body", "-"],
        &["finish", "--status", "200"],
    ];
    for word in words {
        let word = [&["resolve", "-"], word, &["--reason", "r"]].concat();
        let (code, out, said) = run.with(&dead, &word);
        assert_eq!((code, out.as_str()), (2, ""), "{word:?}: {said}");
        assert!(said.contains("about one request"), "{word:?}: {said}");
    }
    assert_eq!(run.told(&["audit", "-o", "ids"]), (0, String::new()), "nobody did anything");
}

/// Only on the version that was seen; and once.
#[tokio::test]
async fn each_act_is_done_on_the_version_that_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("app.db").display());
    let engine = scene(Sqlite::connect(&url).await.unwrap()).await;
    let run = Run::inside(&url);
    let executed = ["executed", "--phase", "called", "--output", r#"{"id":7}"#];
    let not_executed = ["not-executed", "--phase", "called", "--attempt", "1"];
    let words: [(&str, &str, &[&str]); 4] = [
        ("dead_letter", "retry", &[]),
        ("finished", "erase", &["--yes"]),
        ("unknown", "resolve", &executed),
        ("unknown", "resolve", &not_executed),
    ];
    for (number, (state, act, more)) in words.into_iter().enumerate() {
        if number == 3 {
            assert!(matches!(call(&engine, "other", End::Unknown).await, Outcome::Unknown { .. }));
        }
        let id = run.id(state);
        let seen = version(&run, &id);
        let by = |version: &str| {
            let words = [&[act, &*id][..], more, &["--version", version, "--reason", "r"]];
            run.told(&words.concat())
        };
        let (code, told) = by("0a1b");
        assert!(code == 5 && told.contains("moved on"), "{act} {more:?}: {code} {told}");
        assert_eq!(by(&seen), (0, format!("{id} applied\n")), "{act} {more:?}");
        // The row has changed by now, but the resolution is already true. A second erasure finds what did not exist
        // the first time, and its version is the one from before.
        let again = if act == "erase" { "applied" } else { "already" };
        assert_eq!(version(&run, &id) == seen, act == "erase", "{act} {more:?}");
        assert_eq!(by(&seen), (0, format!("{id} {again}\n")), "{act} {more:?}");
    }
}

#[tokio::test]
async fn a_job_is_retried_and_discarded_on_the_version_that_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let store = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).register::<Thank>().build().unwrap();
    for key in ["a", "b"] {
        let (scope, key) = (Scope::new("tenant-1").unwrap(), IdempotencyKey::new(key).unwrap());
        assert!(matches!(engine.call(&scope, &key, Thank).await, Ok(Outcome::Finished(_))));
    }
    let gives_up = Handlers::new()
        .on("mail", async |_: i64, _| Err(DeliveryError::dead("the mail server is away")));
    Enqueuer::new(&engine, gives_up, WorkerConfig::default()).run_once().await.unwrap();
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    let (_, told) = run.told(&["jobs", "list", "-o", "jsonl"]);
    let jobs: Vec<serde_json::Value> =
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let id = |job: usize| jobs[job]["id"].as_str().unwrap();
    assert_eq!(jobs.len(), 2, "{told}");
    let both = ["jobs", "retry", id(0), id(1), "--version", "1", "--reason", "r"];
    assert_eq!(run.told(&both).0, 2, "a version is of one");
    for (job, act) in ["retry", "discard"].into_iter().enumerate() {
        let (id, tries) = (id(job), jobs[job]["attempts"].to_string());
        assert_eq!(jobs[job]["version"].as_str(), Some(&*tries));
        let by = |version: &str| {
            run.told(&["jobs", act, id, "--version", version, "--reason", "the server is back"])
        };
        for other in ["99", "none"] {
            let (code, told) = by(other);
            assert!(code == 5 && told.contains("moved on"), "{act} {other}: {code} {told}");
        }
        assert_eq!(by(&tries), (0, format!("{id} applied\n")), "{act}");
        assert_eq!(by(&tries).0, 4, "{act}: it is no dead job any more");
    }
}

#[test]
fn the_tables_of_a_database_are_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    std::fs::write(&file, "").unwrap();
    let file = format!("sqlite://{}", file.display());
    for url in [file, cluster::new_database(), mariadb::new_database()] {
        let run = Run::on(&["--database-url", &url]);
        let (code, told) = run.told(&["migrate", "status"]);
        assert_eq!(code, 6);
        assert!(told.starts_with("missing "), "{told}");
        for words in
            [&["status"][..], &["retry", "00000000-0000-4000-8000-000000000000", "--reason", "r"]]
        {
            let (code, told) = run.told(words);
            assert_eq!((code, told.contains("`migrate up`")), (1, true), "{url}: {told}");
        }
        let (code, told) = run.told(&["migrate", "up"]);
        assert_eq!(code, 0, "{told}");
        assert_eq!(run.told(&["migrate", "status"]), (0, "no migration is missing\n".to_owned()));
        assert_eq!(run.told(&["status"]).0, 0);
    }
}

#[test]
fn usage_errors_exit_with_two() {
    let nobody = Run::on(&[]);
    let (code, told) = nobody.told(&["status"]);
    assert_eq!((code, told.contains("--database-url")), (2, true), "{told}");
    let both = Run::on(&["--url", "http://localhost", "--database-url", "sqlite://x"]);
    assert_eq!(both.told(&["status"]).0, 2);
    for url in ["127.0.0.1:5000", "example.com/ops"] {
        let (code, told) = Run::on(&["--url", url]).told(&["status"]);
        assert_eq!((code, told.contains("https://")), (2, true), "{told}");
    }
    for url in ["oracle://host/db", "app.db"] {
        assert_eq!(Run::on(&["--database-url", url]).told(&["status"]).0, 2, "{url}");
    }
    assert_eq!(Run::on(&["--database-url", "sqlite://none.db"]).told(&["status"]).0, 1);
    assert!(!std::path::Path::new("none.db").exists());
}

/// As in a container, where no user is logged in.
#[test]
fn who_acts_on_a_database_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    std::fs::write(&file, "").unwrap();
    let run = |user: &[(&str, &str)], command: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_atomic-phases"));
        program.env_clear().envs(user.iter().copied()).args(command);
        let ran = program.args(["--database-url", &format!("sqlite://{}", file.display())]);
        let ran = ran.output().unwrap();
        (ran.status.code().unwrap(), String::from_utf8(ran.stderr).unwrap())
    };
    assert_eq!(run(&[], &["migrate", "up"]).0, 0, "it is no act of the audit");
    let (code, said) = run(&[], &["status"]);
    assert_eq!((code, said.contains("--as NAME")), (2, true), "{said}");
    assert_eq!(run(&[], &["status", "--as", "ada"]).0, 0);
    for name in ["USER", "LOGNAME"] {
        assert_eq!(run(&[(name, "ada")], &["status"]).0, 0, "{name}");
    }
    let (code, said) = run(&[("USER", "a\u{7}")], &["status"]);
    assert_eq!((code, said.contains("control character")), (2, true), "{said}");
}

#[test]
fn a_profile_says_who_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    std::fs::write(&file, "").unwrap();
    let database = format!("sqlite://{}", file.display());
    let profiles = format!("[local]\ndatabase-url = '{database}'\nas = 'grace'\nformat = 'json'\n");
    std::fs::create_dir(dir.path().join("atomic-phases")).unwrap();
    std::fs::write(dir.path().join("atomic-phases/profiles.toml"), profiles).unwrap();
    let run = Run { settings: dir.path().to_owned(), ..Run::on(&["--profile", "local"]) };
    assert_eq!(run.told(&["migrate", "up"]).0, 0);
    assert_eq!(run.told(&["list"]), (0, "[]\n".to_owned()));
    let (code, told) = run.told(&["list", "-o", "table"]);
    assert_eq!((code, told.lines().count()), (0, 1), "an argument counts before it: {told}");
    let (code, told) = run.told(&["config", "-o", "table"]);
    assert_eq!(code, 0, "{told}");
    let line = |name: &str| {
        let line = told.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("profile "), "profile local --profile");
    assert_eq!(line("database-url"), format!("database-url {database} the profile"));
    assert_eq!(line("as"), "as grace the profile");
    assert_eq!(line("timeout"), "timeout 30 by default");
    assert_eq!(line("format"), "format table --format");
    let run = Run { way: Vec::new(), ..run };
    let (code, told) = run.told(&["status"]);
    assert_eq!((code, told.contains("--profile")), (2, true), "none is named: {told}");
}

/// Each command of a help, with its subcommands: `bulk`, `bulk retry`.
fn commands(run: &Run, behind: &[&str]) -> Vec<Vec<String>> {
    let help = run.told(&[behind, &["--help"]].concat()).1;
    let Some((_, listed)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(!names.is_empty(), "{help}");
    let mut all = Vec::new();
    for name in names {
        let whole = [behind, &[name]].concat();
        all.push(whole.iter().map(|&word| word.to_owned()).collect());
        all.extend(commands(run, &whole));
    }
    all
}

#[test]
fn each_command_has_a_man_page() {
    let run = Run::on(&[]);
    let (code, told) = run.told(&["man"]);
    assert!(code == 0 && told.contains(".TH atomic-phases 1"), "{told}");
    assert!(told.contains("Exit codes"), "{told}");
    let commands = commands(&run, &[]);
    let has = |name: &str| commands.iter().any(|words| words.join(" ") == name);
    assert!(has("resolve executed") && has("bulk stop") && has("jobs retry") && has("config"));
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    assert_eq!(run.told(&["man", "--into", folder]).0, 0);
    for words in &commands {
        let page = dir.path().join(format!("atomic-phases-{}.1", words.join("-")));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|_| panic!("no {page:?}"));
        let last = words.last().unwrap();
        assert!(
            page.contains(".SH SYNOPSIS") && page.contains(&last.replace('-', "\\-")),
            "{page}"
        );
    }
    let pages = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(pages, commands.len() + 1, "and its own");
    let nowhere = dir.path().join("none").display().to_string();
    assert_eq!(run.told(&["man", "--into", &nowhere]).0, 1);
}

#[test]
fn completions_have_each_command_and_are_what_the_shell_reads() {
    let run = Run::on(&[]);
    let commands = commands(&run, &[]);
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let (code, told) = run.told(&["completions", shell]);
        assert_eq!(code, 0, "{told}");
        for name in commands.iter().flatten() {
            assert!(told.contains(name.as_str()), "{shell}: {name}");
        }
        let file = dir.path().join(shell);
        std::fs::write(&file, told).unwrap();
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(read) => assert!(read.status.success() && read.stderr.is_empty(), "{read:?}"),
            Err(_) => println!("{shell} is not there: its completions were not read"),
        }
    }
    // As for `atomic-phases bulk st<Tab>`.
    let ask = "source \"$0\"; COMP_WORDS=(atomic-phases bulk st); COMP_CWORD=2; \
               $(complete -p atomic-phases | sed 's/.* -F \\([^ ]*\\) .*/\\1/') atomic-phases st bulk; \
               echo \"${COMPREPLY[@]}\"";
    let read =
        Command::new("bash").args(["-c", ask]).arg(dir.path().join("bash")).output().unwrap();
    assert_eq!(String::from_utf8(read.stdout).unwrap(), "stop\n");
}
