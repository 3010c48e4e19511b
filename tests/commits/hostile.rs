//! Hostile strings wherever a user may put one: each is stored and returned byte for byte, or refused with a
//! reason. The rule behind it: every statement binds its values.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::support::*;
use atomic_phases::config::Limits;
use atomic_phases::engine::{FailureCause, Resolution, ResolveError};
use atomic_phases::phase::DerivedKey;
use atomic_phases::worker::{Enqueuer, Handlers, Job, WorkerConfig};
use atomic_phases::{
    Engine, ForeignCall, IdempotencyKey, PhaseError, PhaseResult, Reply, RequestContext, Scope, Tx,
    atomic_phases,
};

use serde::{Deserialize, Serialize};

on_every_store! {
    g8_hostile_strings_come_back_byte_for_byte,
    what_the_database_cannot_hold_is_refused_before_it,
    g16_patterns_in_a_scope_match_nothing_but_themselves,
}

const HOSTILE: [&str; 14] = [
    "'; DROP TABLE atomic_phases_keys; --",
    "\" OR \"1\"=\"1",
    "%_%",
    "$1, $2, ?1, :name",
    "\\'; \\x00 \\u0000 \\",
    "{{ 7 * 7 }} ${jndi:ldap://x}",
    "\u{202e}gnp.exe\u{202c} \u{200f}\u{5e9}\u{5dc}\u{5d5}\u{5dd}",
    "\u{1f4a5}\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{10ffff}",
    "e\u{301} \u{e9} \u{fdd0} \u{feff}",
    "\u{2019}\u{ff07}\u{2028}\u{2029}",
    "NULL",
    "-1e999 0x7f 1'1",
    "</script><!-- %0d%0aSet-Cookie: a=b",
    " leading and trailing ",
];
/// JSON can contain these, and a text column of PostgreSQL cannot.
const CONTROLS: [&str; 3] = ["a\0b", "\u{1}\u{1b}[2J\u{7f}", "line\r\nline\ttab"];

/// Puts the same text into every place where a user may put one.
#[derive(Clone, Serialize, Deserialize)]
struct Echo {
    text: String,
    job: String,
}

#[derive(Serialize, Deserialize)]
struct Kept(String);

#[derive(Serialize, Deserialize)]
struct Called(String);

#[atomic_phases(name = "hostile.echo", version = 1)]
impl<Db: TestDb> Echo {
    #[phase]
    async fn kept(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Kept> {
        if !self.text.contains('\0') {
            Db::insert_step(tx, &self.text, &self.text).await?;
        }
        Ok(Kept(self.text.clone()))
    }

    #[phase(foreign(idempotent), commit)]
    async fn called(&self, call: ForeignCall, app: &App, kept: &Kept) -> PhaseResult<Called> {
        let said = async |key: DerivedKey| {
            Ok::<_, PhaseError>(app.provider.call(key.as_str(), &kept.0).await)
        };
        call.make(said).await?;
        Ok(Called(kept.0.clone()))
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Db>,
        ctx: &RequestContext,
        kept: &Kept,
        called: &Called,
    ) -> PhaseResult<Reply> {
        tx.stage_job(&self.job, &self.text)?;
        let context: Option<String> = ctx.context();
        let all = (&self.text, &kept.0, &called.0, context, ctx.scope().as_str());
        Ok(Reply::json(200, &all)?.header("location", line(&self.text)))
    }
}

/// The part of a text that a header line can carry: a reply with a control character in a header is refused.
fn line(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).collect()
}

async fn g8_hostile_strings_come_back_byte_for_byte<S: TestDb>(db: S) {
    let app = App::default();
    let engine = Engine::builder(db.clone()).app(app.clone()).register::<Echo>().build().unwrap();
    let texts = HOSTILE.iter().chain(&CONTROLS);
    for (count, text) in texts.enumerate() {
        // A scope holds any text without control characters; a key visible ASCII.
        let scope = Scope::new(*text).unwrap_or_else(|_| scope());
        let visible = text.chars().filter(char::is_ascii_graphic).collect::<String>();
        let key = key(&format!("{visible}';--"));
        let job = if CONTROLS.contains(text) { "job" } else { text };
        let request = Echo { text: (*text).into(), job: job.into() };
        let call = || engine.call(&scope, &key, request.clone()).context(text);
        let first = finished(call().await);
        let expected = serde_json::json!([text, text, text, text, scope.as_str()]);
        let told: serde_json::Value = serde_json::from_slice(first.reply.bytes()).unwrap();
        assert_eq!(told, expected);
        let again = finished(call().await);
        assert!(again.replayed && again.reply == first.reply, "{text:?}");
        assert_eq!(again.reply.headers()[1].1, line(text));
        assert_eq!(app.provider.ledger()[count].what, *text);
        let delivered = delivered(&engine, job).await;
        let job = (job.to_owned(), (*text).to_owned(), scope.as_str().to_owned());
        assert_eq!(delivered, [job], "{text:?}");
    }
    assert_eq!(app.provider.effects(), HOSTILE.len() + CONTROLS.len());
    assert!(db.number("SELECT count(*) FROM steps").await > 0, "no table was dropped");
}

/// Name, arguments and scope of each job that is due.
async fn delivered<S: TestDb>(
    engine: &Engine<S, App>,
    name: &str,
) -> Vec<(String, String, String)> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let jobs = seen.clone();
    let handlers = Handlers::new().on(name, move |text: String, job: Job| {
        jobs.lock().unwrap().push((job.name.clone(), text, job.scope.as_str().to_owned()));
        async { Ok(()) }
    });
    let mut enqueuer = Enqueuer::new(engine, handlers, WorkerConfig::default());
    enqueuer.run_once().await.unwrap();
    std::mem::take(&mut *seen.lock().unwrap())
}

async fn what_the_database_cannot_hold_is_refused_before_it<S: TestDb>(db: S) {
    let app = App::default();
    let engine = Engine::builder(db.clone()).app(app.clone()).register::<Echo>().build().unwrap();
    for text in CONTROLS {
        assert!(Scope::new(text).unwrap_err().to_string().contains("scope"), "{text:?}");
        assert!(IdempotencyKey::new(text).unwrap_err().to_string().contains("key"), "{text:?}");
        let request = Echo { text: "fine".into(), job: text.into() };
        let cause = failed(engine.call(&scope(), &key("k"), request).await);
        let reason = "a staged job's name has a control character";
        assert_eq!(cause, FailureCause::Phase { phase: "answered", reason });
        db.sql("DELETE FROM atomic_phases_keys").await;
    }
    for job in [String::new(), "x".repeat(101), "\u{1f4a5}".repeat(26)] {
        let request = Echo { text: "fine".into(), job };
        let cause = failed(engine.call(&scope(), &key("k"), request).await);
        let reason = "a staged job's name must have 1 to 100 bytes";
        assert_eq!(cause, FailureCause::Phase { phase: "answered", reason });
        db.sql("DELETE FROM atomic_phases_keys").await;
    }
    let limits = Limits::default().job_args(10);
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<Echo>();
    let capped = builder.limits(limits).build().unwrap();
    let request = Echo { text: "12345678".into(), job: "fits".into() };
    finished(capped.call(&scope(), &key("fits"), request).await);
    let request = Echo { text: "123456789".into(), job: "large".into() };
    let cause = failed(capped.call(&scope(), &key("large"), request).await);
    let reason = "the arguments of the phase's staged jobs together are over Limits::job_args: stage \
                  less, or raise it";
    assert_eq!(cause, FailureCause::Phase { phase: "answered", reason });
    db.sql("DELETE FROM atomic_phases_keys").await;
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    // The phase's name in a webhook's resolution is compared and never stored.
    failed(engine.call(&scope(), &key("k"), Echo { text: "t".into(), job: "\0".into() }).await);
    let word = Resolution::executed("called\0'; --", &1).unwrap();
    let refused = engine.resolve(&scope(), &key("k"), word).await;
    assert!(matches!(refused, Err(ResolveError::NotThatPhase)), "{refused:?}");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);
}

async fn g16_patterns_in_a_scope_match_nothing_but_themselves<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let names = ["a", "A", "%", "_", "a%", "a ", " a", "*", "a\u{301}", "\u{e1}", "'a'"];
    for name in names {
        let scope = Scope::new(name).unwrap();
        assert!(!finished(engine.call(&scope, &key("k"), notify(Trouble::None)).await).replayed);
    }
    assert_eq!(app.provider.effects(), names.len());
    for name in names {
        let swept = engine.erase_scope(&Scope::new(name).unwrap()).await.unwrap();
        assert_eq!((swept.erased, swept.left), (1, 0), "{name:?}");
    }
}

/// Values are bound, never written into a statement: the modules that send SQL contain no `sql_query` and no
/// `format!`. (They use only `concat`, pushed literals and named constants.)
#[test]
fn no_statement_is_made_of_values() {
    let mut files = 0;
    let is_test = |file: &Path| {
        file.ends_with("postgres/own_transaction.rs") || file.ends_with("sqlite/plans.rs")
    };
    for file in rust_files(Path::new("src")).into_iter().filter(|file| !is_test(file)) {
        let source = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = source.lines().collect();
        // After that line there are only tests; a file of tests may be declared anywhere.
        let is_of_tests = |line: &str| {
            ["#[cfg(test)]", "#[cfg(all(test,"].iter().any(|cfg| line.starts_with(cfg))
        };
        let begin_tests = |two: &[&str]| is_of_tests(two[0]) && two[1].ends_with('{');
        let ends = lines.windows(2).position(begin_tests).unwrap_or(lines.len());
        let is_code = |line: &&&str| !line.trim_start().starts_with("//");
        let code = lines[..ends].iter().filter(is_code).copied().collect::<Vec<_>>().join("\n");
        assert!(!code.contains("sql_query"), "{} has a sql_query", file.display());
        assert!(!code.contains("dsl::sql"), "{} has a dsl::sql", file.display());
        // These send no SQL (the in-memory store, error messages, a test), or make a mark of a random number of the
        // process. MySQL's texts of several statements cannot bind: they contain values as hexadecimal digits,
        // which `mysql/literal.rs` writes.
        let no_values = [
            "src/store/memory",
            // The text of a value, which is bound.
            "src/store/events.rs",
            "src/store/migrations.rs",
            "src/store/tokenizer/tests.rs",
            "src/store/postgres/pool.rs",
            "src/store/shares.rs",
            // The path of a file.
            "src/store/sqlite/reader.rs",
            "src/store/mysql",
            "src/store/postgres/error.rs",
        ];
        // The names of tables, which an explorer copies and brings back.
        if file.ends_with("standby.rs") {
            continue;
        }
        if file.starts_with("src/store") && !no_values.iter().any(|path| file.starts_with(path)) {
            files += 1;
            assert!(!code.contains("format!"), "{} has a format!", file.display());
        }
        let executes = code.matches("batch_execute(").count();
        let constant = [
            "batch_execute(PRAGMAS)",
            "batch_execute(RELEASE)",
            "batch_execute(SAY)",
            "batch_execute(\"",
            "batch_execute(query)",
            // A constant of the store: `Terms::bounds` is `&'static`.
            "batch_execute(bounds)",
            "batch_execute(&mut self, query",
        ];
        let known: usize = constant.iter().map(|known| code.matches(known).count()).sum();
        assert_eq!(executes, known, "{} executes what is not a constant", file.display());
    }
    assert!(files > 8, "the test looks at {files} files only");
}

fn rust_files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    files.chain(dirs.iter().flat_map(|dir| rust_files(dir))).collect()
}
