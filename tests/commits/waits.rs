//! What waits for another's key ends with its caller (G16).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::races::WAITING;
use crate::support::db::url_of;
use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::store::Postgres;
use diesel_async::SimpleAsyncConnection;

on_every_store! {
    g16_a_wait_ends_with_its_caller,
}

/// The same, whether another transaction is about to create the key or not: one of the callers tries, on a
/// connection, and the others wait for their turn.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_wait_for_a_key_that_is_being_created_ends_with_its_caller() {
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.creation_wait(Duration::from_secs(600)));
    finished(engine.call(&scope(), &key("other"), book(20)).await);
    let mut aside = crate::support::db::pg(&url_of(&db)).await;
    aside
        .batch_execute(
            "BEGIN; CREATE TEMP TABLE copy AS SELECT * FROM atomic_phases_keys LIMIT 1; \
             DO $$ BEGIN FOR n IN 0..3 LOOP UPDATE copy SET idempotency_key = 'busy-' || n; \
             INSERT INTO atomic_phases_keys SELECT * FROM copy; END LOOP; END $$",
        )
        .await
        .unwrap();
    let calls: Vec<_> = (0..40)
        .map(|number| {
            let name = key(&format!("busy-{}", number % 4));
            match number % 2 {
                0 => tokio::spawn(engine.call(&scope(), &name, book(20)).into_future()),
                _ => {
                    let parcel = Form::OneByOne.parcel(Trouble::None);
                    tokio::spawn(engine.call(&scope(), &name, parcel).into_future())
                }
            }
        })
        .collect();
    until(async || engine.__requests() == 40).await;
    // For each key, one has tried, and pauses.
    until(async || db.number(WAITING).await > 0).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    until(async || engine.__requests() == 0).await;
    aside.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 1);
}

/// Counted: after a hundred clients have disconnected, their calls send nothing.
#[cfg(feature = "simulation")]
#[test]
fn g16_a_call_that_only_waited_asks_the_database_no_more_when_its_caller_is_gone() {
    use std::sync::atomic::AtomicU64;

    use atomic_phases::simulation::{Database, Memory, Network, Passage, simulate};

    #[derive(Clone, Default)]
    struct Counted(Arc<AtomicU64>);

    impl Network for Counted {
        fn passage(&self, _: &'static str) -> Passage {
            self.0.fetch_add(1, Ordering::SeqCst);
            Passage::default()
        }
    }

    let asked = simulate(1, || async {
        let counted = Counted::default();
        let db = Memory::connect_through(&Database::default(), counted.clone(), 16);
        let app = App::default();
        let engine =
            engine_with(&db, &app, |builder| builder.pauses_every(Duration::from_secs(60)));
        let mut gate = app.provider.stop_after_the_effect();
        let holder = tokio::spawn(engine.call(&scope(), &key("k"), book(20)).into_future());
        let _waiting = gate.recv().await.unwrap();
        for _ in 0..100 {
            let call = engine.call(&scope(), &key("k"), book(20));
            let call = call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(60)));
            let hung_up = tokio::time::timeout(Duration::from_millis(100), call.into_future());
            assert!(hung_up.await.is_err());
        }
        let before = counted.0.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(15)).await;
        drop(holder);
        counted.0.load(Ordering::SeqCst) - before
    });
    // In fifteen seconds the holder's lease of a minute is renewed at most once.
    assert!(asked <= 2, "{asked} statements for clients that are gone");
}

/// More often than a row is looked at again without a wait.
#[cfg(feature = "simulation")]
#[test]
fn a_call_waits_on_however_many_takeovers_it_loses() {
    use std::sync::atomic::AtomicU32;

    use crate::support::work::dies_in_its_call;
    use atomic_phases::simulation::{Database, Memory, Network, Passage, simulate};

    const HOUR: Duration = Duration::from_secs(3600);
    const TIMES: u32 = 20;

    /// When a takeover arrives, the other holder has its lease again: the database's clock was set back.
    #[derive(Clone)]
    struct Loses(Database, Arc<AtomicU32>);

    impl Network for Loses {
        fn passage(&self, what: &'static str) -> Passage {
            if what == "take over the key" && self.1.load(Ordering::SeqCst) < TIMES {
                self.0.set_clock_back(HOUR);
                self.1.fetch_add(1, Ordering::SeqCst);
            }
            Passage::default()
        }
    }

    let told = simulate(1, || async {
        let (database, lost) = (Database::default(), Arc::new(AtomicU32::new(0)));
        let network = Loses(database.clone(), lost.clone());
        let engine = engine(&Memory::connect_through(&database, network, 16), &App::default());
        dies_in_its_call(&engine, "k", book(20)).await;
        let call = engine.call(&scope(), &key("k"), book(20));
        let call = call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(600)));
        let call = tokio::spawn(call.into_future());
        for times in 0..=TIMES {
            let waits = || lost.load(Ordering::SeqCst) == times && engine.__waiting() == 1;
            until(async || call.is_finished() || waits()).await;
            database.set_clock_forward(HOUR);
        }
        call.await.unwrap()
    });
    finished(told);
}

/// A hundred duplicates disconnect: each waited only for its own caller.
async fn g16_a_wait_ends_with_its_caller<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut gate = app.provider.stop_after_the_effect();
    let call = engine.call(&scope(), &key("k"), book(20)).into_future();
    let holder = tokio::spawn(call);
    let waiting = gate.recv().await.unwrap();
    let waits = || {
        let call = engine.call(&scope(), &key("k"), book(20));
        tokio::spawn(call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(600))).into_future())
    };
    let (gone, stays): (Vec<_>, _) = ((0..100).map(|_| waits()).collect(), waits());
    until(async || engine.__waiting() == 101).await;
    gone.iter().for_each(tokio::task::JoinHandle::abort);
    until(async || engine.__waiting() == 1).await;
    until(async || engine.__requests() == 2).await;
    app.provider.stop_no_more();
    drop(waiting);
    finished(holder.await.unwrap());
    stays.await.unwrap().unwrap();
}
