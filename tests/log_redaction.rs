//! G19: everything that a user supplies has a canary; none of them is in a log at TRACE, an error, or a `Debug`.

#[cfg(feature = "mysql")]
#[path = "log_redaction/mariadb.rs"]
mod errors_of_mariadb;
mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::config::DerivedKeys;
use atomic_phases::engine::{CallError, FailureCause, Resolution, Resolved};
use atomic_phases::fingerprint::{RequestOrigin, Unfingerprinted};
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::{
    Completer, DeliveryError, Enqueuer, Handlers, Job, Reaper, Reconciler, WorkerConfig,
};
use atomic_phases::{
    Batch, Engine, ForeignCall, IdempotencyKey, Outcome, PhaseError, PhaseResult, Reply,
    RequestContext, Scope, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};
use support::db::{open_pg, url_of};
use support::*;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Secret {
    text: String,
    how: Unfingerprinted<u8>,
}

#[derive(Serialize, Deserialize)]
struct Kept(String);

#[atomic_phases(name = "secret", version = 1)]
impl<Db: TestDb> Secret {
    #[phase]
    async fn kept(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Kept> {
        // As `#[tracing::instrument(skip(self))]` does.
        tracing::info!(?tx, ?ctx, "a phase prints what it takes");
        Db::insert_step(tx, &self.text, &self.text).await?;
        Ok(Kept(self.text.clone()))
    }

    #[phase(foreign(idempotent))]
    async fn told(&self, call: ForeignCall, kept: &Kept) -> PhaseResult<u8, ForeignError> {
        let _ = format!("{call:?}");
        call.make(async |key| {
            assert!(!format!("{key:?}").contains(key.as_str()));
            match *self.how {
                1 => Err(ForeignError::reject(Reply::text(402, kept.0.clone()))),
                2 => Err(ForeignError::unknown("unknown")),
                3 => Err(ForeignError::retryable("retryable")),
                _ => Ok(*self.how),
            }
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, kept: &Kept) -> PhaseResult<Reply> {
        tx.stage_job("job", kept)?;
        // The database's message contains the value: Key (name)=(canary…) already exists.
        Db::insert_unique(tx, &self.text).await?;
        if *self.how == 4 {
            Db::insert_unique(tx, &self.text).await?;
        }
        Ok(Reply::text(200, self.text.clone()).header("x-secret", self.text.clone()))
    }
}

/// A request whose call must not be repeated, for the workers.
#[derive(Clone, Serialize, Deserialize)]
struct Vault {
    text: String,
    found: u8,
}

#[atomic_phases(name = "vault", version = 1)]
impl<Db: TestDb> Vault {
    #[phase(foreign(at_most_once))]
    async fn opened(
        &self,
        call: ForeignCall,
        ctx: &RequestContext,
    ) -> PhaseResult<Kept, ForeignError> {
        tracing::info!(?call, ?ctx, "a phase prints what it takes");
        // The provider's error may contain any secret.
        let reply = self.text.clone();
        let kept = call.make(async |_| Ok::<_, ForeignError>(Kept(reply))).await?;
        match self.found {
            9 => Ok(kept),
            _ => Err(ForeignError::unknown("no answer")),
        }
    }

    #[reconcile(opened)]
    async fn look_into(&self, key: &DerivedKey) -> PhaseResult<Reconciled<Kept>> {
        let _ = format!("{key:?}");
        match self.found {
            0 => Ok(Reconciled::Executed(Kept(self.text.clone()))),
            1 => Ok(Reconciled::NotExecuted),
            2 => Err(PhaseError::retryable("the provider is away")),
            3 => Err(diesel_error(&self.text).into()),
            _ => Ok(Reconciled::StillUnknown),
        }
    }

    #[phase]
    async fn closed(&self, tx: &mut Tx<'_, Db>, kept: &Kept) -> PhaseResult<Reply> {
        for job in
            ["delivered", "retried", "dead", "late", "panics", "another type", "without a handler"]
        {
            tx.stage_job(job, kept)?;
        }
        Ok(Reply::text(200, self.text.clone()))
    }
}

fn diesel_error(text: &str) -> diesel::result::Error {
    let kind = diesel::result::DatabaseErrorKind::Unknown;
    diesel::result::Error::DatabaseError(kind, Box::new(text.to_owned()))
}

/// The same through the workers, and through everything that an operator may read.
async fn in_the_background<S: TestDb>(db: S, shown: &mut Vec<String>) {
    let engine = Engine::builder(db.clone()).register::<Vault>().max_reconciles(2).build().unwrap();
    let scope = Scope::new("canary-scope").unwrap();
    let config = || WorkerConfig::default().grace(Duration::ZERO).max_deliveries(2);
    for found in [0, 1, 2, 3, 4, 9] {
        let key = IdempotencyKey::new(format!("canary-key-{found}")).unwrap();
        let request = Vault { text: "canary-text".into(), found };
        let call = engine.call(&scope, &key, request).context(&"canary-context");
        shown.push(format!("{:?}", call.accept().await));
    }
    let handlers = || {
        Handlers::new()
            .on("delivered", async |_: String, job: Job| {
                assert!(!format!("{job:?}").contains("canary"));
                Ok(())
            })
            .on("retried", async |_: String, _: Job| Err(DeliveryError::retry("away")))
            .on("dead", async |_: String, _: Job| Err(DeliveryError::dead("no such address")))
            .on("late", async |_: String, _: Job| {
                Err(DeliveryError::retry_after("busy", Duration::from_secs(9)))
            })
            .on("panics", async |_: String, _: Job| -> Result<(), DeliveryError> {
                panic!("as asked for")
            })
            .on("another type", async |_: u64, _: Job| Ok(()))
    };
    for _ in 0..9 {
        let completed = Completer::new(&engine, config()).run_once().await;
        let reconciled = Reconciler::new(&engine, config()).run_once().await;
        let mut enqueuer = Enqueuer::new(&engine, handlers(), config());
        let delivered = enqueuer.run_once().await;
        shown.push(format!("{completed:?} {reconciled:?} {delivered:?} {enqueuer:?}"));
        db.let_time_pass().await;
    }
    shown.push(format!("{:?}", engine.check().await));
    for found in [0, 1, 2, 3, 4, 9, 10] {
        let key = IdempotencyKey::new(format!("canary-key-{found}")).unwrap();
        shown.push(format!("{:?}", engine.status(&scope, &key).await));
        for word in [
            Resolution::executed("opened", &"canary-output").unwrap(),
            Resolution::not_executed("canary-phase", 1),
            Resolution::retry(),
            Resolution::finish(Reply::text(200, "canary-reply")),
            Resolution::finish(Reply::text(200, "canary-another")),
        ] {
            // It prints the phase's name, which is the application's, and not its content.
            shown.push(format!("{word:?}").replace("canary-phase", "phase"));
            let resolved = engine.resolve(&scope, &key, word).await;
            shown.push(resolved.map_or_else(|e| format!("{e} {e:?}"), |r| format!("{r:?}")));
        }
        let erased = engine.erase(&scope, &key).await;
        shown.push(erased.map_or_else(|e| format!("{e} {e:?}"), |()| String::new()));
    }
    shown.push(format!("{:?}", engine.erase_scope(&scope).await));
    let workers =
        engine.spawn_workers(config().sink(handlers()).poll(Duration::from_millis(5))).unwrap();
    shown.push(format!("{workers:?}"));
    workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    // Without tables, each of them fails.
    db.sql("DROP TABLE atomic_phases_keys; DROP TABLE atomic_phases_staged_jobs").await;
    let key = IdempotencyKey::new("canary-key-0").unwrap();
    let mut errors = vec![
        Completer::new(&engine, config()).run_once().await.unwrap_err(),
        Enqueuer::new(&engine, handlers(), config()).run_once().await.unwrap_err(),
        Reaper::new(&db, config()).run_once().await.unwrap_err(),
        engine.erase_scope(&scope).await.unwrap_err(),
    ];
    errors.push(engine.check().await.unwrap_err());
    shown.extend(errors.iter().map(|error| format!("{error} {error:?}")));
    shown.push(format!("{:?}", engine.erase(&scope, &key).await));
    shown.push(format!("{:?}", engine.resolve(&scope, &key, Resolution::retry()).await));
}

/// What dependencies log. tokio-postgres is left out: at debug level it logs the parameters of every
/// statement, as bytes (see "What is logged" in the crate's documentation). mysql_async logs nothing: its
/// feature `tracing` is not turned on.
struct Dependencies(Log);

impl log::Log for Dependencies {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let level = record.level();
        if !record.target().starts_with("tokio_postgres") || level <= log::Level::Info {
            writeln!(self.0.clone(), "{} {}", record.target(), record.args()).unwrap();
        }
    }

    fn flush(&self) {}
}

async fn everything<S: TestDb>(db: S, shown: &mut Vec<String>) {
    let engine = Engine::builder(db.clone()).register::<Secret>().max_attempts(2);
    let engine =
        engine.derived_keys(DerivedKeys::plain().with_secret("canary-secret-of-16").unwrap());
    shown.push(format!("{engine:?}"));
    let engine = engine.build().unwrap();
    let scope = Scope::new("canary-scope").unwrap();
    shown.push(format!("{engine:?} {db:?} {scope:?}", db = engine.store().type_id_name()));
    for how in 0..5 {
        let key = IdempotencyKey::new(format!("canary-key-{how}")).unwrap();
        for text in ["canary-text", "canary-text", "canary-other", "canary-text", "canary-text"] {
            let request = Secret { text: format!("{text}-{how}"), how: how.into() };
            let call = engine.call(&scope, &key, request).context(&"canary-context");
            let call =
                call.origin(RequestOrigin::new("POST", "/canary-path", Some("canary=query")));
            shown.push(format!("{call:?}"));
            let outcome = call.await;
            shown.push(format!("{outcome:?}"));
        }
    }
    let huge = Secret { text: "canary".repeat(100_000), how: 0.into() };
    let key = IdempotencyKey::new("canary-key").unwrap();
    let error = engine.call(&scope, &key, huge).await.unwrap_err();
    shown.push(format!("{error} {error:?}"));
    db.sql("DROP TABLE atomic_phases_keys").await;
    let request = Secret { text: "canary".into(), how: 0.into() };
    let error = engine.call(&scope, &key, request).await.unwrap_err();
    shown.push(format!("{error} {error:?}"));
    let source = std::error::Error::source(&error).map(|source| format!("{source} {source:?}"));
    shown.extend(source);
}

trait TypeIdName {
    fn type_id_name(&self) -> &'static str;
}

impl<T> TypeIdName for T {
    fn type_id_name(&self) -> &'static str {
        std::any::type_name::<T>()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g19_no_log_error_or_debug_shows_what_a_user_gave() {
    let log = Log::default();
    let writer = log.clone();
    log::set_boxed_logger(Box::new(Dependencies(log.clone()))).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || writer.clone())
        .init();
    let mut shown = Vec::new();
    everything(Sqlite::fresh().await, &mut shown).await;
    everything(Postgres::fresh().await, &mut shown).await;
    in_the_background(Sqlite::fresh().await, &mut shown).await;
    // By a URL with a password, which the server does not ask for.
    let db = Postgres::fresh().await;
    let url = url_of(&db).replace("postgres@", "postgres:canary-password@");
    assert!(url.contains("canary"));
    in_the_background(open_pg(&url, 8).await, &mut shown).await;
    // Names host, database and user, and not the password.
    let no_server = Postgres::connect("postgres://shop:canary-password@127.0.0.1:1/rides").await;
    shown.push(format!("{:?}", no_server.err().unwrap()));
    #[cfg(feature = "mysql")]
    errors_of_mariadb::on_mariadb(&mut shown).await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    // The log is not empty, so the silence is not trivial.
    for word in [
        "atomic_phases.request",
        "atomic_phases.driven",
        "secret",
        "a phase prints what it takes",
        "told",
        "unique violation",
        "unknown",
        "retryable",
        "an unknown outcome is settled",
        "a reconcile function failed",
        "a resolution was written",
        "job delivered",
        "job not delivered",
        "job is a dead letter",
        "erased",
    ] {
        assert!(log.contains(word), "{word} is not in the log");
    }
    shown.push(log);
    for text in &shown {
        let at = text.find("canary");
        let near = at.unwrap_or(0).saturating_sub(300);
        assert_eq!(at, None, "{}", text[near..].chars().take(900).collect::<String>());
        let bytes = text.find("99, 97, 110, 97, 114, 121");
        assert_eq!(bytes, None, "the bytes of a canary");
        // As a text of several statements has it, for MySQL.
        let digits = text.to_ascii_lowercase().find("63616e617279");
        assert_eq!(digits, None, "the bytes of a canary, in hex");
    }
}

/// The lines that this thread logs at `info` and above; a usual filter drops the spans.
fn lines_of_this_thread() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_writer(move || writer.clone())
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}

impl Log {
    /// Takes what was logged since the last time.
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }
}

#[track_caller]
fn only_line(log: &Log, words: &[&str]) {
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let always = ["definition=", "request_id=", "scope=", "key="];
    for word in always.iter().chain(words) {
        assert!(lines[0].contains(word), "{word} is not in {}", lines[0]);
    }
}

#[tokio::test]
async fn each_line_names_its_request_and_says_what_happened_once() {
    let (log, _guard) = lines_of_this_thread();
    let db = Sqlite::fresh().await;
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine_with(&db, &app, |builder| builder.max_attempts(1));
    log.take();
    let call = async |name: &str, trouble| {
        engine.call(&scope(), &key(name), troubled(trouble)).__call_in_place().await
    };
    failed(call("none", Trouble::RetryFirst).await);
    only_line(&log, &["not begun", "phase=\"booked\"", "left no row", "definition=\"book\""]);
    let generous = engine_with(&db, &app, |builder| builder);
    let released = troubled(Trouble::RetryForeignAlways);
    failed(generous.call(&scope(), &key("k"), released.clone()).__call_in_place().await);
    only_line(&log, &["released", "phase=\"charged\"", "reason=\"asked for\""]);
    let dies = "UPDATE atomic_phases_keys SET status = 'in_progress', locked_until = created_at";
    db.sql(dies).await;
    failed(generous.call(&scope(), &key("k"), released.clone()).__call_in_place().await);
    let lines = log.take();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    let words =
        ["INFO", "taken over", "recovery_point=\"booked\"", "by_attempt=2", "request_id=", "key="];
    assert!(words.iter().all(|word| lines[0].contains(word)), "{lines:#?}");
    let given_up = call("dead", Trouble::RetryForeignAlways).await;
    assert!(matches!(given_up, Ok(Outcome::DeadLetter)), "{given_up:?}");
    only_line(&log, &["dead letter", "attempt cap: asked for"]);
    let unknown = engine.call(&scope(), &key("u"), notify(Trouble::UnknownForeign));
    let unknown = unknown.__call_in_place().await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    only_line(&log, &["outcome unknown", "phase=\"notified\"", "definition=\"notify\""]);
    let word = Resolution::finish(Reply::new(204));
    assert_eq!(engine.resolve(&scope(), &key("u"), word).await.unwrap(), Resolved::Applied);
    only_line(&log, &["a resolution was written", "resolution=\"finish\"", "phase=\"\""]);
    // Of a definition that is not registered, too.
    let bare: Engine<Sqlite> = Engine::builder(db.clone()).build().unwrap();
    log.take();
    let retried = bare.resolve(&scope(), &key("dead"), Resolution::retry()).await.unwrap();
    assert_eq!(retried, Resolved::Applied);
    only_line(&log, &["a resolution was written", "resolution=\"retry\"", "definition=\"book\""]);

    // A repeated line is written once.
    db.sql("UPDATE atomic_phases_keys SET phases = 'booked charged=?'").await;
    db.let_time_pass().await;
    for _ in 0..9 {
        let left = generous.call(&scope(), &key("k"), released.clone()).__call_in_place().await;
        assert_eq!(failed(left), FailureCause::NotKnownHere);
    }
    only_line(&log, &["left alone", "written by a newer version"]);
    let empty = Engine::builder(db.clone()).app(app.clone()).register::<Notify>().build().unwrap();
    for _ in 0..9 {
        assert!(empty.call(&scope(), &key("k"), book(20)).await.is_err());
    }
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("not registered") && lines[0].contains("book"), "{}", lines[0]);
    db.sql("DROP TABLE atomic_phases_keys").await;
    for _ in 0..9 {
        let failed = engine.call(&scope(), &key("k"), book(20)).__call_in_place().await;
        assert!(matches!(failed, Err(CallError::Unavailable(_))), "{failed:?}");
    }
    let lines = log.take();
    assert!((1..9).contains(&lines.len()), "{lines:#?}");
    assert!(lines[0].contains("could not be answered") && lines[0].contains("request_id="));
}

/// The erasure of a scope names no request to its caller.
#[tokio::test]
async fn a_request_that_the_server_refuses_to_erase_is_named_once_and_without_its_key() {
    let (log, _guard) = lines_of_this_thread();
    let db = Sqlite::fresh().await;
    let engine = engine(&db, &App::default());
    let (name, settled) = (key("a-users-key"), troubled(Trouble::RejectFirst));
    finished(engine.call(&scope(), &name, settled).__call_in_place().await);
    let request_id = engine.status(&scope(), &name).await.unwrap().unwrap().request_id;
    db.sql(
        "CREATE TRIGGER kept BEFORE UPDATE ON atomic_phases_keys FOR EACH ROW \
         BEGIN SELECT RAISE(ABORT, 'a-users-value'); END",
    )
    .await;
    log.take();
    for _ in 0..2 {
        assert!(engine.erase_scope(&scope()).await.is_err());
    }
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let request_id = format!("request_id={request_id}");
    let definition = "definition=\"book\"";
    for word in ["WARN", "refuses to erase", definition, &request_id, "scope=", "key="] {
        assert!(lines[0].contains(word), "{word} is not in {}", lines[0]);
    }
    for word in ["a-users", "tenant-1"] {
        assert!(!lines[0].contains(word), "{word} is in {}", lines[0]);
    }
}

/// Once a minute, however many requests wait for it.
#[tokio::test]
async fn pauses_that_cannot_be_read_are_said_once() {
    let (log, _guard) = lines_of_this_thread();
    let db = Sqlite::fresh().await;
    let engine = engine(&db, &App::default());
    db.sql("ALTER TABLE atomic_phases_pauses RENAME TO hidden").await;
    for name in ["one", "other"] {
        failed(engine.call(&scope(), &key(name), book(20)).__call_in_place().await);
    }
    let lines = log.take();
    let said: Vec<_> = lines
        .iter()
        .filter(|line| line.contains(" the pauses could not be read suppressed="))
        .collect();
    assert_eq!(said.len(), 1, "{lines:#?}");
}

/// What a foreign phase does with its call.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Careless {
    CallUnmade,
    Skipped,
    KeyUnread,
    KeyRead,
    RefusedBefore,
}

#[atomic_phases(name = "careless", version = 1)]
impl Careless {
    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall) -> PhaseResult<()> {
        match self {
            Self::CallUnmade => Ok(()),
            Self::Skipped => {
                call.skip();
                Ok(())
            }
            Self::KeyUnread => call.make(async |_key| Ok(())).await,
            Self::KeyRead => {
                let read = async |key: DerivedKey| {
                    assert!(!key.as_str().is_empty());
                    Ok(())
                };
                call.make(read).await
            }
            Self::RefusedBefore => Err(PhaseError::reject(Reply::new(402))),
        }
    }

    /// Its provider honors no key, so none is needed.
    #[phase(foreign(at_most_once))]
    async fn mailed(&self, call: ForeignCall) -> PhaseResult<()> {
        if matches!(self, Self::Skipped) {
            call.skip();
            return Ok(());
        }
        call.make(async |_key| Ok(())).await
    }

    #[reconcile(mailed)]
    async fn find(&self) -> PhaseResult<Reconciled<()>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, _batch: &mut Batch<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[cfg(debug_assertions)]
#[tokio::test]
async fn a_call_that_is_not_made_or_reads_no_key_is_warned_of_once() {
    let (log, _guard) = lines_of_this_thread();
    let db = Sqlite::fresh().await;
    let engine = Engine::builder(db).register::<Careless>().build().unwrap();
    log.take();
    let call = async |name: &str, how: Careless| {
        finished(engine.call(&scope(), &key(name), how).__call_in_place().await);
    };
    call("fine", Careless::KeyRead).await;
    call("refused", Careless::RefusedBefore).await;
    call("skipped", Careless::Skipped).await;
    assert_eq!(log.take(), [""; 0]);
    for name in ["unmade-1", "unmade-2"] {
        call(name, Careless::CallUnmade).await;
    }
    only_line(&log, &["WARN", "without making its call", "phase=\"charged\""]);
    for name in ["unread-1", "unread-2"] {
        call(name, Careless::KeyUnread).await;
    }
    only_line(&log, &["WARN", "did not read its derived key", "phase=\"charged\""]);
}
