//! The differences on MySQL and MariaDB: the migrations contain no trigger that would make the audit append-only,
//! and the client enforces the time limit of a search.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atomic_phases::engine::Resolved;
use atomic_phases::ops::{
    BulkAct, Filter, OperatorStore, Ops, OpsError, Permissions, Selection, State, What,
};
use atomic_phases::store::Mysql;
use atomic_phases::worker::{BulkRunner, WorkerConfig};
use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;

use super::cast::*;
use crate::support::db::{my, numbers, open_my, prepare_my, sessions};
use crate::support::mariadb::Server;
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::*;

/// With the grants of `docs/stores.md`, operators can act, and the audit cannot be changed.
#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_append_only_by_grants() {
    let db = Mysql::fresh().await;
    let (head, name) = db.__url().rsplit_once('/').unwrap();
    let user = format!("app_{name}");
    db.sql(&format!("CREATE USER '{user}'@'%'")).await;
    for table in ["atomic_phases_keys", "atomic_phases_staged_jobs", "rides", "steps"] {
        db.sql(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.{table} TO '{user}'@'%'"))
            .await;
    }
    db.sql(&format!("GRANT SELECT, INSERT ON {name}.atomic_phases_audit TO '{user}'@'%'")).await;
    let place = head.rsplit_once('@').unwrap().1;
    let url = format!("mysql://{user}@{place}/{name}");

    let engine = engine(&open_my(&url, 4).await, &App::default());
    let ops = admin(&engine);
    back_off(&engine, "k").await;
    db.sql(
        "UPDATE atomic_phases_keys SET status = 'dead_letter', run_after = NULL, \
         waiting_since = created_at",
    )
    .await;
    let row = ops.find(&scope(), &key("k")).await.unwrap();
    let retried = ops.retry(row.request_id, &row.version, "reason").await;
    assert_eq!(retried.unwrap(), Resolved::Applied);
    let mut conn = my(&url).await;
    for sql in ["UPDATE atomic_phases_audit SET actor = 'eve'", "DELETE FROM atomic_phases_audit"] {
        let told = conn.batch_execute(sql).await.unwrap_err();
        assert!(told.to_string().starts_with("1142: "), "{told}");
    }
    assert_eq!(ops.audit(None, None, 10).await.unwrap().rows[0].actor, "ada");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_is_given_up_after_five_seconds() {
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    let mut lock = my(db.__url()).await;
    lock.batch_execute("LOCK TABLES atomic_phases_audit WRITE").await.unwrap();
    let began = Instant::now();
    let told = admin(&engine).audit(None, None, 10).await;
    assert!(matches!(told, Err(OpsError::Unavailable(_))), "{told:?}");
    // After 15 seconds the engine would wait no longer for the server.
    assert!(began.elapsed() < Duration::from_secs(14), "{:?}", began.elapsed());
    lock.batch_execute("UNLOCK TABLES").await.unwrap();
    assert!(admin(&engine).audit(None, None, 10).await.unwrap().rows.is_empty());
}

/// A page and the place where it stopped come from one snapshot: in between, the reaper deletes rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_passes_over_no_row_where_others_go_meanwhile() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let engine = engine(&open_my(&proxy.url(db.__url()), 4).await, &App::default());
    finish(&engine, "k").await;
    // The search reads ten thousand rows of others; the matching row comes two hundred rows later.
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, definition_version, phases, \
         fingerprint, status, recovery_point, lease_token, attempts, advanced_at, created_at, expires_at, params) \
         SELECT 'others', n, randomblob(16), 'd', n, 'p', 'v1:', 'completed', 'finished', 1, 1, t.created_at, \
         t.created_at, t.expires_at + 20000 - n, t.params FROM atomic_phases_keys AS t, {}",
        numbers::<Mysql>(12_000)
    ))
    .await;
    set(&engine, "k", "expires_at = expires_at + 20000 - 10200").await;
    let ops = admin(&engine);
    let ours = Filter::new().scope(&scope());
    // From here on its statements are prepared, and each is one command.
    assert!(ops.list(ours.clone()).await.unwrap().rows.is_empty());

    proxy.delay(300);
    let before = proxy.commands();
    let others_go = async {
        // The third is on its way: after the beginning and the page, the place where the search stopped.
        until(async || proxy.commands() >= before + 3).await;
        db.sql(
            "DELETE FROM atomic_phases_keys WHERE scope = 'others' AND definition_version < 1000",
        )
        .await;
    };
    let (page, ()) = tokio::join!(ops.list(ours.clone()), others_go);
    proxy.delay(0);
    let page = page.unwrap();
    assert!(page.rows.is_empty());
    let rest = ops.list(ours.after(page.next.unwrap())).await.unwrap();
    assert_eq!(rest.rows.len(), 1, "the next page begins where this one ended");
}

/// A readiness probe resets its session, so that its connection serves the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_keeps_its_connection() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let store = open_my(&proxy.url(db.__url()), 4).await;
    assert!(!store.is_read_only().await.unwrap());
    proxy.refuse(true);
    for _ in 0..5 {
        assert!(!store.is_read_only().await.unwrap(), "no other connection is to be had");
    }
}

/// A firewall has forgotten an idle connection: neither side hears of it. The search is answered on another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_on_a_half_open_connection_is_answered_on_another() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let engine = engine(&open_my(&proxy.url(db.__url()), 4).await, &App::default());
    let before = proxy.accepted();
    let list = async || admin(&engine).list(Filter::new()).await;
    assert!(list().await.unwrap().rows.is_empty());
    assert_eq!(proxy.accepted(), before + 1, "the operators' connection");
    proxy.silence(before + 1);
    assert!(list().await.unwrap().rows.is_empty());
    assert!(proxy.accepted() > before + 1, "another one");
}

/// Connections that were idle during a restart of the server are detected before what is sent once is sent on them: a
/// search, the audit row of a refusal or of a reveal, an act.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_searches_and_acts_behind_a_restart_of_the_server_are_answered() {
    let server = tokio::task::spawn_blocking(|| Server::start(&[])).await.unwrap();
    let db = prepare_my(&server.new_database()).await;
    let engine = engine(&db, &App::default());
    finish(&engine, "k").await;
    let ops = admin(&engine);
    let id = id_of(&engine, "k").await;
    let is_behind_a_restart = async || {
        // Both connections of operators, and one of requests.
        let (page, audit) = tokio::join!(ops.list(Filter::new()), ops.audit(None, None, 10));
        assert_eq!(page.unwrap().rows.len(), 1);
        finish(&engine, "k").await;
        tokio::task::block_in_place(|| {
            server.kill_9();
            server.start_server();
        });
        audit.unwrap().rows.len()
    };
    assert_eq!(is_behind_a_restart().await, 0);
    assert_eq!(ops.list(Filter::new()).await.unwrap().rows.len(), 1);
    assert!(ops.audit(None, None, 10).await.unwrap().rows.is_empty());

    is_behind_a_restart().await;
    let viewer = engine.ops(actor(Permissions::viewer()));
    let told = viewer.pause("notify", "notified", None, "reason").await;
    assert!(matches!(told, Err(OpsError::NotAllowed { .. })), "{told:?}");

    assert_eq!(is_behind_a_restart().await, 1);
    ops.pause("notify", "notified", None, "reason").await.unwrap();

    assert_eq!(is_behind_a_restart().await, 2);
    let shown = ops.reveal(id, What::Key, "reason").await.unwrap();
    assert_eq!(shown.key.as_str(), "k");
    assert_eq!(ops.audit(None, None, 10).await.unwrap().rows.len(), 3);
}

/// What is prepared counts for all connections of the server together: those of requests give it back to operators.
#[tokio::test(flavor = "multi_thread")]
async fn g17_searches_and_the_audit_go_on_where_the_server_prepares_no_more_statements() {
    let server = tokio::task::spawn_blocking(|| Server::start(&[])).await.unwrap();
    let db = prepare_my(&server.new_database()).await;
    let store = open_my(db.__url(), 2).await;
    let engine = engine(&store, &App::default());
    let viewer = engine.ops(actor(Permissions::viewer()));
    for of in ["search", "audit"] {
        // No connection has prepared the search, nor the audit row.
        finish(&engine, of).await;
        let prepared = server.ask("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'");
        let prepared: u32 = prepared.split_whitespace().next_back().unwrap().parse().unwrap();
        server.ask(&format!("SET GLOBAL max_prepared_stmt_count = {prepared}"));
        match of {
            "search" => {
                assert_eq!(admin(&engine).list(Filter::new()).await.unwrap().rows.len(), 1);
            }
            _ => {
                let told = viewer.pause("notify", "notified", None, "reason").await;
                assert!(matches!(told, Err(OpsError::NotAllowed { .. })), "{told:?}");
            }
        }
        server.ask("SET GLOBAL max_prepared_stmt_count = 1000");
    }
    assert_eq!(admin(&engine).audit(None, None, 10).await.unwrap().rows.len(), 1);
}

/// A page of bulk acts, again as soon as it is answered. Counts the answers.
async fn look_at_bulks(ops: &Ops<Mysql>, ended: &AtomicU32) {
    loop {
        let _ = ops.bulks(None, 10).await;
        ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// As on PostgreSQL: both connections of operators are in slow searches, and a refusal and a reveal are audited on one of
/// the requests'.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_and_a_reveal_are_audited_while_all_searches_are_slow() {
    /// Less than a slow search takes.
    const PROMPTLY: Duration = Duration::from_secs(4);
    let db = Mysql::fresh().await;
    let engine = engine(&db, &App::default());
    finish(&engine, "k").await;
    let (id, ops) = (id_of(&engine, "k").await, admin(&engine));
    let viewer = engine.ops(actor(Permissions::viewer()));
    let waiting = format!(
        "SELECT count(*) FROM {} WHERE db = database() \
         AND state LIKE 'Waiting for table metadata lock%'",
        sessions()
    );
    let two_wait = async || until(async || db.number(&waiting).await >= 2).await;
    let mut bulk = my(db.__url()).await;
    bulk.batch_execute("LOCK TABLES atomic_phases_bulk WRITE").await.unwrap();
    let ended = AtomicU32::new(0);
    let refused = async {
        two_wait().await;
        // While no look has ended: it has waited for none.
        until(async || {
            let before = ended.load(Ordering::SeqCst);
            let told = viewer.pause("notify", "notified", None, "reason").await;
            assert!(matches!(told, Err(OpsError::NotAllowed { .. })), "{told:?}");
            ended.load(Ordering::SeqCst) == before
        })
        .await;
    };
    let looks = [look_at_bulks(&ops, &ended), look_at_bulks(&ops, &ended)];
    tokio::select! {
        biased;
        _ = join_all(looks) => panic!("the looks ended"),
        () = refused => {}
    }

    // The reveal has read its request, on one of the two connections, and the next look gets that one.
    let mut keys = my(db.__url()).await;
    keys.batch_execute("LOCK TABLES atomic_phases_keys WRITE").await.unwrap();
    let revealed = async {
        let shown = ops.reveal(id, What::Key, "reason").await;
        (shown, Instant::now())
    };
    let unlocked = async {
        two_wait().await;
        let began = Instant::now();
        keys.batch_execute("UNLOCK TABLES").await.unwrap();
        began
    };
    let looks = (0..8).map(|_| look_at_bulks(&ops, &ended));
    let ((shown, told_at), began) = tokio::select! {
        biased;
        () = look_at_bulks(&ops, &ended) => panic!("the looks ended"),
        both = async { tokio::join!(revealed, unlocked) } => both,
        _ = join_all(looks) => panic!("the looks ended"),
    };
    assert_eq!(shown.unwrap().key.as_str(), "k");
    let took = told_at.duration_since(began);
    assert!(took < PROMPTLY, "{took:?}");
    bulk.batch_execute("UNLOCK TABLES").await.unwrap();
    // And, on a slow machine, another refusal.
    assert!(ops.audit(None, None, 10).await.unwrap().rows.len() >= 2);
}

/// A plan whose start was sent twice: while the second one reads, the first has started, and a worker has completed
/// the bulk act.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_start_that_reads_while_its_twin_is_done_is_that_one() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let app = App::default();
    let late = engine(&open_my(&proxy.url(db.__url()), 4).await, &app);
    let prompt = engine(&db, &app);
    let dead = Selection::Filter(Filter::new().states([State::DeadLetter]));
    for round in ["warm", "k"] {
        dead_letter(&prompt, round).await;
        let plan = admin(&prompt).plan_bulk(BulkAct::Retry, &dead).await.unwrap();
        let start = async |engine: &TestEngine<Mysql>| {
            admin(engine).start_bulk(BulkAct::Retry, &dead, &plan, "sent twice").await
        };
        let done = async || {
            let id = start(&prompt).await.unwrap();
            let mut runner = BulkRunner::new(&prompt, WorkerConfig::default());
            assert_eq!(runner.run_once().await.unwrap(), 1);
            id
        };
        if round == "warm" {
            // From here on its statements are prepared, and each is one command.
            let id = start(&late).await.unwrap();
            assert_eq!(done().await, id);
            continue;
        }
        // Within the time limit of a search, which has four commands.
        proxy.delay(600);
        let before = proxy.commands();
        let twin = async {
            // After the query whether the plan was started.
            until(async || proxy.commands() >= before + 2).await;
            done().await
        };
        let (second, first) = tokio::join!(start(&late), twin);
        assert_eq!(second.unwrap(), first, "no request stands as it was planned by now");
        proxy.delay(0);
        let acts = admin(&prompt).audit(None, None, 100).await.unwrap().rows;
        let mut starts: Vec<_> = acts.iter().filter(|act| act.bulk_id == Some(first)).collect();
        starts.retain(|act| act.act == "bulk.start");
        let mut outcomes: Vec<_> = starts.iter().map(|act| act.outcome.as_str()).collect();
        outcomes.sort_unstable();
        assert_eq!(outcomes, ["already", "applied"]);
    }
}
