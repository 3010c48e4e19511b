//! G10, G16: requests that one statement reads or takes over together are read and taken over as if alone. PostgreSQL is the
//! store that groups them.

use std::time::Duration;

use crate::support::proxy::proxied;
use crate::support::work::*;
use crate::support::*;
use atomic_phases::store::Postgres;
use atomic_phases::worker::Completer;
use atomic_phases::{Outcome, Scope};
use diesel_async::SimpleAsyncConnection;

fn tenant(number: usize) -> Scope {
    Scope::new(format!("tenant-{}", number % 5)).unwrap()
}

/// Two nodes, and their clients.
#[tokio::test(flavor = "multi_thread")]
async fn g10_of_all_who_take_the_same_requests_over_in_groups_one_has_each() {
    const REQUESTS: usize = 60;
    let db = Postgres::fresh().await;
    let apps = [App::default(), App::default()];
    let nodes = [engine(&db, &apps[0]), engine(&db.another().await, &apps[1])];
    for number in 0..REQUESTS {
        let name = format!("k{number}");
        nodes[0].call(&tenant(number), &key(&name), book(20)).accept().await.unwrap();
    }
    let looks = nodes.clone().map(|node| {
        tokio::spawn(async move {
            let mut completer = Completer::new(&node, config().concurrency(40));
            completer.run_once().await.unwrap().finished as usize
        })
    });
    let calls = (0..REQUESTS).map(|number| {
        let node = nodes[number % 2].clone();
        tokio::spawn(async move {
            node.call(&tenant(number), &key(&format!("k{number}")), book(20)).await
        })
    });
    for call in calls.collect::<Vec<_>>() {
        let told = call.await.unwrap();
        assert!(matches!(told, Ok(Outcome::Finished(_) | Outcome::InProgress { .. })), "{told:?}");
    }
    for look in looks {
        look.await.unwrap();
    }
    let finished =
        "SELECT count(*) FROM atomic_phases_keys WHERE status = 'completed' AND attempts = 1";
    until(async || db.number(finished).await == REQUESTS as i64).await;
    let effects = apps[0].provider.effects() + apps[1].provider.effects();
    assert_eq!(effects, REQUESTS, "each once, by one of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_a_request_whose_row_is_locked_keeps_none_that_is_taken_over_with_it_from_its_end() {
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    for number in 0..20 {
        let name = if number == 7 { "locked".to_owned() } else { format!("k{number}") };
        engine.call(&tenant(number), &key(&name), book(20)).accept().await.unwrap();
    }
    let mut holder = crate::support::db::pg(&crate::support::db::url_of(&db)).await;
    let lock =
        "BEGIN; SELECT 1 FROM atomic_phases_keys WHERE idempotency_key = 'locked' FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    let workers = engine.spawn_workers(config().concurrency(20)).unwrap();
    until(async || app.provider.effects() == 19).await;
    let finished = "SELECT count(*) FROM atomic_phases_keys WHERE status = 'completed'";
    until(async || db.number(finished).await == 19).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    until(async || db.number(finished).await == 20).await;
    assert_eq!(app.provider.effects(), 20);
    workers.shutdown(Duration::from_secs(30)).await.unwrap();
}

/// Each of the large ones takes eight seconds to arrive, and all of them a minute. The store waits 15 seconds for an answer.
#[tokio::test(flavor = "multi_thread")]
async fn g16_g17_a_small_request_waits_for_no_large_one_that_is_read_or_taken_over_with_it() {
    const LARGE: usize = 8;
    const BYTES: usize = 8 << 20;
    const SOON: Duration = Duration::from_secs(7);
    fn tenant(number: usize) -> Scope {
        Scope::new(format!("tenant-{number}")).unwrap()
    }
    let (db, behind, proxy) = proxied().await;
    let engine = engine(&behind, &App::default());
    for number in 0..=LARGE {
        engine.call(&tenant(number), &key("k"), book(20)).accept().await.unwrap();
    }
    // The same parameters, as JSON of this length. The last request is the small one.
    db.sql(&format!(
        "UPDATE atomic_phases_keys SET params = convert_to('{{\"amount\":20' || repeat(' ', {BYTES}) || '}}', 'UTF8') \
         WHERE scope <> 'tenant-{LARGE}'"
    ))
    .await;
    proxy.narrow(BYTES / 8);
    let read = |number| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.status(&tenant(number), &key("k")).await.unwrap() })
    };
    let mut reads: Vec<_> = (0..=LARGE).map(read).collect();
    let small = tokio::time::timeout(SOON, reads.pop().unwrap()).await;
    assert!(small.expect("it waits for the others").unwrap().is_some());
    reads.iter().for_each(|read| read.abort());
    let workers = engine.spawn_workers(config().concurrency(2 * LARGE)).unwrap();
    let finished = "SELECT count(*) FROM atomic_phases_keys WHERE status = 'completed'";
    until_within(SOON, async || db.number(finished).await == 1).await;
    drop(workers);
}

/// A person has written that its key is to be kept, and PostgreSQL has a time for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_key_is_kept_until_infinity_is_run_with_the_others_and_replayed() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    for number in 0..3 {
        engine.call(&tenant(number), &key("k"), book(20)).accept().await.unwrap();
    }
    let kept = "expires_at = 'infinity'";
    db.sql(&format!("UPDATE atomic_phases_keys SET {kept} WHERE scope = 'tenant-1'")).await;
    let swept = Completer::new(&engine, config()).run_once().await.unwrap();
    assert_eq!(swept.finished, 3, "{swept:?}");
    let once =
        "SELECT count(*) FROM atomic_phases_keys WHERE status = 'completed' AND attempts = 1";
    assert_eq!(db.number(once).await, 3);
    assert_eq!(db.number(&format!("{once} AND {kept}")).await, 1);
    assert!(finished(engine.call(&tenant(1), &key("k"), book(20)).await).replayed);
}

/// An engine that two runtimes share, as the threads of a server do that each have one. One of them is blocked while it
/// reads a row: the other one, whose reads would go together with it, reads all the same.
#[tokio::test(flavor = "multi_thread")]
async fn g16_g17_a_runtime_that_is_blocked_in_a_read_keeps_no_other_from_reading() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let theirs = engine.clone();
    let runtime = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.spawn(async move { theirs.status(&scope(), &key("k")).await });
        // Runs long enough for it to ask, and then no further.
        runtime.block_on(async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        });
        runtime
    });
    let runtime = runtime.join().unwrap();
    // The store waits 15 seconds for an answer, and then asks once more.
    let (scope, key) = (scope(), key("k"));
    let told = tokio::time::timeout(Duration::from_secs(40), engine.status(&scope, &key));
    let told = told.await.expect("it waits for the other runtime");
    assert!(told.unwrap().is_some());
    runtime.shutdown_background();
}
