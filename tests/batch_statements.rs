//! What the statements of a [`Batch`] may be: some answer rows, some take long, some end the transaction.

mod support;

use std::time::Duration;

use atomic_phases::*;
use support::*;

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Sly {
    first: Vec<String>,
    last: Vec<String>,
}

macro_rules! sly {
    ($module:ident, $store:ty) => {
        mod $module {
            use super::*;

            #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
            pub struct Request(pub Sly);

            #[derive(serde::Serialize, serde::Deserialize)]
            pub struct Begun;

            #[atomic_phases(name = "sly", version = 1)]
            impl Request {
                #[phase]
                async fn begun(&self, batch: &mut Batch<'_, $store>) -> PhaseResult<Begun> {
                    self.0.first.iter().for_each(|sql| batch.add(diesel::sql_query(sql.clone())));
                    Ok(Begun)
                }

                #[phase(commit)]
                async fn answered(&self, batch: &mut Batch<'_, $store>) -> PhaseResult<Reply> {
                    self.0.last.iter().for_each(|sql| batch.add(diesel::sql_query(sql.clone())));
                    Ok(Reply::new(204))
                }
            }
        }
    };
}

sly!(on_postgres, Postgres);
sly!(on_sqlite, Sqlite);

const BEFORE: &str = "INSERT INTO unique_things VALUES ('before')";
const AFTER: &str = "INSERT INTO unique_things VALUES ('after')";

fn cases() -> Vec<(&'static str, Sly)> {
    let texts = |all: &[&str]| all.iter().map(|&sql| sql.to_owned()).collect::<Vec<_>>();
    let mut cases = Vec::new();
    for end in ["COMMIT", "ROLLBACK"] {
        let sly = texts(&[BEFORE, end, AFTER]);
        cases.push((end, Sly { first: sly.clone(), last: vec![] }));
        cases.push((end, Sly { first: vec![], last: sly }));
    }
    cases
}

macro_rules! refused {
    ($name:ident, $module:ident, $store:ty) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            for (end, sly) in cases() {
                let db = <$store>::fresh().await;
                let builder = Engine::builder(db.clone()).register::<$module::Request>();
                let engine = builder.build().unwrap();
                let place = if sly.first.is_empty() { "a later phase" } else { "the first phase" };
                let cause =
                    failed(engine.execute(&scope(), &key("k"), $module::Request(sly)).await);
                assert!(
                    matches!(cause, FailureCause::Misuse { .. }),
                    "{end} in {place}: {cause:?}"
                );
                let made = db.number("SELECT count(*) FROM unique_things").await;
                assert_eq!(made, 0, "{end} in {place}");
            }
        }
    };
}

refused!(g4_a_statement_that_ends_the_transaction_is_refused_on_postgres, on_postgres, Postgres);
refused!(g4_a_statement_that_ends_the_transaction_is_refused_on_sqlite, on_sqlite, Sqlite);

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_answers_rows_is_executed() {
    let db = Postgres::fresh().await;
    let engine = Engine::builder(db.clone()).register::<on_postgres::Request>().build().unwrap();
    let sly = vec![
        "SELECT pg_notify('a', 'b') FROM generate_series(1, 3)".to_owned(),
        format!("{BEFORE} RETURNING name"),
    ];
    let request = on_postgres::Request(Sly { first: sly, last: vec!["SELECT 1".into()] });
    finished(engine.execute(&scope(), &key("k"), request).await);
    assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 1);

    let db = Sqlite::fresh().await;
    let engine = Engine::builder(db.clone()).register::<on_sqlite::Request>().build().unwrap();
    let sly = vec!["SELECT 1".to_owned(), format!("{BEFORE} RETURNING name")];
    let request = on_sqlite::Request(Sly { first: sly, last: vec!["SELECT 1".into()] });
    finished(engine.execute(&scope(), &key("k"), request).await);
    assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 1);
}

/// G13: a future dropped while the whole transaction is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn g13_an_aborted_batch_frees_its_locks() {
    let sleep = vec![BEFORE.to_owned(), "SELECT pg_sleep(30)".to_owned()];
    let first = Sly { first: sleep.clone(), last: vec![] };
    let later = Sly { first: vec![], last: sleep };
    for (place, sly) in [("the first phase", first), ("a later phase", later)] {
        let store = Postgres::fresh().await;
        let db = store.another().await;
        let engine = Engine::builder(store).register::<on_postgres::Request>().build().unwrap();
        let call = engine.call(&scope(), &key("k"), on_postgres::Request(sly));
        let task = tokio::spawn(call.__execute_in_place());
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
        while db.number(asleep).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()";
        // A second, and what the machine needs on top of it.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(db.number(open).await, 0, "{place}: the statement under way was ended too");
        assert_eq!(db.number("SELECT count(*) FROM unique_things").await, 0, "{place}");
    }
}
