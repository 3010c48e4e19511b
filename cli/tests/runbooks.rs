//! Runs each command of `docs/runbooks.md` on a service in the state that its section describes, and checks its
//! effect. The same for the steps of `docs/console.md`, on the flagship.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atomic_phases::console::Api;
use atomic_phases::ops::{Actor, Filter, Permissions, Scopes, State};
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::store::{Sqlite, Store};
use atomic_phases::worker::{DeliveryError, Enqueuer, Handlers, WorkerConfig};
use atomic_phases::{
    Engine, ForeignCall, IdempotencyKey, PhaseError, PhaseResult, Reply, Scope, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

const RUNBOOKS: &str = include_str!("../../docs/runbooks.md");

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum CallPilot {
    Fine,
    Unknown,
    Refused,
}

#[derive(Serialize, Deserialize)]
struct Called {
    id: u64,
}

#[atomic_phases(name = "pilots.call", version = 1)]
impl<Db: Store> CallPilot {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        tx.stage_job("mail", self)?;
        Ok(())
    }

    #[phase(foreign(at_most_once))]
    async fn called(&self, call: ForeignCall) -> PhaseResult<Called, ForeignError> {
        match self {
            Self::Fine => call.make(async |_| Ok::<_, ForeignError>(Called { id: 7 })).await,
            Self::Unknown => {
                call.make(async |_| Err::<Called, _>(ForeignError::unknown("no answer"))).await
            }
            Self::Refused => Err(PhaseError::retryable("the line is down").into()),
        }
    }

    #[reconcile(called)]
    async fn find_call(&self) -> PhaseResult<Reconciled<Called>> {
        let _ = self;
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, called: &Called) -> PhaseResult<Reply> {
        let _ = (self, tx);
        Ok(Reply::json(200, called)?)
    }
}

/// A finished request, an unknown one, a dead letter, and a dead job of each.
async fn with_requests(file: &Path) -> Engine<Sqlite> {
    let store = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).register::<CallPilot>().max_attempts(1).build().unwrap();
    for (key, request) in
        [("a", CallPilot::Fine), ("b", CallPilot::Unknown), ("c", CallPilot::Refused)]
    {
        let (scope, key) = (Scope::new("tenant-1").unwrap(), IdempotencyKey::new(key).unwrap());
        engine.call(&scope, &key, request).await.unwrap();
    }
    let jobs = Handlers::new()
        .on("mail", async |_: CallPilot, _| Err(DeliveryError::dead("the mail server is away")));
    Enqueuer::new(&engine, jobs, WorkerConfig::default()).run_once().await.unwrap();
    engine
}

fn ada() -> Actor {
    Actor::new("ada", Permissions::admin(), Scopes::All).unwrap()
}

/// The commands of a section, one block after the other.
fn blocks(section: &str) -> Vec<&str> {
    let blocks = section.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

fn sections() -> Vec<(&'static str, &'static str)> {
    let sections = RUNBOOKS.split("\n## ").skip(1);
    sections.map(|section| section.split_once('\n').unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_of_the_runbooks_does_what_it_says() {
    let mut run = BTreeSet::new();
    for (alert, section) in sections() {
        let blocks = blocks(section);
        assert!(!blocks.is_empty(), "{alert} has no command");
        for block in blocks {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("app.db");
            let engine = with_requests(&file).await;
            if block.contains("atomic-phases unpause ") {
                let because = "the line is cut";
                engine.ops(ada()).pause("pilots.call", "called", None, because).await.unwrap();
            }
            let of = async |state| {
                let page = engine.ops(ada()).list(Filter::new().states([state])).await.unwrap();
                page.rows[0].request_id.to_string()
            };
            let request = match alert {
                "AtomicPhasesDeadLetters" => of(State::DeadLetter).await,
                _ => of(State::Unknown).await,
            };
            let jobs = engine.ops(ada()).dead_jobs(None, 10).await.unwrap().rows;
            assert_eq!(jobs.len(), 3, "{jobs:?}");
            let job = jobs[0].id.to_string();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/ops/", listener.local_addr().unwrap());
            let api = Api::new(engine, |head| {
                let token = head.headers.get("authorization")?.to_str().ok()?;
                (token == "Bearer secret").then(ada)
            });
            let routes = axum::Router::new().nest("/ops", api.router());
            let server = tokio::spawn(async move { axum::serve(listener, routes).await });
            for line in block.lines().filter(|line| !line.is_empty()) {
                let words = [("REQUEST", &*request), ("JOB", &job), ("URL", &url)];
                let database = format!("sqlite://{}", file.display());
                let (line, words) = (line.to_owned(), words.map(|(n, v)| (n, v.to_owned())));
                let ran = tokio::task::spawn_blocking(move || ask(&line, &words, &database)).await;
                run.insert(ran.unwrap());
            }
            server.abort();
        }
    }
    // All acts of an operator on what waits.
    for act in ["resolve", "retry", "unpause", "pause", "bulk", "jobs", "status", "list", "why"] {
        assert!(run.contains(act), "no section has {act}: {run:?}");
    }
}

/// Runs a line as a shell does, and says which command it was.
fn ask(line: &str, words: &[(&str, String); 3], database: &str) -> String {
    let [request, job, (_, url)] = words;
    let command = line.strip_prefix("atomic-phases ").unwrap_or_else(|| panic!("{line}"));
    let command = command.strip_prefix("--database-url \"$DATABASE_URL\" ").unwrap_or(command);
    let command = command.split(' ').next().unwrap().to_owned();
    let here = Path::new(env!("CARGO_BIN_EXE_atomic-phases")).parent().unwrap();
    let path = format!("{}:{}", here.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-euc", line]).env("PATH", path).env("USER", "ada");
    shell.env(request.0, &request.1).env(job.0, &job.1);
    shell.env("DEFINITION", "pilots.call").env("PHASE", "called");
    // As the page says for all commands.
    shell.env_remove("ATOMIC_PHASES_DATABASE_URL").env("DATABASE_URL", database);
    shell.env("ATOMIC_PHASES_URL", url).env("ATOMIC_PHASES_TOKEN", "secret");
    let ran = shell.output().unwrap();
    // `status` exits with 6 while something waits.
    let code = if command == "status" { 6 } else { 0 };
    assert_eq!(ran.status.code(), Some(code), "{line}\n{}", String::from_utf8_lossy(&ran.stderr));
    command
}

/// The flagship. Dropped, it is killed, by its own id.
struct Flagship(std::process::Child);

impl Drop for Flagship {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it, and returns what it printed up to a line with this text.
fn flagship(folder: &Path, arguments: &[&str], until: &str) -> (Flagship, Vec<String>) {
    let programs = Path::new(env!("CARGO_BIN_EXE_atomic-phases")).parent().unwrap();
    let program = programs.join("examples/rocket_rides");
    assert!(program.exists(), "not built: run `cargo build --workspace --examples --all-features`");
    let mut child = Command::new(program);
    child.args(["--listen", "127.0.0.1:0"]).args(arguments).current_dir(folder);
    child.env_remove("DATABASE_URL").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = child.stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let flagship = Flagship(child);
    let mut printed = Vec::new();
    while printed.last().is_none_or(|line: &String| !line.contains(until)) {
        printed.push(lines.next().unwrap_or_else(|| panic!("no {until:?} in {printed:?}")));
    }
    std::thread::spawn(move || lines.for_each(drop));
    (flagship, printed)
}

/// What stands behind the beginning of the line that begins so.
#[track_caller]
fn behind<'a>(printed: &'a [String], beginning: &str) -> &'a str {
    let mut lines = printed.iter().filter_map(|line| line.strip_prefix(beginning));
    lines.next().unwrap_or_else(|| panic!("no {beginning:?} in {printed:?}"))
}

#[test]
fn the_flagship_prints_a_console_on_this_machine_without_being_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (_flagship, printed) = flagship(folder.path(), &[], " is ready on ");
    let console = behind(&printed, "console: ");
    let (address, token) = console.split_once("/enter?token=").unwrap();
    let port: u16 = address.strip_prefix("http://127.0.0.1:").unwrap().parse().unwrap();
    assert!(port > 0 && token.len() >= 32, "{console}");
    // On no other address of this machine.
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(std::net::TcpStream::connect(("127.0.0.2", port)).is_err());
}

#[test]
fn g2_the_walk_from_a_terminal_settles_what_is_unknown() {
    let page = include_str!("../../docs/console.md");
    let section = page.split("\n### The same from a terminal\n").nth(1).unwrap();
    let blocks = blocks(section.split("\n## ").next().unwrap());
    let [look, told, not_told, after] = blocks[..] else { panic!("{blocks:?}") };
    let folder = tempfile::tempdir().unwrap();
    let (_flagship, printed) = flagship(folder.path(), &["--trouble"], "trouble: made");
    assert_eq!(behind(&printed, "trouble: a card was declined: "), "402");
    assert!(behind(&printed, "console: ").starts_with("http://127.0.0.1:"), "{printed:?}");
    let export = behind(&printed, "from a terminal: ");
    assert!(export.starts_with("export ATOMIC_PHASES_URL=http://127.0.0.1:"), "{export}");
    let sh = |script: &str| {
        let here = Path::new(env!("CARGO_BIN_EXE_atomic-phases")).parent().unwrap();
        let path = format!("{}:{}", here.display(), std::env::var("PATH").unwrap_or_default());
        let script = format!("{export}\n{script}");
        let mut shell = Command::new("sh");
        shell.args(["-uc", &script]).current_dir(folder.path()).env("PATH", path);
        let ran = shell.env("XDG_CONFIG_HOME", folder.path()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    let until = |what: &str, script: &str, is_so: &dyn Fn(&str) -> bool| {
        let began = Instant::now();
        loop {
            let (_, out, error) = sh(script);
            if is_so(&out) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: {out}{error}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    until("two are unknown", "atomic-phases status", &|out| out.contains("2 unknown"));
    let (code, ..) = sh("atomic-phases status");
    assert_eq!(code, Some(6));
    let mut words = BTreeSet::new();
    for _ in 0..2 {
        // As an operator does it: the result of the first block decides which of the next two is run.
        let script = format!(
            "{look}\nif [ -n \"$LINE\" ]; then set -e\n{told}\nelse set -e\n{not_told}\nfi\n{after}\n\
             echo \"settled=$REQUEST\""
        );
        let (code, out, error) = sh(&script);
        assert_eq!(code, Some(0), "{out}{error}");
        assert!(
            out.contains("Whether the call of `pilot_notified` was executed is unknown"),
            "{out}"
        );
        assert!(out.contains("reveal.outputs") && out.contains("you, by the API"), "{out}");
        let word = ["resolve.executed", "resolve.not_executed"].into_iter();
        words.extend(word.filter(|word| out.contains(word)));
        let request = out.split("settled=").nth(1).unwrap().trim();
        let why = format!("atomic-phases why {request}");
        until("a worker goes on with it", &why, &|out| out.contains("It is finished"));
    }
    assert_eq!(words.len(), 2, "one was told, the other was not: {words:?}");
    let book = std::fs::read_to_string(folder.path().join("rocket_rides.pilots")).unwrap();
    let rides: BTreeSet<&str> = book.lines().collect();
    assert_eq!((book.lines().count(), rides.len()), (10, 10), "no pilot was told twice");
    assert_eq!(sh("atomic-phases status").0, Some(0));
}
