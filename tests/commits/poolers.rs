//! Behind a pooler that shares sessions between transactions, a setting that the engine sends to a session once
//! does not reach each statement. The log says so when a store is opened. It detects the fact itself, and does not
//! rely on a port; and the advice in the log works.

use std::io::Write;
use std::sync::{Arc, Mutex};

use super::sessions::{PILOTS, Reads, pilots};
use crate::support::bouncer::{Bouncer, hands_statements_on};
use crate::support::db::{open_pg, pg, url_of};
use crate::support::*;
use atomic_phases::store::Postgres;
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, atomic_phases};
use diesel::QueryDsl;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};

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

/// What comes of this, and what is logged meanwhile. All of it happens on this thread.
pub async fn logged<T>(work: impl Future<Output = T>) -> (T, String) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false);
    let subscriber = subscriber.with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let done = work.await;
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    (done, log)
}

/// Whether opening a store there logs a warning.
async fn warns(url: &str) -> bool {
    let (store, log) = logged(Postgres::connect(url)).await;
    drop(store.unwrap());
    log.contains("WARN") && log.contains("client_connection_check_interval")
}

const PAGE: &str = include_str!("../../docs/stores.md");

/// The statement of the page: a setting for the connections of a role, whichever pool opens them. Here, for those to this
/// database only.
fn of_the_role(database: &str) -> String {
    let statement = PAGE.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(statement.starts_with("ALTER ROLE app SET "), "{statement}");
    statement.replace("ROLE app", &format!("ROLE postgres IN DATABASE {database}"))
}

/// For the pooler's own.
const SAYS_THE_BOUND: &str = "connect_query='SET client_connection_check_interval = 500'";

async fn say_to_the_role(db: &Postgres) {
    let name = db.text("SELECT current_database()").await;
    db.sql(&of_the_role(&name)).await;
}

#[tokio::test]
async fn g13_a_store_warns_where_a_pooler_keeps_a_bound_from_its_sessions() {
    assert!(PAGE.contains(SAYS_THE_BOUND), "docs/stores.md shows another one");
    let db = Postgres::fresh().await;
    let url = url_of(&db);
    // One session for all clients, so that a later client gets it again.
    let behind = |mode, options| Bouncer::start_with(&url, mode, &format!("{options} pool_size=1"));
    assert!(!warns(&url).await, "without a pooler");
    let bouncer = Bouncer::start(&url, "session");
    for _ in 0..2 {
        assert!(!warns(&bouncer.url(&url)).await, "a session is of one client");
    }
    let bouncer = behind("transaction", "");
    assert!(warns(&bouncer.url(&url)).await, "nothing bounds them");
    assert!(!warns(&bouncer.url(&url)).await, "said once a day");
    let bouncer = behind("transaction", SAYS_THE_BOUND);
    for _ in 0..2 {
        assert!(!warns(&bouncer.url(&url)).await, "the pooler says it to each session");
    }
    say_to_the_role(&db).await;
    let bouncer = behind("transaction", "");
    for _ in 0..2 {
        assert!(!warns(&bouncer.url(&url)).await, "the role has it");
    }
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Sleeps;

#[atomic_phases(name = "sleeps", version = 1)]
impl Sleeps {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        batch.add(diesel::sql_query("INSERT INTO steps SELECT 'k', pg_sleep(300)::text"));
        Ok(Reply::new(204))
    }
}

/// In a session that the engine has not set up. The process of the pooler's client has died; the server executes
/// the statement for five minutes.
async fn frees_its_locks(db: &Postgres, bouncer: &Bouncer) {
    let url = url_of(db);
    let store = open_pg(&bouncer.url(&url), 1).await;
    // The session on which the store was opened is in use.
    let mut other = pg(&bouncer.url(&url)).await;
    other.batch_execute("BEGIN").await.unwrap();
    let engine = Engine::builder(store).register::<Sleeps>().build().unwrap();
    let call = tokio::spawn(engine.call(&scope(), &key("k"), Sleeps).__call_in_place());
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                  AND wait_event = 'PgSleep'";
    until(async || db.number(asleep).await == 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    until(async || db.number(asleep).await == 0).await;
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn g13_an_aborted_batch_frees_its_locks_behind_a_pooler_whose_role_has_the_bound() {
    let db = Postgres::fresh().await;
    say_to_the_role(&db).await;
    let url = url_of(&db);
    let bouncer = tokio::task::block_in_place(|| Bouncer::start(&url, "transaction"));
    frees_its_locks(&db, &bouncer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g13_an_aborted_batch_frees_its_locks_behind_a_pooler_that_says_the_bound() {
    let db = Postgres::fresh().await;
    let url = url_of(&db);
    let bouncer =
        tokio::task::block_in_place(|| Bouncer::start_with(&url, "transaction", SAYS_THE_BOUND));
    frees_its_locks(&db, &bouncer).await;
}

/// A pooler that shares prepared statements prepares each for all its clients, in sessions that outlive them. There
/// are more of these sessions than a phase has runs. In each run, the engine closes its connection, and the pooler
/// that session.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_reconnects_behind_a_migration_harms_no_request() {
    const SESSIONS: usize = 12;
    if !hands_statements_on() {
        println!("nothing was shown: PGBOUNCER names no version from 1.21 on");
        return;
    }
    let db = Postgres::fresh().await;
    db.sql(PILOTS).await;
    let url = url_of(&db);
    let bouncer = tokio::task::block_in_place(|| Bouncer::start(&url, "transaction"));
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let mut conn = pg(&bouncer.url(&url)).await;
        conn.batch_execute("BEGIN").await.unwrap();
        pilots::table.select(pilots::name).load::<String>(&mut *conn).await.unwrap();
        clients.push(conn);
    }
    for conn in &mut clients {
        conn.batch_execute("COMMIT").await.unwrap();
    }
    let store = open_pg(&bouncer.url(&url), 1).await;
    let engine = Engine::builder(store).register::<Reads>().build().unwrap();
    db.sql("ALTER TABLE pilots ALTER COLUMN name TYPE varchar(20)").await;
    let refused = engine.call(&scope(), &key("k"), Reads).await;
    assert!(!matches!(refused, Ok(Outcome::Finished(_))), "{refused:?}");
    tokio::task::block_in_place(|| bouncer.tell("RECONNECT"));
    let reply = finished(engine.call(&scope(), &key("k"), Reads).await);
    assert_eq!(reply.reply.bytes(), b"ada");
}
