//! The commands that read a database, without the code of the definitions in it.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../tests/support/cluster.rs"]
#[allow(dead_code)]
mod cluster;
#[path = "../../tests/support/mariadb.rs"]
#[allow(dead_code)]
mod mariadb;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atomic_phases::compat::{Definitions, Mode, check_locks};
use atomic_phases::engine::StrandedBecause;
use atomic_phases::phase::ForeignError;
use atomic_phases::store::{Mysql, Postgres, Sqlite};
use atomic_phases::worker::{Enqueuer, Handlers, Job, WorkerConfig};
use atomic_phases::{
    Engine, ForeignCall, IdempotencyKey, Outcome, PhaseResult, Reply, Scope, Store, Tx,
    atomic_phases,
};
use serde::{Deserialize, Serialize};

#[derive(Default)]
struct Provider {
    is_up: AtomicBool,
}

#[derive(Serialize, Deserialize)]
struct CreateRide {
    user_id: i64,
}

#[atomic_phases(name = "rides.create", version = 1, app = Provider)]
impl<Db: Store> CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        let _ = (self, tx);
        Ok(())
    }

    #[phase(foreign(idempotent, window = "24h"))]
    async fn charge_created(
        &self,
        call: ForeignCall,
        provider: &Provider,
    ) -> Result<(), ForeignError> {
        let _ = self;
        let answer = match provider.is_up.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err(ForeignError::retryable("the provider gave no answer")),
        };
        call.make(async move |_key| answer).await
    }

    #[phase]
    async fn receipt_staged(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        tx.stage_job("send_receipt", &self.user_id)?;
        Ok(Reply::new(201))
    }
}

fn definitions<S: Store>() -> Definitions<S, Provider> {
    Definitions::new().with::<CreateRide>().job::<CreateRide, i64>("send_receipt")
}

async fn book<S: Store>(engine: &Engine<S, Provider>) -> Outcome {
    let (scope, key) = (Scope::new("tenant").unwrap(), IdempotencyKey::new("key").unwrap());
    engine.call(&scope, &key, CreateRide { user_id: 1 }).await.unwrap()
}

fn run(dir: &Path, arguments: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_cargo-atomic-phases"))
        .current_dir(dir)
        .env_remove("ATOMIC_PHASES_DATABASE_URL")
        .arg("atomic-phases")
        .args(arguments)
        .output()
        .unwrap();
    let text = [stdout, stderr].concat();
    (status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn a_deploy_is_held_against_the_rows_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rides.db");
    let store = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    deployed(store, &format!("sqlite://{}", file.display())).await;
}

#[tokio::test]
async fn a_deploy_is_held_against_the_rows_in_postgresql() {
    let url = cluster::new_database();
    deployed(Postgres::connect(&url).await.unwrap(), &url).await;
}

#[tokio::test]
async fn a_deploy_is_held_against_the_rows_in_mariadb() {
    let url = mariadb::new_database();
    deployed(Mysql::connect(&url).await.unwrap(), &url).await;
}

async fn deployed<S: Store>(store: S, url: &str) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"app\"\n").unwrap();
    check_locks(&definitions::<S>(), dir.path(), Path::new("phases"), &Mode::Update).unwrap();
    store.migrate().await.unwrap();
    let instant = Duration::from_millis(1);
    let builder = Engine::builder(store).app(Provider::default()).definitions(definitions());
    let engine = builder.back_off(instant, instant).build().unwrap();
    assert!(matches!(book(&engine).await, Outcome::Failed { .. }));

    let check = |format| run(dir.path(), &["check", "--database-url", url, "--format", format]);
    let drained = |name, version| {
        run(dir.path(), &["definitions", "drained", name, version, "--database-url", url])
    };
    let retire = || run(dir.path(), &["retire", "rides.create", "1", "--database-url", url]);
    assert_eq!(
        check("text"),
        (
            0,
            "no unfinished row would be left alone, and no staged job, by the lock files; whether they agree with the \
             code, `cargo test` says\n"
                .to_owned()
        )
    );
    let (code, told) = drained("rides.create", "1");
    assert_eq!((code, told.as_str()), (6, "rides.create@1 has 1 unfinished rows\n"));
    assert_eq!(drained("rides.create", "2").0, 4, "a version that was never locked");
    assert_eq!(drained("ride.create", "1").0, 4, "a name that is mistyped has no rows either");
    assert_eq!(retire().0, 5);

    // A build that has renamed the phase whose call may have been made, without `was`.
    let lock = dir.path().join("phases/rides.create@1.toml");
    let text = std::fs::read_to_string(&lock).unwrap();
    assert!(text.contains("state = \"current\""), "it is not retired");
    std::fs::write(&lock, text.replace("\"charge_created\"", "\"charged\"")).unwrap();
    let (code, told) = check("text");
    assert_eq!(code, 6);
    assert!(told.starts_with("1 rows of rides.create@1, recovery point ride_created: a call may"));
    let (code, told) = check("json");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &told[0]["rows"]), (6, &serde_json::json!(1)));
    assert_eq!(told[0]["status"], "failed_retryable");
    assert!(check("github").1.starts_with("::error title=rows_stranded::1 rows of rides.create@1"));
    std::fs::write(&lock, text).unwrap();

    engine.app().is_up.store(true, Ordering::SeqCst);
    while !matches!(book(&engine).await, Outcome::Finished(_)) {
        tokio::task::yield_now().await;
    }

    // Its staged job waits for a handler of its name and form.
    assert_eq!(check("text").0, 0);
    let (code, told) = drained("rides.create", "1");
    let expected = "rides.create@1 has 1 staged jobs that no other version stages\n";
    assert_eq!((code, told.as_str()), (6, expected));
    assert_eq!(retire().0, 5);
    let text = std::fs::read_to_string(&lock).unwrap();
    std::fs::write(&lock, text.replace("\"send_receipt\"", "\"mail_receipt\"")).unwrap();
    let (code, told) = check("text");
    assert_eq!(code, 6);
    assert!(told.starts_with("1 staged jobs `send_receipt`: no lock file has a job of"), "{told}");
    std::fs::write(&lock, text.replace("args = \"i64\"", "args = \"{user: i64}\"")).unwrap();
    let (code, told) = check("github");
    assert_eq!(code, 6);
    assert!(told.starts_with("::error title=jobs_stranded::1 staged jobs `send_receipt`: their"));
    let (_, told) = check("json");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told[0]["job"], &told[0]["jobs"]), (&"send_receipt".into(), &1.into()));
    std::fs::write(&lock, text).unwrap();

    let handlers = Handlers::new().on("send_receipt", async |_: i64, _: Job| Ok(()));
    let delivered = Enqueuer::new(&engine, handlers, WorkerConfig::default()).run_once().await;
    assert_eq!(delivered.unwrap().delivered, 1);
    assert_eq!(drained("rides.create", "1").0, 0);
    assert_eq!(retire().0, 0);
}

/// With the names of the lists and counts, and the status beside them.
#[tokio::test]
async fn a_status_of_a_later_build_is_told_with_what_it_means() {
    let (url, dir) = stopped().await;
    cluster::psql(&url, "ALTER TYPE atomic_phases_status ADD VALUE 'parked'");
    cluster::psql(&url, "UPDATE atomic_phases_keys SET status = 'parked', run_after = created_at");
    let check = |format| run(dir.path(), &["check", "--database-url", &url, "--format", format]);
    let because = StrandedBecause::NewerForm;
    let (code, told) = check("text");
    let expected = format!(
        "1 rows of rides.create@1, recovery point ride_created, status `parked`: {because}; {}\n",
        because.remedy().unwrap()
    );
    assert_eq!((code, told), (6, expected));
    assert!(check("github").1.starts_with("::error title=rows_stranded::1 rows of rides.create@1"));
    let (code, told) = check("json");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let row = serde_json::json!({
        "definition": "rides.create",
        "version": 1,
        "recovery_point": "ride_created",
        "status": "parked",
        "rows": 1,
        "because": because.as_str(),
    });
    assert_eq!((code, told), (6, serde_json::json!([row])));
}

/// A database in which a request has stopped at its second phase, and a folder with its lock file.
async fn stopped() -> (String, tempfile::TempDir) {
    let url = cluster::new_database();
    let dir = tempfile::tempdir().unwrap();
    check_locks(&definitions::<Postgres>(), dir.path(), Path::new("phases"), &Mode::Update)
        .unwrap();
    let store = Postgres::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let builder = Engine::builder(store).app(Provider::default()).definitions(definitions());
    assert!(matches!(book(&builder.build().unwrap()).await, Outcome::Failed { .. }));
    (url, dir)
}

/// Ten thousand rows that this build would continue stand in front of one that it would leave alone.
#[tokio::test]
async fn g14_a_check_that_did_not_read_all_rows_is_not_fine() {
    const COLUMNS: &str = "definition_version, phases, fingerprint, status, recovery_point, \
        open_intent, lease_token, locked_until, run_after, attempts, advanced_at, created_at, \
        expires_at, params, outputs";
    let (url, dir) = stopped().await;
    cluster::psql(
        &url,
        &format!(
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, {COLUMNS}) \
             SELECT scope, 'k-' || n, gen_random_uuid(), definition, {COLUMNS} \
             FROM atomic_phases_keys, generate_series(1, 10000) AS n"
        ),
    );
    cluster::psql(
        &url,
        "UPDATE atomic_phases_keys SET definition = 'rides.gone', \
         run_after = now() + interval '1 hour' WHERE idempotency_key = 'k-7'",
    );
    let check = |format| run(dir.path(), &["check", "--database-url", &url, "--format", format]);
    let (code, told) = check("text");
    assert_eq!(code, 6, "{told}");
    assert!(told.contains("there are more unfinished rows") && !told.contains("no unfinished row"));
    assert!(check("github").1.starts_with("::error title=rows_unread::there are more"));
    let (_, told) =
        run(dir.path(), &["check", "--database-url", &url, "--format", "json", "--lease", "60"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told[0]["truncated"], true);
}

/// A hundred thousand rows are younger than a request that runs under a long lease, and was not renewed yet.
#[tokio::test]
async fn g14_a_version_whose_request_runs_under_a_long_lease_is_not_drained() {
    let (url, dir) = stopped().await;
    cluster::psql(
        &url,
        "UPDATE atomic_phases_keys SET status = 'in_progress', run_after = NULL, reason = NULL, \
         locked_until = now() + interval '417 s', created_at = now() - interval '183 s', \
         advanced_at = now() - interval '183 s', \
         expires_at = now() + interval '1 day' - interval '183 s'",
    );
    cluster::psql(
        &url,
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
         definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
         advanced_at, created_at, expires_at, params) \
         SELECT 'other', n, gen_random_uuid(), 'rides.other', 1, '', '', 'completed', 'finished', \
         1, 1, t, t, t + interval '1 day', '' FROM generate_series(1, 100001) AS n, \
         LATERAL (SELECT now() - interval '180 s' + n * interval '1.7 ms' AS t) AS times",
    );
    let ask = |lease: &[&str]| {
        let mut arguments = vec!["definitions", "drained", "rides.create", "1"];
        arguments.extend(["--database-url", url.as_str()]);
        arguments.extend(lease);
        run(dir.path(), &arguments)
    };
    let (code, told) = ask(&[]);
    assert_eq!(code, 6, "{told}");
    let (code, told) = ask(&["--lease", "600"]);
    assert_eq!(code, 6, "{told}");
    assert_eq!(ask(&["--lease", "0"]).0, 2);
    // Under such a lease, the index of due rows would have it by now.
    assert_eq!(ask(&["--lease", "60"]).0, 0);
    let retired = run(dir.path(), &["retire", "rides.create", "1", "--database-url", &url]);
    assert_eq!(retired.0, 5);
}

#[derive(Serialize, Deserialize)]
struct Hostile;

#[atomic_phases(name = "hostile", version = 1)]
impl Hostile {
    #[phase]
    async fn staged(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        let _ = self;
        tx.stage_job("a%0A::error::b\u{202e}c", &1)?;
        Ok(Reply::new(201))
    }
}

#[tokio::test]
async fn a_name_that_is_stored_moves_no_cursor_and_is_no_command() {
    let dir = tempfile::tempdir().unwrap();
    let list = || Definitions::<Sqlite>::new().with::<Hostile>();
    check_locks(&list(), dir.path(), Path::new("phases"), &Mode::Update).unwrap();
    let lock = dir.path().join("phases/hostile@1.toml");
    let text = std::fs::read_to_string(&lock).unwrap();
    std::fs::write(&lock, text.split("\n[[job]]").next().unwrap()).unwrap();
    let file = dir.path().join("rides.db");
    let store = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).definitions(list()).build().unwrap();
    let (scope, key) = (Scope::new("tenant").unwrap(), IdempotencyKey::new("key").unwrap());
    let outcome = engine.call(&scope, &key, Hostile).await.unwrap();
    assert!(matches!(outcome, Outcome::Finished(_)));
    let url = format!("sqlite://{}", file.display());
    for format in ["text", "github"] {
        let (code, told) = run(dir.path(), &["check", "--database-url", &url, "--format", format]);
        assert_eq!((code, told.lines().count()), (6, 1), "{told}");
        assert!(
            !told.contains('\u{202e}') && (format == "text" || !told.contains("%0A")),
            "{told}"
        );
    }
}

#[test]
fn a_database_that_cannot_be_read_is_an_error_and_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (code, told) = run(dir.path(), &["check", "--database-url", "sqlite://none.db"]);
    assert_eq!(
        (code, told.as_str()),
        (1, "error: there is no lock file in ./phases: `cargo atomic-phases lock` writes them\n")
    );
    std::fs::create_dir(dir.path().join("phases")).unwrap();
    let lock = include_str!("rides.create@1.toml");
    std::fs::write(dir.path().join("phases/rides.create@1.toml"), lock).unwrap();
    // A port without a listener, and a password that must not be printed.
    let no_server = "mysql://root:s3cret@127.0.0.1:9/db";
    for (url, expected) in
        [("sqlite://none.db", 1), (no_server, 1), ("oracle://host/db", 2), ("rides.db", 2)]
    {
        let (code, told) = run(dir.path(), &["check", "--database-url", url]);
        assert_eq!(code, expected, "{told}");
        assert!(told.starts_with("error: ") && !told.contains("s3cret"), "{told}");
        assert!(!dir.path().join("none.db").exists());
    }
    assert_eq!(run(dir.path(), &["check"]).0, 2, "it has to be said which");
}
