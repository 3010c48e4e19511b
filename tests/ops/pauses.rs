//! Pauses: no engine begins a foreign phase that an operator has paused, and requests that reach it wait.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atomic_phases::engine::{CallError, FailureCause};
use atomic_phases::ops::{
    Actor, EndedBy, HeldBy, OperatorStore, OpsError, Permissions, Scopes, State,
};
use atomic_phases::phase::{DerivedKey, ForeignError};
use atomic_phases::store::PoolSettings;
use atomic_phases::worker::Completer;
use atomic_phases::{Engine, ForeignCall, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::cast::*;
use crate::support::work::{config, reconciled};
use crate::support::*;

on_every_store! {
    g1_g2_a_paused_phase_is_not_begun_and_its_request_waits_uncounted,
    another_engine_hears_of_a_pause_and_of_its_end,
    a_process_that_starts_while_a_phase_is_paused_does_not_begin_it,
    a_process_that_stood_still_does_not_begin_a_phase_that_was_paused_meanwhile,
    a_pause_ends_by_itself,
    a_call_that_is_under_way_goes_on,
    g11_a_pause_longer_than_the_window_leaves_no_request_unknown_that_has_called_nothing,
    g17_no_answer_about_a_paused_phase_counts_against_the_cap_of_reconciliations,
    g2_no_pause_is_begun_that_engines_would_not_read,
}

pub(super) const BOOK: (&str, &str) = ("book", "charged");

pub(super) async fn paused<S: TestDb + OperatorStore>(
    engine: &TestEngine<S>,
    (of, phase): (&str, &str),
) {
    admin(engine).pause(of, phase, None, "the bank is closed").await.unwrap();
}

/// Whether the phase that the call reached is paused. Any other failure is unexpected.
pub(super) fn is_held(call: Result<Outcome, CallError>) -> bool {
    match call {
        Ok(Outcome::Finished(_)) => false,
        Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. }) => true,
        other => panic!("{other:?}"),
    }
}

async fn g1_g2_a_paused_phase_is_not_begun_and_its_request_waits_uncounted<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    for (definition, phase, name) in [("book", "charged", "k"), ("notify", "notified", "n")] {
        paused(&engine, (definition, phase)).await;
        // More often than the attempt cap, each time after its back-off.
        for _ in 0..25 {
            let (scope, key) = (scope(), key(name));
            let call = match name {
                "k" => engine.call(&scope, &key, book(20)).await,
                _ => engine.call(&scope, &key, notify(Trouble::None)).await,
            };
            let Ok(Outcome::Failed { cause, retry_after }) = call else { panic!("{call:?}") };
            assert_eq!(
                cause,
                FailureCause::Paused { phase: if name == "k" { "charged" } else { "notified" } }
            );
            assert!(retry_after <= Duration::from_secs(30) && !retry_after.is_zero());
            db.let_time_pass().await;
        }
        let found = ops.find(&scope(), &key(name)).await.unwrap();
        assert_eq!((found.state, found.open_intent), (State::Due, None));
        assert_eq!(found.reason.as_deref(), Some("the phase was paused by an operator"));
        let why = ops.why(found.request_id).await.unwrap();
        assert_eq!(
            (why.held_by, why.ended_by, why.until),
            (HeldBy::Paused, EndedBy::Operator, None)
        );
        for says in [phase, "by ada", "the bank is closed", "until an operator ends it"] {
            assert!(why.sentence.contains(says), "{why:?}");
        }
    }
    assert_eq!(app.provider.effects(), 0, "nothing was begun");
    assert_eq!(ops.pauses().await.unwrap().len(), 2);
    unpause(&ops, BOOK).await;
    unpause(&ops, ("notify", "notified")).await;
    // Nothing moved its row: it waits for its next try, and does not say that the pause lasts.
    let found = ops.find(&scope(), &key("k")).await.unwrap();
    let why = ops.why(found.request_id).await.unwrap();
    assert_eq!((why.held_by, why.ended_by), (HeldBy::Due, EndedBy::Worker));
    assert!(why.sentence.contains("was paused when it was last tried"), "{why:?}");
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    finished(engine.call(&scope(), &key("n"), notify(Trouble::None)).await);
    assert_eq!(app.provider.effects(), 2);
    let acts = ops.audit(None, None, 10).await.unwrap().rows;
    let told: Vec<_> = acts
        .iter()
        .map(|act| (act.act.as_str(), act.outcome.as_str(), act.phase.as_ref().unwrap().1.as_str()))
        .collect();
    let expected = [
        ("unpause", "applied", "notified"),
        ("unpause", "applied", "charged"),
        ("pause", "applied", "notified"),
        ("pause", "applied", "charged"),
    ];
    assert_eq!(told, expected);
}

async fn another_engine_hears_of_a_pause_and_of_its_end<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let here = engine(&db, &app);
    let often = Duration::from_millis(20);
    let there = engine_with(&db.another().await, &app, |builder| builder.pauses_every(often));
    let begins = async |name: &str| {
        let call = there.call(&scope(), &key(name), book(20)).await;
        match call {
            Ok(Outcome::Finished(_)) => true,
            Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. }) => false,
            other => panic!("{other:?}"),
        }
    };
    assert!(begins("before").await);
    paused(&here, ("book", "charged")).await;
    let mut number = 0;
    while begins(&format!("k-{number}")).await {
        number += 1;
        assert!(number < 1000, "it never hears of it");
    }
    let effects = app.provider.effects();
    assert!(!begins("after").await);
    assert_eq!(app.provider.effects(), effects);
    unpause(&admin(&here), BOOK).await;
    until(async || begins("after").await).await;
    assert_eq!(app.provider.effects(), effects + 1);
}

async fn a_process_that_starts_while_a_phase_is_paused_does_not_begin_it<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    paused(&engine(&db, &app), ("book", "charged")).await;
    let started = engine(&db.another().await, &app);
    let call = started.call(&scope(), &key("k"), book(20)).await;
    assert!(
        matches!(call, Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. })),
        "{call:?}"
    );
    assert_eq!(app.provider.effects(), 0);
}

/// Calls a provider during whose answer its process stands still, and another.
#[derive(Clone, Serialize, Deserialize)]
struct Frozen;

/// The process that stands still: what it has begun, and until when it is held.
struct Standing {
    begun: tokio::sync::mpsc::UnboundedSender<&'static str>,
    thaws: Mutex<std::sync::mpsc::Receiver<()>>,
}

#[atomic_phases(name = "frozen", version = 1, app = Arc<Standing>)]
impl<Db: TestDb> Frozen {
    #[phase(foreign(idempotent))]
    async fn called(
        &self,
        call: ForeignCall,
        app: &Arc<Standing>,
    ) -> PhaseResult<(), ForeignError> {
        call.make(async |_: DerivedKey| {
            app.begun.send("called").unwrap();
            app.thaws.lock().unwrap().recv().unwrap();
            Ok::<_, ForeignError>(())
        })
        .await
    }

    #[phase(foreign(idempotent))]
    async fn charged(
        &self,
        call: ForeignCall,
        app: &Arc<Standing>,
    ) -> PhaseResult<(), ForeignError> {
        call.make(async |_: DerivedKey| {
            app.begun.send("charged").unwrap();
            Ok::<_, ForeignError>(())
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// Nothing of a runtime of one thread goes on while a phase blocks it. Whether its next read of the pauses or its next
/// phase comes first then is chance, and so it is tried several times.
async fn a_process_that_stood_still_does_not_begin_a_phase_that_was_paused_meanwhile<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let (begun, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let (thaw, thaws) = std::sync::mpsc::channel();
    let standing = Arc::new(Standing { begun, thaws: Mutex::new(thaws) });
    let every = Duration::from_millis(20);
    let build = move |db: S, app: &Arc<Standing>| {
        let builder = Engine::builder(db).app(app.clone()).pauses_every(every);
        builder.register::<Frozen>().build().unwrap()
    };
    let here = build(db.clone(), &standing);
    let ops = here.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    for round in 0..8 {
        let (db, standing) = (db.clone(), standing.clone());
        let process = std::thread::spawn(move || {
            let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            one.block_on(async {
                let engine = build(db.another().await, &standing);
                engine.call(&scope(), &key(&format!("k-{round}")), Frozen).await
            })
        });
        let called = tokio::time::timeout(Duration::from_secs(60), seen.recv()).await;
        assert_eq!(called.expect("it ended without its call"), Some("called"));
        let stands = Instant::now();
        ops.pause("frozen", "charged", None, "the bank is closed").await.unwrap();
        // What it has read of the pauses is no longer trusted by then.
        until(async || stands.elapsed() > every * 3).await;
        thaw.send(()).unwrap();
        let call = tokio::task::spawn_blocking(|| process.join()).await.unwrap().unwrap();
        assert!(is_held(call));
        assert!(seen.try_recv().is_err(), "nothing was begun");
        unpause(&ops, ("frozen", "charged")).await;
    }
}

async fn a_pause_ends_by_itself<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let ops = admin(&engine);
    let length = Duration::from_secs(3600);
    ops.pause("book", "charged", Some(length), "maintenance").await.unwrap();
    let call = engine.call(&scope(), &key("k"), book(20)).await;
    let Ok(Outcome::Failed { retry_after, .. }) = call else { panic!("{call:?}") };
    assert!(retry_after <= length, "no longer than the pause: {retry_after:?}");
    let why = ops.why(id_of(&engine, "k").await).await.unwrap();
    assert!(why.until.is_some(), "{why:?}");
    // Shortened only now, so that the call above has met it.
    let length = Some(Duration::from_secs(2));
    let seen = ops.pauses().await.unwrap().remove(0).version;
    ops.replace_pause("book", "charged", &seen, length, "maintenance").await.unwrap();
    until(async || {
        matches!(engine.call(&scope(), &key("k"), book(20)).await, Ok(Outcome::Finished(_)))
    })
    .await;
    assert!(ops.pauses().await.unwrap().is_empty());
    assert_eq!(app.provider.effects(), 1);
}

async fn a_call_that_is_under_way_goes_on<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let calling = engine.call(&scope(), &key("k"), book(20)).into_future();
    let calling = tokio::spawn(calling);
    let waiting = gate.recv().await.unwrap();
    paused(&engine, ("book", "charged")).await;
    app.provider.stop_no_more();
    drop(waiting);
    finished(calling.await.unwrap());
    assert_eq!(app.provider.effects(), 1);
}

/// Its first attempt met the pause: there is no earlier call that the provider could have forgotten.
async fn g11_a_pause_longer_than_the_window_leaves_no_request_unknown_that_has_called_nothing<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    paused(&engine, BOOK).await;
    assert!(is_held(engine.call(&scope(), &key("k"), book(20)).await));
    let (two_days_ago, then) = match is_postgres::<S>() {
        true => ("(SELECT now() - interval '48 hours')", "created_at"),
        false => ("advanced_at - 172800000", "created_at"),
    };
    set(&engine, "k", &format!("advanced_at = {two_days_ago}, run_after = {then}")).await;
    unpause(&admin(&engine), BOOK).await;
    assert!(app.provider.calls().is_empty(), "nothing was called");
    let call = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(matches!(call, Ok(Outcome::Finished(_))), "it calls for the first time: {call:?}");
}

/// The provider is down for its maintenance, so the reconcile function does not find out: however often, the request waits.
async fn g17_no_answer_about_a_paused_phase_counts_against_the_cap_of_reconciliations<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    const NOTIFY: (&str, &str) = ("notify", "notified");
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine_with(&db, &app, |b| b.lease(Duration::from_secs(60)).max_reconciles(2));
    unknown(&engine, "k").await;
    paused(&engine, NOTIFY).await;
    let asked = async || {
        db.let_time_pass().await;
        let swept = reconciled(&engine).await;
        (swept.unknown, swept.dead_letters)
    };
    for _ in 0..5 {
        assert_eq!(asked().await, (1, 0));
    }
    unpause(&admin(&engine), NOTIFY).await;
    assert_eq!((asked().await, asked().await), ((1, 0), (0, 1)), "it counts from here on");
}

/// Copies the pause of a phase to others, whose definitions and phases these texts select.
async fn copy_pause<S: TestDb>(db: &S, phase: &str, definitions: &str, phases: &str) {
    db.sql(&format!(
        "INSERT INTO atomic_phases_pauses (definition, phase, reason, paused_by, paused_at, ends_at) \
         SELECT d.name, p.name, reason, paused_by, paused_at, ends_at FROM atomic_phases_pauses \
         CROSS JOIN ({definitions}) AS d CROSS JOIN ({phases}) AS p WHERE phase = '{phase}'"
    ))
    .await;
}

async fn g2_no_pause_is_begun_that_engines_would_not_read<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let ops = admin(&engine(&db, &app));
    let notify_paused = || ops.pause("notify", "notified", None, "closed");
    ops.pause("book", "charged", None, "closed").await.unwrap();
    let names =
        |count: u32| (0..count).map(|n| format!("SELECT 'a{n:02}' AS name")).collect::<Vec<_>>();
    // 27 times 37 are 999.
    copy_pause(&db, "charged", &names(27).join(" UNION ALL "), &names(37).join(" UNION ALL "))
        .await;
    assert_eq!(ops.pauses().await.unwrap().len(), 1000);
    let refused = notify_paused().await;
    assert!(matches!(refused, Err(OpsError::TooManyPauses)), "{refused:?}");
    let refused = ops.pause("book", "charged", None, "again").await;
    assert!(matches!(refused, Err(OpsError::MovedOn)), "{refused:?}");
    let hour = Some(Duration::from_secs(3600));
    let seen = pause_of(&ops, BOOK).await.version;
    ops.replace_pause("book", "charged", &seen, hour, "shorter").await.unwrap();
    unpause(&ops, BOOK).await;
    notify_paused().await.unwrap();
    // As if another operator had begun one at the same moment: it comes before, and all are read.
    copy_pause(&db, "notified", "SELECT 'a' AS name", "SELECT 'a' AS name").await;
    let started = engine(&db.another().await, &app);
    assert!(is_held(started.call(&scope(), &key("k"), notify(Trouble::None)).await));
    assert_eq!(ops.pauses().await.unwrap().len(), 1001);
}

/// A person has written when it ends, on PostgreSQL: a process that starts reads it, and begins all other phases.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_pause_until_infinity_is_one_that_an_operator_ends() {
    let db = <atomic_phases::store::Postgres as TestDb>::fresh().await;
    paused(&engine(&db, &App::default()), BOOK).await;
    db.sql("UPDATE atomic_phases_pauses SET ends_at = 'infinity'").await;
    let engine = engine(&db.another().await, &App::default());
    assert!(is_held(engine.call(&scope(), &key("k"), book(20)).await));
    finished(engine.call(&scope(), &key("n"), notify(Trouble::None)).await);
    let ops = admin(&engine);
    unpause(&ops, BOOK).await;
    assert!(ops.pauses().await.unwrap().is_empty());
}

/// A process that was never able to read the pauses begins no foreign phase, and its answer says why: the attempts do not
/// count, and the first read ends it. (`tests/log_redaction.rs` reads the log.)
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn no_foreign_phase_is_begun_before_the_pauses_were_read() {
    let db = <atomic_phases::store::Sqlite as TestDb>::fresh().await;
    let app = App::default();
    paused(&engine(&db, &app), BOOK).await;
    let started = engine_with(&db.another().await, &app, |builder| {
        builder.max_attempts(1).pauses_every(Duration::from_millis(20))
    });
    db.sql("ALTER TABLE atomic_phases_pauses RENAME TO hidden").await;
    for _ in 0..2 {
        db.let_time_pass().await;
        let call = started.call(&scope(), &key("k"), book(20)).await;
        assert!(could_not_read(&call), "{call:?}");
    }
    assert_eq!(app.provider.effects(), 0);
    db.sql("ALTER TABLE hidden RENAME TO atomic_phases_pauses").await;
    until(async || is_known_as_paused(&started.call(&scope(), &key("k"), book(20)).await)).await;
    // What was read once stays known.
    db.sql("ALTER TABLE atomic_phases_pauses RENAME TO hidden").await;
    assert!(is_held(started.call(&scope(), &key("k"), book(20)).await));
}

fn could_not_read(call: &Result<Outcome, CallError>) -> bool {
    let Ok(Outcome::Failed { cause: FailureCause::Database { kind, .. }, .. }) = call else {
        return false;
    };
    kind.contains("the pauses could not be read")
}

fn is_known_as_paused(call: &Result<Outcome, CallError>) -> bool {
    matches!(call, Ok(Outcome::Failed { cause: FailureCause::Paused { .. }, .. }))
}

/// The sessions that wait for a lock.
#[cfg(feature = "postgres")]
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
    AND datname = current_database()";

/// A shutdown that begins during the first read of the pauses does not wait for it, and no call is begun behind it.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_shutdown_does_not_wait_for_the_first_read_of_the_pauses() {
    use crate::support::db::{pg, url_of};
    use diesel_async::SimpleAsyncConnection;
    let db = <atomic_phases::store::Postgres as TestDb>::fresh().await;
    let app = App::default();
    let started = engine(&db, &app);
    let mut other = pg(&url_of(&db)).await;
    other.batch_execute("BEGIN; LOCK TABLE atomic_phases_pauses").await.unwrap();
    let call = tokio::spawn(started.call(&scope(), &key("k"), book(20)).into_future());
    until(async || db.number(WAITING).await > 0).await;
    // Less than the read is waited for.
    started.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(failed(call.await.unwrap()), FailureCause::ShuttingDown);
    assert_eq!(app.provider.effects(), 0);
    drop(other);
}

/// A worker's search has the connection on which the pauses are read, for longer than a request waits for them.
async fn are_read_beside_a_search<S: TestDb + OperatorStore>(db: &S, waiting: &str) {
    let workers = db.for_workers();
    let read = async {
        until(async || db.number(waiting).await == 1).await;
        assert!(db.paused_phases().await.unwrap().is_empty());
    };
    tokio::select! {
        biased;
        told = workers.nodes() => panic!("the search ended: {told:?}"),
        () = read => {}
    }
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn g2_the_pauses_are_read_while_a_worker_searches_for_long_on_postgres() {
    use crate::support::db::{pg, url_of};
    use diesel_async::SimpleAsyncConnection;
    let db = <atomic_phases::store::Postgres as TestDb>::fresh().await;
    let mut lock = pg(&url_of(&db)).await;
    lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_nodes").await.unwrap();
    are_read_beside_a_search(&db, WAITING).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g2_the_pauses_are_read_while_a_worker_searches_for_long_on_mariadb() {
    use crate::support::db::{my, sessions};
    use diesel_async::SimpleAsyncConnection;
    let db = <atomic_phases::store::Mysql as TestDb>::fresh().await;
    let mut lock = my(db.__url()).await;
    lock.batch_execute("LOCK TABLES atomic_phases_nodes WRITE").await.unwrap();
    let waiting = format!(
        "SELECT count(*) FROM {} WHERE db = database() \
         AND state LIKE 'Waiting for table metadata lock%'",
        sessions()
    );
    are_read_beside_a_search(&db, &waiting).await;
}

/// "Each engine reads the pauses [..] before its first foreign phase": here another session has the table for longer than
/// the engine waits for it.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_starting_process_that_cannot_read_the_pauses_begins_no_paused_phase() {
    use crate::support::db::{pg, url_of};
    use diesel_async::SimpleAsyncConnection;
    let db = <atomic_phases::store::Postgres as TestDb>::fresh().await;
    let app = App::default();
    paused(&engine(&db, &app), BOOK).await;
    let started = engine(&db.another().await, &app);
    let mut other = pg(&url_of(&db)).await;
    other.batch_execute("BEGIN; LOCK TABLE atomic_phases_pauses").await.unwrap();
    let call = started.call(&scope(), &key("k"), book(20)).await;
    assert!(could_not_read(&call), "{call:?}");
    drop(other);
    until(async || is_known_as_paused(&started.call(&scope(), &key("k"), book(20)).await)).await;
    assert_eq!(app.provider.effects(), 0, "it was called, and is paused: {call:?}");
}

/// Reaches its call when the test lets it.
#[derive(Clone, Serialize, Deserialize)]
struct Gated;

struct Gate {
    reached: tokio::sync::mpsc::UnboundedSender<&'static str>,
    opened: tokio::sync::Notify,
}

#[atomic_phases(name = "gated", version = 1, app = Arc<Gate>)]
impl<Db: TestDb> Gated {
    #[phase]
    async fn begun(&self, tx: &mut Tx<'_, Db>, app: &Arc<Gate>) -> PhaseResult<()> {
        Db::insert_step(tx, "-", "begun").await?;
        app.reached.send("begun").unwrap();
        app.opened.notified().await;
        Ok(())
    }

    #[phase(foreign(idempotent))]
    async fn called(&self, call: ForeignCall, app: &Arc<Gate>) -> PhaseResult<(), ForeignError> {
        call.make(async |_: DerivedKey| {
            app.reached.send("called").unwrap();
            Ok::<_, ForeignError>(())
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// The first read of the pauses does not wait for requests: a worker's first request makes its call while other work has
/// both connections of the pool.
async fn reads_the_pauses_beside_requests<S: TestDb, C>(
    db: &S,
    store: S,
    take: impl AsyncFn() -> C,
) {
    let (reached, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let gate = Arc::new(Gate { reached, opened: tokio::sync::Notify::new() });
    let builder = Engine::builder(store).app(gate.clone()).lease(Duration::from_secs(60));
    let engine = builder.register::<Gated>().build().unwrap();
    engine.call(&scope(), &key("k"), Gated).accept().await.unwrap();
    let mut completer = Completer::new(&engine, config());
    let others = async {
        assert_eq!(seen.recv().await, Some("begun"));
        let one = take().await;
        // The request has the other one, and its commit gives it to the one that has waited the longest.
        let mut other = std::pin::pin!(take());
        tokio::select! {
            biased;
            _ = &mut other => panic!("the request has it"),
            () = std::future::ready(()) => {}
        }
        gate.opened.notify_one();
        let both = (one, other.await);
        assert_eq!(seen.recv().await, Some("called"));
        drop(both);
    };
    let (swept, ()) = tokio::join!(completer.run_once(), others);
    assert_eq!(swept.unwrap().finished, 1);
    let uncounted = "SELECT forgiven_attempts FROM atomic_phases_keys";
    assert_eq!(db.number(uncounted).await, 0, "it was not released");
}

/// How long the pool's connections may be in use.
const POOL_WAIT: Duration = Duration::from_secs(20);

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_starts_on_a_pool_in_use_reads_the_pauses_on_postgres() {
    let db = <atomic_phases::store::Postgres as TestDb>::fresh().await;
    let settings = PoolSettings::default().max_size(2).wait(POOL_WAIT);
    let url = crate::support::db::url_of(&db);
    let store = atomic_phases::store::Postgres::connect_with(&url, settings).await.unwrap();
    let take = async || store.connection().await.unwrap();
    reads_the_pauses_beside_requests(&db, store.clone(), take).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_starts_on_a_pool_in_use_reads_the_pauses_on_mariadb() {
    let db = <atomic_phases::store::Mysql as TestDb>::fresh().await;
    let settings = PoolSettings::default().max_size(2).wait(POOL_WAIT);
    let store = atomic_phases::store::Mysql::connect_with(db.__url(), settings).await.unwrap();
    let take = async || store.connection().await.unwrap();
    reads_the_pauses_beside_requests(&db, store.clone(), take).await;
}
