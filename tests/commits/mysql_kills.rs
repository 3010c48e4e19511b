//! What ends the sessions of dropped futures on MySQL and MariaDB, where the server takes no new connection, the
//! connection that is kept for it answers no more, another server has the place of the sessions' own, or a proxy numbers
//! them.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atomic_phases::store::{Mysql, MysqlConn};
use atomic_phases::{Engine, PhaseResult, Reply, Store, Tx, atomic_phases};
use diesel::sql_query;
use diesel::sql_types::BigInt;
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::poolers::logged;
use crate::support::db::{lock_waits, my, open_my, prepare_my, sessions};
use crate::support::mariadb::{Server, mysqld, start_two};
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::network::Line;
use crate::support::*;

/// Locks a row of its own, and waits for one that all of them want.
#[derive(Clone, Serialize, Deserialize)]
struct WaitsFor(i64);

#[derive(Clone)]
struct Entered(mpsc::UnboundedSender<()>);

#[atomic_phases(name = "waits_for", version = 1, app = Entered)]
impl WaitsFor {
    #[phase]
    async fn waited(&self, tx: &mut Tx<'_, Mysql>, app: &Entered) -> PhaseResult<Reply> {
        let own = format!("UPDATE owned SET n = n + 1 WHERE id = {}", self.0);
        sql_query(own).execute(tx).await?;
        let _ = app.0.send(());
        sql_query("UPDATE owned SET n = n + 1 WHERE id = 0").execute(tx).await?;
        Ok(Reply::new(204))
    }
}

/// G13: what a dropped future has locked is free within a second. One of three rounds shows it: a busy machine may
/// need longer.
async fn is_free_within_a_second(round: impl AsyncFn() -> Duration) {
    let mut took = Vec::new();
    // A busy machine may need more than one.
    for _ in 0..10 {
        let round = round().await;
        println!("free {} ms behind the drop", round.as_millis());
        took.push(round);
        if round < Duration::from_secs(1) {
            return;
        }
    }
    panic!("locks were free only after {took:?}");
}

/// Futures that wait for a lock are dropped, in the situation that the test brings about; each frees its own lock.
/// How long that took, of them all.
async fn dropped_futures_free_their_locks<R>(
    db: &Mysql,
    store: Mysql,
    futures: i64,
    trouble: impl AsyncFnOnce() -> R,
) -> Duration {
    db.sql("CREATE TABLE owned (id INT PRIMARY KEY, n INT NOT NULL)").await;
    for id in 0..=futures {
        db.sql(&format!("INSERT INTO owned VALUES ({id}, 0)")).await;
    }
    let (entered, mut in_the_phase) = mpsc::unbounded_channel();
    let builder = Engine::builder(store).app(Entered(entered)).register::<WaitsFor>();
    let engine = builder.build().unwrap();
    let (mut other, mut beside) = (my(db.__url()).await, my(db.__url()).await);
    other.batch_execute("BEGIN; UPDATE owned SET n = 7 WHERE id = 0").await.unwrap();
    let mut calls = Vec::new();
    for id in 1..=futures {
        let name = key(&format!("k{id}"));
        calls.push(tokio::spawn(engine.call(&scope(), &name, WaitsFor(id)).__call_in_place()));
        in_the_phase.recv().await.unwrap();
    }
    until(async || lock_waits(db).await == futures).await;
    let _held = trouble().await;
    let dropped = Instant::now();
    for call in &calls {
        call.abort();
    }
    for call in calls {
        assert!(call.await.unwrap_err().is_cancelled());
    }
    // The server's own bound for a lock is 50 s.
    let free = async {
        for id in 1..=futures {
            let update = format!("UPDATE owned SET n = 8 WHERE id = {id}");
            beside.batch_execute(&update).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), free).await.expect("a lock stayed");
    dropped.elapsed()
}

/// Y9: the server does not notice a disconnected client while a statement waits for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn g13_a_dropped_future_that_waits_for_a_lock_frees_its_own_within_a_second() {
    is_free_within_a_second(async || {
        let db = Mysql::fresh().await;
        dropped_futures_free_their_locks(&db, db.clone(), 1, async || {}).await
    })
    .await;
}

/// The kept connection ends the sessions one by one, if no other can be opened.
#[tokio::test(flavor = "multi_thread")]
async fn g13_several_dropped_futures_free_their_locks_by_the_one_connection_that_is_kept() {
    is_free_within_a_second(async || {
        let db = Mysql::fresh().await;
        let proxy = MysqlProxy::start(db.__url()).await;
        let store = open_my(&proxy.url(db.__url()), 12).await;
        let before = Cell::new(0);
        let took = dropped_futures_free_their_locks(&db, store, 8, async || {
            proxy.refuse(true);
            before.set(proxy.commands());
        })
        .await;
        let sent = proxy.commands() - before.get();
        assert!(sent < 2 * 8, "the end of a session is one round trip: {sent}");
        took
    })
    .await;
}

/// The same on a server that is full: each session that ends leaves room for another client's.
#[tokio::test(flavor = "multi_thread")]
async fn g13_several_dropped_futures_free_their_locks_on_a_server_that_is_full() {
    let server = || Server::start(&["--max-connections=40"]);
    let server = tokio::task::spawn_blocking(server).await.unwrap();
    // With more privileges it could connect to a full server.
    server.ask("CREATE USER app@'%'; GRANT ALL ON `t\\_%`.* TO app@'%'");
    let open = format!("SELECT count(*) FROM {} WHERE db IS NOT NULL", sessions());
    is_free_within_a_second(async || {
        // Those of the round before have ended.
        until(async || server.ask(&open).parse::<u32>().unwrap() < 5).await;
        let url = server.new_database();
        let db = prepare_my(&url).await;
        let app = url.replace("root@", "app@");
        let store = open_my(&app, 12).await;
        let fill = async || {
            let mut full = Vec::new();
            while let Ok(conn) = MysqlConn::establish(&app).await {
                full.push(conn);
            }
            assert!(full.len() < 40 && !full.is_empty(), "{}", full.len());
            full
        };
        dropped_futures_free_their_locks(&db, store, 8, fill).await
    })
    .await;
}

/// A firewall has forgotten the kept connection, which was idle: its packets vanish, and it is not closed.
#[tokio::test(flavor = "multi_thread")]
async fn g13_dropped_futures_free_their_locks_although_the_kept_connection_is_silent() {
    is_free_within_a_second(async || {
        let db = Mysql::fresh().await;
        let proxy = MysqlProxy::start(db.__url()).await;
        let store = open_my(&proxy.url(db.__url()), 4).await;
        // The pool's first, and the kept one.
        assert_eq!(proxy.accepted(), 2);
        dropped_futures_free_their_locks(&db, store, 2, async || proxy.silence(2)).await
    })
    .await;
}

/// G17: a balancer leads a new connection to a server that accepts it and says nothing (a frozen process, whose kernel
/// answers). Opening a store and migrating it end nevertheless, as each other wait does.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_connection_that_is_never_greeted_is_not_waited_for_for_ever() {
    const AT_MOST: Duration = Duration::from_secs(40);
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let url = proxy.url(db.__url());
    let store = open_my(&url, 4).await;
    db.sql("DELETE FROM __diesel_schema_migrations ORDER BY version DESC LIMIT 1").await;
    // This opens the connection that reads which migrations have run. The next one is that of the migrations.
    assert_eq!(store.missing_migrations().await.unwrap().len(), 1);
    proxy.silence(proxy.accepted() + 1);
    let migrated = tokio::time::timeout(AT_MOST, store.migrate()).await;
    assert!(migrated.expect("a migration waits for ever").is_err());
    let accepted = proxy.accepted();
    // The pool's first of this store is greeted, and the one that is kept is not.
    proxy.silence(accepted + 2);
    let opened = tokio::time::timeout(AT_MOST, Mysql::connect(&url)).await;
    assert!(opened.expect("a store that is opened waits for ever").is_err());
}

/// The number of a session at its server.
pub async fn number_of(conn: &mut MysqlConn) -> i64 {
    let number = diesel::dsl::sql::<BigInt>("SELECT CAST(CONNECTION_ID() AS SIGNED)");
    number.get_result(conn).await.unwrap()
}

/// A server that was restarted gives a session the number of one that ended with it, and that a future had which is
/// dropped now: the living session is not killed for it. Both starts may be within one second.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_restarted_server_keeps_the_session_that_has_the_number_of_a_dead_one() {
    let start = || Arc::new(Server::start(&[]));
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    // MariaDB starts in a third of a second. A server that is slower has starts of different seconds only.
    for _ in 0..10 {
        if keeps_the_living_session(&server).await {
            return;
        }
    }
    println!("no two starts were within one second");
}

/// In which second the server was started.
fn second_of_its_start(server: &Server) -> String {
    let status = match mysqld() {
        Some(_) => "performance_schema.session_status",
        None => "information_schema.session_status",
    };
    server.ask(&format!(
        "SELECT CAST(UNIX_TIMESTAMP() - variable_value AS SIGNED) FROM {status} \
         WHERE variable_name = 'Uptime'"
    ))
}

/// Restarts the server. Whether both starts were within one second.
async fn keeps_the_living_session(server: &Arc<Server>) -> bool {
    const SESSIONS: usize = 60;
    let restarting = server.clone();
    let restart = move || {
        restarting.kill_9();
        restarting.start_server();
    };
    // So that little time passes between the two starts.
    let url = server.new_database();
    tokio::task::spawn_blocking(restart.clone()).await.unwrap();
    let first_start = second_of_its_start(server);
    // The next start gives each number behind these again.
    for _ in 0..10 {
        my(&url).await;
    }
    let proxy = MysqlProxy::start(&url).await;
    let store = open_my(&proxy.url(&url), 1).await;
    let mut conn = store.connection().await.unwrap();
    let number = number_of(&mut conn).await;
    // Its client does not hear of its end.
    proxy.silence(1);
    let waits = tokio::time::timeout(Duration::from_millis(20), conn.batch_execute("DO 0"));
    assert!(waits.await.is_err());
    tokio::task::spawn_blocking(restart).await.unwrap();
    let mut living = Vec::new();
    for _ in 0..SESSIONS {
        living.push(my(&url).await);
    }
    let mut numbers = Vec::new();
    for session in &mut living {
        numbers.push(number_of(session).await);
    }
    assert!(numbers.contains(&number), "{number} is not one of {numbers:?}");
    drop(conn);
    // Of the store's own, of the one that was kept, and of some in its place that found another start.
    until(async || proxy.accepted() > 2 && proxy.ended() == proxy.accepted()).await;
    for session in &mut living {
        session.batch_execute("DO 0").await.unwrap();
    }
    second_of_its_start(server) == first_start
}

/// Counts 1 while the session of this number executes a statement.
fn executing(number: i64) -> String {
    format!("SELECT count(*) FROM {} WHERE id = {number} AND command = 'Query'", sessions())
}

/// A proxy that has sessions of its own numbers them itself: at the server, the session of such a number may be another
/// client's.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_session_that_a_proxy_has_numbered_is_not_killed_and_the_log_says_so_once() {
    let db = Mysql::fresh().await;
    let mut living = my(db.__url()).await;
    let proxy = MysqlProxy::start(db.__url()).await;
    proxy.number_sessions(number_of(&mut living).await);
    let opened = async {
        let store = open_my(&proxy.url(db.__url()), 2).await;
        let conn = store.connection().await.unwrap();
        let other = store.connection().await.unwrap();
        (store, conn, other)
    };
    let ((_store, mut conn, _other), log) = logged(opened).await;
    assert_eq!(log.matches("numbers its sessions itself").count(), 1, "{log}");
    let executing = executing(number_of(&mut conn).await);
    let sleeps = conn.batch_execute("DO SLEEP(4)");
    assert!(tokio::time::timeout(Duration::from_millis(20), sleeps).await.is_err());
    until(async || db.number(&executing).await == 1).await;
    drop(conn);
    // It ends with its statement.
    until(async || db.number(&executing).await == 0).await;
    living.batch_execute("DO 0").await.unwrap();
}

/// A balancer leads the first connection that takes the place of the kept one to another server, and the second one to the
/// session's own.
#[tokio::test(flavor = "multi_thread")]
async fn g13_a_session_is_ended_although_a_new_connection_leads_to_another_server_first() {
    let ([first, second], url) = tokio::task::spawn_blocking(start_two).await.unwrap();
    let url = url.replace("root@", "app@");
    let line = Line::to(first.port(), 0).await;
    let store = open_my(&line.url(&url), 1).await;
    let mut conn = store.connection().await.unwrap();
    let number = number_of(&mut conn).await;
    let (_, name) = url.rsplit_once('/').unwrap();
    let others = format!("SELECT id FROM {} WHERE db = '{name}' AND id <> {number}", sessions());
    let kept = first.ask(&others);
    first.ask(&format!("KILL {kept}"));
    line.lead_next_to(second.port());
    let executing = executing(number);
    let sleeps = conn.batch_execute("DO SLEEP(600)");
    assert!(tokio::time::timeout(Duration::from_millis(20), sleeps).await.is_err());
    until(async || first.ask(&executing) == "1").await;
    drop(conn);
    until(async || first.ask(&executing) == "0").await;
}

/// Opens and closes sessions until one has this number.
async fn session_with(url: &str, number: i64) -> Box<MysqlConn> {
    loop {
        let mut session = my(url).await;
        let its_own = number_of(&mut session).await;
        if its_own == number {
            return session;
        }
        assert!(its_own < number, "{its_own} is past {number}");
    }
}

/// Behind a failover, futures are dropped on both servers. Their sessions are ended, each at its own server, and the other
/// server's sessions of the same numbers live.
#[tokio::test(flavor = "multi_thread")]
async fn g13_g16_a_session_is_ended_at_its_own_server_wherever_the_url_leads() {
    let ([first, second], url) = tokio::task::spawn_blocking(start_two).await.unwrap();
    let url = url.replace("root@", "app@");
    let url_of_second = Line::url_at(&url, second.port());
    let count = async |url: &str, sessions: usize| {
        for _ in 0..sessions {
            my(url).await;
        }
    };
    // Its numbers are ahead of the second's.
    count(&url, 50).await;
    let line = Line::to(first.port(), 0).await;
    let store = open_my(&line.url(&url), 2).await;
    let mut left = store.connection().await.unwrap();
    let number_left = number_of(&mut left).await;
    let mut twin_of_left = session_with(&url_of_second, number_left).await;
    // Behind the first's connection that is kept.
    count(&url_of_second, 10).await;

    line.lead_to(second.port());
    let mut moved = store.connection().await.unwrap();
    let number_moved = number_of(&mut moved).await;
    let mut twin_of_moved = session_with(&url, number_moved).await;
    for conn in [&mut left, &mut moved] {
        let sleeps = conn.batch_execute("DO SLEEP(600)");
        assert!(tokio::time::timeout(Duration::from_millis(20), sleeps).await.is_err());
    }
    let is_there = |server: &Server, number: i64| {
        let count = format!("SELECT count(*) FROM {} WHERE id = {number}", sessions());
        server.ask(&count) == "1"
    };
    assert!(is_there(&first, number_left) && is_there(&second, number_moved));
    drop((left, moved));
    until(async || !is_there(&first, number_left) && !is_there(&second, number_moved)).await;
    for twin in [&mut twin_of_left, &mut twin_of_moved] {
        twin.batch_execute("DO 0").await.unwrap();
    }
}
