//! Encryption at rest: with `EncryptingCodec` no table contains plaintext, and a stored value that is moved or
//! altered is detected before anything runs.

#![cfg(feature = "encryption")]

use crate::support::work::Inbox;
use crate::support::*;
use atomic_phases::codec::EncryptingCodec;
use atomic_phases::engine::{CallError, Resolution, ResolveError, Resolved, StrandedBecause};
use atomic_phases::worker::{Completer, DeliveryError, Enqueuer, Handlers, Job, WorkerConfig};
use atomic_phases::{Outcome, Reply, Scope};

on_every_store! {
    no_plaintext_is_in_any_table,
    a_sealed_request_resumes_and_replays,
    a_key_is_replaced_while_requests_are_under_way,
    plain_rows_are_read_while_encryption_is_introduced,
    g14_with_another_key_the_row_is_left_alone,
    a_process_without_the_codec_ends_no_sealed_request,
    values_that_were_swapped_or_altered_are_found_out_and_have_no_effect,
    a_staged_job_that_was_moved_or_altered_is_not_delivered,
    g18_a_staged_job_is_not_delivered_with_the_arguments_of_another_of_its_request,
}

const ONE: [u8; 32] = [1; 32];
const ANOTHER: [u8; 32] = [2; 32];

fn sealing<S: TestDb>(db: &S, app: &App, secret: &[u8; 32]) -> TestEngine<S> {
    sealing_with(db, app, EncryptingCodec::new(1, secret))
}

fn sealing_with<S: TestDb>(db: &S, app: &App, codec: EncryptingCodec) -> TestEngine<S> {
    engine_with(db, app, |builder| builder.codec(codec).max_attempts(100))
}

async fn no_plaintext_is_in_any_table<S: TestDb>(db: S) {
    let app = App::default();
    let engine = sealing(&db, &app, &ONE);
    let call = engine.call(
        &scope(),
        &key("k"),
        Notify { who: "canary".into(), trouble: Trouble::None.into() },
    );
    finished(call.context(&"canary").await);
    finished(engine.call(&scope(), &key("b"), book(20)).await);
    failed(engine.call(&scope(), &key("o"), troubled(Trouble::RetryForeignAlways)).await);
    let dump = dump(&db).await;
    // Parameters, context, outputs; the replies; the jobs' arguments.
    for plain in ["canary", "effect-", "amount", "booked\"", "content-type", "seen"] {
        assert!(!dump.contains(plain), "{plain} is in {dump}");
    }
    assert!(dump.contains("receipt"), "a job's name is not a secret, and the dump shows it");
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 2);
}

async fn a_sealed_request_resumes_and_replays<S: TestDb>(db: S) {
    let app = App::default();
    let engine = sealing(&db, &app, &ONE);
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryLastOnce)).await);
    let other_node = sealing(&db.another().await, &app, &ONE);
    let first = finished(other_node.call(&scope(), &key("k"), book(20)).await);
    let again = finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert!(again.replayed);
    assert_eq!(again.reply, first.reply);
    let jobs = Handlers::new()
        .on("receipt", async |charge: String, _: Job| {
            assert_eq!(charge, "effect-1");
            Ok(())
        })
        .on("thanks", async |_: String, _: Job| Ok(()));
    let mut enqueuer = Enqueuer::new(&engine, jobs, WorkerConfig::default());
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
    assert_eq!(app.provider.effects(), 1);
}

async fn a_key_is_replaced_while_requests_are_under_way<S: TestDb>(db: S) {
    let app = App::default();
    let old = sealing_with(&db, &app, EncryptingCodec::new(1, &ONE));
    failed(old.call(&scope(), &key("open"), troubled(Trouble::RetryLastOnce)).await);
    finished(old.call(&scope(), &key("done"), book(20)).await);
    // Nodes of the second and the third step run side by side.
    let reads =
        sealing_with(&db, &app, EncryptingCodec::new(1, &ONE).also_read(2, &ANOTHER).unwrap());
    let writes =
        sealing_with(&db, &app, EncryptingCodec::new(2, &ANOTHER).also_read(1, &ONE).unwrap());
    assert!(finished(writes.call(&scope(), &key("done"), book(20)).await).replayed);
    finished(writes.call(&scope(), &key("open"), book(20)).await);
    finished(writes.call(&scope(), &key("new"), book(20)).await);
    for name in ["done", "open", "new"] {
        assert!(finished(reads.call(&scope(), &key(name), book(20)).await).replayed, "{name}");
    }
    // Without the old key, rows that were written with it are left alone, and the rest continues.
    let after = sealing_with(&db, &app, EncryptingCodec::new(2, &ANOTHER));
    assert!(finished(after.call(&scope(), &key("new"), book(20)).await).replayed);
    unreadable(after.call(&scope(), &key("done"), book(20)).await, "response_headers");
    assert_eq!(app.provider.effects(), 3);
}

async fn plain_rows_are_read_while_encryption_is_introduced<S: TestDb>(db: S) {
    let app = App::default();
    let plain = engine(&db, &app);
    failed(plain.call(&scope(), &key("open"), troubled(Trouble::RetryLastOnce)).await);
    finished(plain.call(&scope(), &key("done"), book(20)).await);
    let sealing = sealing_with(&db, &app, EncryptingCodec::new(1, &ONE).also_read_plain());
    assert!(finished(sealing.call(&scope(), &key("done"), book(20)).await).replayed);
    finished(sealing.call(&scope(), &key("open"), book(20)).await);
    let strict = sealing_with(&db, &app, EncryptingCodec::new(1, &ONE));
    unreadable(strict.call(&scope(), &key("done"), book(20)).await, "response_headers");
    assert_eq!(app.provider.effects(), 2);
}

#[track_caller]
fn unreadable(outcome: Result<Outcome, CallError>, column: &str) {
    match outcome {
        Err(CallError::Unreadable { what, .. }) if what == column => {}
        other => panic!("{column}: {other:?}"),
    }
}

/// All columns of the key's row that the engine writes when the request continues.
async fn state<S: TestDb>(db: &S, name: &str) -> String {
    let columns = "status || ' ' || recovery_point || ' ' || lease_token || ' ' || attempts";
    let row = format!("scope = 'tenant-1' AND idempotency_key = '{name}'");
    db.text(&format!("SELECT {columns} FROM atomic_phases_keys WHERE {row}")).await
}

async fn g14_with_another_key_the_row_is_left_alone<S: TestDb>(db: S) {
    let app = App::default();
    let engine = sealing(&db, &app, &ONE);
    finished(engine.call(&scope(), &key("done"), book(20)).await);
    failed(engine.call(&scope(), &key("open"), troubled(Trouble::RetryForeignAlways)).await);
    db.let_time_pass().await;
    let before = [state(&db, "done").await, state(&db, "open").await];
    let calls = app.provider.calls().len();

    let stranger = sealing(&db, &app, &ANOTHER);
    unreadable(stranger.call(&scope(), &key("done"), book(20)).await, "response_headers");
    unreadable(stranger.call(&scope(), &key("open"), book(20)).await, "params");
    let config = || WorkerConfig::default().grace(std::time::Duration::ZERO);
    let swept = Completer::new(&stranger, config()).run_once().await.unwrap();
    assert_eq!((swept.left, swept.total()), (1, 1), "left to a node that has the key");
    let word = stranger.resolve(&scope(), &key("open"), Resolution::finish(Reply::new(204))).await;
    assert!(matches!(word, Err(ResolveError::Unreadable { what: "params" })), "{word:?}");
    let answer = stranger.status(&scope(), &key("done")).await;
    assert!(matches!(answer, Err(CallError::Unreadable { .. })), "{answer:?}");
    assert_eq!([state(&db, "done").await, state(&db, "open").await], before);
    assert_eq!(app.provider.calls().len(), calls);

    finished(engine.call(&scope(), &key("done"), book(20)).await);
}

/// The place of a stored value: scope, key, column.
type At<'a> = (&'a str, &'a str, &'a str);

/// The operator's command on a database has no codec: it would store its reply in plain text, and no node could open
/// the reply.
async fn a_process_without_the_codec_ends_no_sealed_request<S: TestDb>(db: S) {
    let app = App::default();
    let sealing = sealing(&db, &app, &ONE);
    let request = troubled(Trouble::UnknownForeign);
    let told = sealing.call(&scope(), &key("k"), request).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    let close = || Resolution::finish(Reply::text(200, "by hand"));
    let without_code = atomic_phases::Engine::builder(db.clone()).build().unwrap();
    let refused = without_code.resolve(&scope(), &key("k"), close()).await;
    let unknown = StrandedBecause::UnknownDefinition;
    assert!(
        matches!(refused, Err(ResolveError::NotKnownHere(why)) if why == unknown),
        "{refused:?}"
    );
    let without_codec = engine(&db, &app);
    let refused = without_codec.resolve(&scope(), &key("k"), close()).await;
    let is_sealed = matches!(
        refused,
        Err(ResolveError::NotKnownHere(StrandedBecause::Sealed) | ResolveError::Unreadable { .. })
    );
    assert!(is_sealed, "{refused:?}");
    let taken = sealing.resolve(&scope(), &key("k"), close()).await;
    assert!(matches!(taken, Ok(Resolved::Applied)), "{taken:?}");
    let told = sealing.call(&scope(), &key("k"), troubled(Trouble::UnknownForeign)).await;
    assert_eq!(finished(told).reply.bytes(), b"by hand");
}

/// A value of a table that the statement changes: a MySQL reads it only where it was put aside before.
fn aside(value: &str) -> String {
    format!("(SELECT value FROM ({value} LIMIT 1) AS donor)")
}

/// Copies one value over another.
async fn copy<S: TestDb>(db: &S, from: At<'_>, to: At<'_>) {
    let row = |at: At<'_>| format!("scope = '{}' AND idempotency_key = '{}'", at.0, at.1);
    let value = format!("SELECT {} AS value FROM atomic_phases_keys WHERE {}", from.2, row(from));
    let set =
        format!("UPDATE atomic_phases_keys SET {} = {} WHERE {}", to.2, aside(&value), row(to));
    db.sql(&set).await;
}

async fn altered<S: TestDb>(db: &S, name: &str, column: &str) {
    db.sql(&format!(
        "UPDATE atomic_phases_keys SET {column} = substr({column}, 1, length({column}) - 1) \
         WHERE idempotency_key = '{name}' AND scope = 'tenant-1'"
    ))
    .await;
}

/// The value that replaces a column's value: `None` for a part of itself.
fn sources<'a>(name: &'a str, column: &'a str, other: &'a str) -> [Option<At<'a>>; 4] {
    [
        Some(("tenant-2", name, column)),
        Some(("tenant-1", "donor", column)),
        Some(("tenant-1", name, other)),
        None,
    ]
}

async fn values_that_were_swapped_or_altered_are_found_out_and_have_no_effect<S: TestDb>(db: S) {
    if is_distributed::<S>() {
        println!("nothing was shown: no statement moves a value from one shard to another");
        return;
    }
    let drop_trigger = match is_postgres::<S>() {
        true => "DROP TRIGGER forward_only ON atomic_phases_keys",
        false => "DROP TRIGGER forward_only",
    };
    db.sql(drop_trigger).await;
    let app = App::default();
    let engine = sealing(&db, &app, &ONE);
    let (ours, theirs) = (scope(), Scope::new("tenant-2").unwrap());
    let stops = troubled(Trouble::RetryForeignAlways);
    let columns = [
        ("params", "outputs", stops.clone()),
        ("context", "params", stops.clone()),
        ("outputs", "context", stops),
        ("response_headers", "response_body", book(20)),
        ("response_body", "response_headers", book(20)),
    ];
    for (column, other, request) in columns {
        db.sql("DELETE FROM atomic_phases_keys").await;
        for case in 0..4 {
            let name = format!("case-{case}");
            for (scope, name) in [(&ours, name.as_str()), (&theirs, &name), (&ours, "donor")] {
                let call = engine.call(scope, &key(name), request.clone()).context(&name);
                call.await.unwrap();
            }
            match sources(&name, column, other)[case] {
                Some(from) => copy(&db, from, ("tenant-1", &name, column)).await,
                None => altered(&db, &name, column).await,
            }
            let (before, calls) = (state(&db, &name).await, app.provider.calls().len());
            unreadable(engine.call(&ours, &key(&name), book(20)).await, column);
            assert_eq!(app.provider.calls().len(), calls, "{column}, case {case}");
            assert_eq!(state(&db, &name).await, before, "{column}, case {case}");
        }
    }
}

async fn a_staged_job_that_was_moved_or_altered_is_not_delivered<S: TestDb>(db: S) {
    let app = App::default();
    let engine = sealing(&db, &app, &ONE);
    for name in ["a", "b"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    let donor = "SELECT args AS value FROM atomic_phases_staged_jobs WHERE idempotency_key = 'b' ORDER BY position";
    db.sql(&format!(
        "UPDATE atomic_phases_staged_jobs SET args = {} WHERE idempotency_key = 'a'",
        aside(donor)
    ))
    .await;
    db.sql(
        "UPDATE atomic_phases_staged_jobs SET args = substr(args, 1, length(args) - 1) \
         WHERE idempotency_key = 'b'",
    )
    .await;
    let refuse = async |_: serde_json::Value, _: Job| -> Result<(), DeliveryError> {
        panic!("a job was delivered that no phase staged")
    };
    let jobs = Handlers::new().on("receipt", refuse).on("thanks", refuse);
    let mut enqueuer = Enqueuer::new(&engine, jobs, WorkerConfig::default());
    let swept = enqueuer.run_once().await.unwrap();
    assert_eq!((swept.delivered, swept.left), (0, 2));
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 4);
    let counted = "SELECT max(attempts - forgiven_attempts) FROM atomic_phases_staged_jobs";
    assert_eq!(db.number(counted).await, 0, "another node may have the key");
}

async fn g18_a_staged_job_is_not_delivered_with_the_arguments_of_another_of_its_request<
    S: TestDb,
>(
    db: S,
) {
    let app = App::default();
    let engine = sealing(&db, &app, &ONE);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    // A distributed table needs the shard of a statement.
    let here = format!("scope = '{}'", scope().as_str());
    let of = |name| {
        aside(&format!(
            "SELECT args AS value FROM atomic_phases_staged_jobs WHERE name = '{name}' AND {here}"
        ))
    };
    let (receipt, thanks) = (of("receipt"), of("thanks"));
    db.sql(&format!(
        "UPDATE atomic_phases_staged_jobs SET args = CASE name WHEN 'receipt' THEN {thanks} \
         ELSE {receipt} END WHERE {here}"
    ))
    .await;
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), WorkerConfig::default());
    let swept = enqueuer.run_once().await.unwrap();
    assert_eq!((swept.delivered, swept.left), (0, 1), "{:?}", inbox.take());
    assert!(inbox.take().is_empty());
}
