//! What ends the sessions of dropped futures on MySQL and MariaDB, where the server takes no new connection, or the
//! connection that is kept for it answers no more.

use std::time::Duration;

use atomic_phases::store::MysqlConn;
use atomic_phases::{Engine, Mysql, PhaseResult, Reply, Tx, atomic_phases};
use diesel::sql_query;
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::support::db::{lock_waits, my, open_my, prepare_my};
use crate::support::mariadb::Server;
use crate::support::mysql_proxy::MysqlProxy;
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

/// Futures that wait for a lock are dropped, in the situation that the test brings about; each frees its own lock.
async fn dropped_futures_free_their_locks<R>(
    db: &Mysql,
    store: Mysql,
    futures: i64,
    trouble: impl AsyncFnOnce() -> R,
) {
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
    tokio::time::timeout(Duration::from_secs(20), free).await.expect("a lock stayed");
}

/// Y9: the kept connection ends the sessions one by one, if no other can be opened.
#[tokio::test(flavor = "multi_thread")]
async fn g13_several_dropped_futures_free_their_locks_by_the_one_connection_that_is_kept() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let store = open_my(&proxy.url(db.__url()), 12).await;
    dropped_futures_free_their_locks(&db, store, 8, async || proxy.refuse(true)).await;
}

/// The same on a server that is full: each session that ends leaves room for another client's.
#[tokio::test(flavor = "multi_thread")]
async fn g13_several_dropped_futures_free_their_locks_on_a_server_that_is_full() {
    let start = || {
        let server = Server::start(&["--max-connections=40"]);
        let url = server.new_database();
        // With more privileges it could connect to a full server.
        let database = url.rsplit_once('/').unwrap().1;
        server.ask(&format!("CREATE USER app@'%'; GRANT ALL ON {database}.* TO app@'%'"));
        (server, url)
    };
    let (_server, url) = tokio::task::spawn_blocking(start).await.unwrap();
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
    dropped_futures_free_their_locks(&db, store, 8, fill).await;
}

/// A firewall has forgotten the kept connection, which was idle: its packets vanish, and it is not closed.
#[tokio::test(flavor = "multi_thread")]
async fn g13_dropped_futures_free_their_locks_although_the_kept_connection_is_silent() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let store = open_my(&proxy.url(db.__url()), 4).await;
    // The pool's first, and the kept one.
    assert_eq!(proxy.accepted(), 2);
    dropped_futures_free_their_locks(&db, store, 2, async || proxy.silence(2)).await;
}
