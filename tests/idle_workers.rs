//! G17: no loop without a bound and a pause. What the workers send while there is nothing that they can
//! run, counted at the driver. Alone in its process, because it counts the statements of every
//! connection.

mod support;

use std::sync::Mutex;

use atomic_phases::*;
use diesel::connection::InstrumentationEvent;
use support::work::*;
use support::*;

static SENT: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn record(event: InstrumentationEvent<'_>) {
    if let InstrumentationEvent::StartQuery { query, .. } = event {
        SENT.lock().unwrap().push(query.to_string());
    }
}

fn sent() -> Vec<String> {
    let sent = std::mem::take(&mut *SENT.lock().unwrap());
    sent.into_iter().filter(|sql| sql.contains("atomic_phases_")).collect()
}

/// A row that this node cannot go on with: of a definition that is not registered, and of one whose
/// recovery point is not known. Ninety of each, all young.
#[tokio::test(flavor = "multi_thread")]
async fn g14_rows_that_are_left_alone_cost_one_search_a_look() {
    let db = <Postgres as TestDb>::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    let app = App::default();
    let everything = engine(&db, &app);
    for number in 0..90 {
        let name = format!("unregistered-{number}");
        dies_in_its_call(&everything, &name, notify(Trouble::None)).await;
        dies_in_its_call(&everything, &format!("removed-{number}"), book(20)).await;
    }
    db.sql("UPDATE atomic_phases_keys SET recovery_point = 'gone' WHERE definition = 'book'").await;
    dies_in_its_call(&everything, "known", book(20)).await;
    db.let_leases_expire().await;
    let books_only: TestEngine<Postgres> =
        Engine::builder(db.clone()).app(app.clone()).register::<Book>().build().unwrap();

    diesel::connection::set_default_instrumentation(|| Some(Box::new(record))).unwrap();
    let books_only_counted = Engine::builder(db.another().await).app(app.clone());
    let books_only_counted: TestEngine<Postgres> =
        books_only_counted.register::<Book>().build().unwrap();
    drop(books_only);
    let mut completer = Completer::new(&books_only_counted, config().batch(1000));
    let first = completer.run_once().await.unwrap();
    assert_eq!((first.left, first.finished), (180, 1));
    assert!(!sent().is_empty());
    for _ in 0..20 {
        let swept = completer.run_once().await.unwrap();
        assert_eq!((swept.total() - swept.left, swept.left), (0, 90), "none is read again");
    }
    let sent = sent();
    assert_eq!(sent.len(), 40, "{:#?}", &sent[..4]);
}
