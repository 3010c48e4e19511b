//! `run_once`, as a scheduler starts it: a blocked request delays no other scope (G16), and the call completes what
//! it began.

use std::time::Duration;

use super::fair_workers::{Places, Visit, hung, is_done, multiply, other, places};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::store::Sqlite;
use atomic_phases::worker::{Completer, Enqueuer};

on_every_store! {
    g16_a_scope_that_hangs_in_a_single_poll_delays_no_other,
}

/// More of its requests are due than one pass begins, and all of them hang.
async fn g16_a_scope_that_hangs_in_a_single_poll_delays_no_other<S: TestDb>(db: S) {
    let at = Places::default();
    let engine = places(&db, &at);
    engine.call(&hung(), &key("k"), Visit { hangs: true }).accept().await.unwrap();
    multiply(&db, "k", 120).await;
    engine.call(&other(), &key("other"), Visit { hangs: false }).accept().await.unwrap();
    let mut gate = at.stuck.stop_before_the_effect();
    let look = tokio::spawn({
        let engine = engine.clone();
        async move { Completer::new(&engine, config()).run_once().await.unwrap() }
    });
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(gate.recv().await.unwrap());
    }
    until(async || is_done(&engine, &other(), "other").await).await;
    // Requests that it must not begin are left to the next pass, which also finds new ones.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    drop(waiting);
    assert_eq!(look.await.unwrap().finished, 5);
    let untouched = "SELECT count(*) FROM atomic_phases_keys WHERE lease_token = 0";
    assert_eq!(db.number(untouched).await, 117);
}

/// A page of rows that only a manual change can have written, before the others.
#[tokio::test(flavor = "multi_thread")]
async fn g17_rows_that_cannot_be_read_end_no_search_on_sqlite() {
    let db = <Sqlite as TestDb>::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    for n in 0..4 {
        engine.call(&scope(), &key(&format!("bad-{n}")), book(20)).accept().await.unwrap();
        finished(engine.call(&scope(), &key(&format!("jobs-{n}")), book(20)).await);
    }
    db.sql(
        "UPDATE atomic_phases_keys SET request_id = x'00', run_after = created_at - 60000 \
         WHERE idempotency_key LIKE 'bad%'; \
         UPDATE atomic_phases_staged_jobs SET request_id = CAST(idempotency_key AS BLOB), \
         run_after = staged_at - 60000",
    )
    .await;
    engine.call(&scope(), &key("good"), book(20)).accept().await.unwrap();
    let mut completer = Completer::new(&engine, config().batch(2));
    assert_eq!(completer.run_once().await.unwrap().finished, 1, "it is behind two pages of them");
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config().batch(2));
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
    assert_eq!(inbox.take().remove(0).key.as_str(), "good");
}

#[cfg(feature = "simulation")]
mod simulated {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use atomic_phases::simulation::{Cut, Database, Memory, Network, Passage, simulate};
    use atomic_phases::worker::{DeliveryError, Job, JobSink};

    /// Cuts the searches for jobs from the second one on.
    #[derive(Clone, Default)]
    struct CutsSearches(Arc<AtomicU32>);

    impl Network for CutsSearches {
        fn passage(&self, what: &'static str) -> Passage {
            let is_search = what == "search for staged jobs";
            let cut = is_search && self.0.fetch_add(1, Ordering::SeqCst) >= 1;
            Passage { cut: cut.then_some(Cut::Before), ..Passage::default() }
        }
    }

    /// Takes a second for one name, and does not handle the other.
    #[derive(Clone, Default)]
    struct Picky {
        begun: Arc<AtomicBool>,
        sent: Arc<AtomicU32>,
    }

    impl JobSink for Picky {
        async fn deliver(&self, _: &Job) -> Result<(), DeliveryError> {
            self.begun.store(true, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.sent.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        fn handles(&self, name: &str) -> bool {
            name == "receipt"
        }
    }

    /// If the second search of a pass fails, the deliveries that it has begun are completed.
    #[test]
    fn g18_a_poll_that_fails_ends_what_it_began() {
        let (has_failed, begun, sent) = simulate(1, || async {
            let (sink, database, app) = (Picky::default(), Database::default(), App::default());
            let quiet = engine(&Memory::connect(&database), &app);
            for n in 0..8 {
                finished(quiet.call(&scope(), &key(&format!("{n}")), book(20)).await);
            }
            let db = Memory::connect_through(&database, CutsSearches::default(), 4);
            let engine = engine(&db, &app);
            let mut enqueuer = Enqueuer::new(&engine, sink.clone(), config().batch(5));
            let poll = enqueuer.run_once().await;
            (poll.is_err(), sink.begun.load(Ordering::SeqCst), sink.sent.load(Ordering::SeqCst))
        });
        assert!(has_failed && begun, "{has_failed} {begun}");
        assert!(sent > 0, "what was begun has ended when the look has");
    }
}
