//! The terminal sessions of `docs/operating.md`: each block is run on a service with the incident that it shows, and what
//! the commands print is compared with the page, line by line. Ids, hashes, versions and ages are compared as patterns.
//! The profiles of the page are read.

use std::time::Duration;

use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::{ForeignCall, PhaseError};

use super::every_way::OPERATING;
use super::*;

/// How the pilot's line is.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Line {
    /// The outcome of the call is unknown.
    Silent,
    /// No call is made.
    Down,
}

/// The request of the page.
#[derive(Serialize, Deserialize)]
struct CreateRide {
    line: Line,
}

/// What the pilot says.
#[derive(Serialize, Deserialize)]
struct Told {
    pilot: u64,
}

#[atomic_phases(name = "rides.create", version = 2)]
impl<Db: Store> CreateRide {
    #[phase]
    async fn booked(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        let _ = (self, tx);
        Ok(())
    }

    #[phase(foreign(at_most_once))]
    async fn pilot_called(&self, call: ForeignCall) -> PhaseResult<Told, ForeignError> {
        match self.line {
            Line::Silent => {
                call.make(async |_| Err::<Told, _>(ForeignError::unknown("no answer"))).await
            }
            Line::Down => Err(PhaseError::retryable("the line is down").into()),
        }
    }

    #[reconcile(pilot_called)]
    async fn find_call(&self) -> PhaseResult<Reconciled<Told>> {
        let _ = self;
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, pilot_called: &Told) -> PhaseResult<Reply> {
        let _ = (self, tx);
        Ok(Reply::json(200, pilot_called)?)
    }
}

/// One unknown outcome, of a second attempt; one dead letter; four requests that a worker may begin.
async fn incident(file: &Path) -> Engine<Sqlite> {
    let store = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store)
        .register::<CreateRide>()
        .max_attempts(1)
        .reconcile_after(Duration::from_secs(750))
        .build()
        .unwrap();
    let scope = Scope::new("tenant-1").unwrap();
    let key = |name: &str| IdempotencyKey::new(name).unwrap();
    let silent = || CreateRide { line: Line::Silent };
    for attempt in 1..=2 {
        let called = engine.call(&scope, &key("unknown"), silent()).await.unwrap();
        assert!(matches!(called, Outcome::Unknown { .. }), "{called:?}");
        if attempt == 1 {
            let not_executed = Resolution::not_executed("pilot_called", attempt);
            let resolved = engine.resolve(&scope, &key("unknown"), not_executed).await.unwrap();
            assert_eq!(resolved, Resolved::Applied);
        }
    }
    let down = CreateRide { line: Line::Down };
    let called = engine.call(&scope, &key("dead"), down).await.unwrap();
    assert!(matches!(called, Outcome::DeadLetter), "{called:?}");
    for name in ["a", "b", "c", "d"] {
        engine.call(&scope, &key(name), silent()).accept().await.unwrap();
    }
    Announcer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    engine
}

/// A command of the page, and what the page shows after it.
struct Shown<'a> {
    command: String,
    output: Vec<&'a str>,
}

fn shown(block: &str) -> Vec<Shown<'_>> {
    let mut all: Vec<Shown<'_>> = Vec::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            all.push(Shown { command: command.to_owned(), output: Vec::new() });
            continue;
        }
        let last = all.last_mut().unwrap_or_else(|| panic!("no command before {line:?}"));
        // A command goes on after a backslash.
        if last.output.is_empty() && last.command.ends_with('\\') {
            last.command.push('\n');
            last.command.push_str(line);
        } else {
            last.output.push(line);
        }
    }
    all
}

/// Whether it is a number of hex digits, this many.
fn is_hex(word: &str, digits: usize) -> bool {
    word.len() == digits && word.chars().all(|letter| matches!(letter, '0'..='9' | 'a'..='f'))
}

fn is_id(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    parts.len() == 5
        && parts.iter().zip([8, 4, 4, 4, 12]).all(|(part, digits)| is_hex(part, digits))
}

/// `41m`, before *ago* or after *in*.
fn is_age(word: &str) -> bool {
    let digits = word.trim_end_matches(['s', 'm', 'h', 'd']);
    digits.len() + 1 == word.len() && digits.parse::<u32>().is_ok()
}

/// The request that a block is about, and its version.
#[derive(Clone, Copy)]
struct Request<'a> {
    id: &'a str,
    version: &'a str,
}

impl Request<'_> {
    /// A line without what differs from one incident to the next. All other words stay, and the spaces between them.
    fn pattern(self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let words = words.iter().enumerate().map(|(at, &word)| {
            let is_before = words.get(at + 1).is_some_and(|next| *next == "ago");
            let is_after = at > 0 && words[at - 1] == "in";
            match word {
                _ if word == self.id => "<the id>",
                _ if word == self.version => "<the version>",
                _ if is_id(word) => "<another id>",
                _ if word.strip_prefix('#').is_some_and(|hash| is_hex(hash, 8)) => "#<hash>",
                _ if is_age(word) && (is_before || is_after) => "<time>",
                _ => word,
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

/// The cells of a line: between them are two spaces and the padding of their column.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// The lines of a table again, each column as wide as its longest cell.
fn aligned(lines: &[&str]) -> Vec<String> {
    let rows: Vec<Vec<&str>> = lines.iter().map(|line| cells(line)).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let line = |row: &Vec<&str>| {
        let padded = row.iter().enumerate().map(|(at, cell)| format!("{cell:0$}", width(at)));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Compares what the page shows after a command with what the command printed.
fn compare(command: &str, page: (&[&str], Request<'_>), printed: (&[&str], Request<'_>)) {
    let ((mut shown, of_page), (mut lines, of_run)) = (page, printed);
    // The page leaves out the rest.
    if let Some((&"...", before)) = shown.split_last() {
        assert!(lines.len() > before.len(), "there is no rest: {command}\n{lines:#?}");
        (shown, lines) = (before, &lines[..before.len()]);
    }
    let is_table = shown.first().is_some_and(|head| head.starts_with("REQUEST "));
    if is_table {
        assert_eq!(shown, aligned(shown), "the page's columns: {command}");
    }
    // An age of another length makes its column wider or narrower.
    let comparable = |lines: &[&str], of: Request<'_>| -> Vec<String> {
        let line = |line: &&str| match is_table {
            true => of.pattern(&cells(line).join("  ")),
            false => of.pattern(line),
        };
        lines.iter().map(line).collect()
    };
    assert_eq!(comparable(shown, of_page), comparable(lines, of_run), "page and run: {command}");
}

/// Exit code and both outputs, as a terminal shows them.
fn sh(script: &str) -> (i32, String) {
    let here = Path::new(env!("CARGO_BIN_EXE_atomic-phases")).parent().unwrap();
    let path = format!("{}:{}", here.display(), std::env::var("PATH").unwrap_or_default());
    let script = format!("exec 2>&1\n{script}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::null()).env("PATH", path).env("USER", "ada");
    for name in ["URL", "DATABASE_URL", "TOKEN", "PROFILE"] {
        shell.env_remove(format!("ATOMIC_PHASES_{name}"));
    }
    let ran = shell.env("XDG_CONFIG_HOME", "/nonexistent").output().unwrap();
    (ran.status.code().unwrap(), String::from_utf8(ran.stdout).unwrap())
}

/// Runs the commands of a block. `export`: the command that names the service.
fn run_block(block: &str, export: &str, run: &Run) {
    let id = run.id("unknown");
    let seen = version(run, &id);
    let of_run = Request { id: &id, version: &seen };
    let named = |is: &dyn Fn(&str) -> bool| block.split_whitespace().find(|word| is(word));
    let of_page = Request {
        id: named(&is_id).unwrap(),
        version: named(&|word| is_hex(word, 16)).unwrap_or(&seen),
    };
    for Shown { command, output } in shown(block) {
        let ours = command.replace(of_page.id, of_run.id).replace(of_page.version, of_run.version);
        let script = if command.starts_with("export ") { String::new() } else { ours };
        let (code, printed) = sh(&format!("{export}\n{script}"));
        // Something waits; or the request has changed since it was read.
        let is_status = command.starts_with("atomic-phases status");
        let is_late = command.contains(" --version ");
        let ends = match (is_status, is_late) {
            (true, _) => 6,
            (_, true) => 5,
            _ => 0,
        };
        assert_eq!(code, ends, "{command}\n{printed}");
        let printed: Vec<&str> = printed.lines().collect();
        compare(&command, (&*output, of_page), (&*printed, of_run));
        // Another operator acts before the one who has read it.
        if command.starts_with("atomic-phases show ") {
            let executed = ["executed", "--phase", "pilot_called", "--output", r#"{"pilot":7}"#];
            let because = ["--reason", "the pilot called back"];
            let words = [&["resolve", &*id][..], &executed, &because].concat();
            assert_eq!(run.told(&words), (0, format!("{id} applied\n")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_session_of_the_page_is_what_a_terminal_shows() {
    const URL: &str = "https://example.com/ops/api/v1";
    let blocks = OPERATING.split("```text\n").skip(1);
    let blocks: Vec<&str> = blocks.map(|block| block.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 2, "{blocks:#?}");
    let first = shown(blocks[0]).swap_remove(0).command;
    assert!(first.contains(URL) && first.ends_with("TOKEN=..."), "{first}");
    for block in blocks {
        let dir = tempfile::tempdir().unwrap();
        let engine = incident(&dir.path().join("app.db")).await;
        let api = Api::new(engine, |head| {
            let token = head.headers.get("authorization")?.to_str().ok()?;
            let ada = || Actor::new("ada", Permissions::admin(), Scopes::All).unwrap();
            (token == "Bearer secret").then(ada)
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/ops", listener.local_addr().unwrap());
        let routes = axum::Router::new().nest("/ops", api.router());
        let server = tokio::spawn(async move { axum::serve(listener, routes).await });
        let export = first.replace(URL, &url).replace("TOKEN=...", "TOKEN=secret");
        let ran = tokio::task::spawn_blocking(move || {
            run_block(block, &export, &Run::on(&["--url", &url, "--token", "secret"]));
        });
        ran.await.unwrap();
        server.abort();
    }
}

#[test]
fn the_profiles_of_the_page_are_read() {
    use std::os::unix::fs::PermissionsExt;
    let profiles = OPERATING.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("atomic-phases/profiles.toml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    std::fs::write(&file, profiles).unwrap();
    // It has a token.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    for (profile, setting) in [
        ("production", "url https://example.com/ops/api/v1 the profile"),
        ("staging", "database-url postgres://ada@db.example.com/rides the profile"),
        ("staging", "as ada@example.com the profile"),
    ] {
        let run = Run { settings: dir.path().to_owned(), ..Run::on(&["--profile", profile]) };
        let (code, told) = run.told(&["config", "-o", "table"]);
        let told = told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let told: Vec<_> = told.collect();
        assert!(code == 0 && told.iter().any(|line| line == setting), "{setting}: {told:#?}");
    }
}

#[test]
fn a_pattern_keeps_each_word_and_each_space() {
    let [one, other] =
        ["0193a1c2-7a52-4d08-9d19-32d1dcb0a3f1", "0193a1c2-7a52-4d08-9d19-32d1dcb0a3f2"];
    let of = Request { id: one, version: "9d2f6c0b1e74a853" };
    let line = format!("{one}  {other} · #8e03978e · 9d2f6c0b1e74a853   41m ago  in 12s");
    let expected = "<the id>  <another id> · #<hash> · <the version>   <time> ago  in <time>";
    assert_eq!(of.pattern(&line), expected);
    for words in ["due         4", "41m later", "attempt 2 · version 9d2f6c0b1e74a854", "#8e03978"]
    {
        assert_eq!(of.pattern(words), words);
    }
    assert_eq!(aligned(&["A  B", "longer    c"]), ["A       B", "longer  c"]);
}
