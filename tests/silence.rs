//! G19: canaries in everything that a user gives; none in a log at TRACE, an error, or a `Debug`.

mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};

use atomic_phases::*;
use serde::{Deserialize, Serialize};
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
    async fn kept(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Kept> {
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
        // The database's message holds the value: Key (name)=(canary…) already exists.
        Db::insert_unique(tx, &self.text).await?;
        if *self.how == 4 {
            Db::insert_unique(tx, &self.text).await?;
        }
        Ok(Reply::text(200, self.text.clone()).header("x-secret", self.text.clone()))
    }
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
            let outcome = call.execute().await;
            shown.push(format!("{outcome:?}"));
        }
    }
    let huge = Secret { text: "canary".repeat(100_000), how: 0.into() };
    let key = IdempotencyKey::new("canary-key").unwrap();
    let error = engine.execute(&scope, &key, huge).await.unwrap_err();
    shown.push(format!("{error} {error:?}"));
    db.sql("DROP TABLE atomic_phases_keys").await;
    let request = Secret { text: "canary".into(), how: 0.into() };
    let error = engine.execute(&scope, &key, request).await.unwrap_err();
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
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_writer(move || writer.clone())
        .init();
    let mut shown = Vec::new();
    everything(Sqlite::fresh().await, &mut shown).await;
    everything(Postgres::fresh().await, &mut shown).await;
    let no_server =
        Postgres::connect("postgres://canary-user:canary-password@127.0.0.1:1/canary-db").await;
    shown.push(format!("{:?}", no_server.err().unwrap()));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    // Not silent because nothing was said.
    for word in
        ["atomic_phases.request", "secret", "told", "unique violation", "unknown", "retryable"]
    {
        assert!(log.contains(word), "{word} is not in the log");
    }
    shown.push(log);
    for text in &shown {
        let at = text.find("canary");
        assert_eq!(at, None, "{}", &text[at.unwrap_or(0).saturating_sub(300)..]);
    }
}
