//! The limit of prepared statements of a MySQL and MariaDB server, which is for all its connections together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::store::{Mysql, MysqlConn};
use atomic_phases::{Batch, Engine, PhaseResult, Reply, Scope, Tx, atomic_phases};
use diesel::sql_query;
use serde::{Deserialize, Serialize};

use super::mysql_faults::on_own_server;
use crate::support::db::{my, open_my, open_my_without_blocks};
use crate::support::mariadb::{Server, mysqld};
use crate::support::*;

/// What the server counts under this name.
fn counted(server: &Server, name: &str) -> usize {
    let told = server.ask(&format!("SHOW GLOBAL STATUS LIKE '{name}'"));
    told.split_whitespace().next_back().unwrap().parse().unwrap()
}

/// How many statements it has prepared, for all its connections.
fn prepared(server: &Server) -> usize {
    counted(server, "Prepared_stmt_count")
}

/// How many it prepares from here on.
fn allow_statements(server: &Server, most: usize) {
    server.ask(&format!("SET GLOBAL max_prepared_stmt_count = {most}"));
}

/// As many as a connection is to keep prepared: more than a request needs.
const MANY: usize = 60;

async fn keep_many_prepared(conn: &mut MysqlConn) {
    // A text that may differ each time is kept when it is seen again.
    for number in (0..MANY).chain(0..MANY) {
        let query = diesel::sql_query(format!("SELECT {number} AS n"));
        diesel_async::RunQueryDsl::execute(query, conn).await.unwrap();
    }
}

/// Inserts this many rows with one statement.
#[derive(Serialize, Deserialize)]
struct Inserts(usize);

#[atomic_phases(name = "inserts", version = 1)]
impl Inserts {
    #[phase]
    async fn inserted(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        let rows = vec!["('r', 'inserted')"; self.0].join(", ");
        let insert = diesel::sql_query(format!("INSERT INTO steps (request, step) VALUES {rows}"));
        diesel_async::RunQueryDsl::execute(insert, tx).await?;
        Ok(Reply::new(204))
    }
}

/// Inserts this many rows with one statement each.
#[derive(Serialize, Deserialize)]
struct HandsOver(usize);

#[atomic_phases(name = "hands_over", version = 1)]
impl HandsOver {
    #[phase]
    async fn handed_over(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Reply> {
        (0..self.0).for_each(|_| Mysql::add_step(batch, "r", "handed over"));
        Ok(Reply::new(204))
    }
}

/// Else a connection keeps 256 of them, of megabytes each at the server.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_statement_whose_text_depends_on_its_rows_is_kept_on_no_connection() {
    const MAX_ROWS: usize = 100;
    let (server, db) = on_own_server(&[]).await;
    let store = open_my(db.__url(), 1).await;
    let builder = Engine::builder(store).register::<Inserts>().register::<HandsOver>();
    let engine = builder.build().unwrap();
    let mut before = None;
    for rows in 1..=MAX_ROWS {
        finished(engine.call(&scope(), &key(&format!("i{rows}")), Inserts(rows)).await);
        finished(engine.call(&scope(), &key(&format!("h{rows}")), HandsOver(rows)).await);
        before.get_or_insert_with(|| prepared(&server));
    }
    let (before, after) = (before.unwrap(), prepared(&server));
    assert!(after < before + 20, "{before} were prepared, and {after} are");
    let steps = MAX_ROWS * (MAX_ROWS + 1);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, i64::try_from(steps).unwrap());
}

/// An erasure names each key of a page: its text has as many places.
#[tokio::test(flavor = "multi_thread")]
async fn g17_an_erasure_of_so_many_keys_is_kept_on_no_connection() {
    const MAX_KEYS: usize = 40;
    let (server, db) = on_own_server(&[]).await;
    let store = open_my(db.__url(), 1).await;
    let engine = Engine::builder(store).register::<Inserts>().build().unwrap();
    let mut before = None;
    for keys in 1..=MAX_KEYS {
        let scope = Scope::new(format!("customer-{keys}")).unwrap();
        for number in 0..keys {
            finished(engine.call(&scope, &key(&format!("k{number}")), Inserts(1)).await);
        }
        let erased = engine.erase_scope(&scope).await.unwrap();
        assert_eq!(usize::try_from(erased.erased).unwrap(), keys);
        before.get_or_insert_with(|| prepared(&server));
    }
    let (before, after) = (before.unwrap(), prepared(&server));
    assert!(after < before + 10, "{before} were prepared, and {after} are");
}

/// What is prepared counts for all connections of the server together: those that keep most give it back.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_server_that_prepares_no_more_statements_is_given_some_back() {
    let (server, db) = on_own_server(&[]).await;
    let app = App::default();
    let store = open_my(db.__url(), 2).await;
    let engine = engine(&store, &app);
    // What others have prepared, and less than a request of the store needs.
    allow_statements(&server, prepared(&server) + 5);
    for number in 0..6 {
        let name = key(&format!("k{number}"));
        match number % 2 {
            0 => finished(engine.call(&scope(), &name, book(20)).await),
            _ => finished(
                engine.call(&scope(), &name, Form::SingleStatement.parcel(Trouble::None)).await,
            ),
        };
    }
    server.ask("SET GLOBAL max_prepared_stmt_count = 1000");
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 6);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 9);
    assert_eq!(app.provider.effects(), 6);
}

/// A block of MariaDB executes the engine's settings by three names, and can do without.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_connection_is_opened_on_a_server_without_room_for_names() {
    let (server, db) = on_own_server(&[]).await;
    for room in 0..3 {
        allow_statements(&server, prepared(&server) + room);
        let store = open_my(db.__url(), 1).await;
        drop(store.connection().await.unwrap());
        allow_statements(&server, 1000);
        let engine = engine(&store, &App::default());
        finished(engine.call(&scope(), &key(&format!("k{room}")), book(20)).await);
    }
}

/// Its first statement is one too many for the server. The next time it waits until the server has some of them back.
#[derive(Clone, Serialize, Deserialize)]
struct OneTooMany;

#[derive(Clone)]
struct Crowded {
    server: Arc<Server>,
    /// Without those of the store's connections.
    before: usize,
    runs: Arc<AtomicU32>,
}

#[atomic_phases(name = "one_too_many", version = 1, app = Crowded)]
impl OneTooMany {
    #[phase]
    async fn written(&self, tx: &mut Tx<'_, Mysql>, app: &Crowded) -> PhaseResult<Reply> {
        if app.runs.fetch_add(1, Ordering::SeqCst) == 0 {
            allow_statements(&app.server, prepared(&app.server));
        } else {
            let (server, before) = (app.server.clone(), app.before);
            until_within(Duration::from_secs(10), async move || prepared(&server) < before + MANY)
                .await;
        }
        Mysql::insert_step(tx, "r", "written").await?;
        Ok(Reply::new(204))
    }
}

/// A phase whose own statement the server does not prepare runs again. By then the idle connections, too, have given
/// back what they kept prepared.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_that_may_prepare_no_more_statements_has_those_of_idle_connections() {
    let (server, db) = on_own_server(&[]).await;
    let before = prepared(&server);
    let store = open_my(db.__url(), 2).await;
    // The phase runs on one of the two; the other one is idle.
    let mut both = [store.connection().await.unwrap(), store.connection().await.unwrap()];
    for conn in &mut both {
        keep_many_prepared(conn).await;
    }
    drop(both);
    assert!(prepared(&server) >= before + 2 * MANY);
    let app = Crowded { server, before, runs: Arc::default() };
    let builder = Engine::builder(store).app(app.clone()).register::<OneTooMany>();
    let engine = builder.build().unwrap();
    finished(engine.call(&scope(), &key("k"), OneTooMany).await);
    assert_eq!(AtomicU32::load(&app.runs, Ordering::SeqCst), 2);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
}

/// The server has the statements of a connection back only when its session has ended, some time after the connection
/// was closed.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_server_that_prepares_no_more_statements_is_given_the_time_to_free_some() {
    let (server, db) = on_own_server(&[]).await;
    for has_blocks in [true, false] {
        let store = match has_blocks {
            true => open_my(db.__url(), 2).await,
            false => open_my_without_blocks(db.__url(), 2).await,
        };
        let engine = engine(&store, &App::default());
        let mut other = my(db.__url()).await;
        keep_many_prepared(&mut other).await;
        // Those that are left of the connections of before may go meanwhile.
        allow_statements(&server, MANY);
        let ends = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(other);
        };
        let name = key(&format!("blocks-{has_blocks}"));
        let (told, ()) = tokio::join!(engine.call(&scope(), &name, book(20)).into_future(), ends);
        finished(told);
        allow_statements(&server, 16_382);
    }
    assert_eq!(db.number("SELECT count(*) FROM rides").await, 2);
}

/// Each of its later phases begins when others have just prepared as many statements as the server prepares, and they keep
/// them for some time.
#[derive(Clone, Serialize, Deserialize)]
struct CrowdedTwice;

#[derive(Clone)]
struct Crowds {
    server: Arc<Server>,
    url: Arc<str>,
    /// How many phases have had theirs.
    seen: Arc<AtomicU32>,
}

impl Crowds {
    async fn crowds(&self, phase: u32) {
        if AtomicU32::load(&self.seen, Ordering::SeqCst) > phase {
            return;
        }
        self.seen.fetch_add(1, Ordering::SeqCst);
        allow_statements(&self.server, 16_382);
        let mut other = my(&self.url).await;
        keep_many_prepared(&mut other).await;
        allow_statements(&self.server, MANY);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(600)).await;
            drop(other);
        });
    }
}

#[atomic_phases(name = "crowded_twice", version = 1, app = Crowds)]
impl CrowdedTwice {
    #[phase]
    async fn begun(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<()> {
        Mysql::insert_step(tx, "r", "begun").await?;
        Ok(())
    }

    #[phase]
    async fn written(&self, tx: &mut Tx<'_, Mysql>, app: &Crowds) -> PhaseResult<()> {
        app.crowds(0).await;
        // A text that the connection has not prepared.
        let insert = sql_query("INSERT INTO steps (request, step) VALUES ('r', 'written')");
        diesel_async::RunQueryDsl::execute(insert, tx).await?;
        Ok(())
    }

    #[phase]
    async fn handed_over(&self, batch: &mut Batch<'_, Mysql>, app: &Crowds) -> PhaseResult<Reply> {
        app.crowds(1).await;
        batch.add(sql_query("INSERT INTO steps (request, step) VALUES ('r', 'handed over')"));
        Ok(Reply::new(204))
    }
}

/// A statement that the server does not prepare undoes its phase. That runs again, and not before the server has had some
/// time.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_phase_whose_statement_is_not_prepared_runs_again_when_the_server_had_time() {
    let (server, db) = on_own_server(&[]).await;
    for has_blocks in [true, false] {
        let store = match has_blocks {
            true => open_my(db.__url(), 1).await,
            false => open_my_without_blocks(db.__url(), 1).await,
        };
        let app = Crowds { server: server.clone(), url: db.__url().into(), seen: Arc::default() };
        let builder = Engine::builder(store).app(app).register::<CrowdedTwice>();
        let engine = builder.build().unwrap();
        let name = key(&format!("blocks-{has_blocks}"));
        finished(engine.call(&scope(), &name, CrowdedTwice).await);
        allow_statements(&server, 16_382);
    }
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 6);
}

/// How many statements a phase hands over, each with a text of its own.
const SOME: usize = 20;

/// Writes as many rows of `made`.
#[derive(Clone, Serialize, Deserialize)]
struct HandsSomeOver;

#[atomic_phases(name = "hands_some_over", version = 1)]
impl HandsSomeOver {
    #[phase]
    async fn handed_over(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Reply> {
        for number in 0..SOME {
            batch.add(sql_query(format!("INSERT INTO made VALUES ({number})")));
        }
        Ok(Reply::new(204))
    }
}

/// A block can do without the names of its statements. If each request tried to prepare them once more, each would have its
/// connection closed, and the idle ones with it.
#[tokio::test(flavor = "multi_thread")]
async fn g17_requests_on_a_server_without_room_for_names_keep_their_connection() {
    const CALLS: usize = 10;
    if mysqld().is_some() {
        // It has no blocks.
        return;
    }
    let (server, db) = on_own_server(&[]).await;
    db.sql("CREATE TABLE made (n INT)").await;
    let builder = Engine::builder(open_my(db.__url(), 1).await).register::<HandsSomeOver>();
    let engine = builder.build().unwrap();
    finished(engine.call(&scope(), &key("first"), HandsSomeOver).await);
    // For what a block is prepared as, and not for what its statements would be.
    allow_statements(&server, prepared(&server) + 5);
    finished(engine.call(&scope(), &key("second"), HandsSomeOver).await);
    let before = counted(&server, "Connections");
    for number in 0..CALLS {
        finished(engine.call(&scope(), &key(&format!("k{number}")), HandsSomeOver).await);
    }
    let after = counted(&server, "Connections");
    assert!(after < before + CALLS, "{before} connections until then, and {after} since");
    allow_statements(&server, 16_382);
    let rows = i64::try_from((2 + CALLS) * SOME).unwrap();
    assert_eq!(db.number("SELECT count(*) FROM made").await, rows);
}
