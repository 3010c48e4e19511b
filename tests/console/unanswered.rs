//! A slow or unavailable database: the console says so, and takes no resources from requests.

use std::time::{Duration, Instant};

use atomic_phases::console::Console;
use atomic_phases::ops::{BulkAct, Filter, OperatorStore, Selection, State};
use atomic_phases::store::{Mysql, Postgres};
use diesel_async::SimpleAsyncConnection;
use reqwest::Method;
use uuid::Uuid;

use super::cast::*;
use super::desk::{Desk, operator};
use super::html::Form;
use crate::support::db::{my, open_my, open_pg, pg, sessions, url_of};
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::proxy::proxied;
use crate::support::*;

/// All pages, with those of one request and of one bulk act.
fn pages(request: Uuid, bulk: Uuid) -> Vec<String> {
    let lists =
        ["overview", "waiting", "requests", "jobs", "definitions", "pauses", "bulk", "audit"];
    let ones = [format!("requests/{request}"), format!("bulk/{bulk}")];
    lists.map(str::to_owned).into_iter().chain(ones).collect()
}

/// Each page says that the database does not answer, and nothing of what the database said.
async fn each_says_so(desk: &Desk, pages: &[String]) {
    for path in pages {
        let page = desk.get(path).await.is(503);
        page.has("The database does not answer").has("Nothing was changed");
        page.has_not("postgres").has_not("mysql").has_not("MySQL");
        assert_eq!(page.headers["retry-after"], "5");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_says_that_the_database_is_gone() {
    let (db, behind, proxy) = proxied().await;
    let (here, engine) = (engine(&db, &App::default()), engine(&behind, &App::default()));
    unknown(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let desk = Desk::of(&engine).await;
    let page = desk.request(id).await;
    let look = page.form("/reveal").with("what", "outputs").with("reason", "ticket 88");
    let act = page.form("/plan").with("act", "not_executed");
    let act = desk.submit(&act).await.form("/act").with("reason", "because");
    dead_letter(&here, "dead").await;
    let (bulk, stop) = stop_of_a_bulk_act(&here, &desk).await;
    proxy.refuse(true);
    db.text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .await;
    each_says_so(&desk, &pages(id, bulk)).await;
    for act in [act, stop, look] {
        let told = desk.submit(&act).await.is(503);
        told.has("Whether it was done is not known").has_not("Nothing was changed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_says_that_mariadb_is_slow_or_gone() {
    let db = Mysql::fresh().await;
    let proxy = MysqlProxy::start(db.__url()).await;
    let engine = engine(&open_my(&proxy.url(db.__url()), 4).await, &App::default());
    dead_letter(&engine, "dead").await;
    let id = id_of(&engine, "dead").await;
    let console =
        Console::new(engine.clone(), operator).time_limit(Duration::from_millis(900)).unwrap();
    let desk = Desk::with(console).await;
    let (bulk, stop) = stop_of_a_bulk_act(&engine, &desk).await;
    let pages = pages(id, bulk);
    for path in &pages {
        until(async || desk.get(path).await.status == 200).await;
    }
    proxy.delay(1500);
    each_says_so(&desk, &pages).await;
    proxy.delay(0);
    for path in &pages {
        until(async || desk.get(path).await.status == 200).await;
    }
    proxy.refuse(true);
    let others = format!(
        "SELECT coalesce(group_concat(id), '') FROM {} WHERE db = database() \
         AND id <> connection_id()",
        sessions()
    );
    let others = db.text(&others).await;
    let mut own = my(db.__url()).await;
    for one in others.split(',').filter(|one| !one.is_empty()) {
        // One that has ended meanwhile.
        let _ = own.batch_execute(&format!("KILL {one}")).await;
    }
    each_says_so(&desk, &pages).await;
    desk.submit(&stop).await.is(503).has("Whether it was done is not known");
    proxy.refuse(false);
    for path in &pages {
        until(async || desk.get(path).await.status == 200).await;
    }
}

/// The form that stops a bulk act over the dead letters, and the act's id.
async fn stop_of_a_bulk_act<S: TestDb + OperatorStore>(
    engine: &TestEngine<S>,
    desk: &Desk,
) -> (Uuid, Form) {
    let dead = Selection::Filter(Filter::new().states([State::DeadLetter]));
    let id = admin(engine).start_bulk(BulkAct::Retry, &dead, 1, "reason").await.unwrap();
    // Within the time limit of the page, on a slow machine.
    let page = answer_within(Duration::from_secs(60), async || {
        let page = desk.get(&format!("bulk/{id}")).await;
        if page.status == 200 { Ok(page) } else { Err(page.status) }
    });
    (id, page.await.form("/stop").with("because", "a slip"))
}

/// The page times out before the act has begun to write; the act is done all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_act_that_the_page_gives_up_runs_to_its_end() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let console =
        Console::new(engine.clone(), operator).time_limit(Duration::from_secs(3)).unwrap();
    let desk = Desk::with(console).await;
    dead_letter(&engine, "dead").await;
    let (_, stop) = stop_of_a_bulk_act(&engine, &desk).await;
    let mut lock = pg(&url_of(&db)).await;
    lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_bulk IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    desk.submit(&stop).await.is(503).has("Whether it was done is not known");
    lock.batch_execute("ROLLBACK").await.unwrap();
    let is_stopped = async || {
        let bulks = admin(&engine).bulks(None, 1).await;
        bulks.is_ok_and(|bulks| bulks.rows[0].stopped_by.is_some())
    };
    until(is_stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_database_is_given_up_and_no_request_waits_for_it() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let console =
        Console::new(engine.clone(), operator).time_limit(Duration::from_millis(300)).unwrap();
    let desk = Desk::with(console).await;
    finish(&engine, "before").await;
    // Operators' searches wait for a lock that no request needs.
    let mut lock = pg(&url_of(&db)).await;
    lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_audit IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let began = Instant::now();
    let page = desk.get("audit").await.is(503);
    page.has("The database does not answer");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    // More reads than operators have connections: requests are served meanwhile.
    let looks = (0..8).map(|_| desk.send(desk.ask(Method::GET, desk.url("audit"))));
    let looks = futures_util::future::join_all(looks);
    let requests = async {
        for number in 0..20 {
            finish(&engine, &format!("meanwhile-{number}")).await;
        }
    };
    let (looks, ()) = tokio::join!(looks, requests);
    assert!(looks.iter().all(|page| page.status == 503));
    lock.batch_execute("ROLLBACK").await.unwrap();
    until(async || desk.get("audit").await.status == 200).await;
}

/// Each look has its turn on the operators' own connections, of which there are two: of whatever table it is.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_waits_for_reads_of_a_table_that_is_locked() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    finish(&engine, "before").await;
    for (table, page) in [("atomic_phases_pauses", "pauses"), ("atomic_phases_bulk", "bulk")] {
        let mut lock = pg(&url_of(&db)).await;
        let locked = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        lock.batch_execute(&locked).await.unwrap();
        let looks = (0..60).map(|_| desk.send(desk.ask(Method::GET, desk.url(page))));
        let requests = async {
            // The looks have come as far as the table.
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                           AND datname = current_database()";
            until(async || db.number(waiting).await >= 2).await;
            for number in 0..10 {
                finish(&engine, &format!("meanwhile-{page}-{number}")).await;
            }
        };
        tokio::select! {
            looks = futures_util::future::join_all(looks) => panic!("behind {} looks", looks.len()),
            () = requests => {}
        }
        lock.batch_execute("ROLLBACK").await.unwrap();
        until(async || desk.get(page).await.status == 200).await;
    }
}

/// A process that has heard nothing from the database yet asks for its time by a connection of the operators'.
#[tokio::test(flavor = "multi_thread")]
async fn no_page_waits_for_a_connection_of_the_requests() {
    let db = Postgres::fresh().await;
    let here = engine(&db, &App::default());
    dead_letter(&here, "dead").await;
    let (bulk, _) = stop_of_a_bulk_act(&here, &Desk::of(&here).await).await;
    let pages = pages(id_of(&here, "dead").await, bulk);
    for path in pages {
        let other = open_pg(&url_of(&db), 1).await;
        let engine = engine(&other, &App::default());
        let _taken = other.connection().await.unwrap();
        Desk::of(&engine).await.get(&path).await.is(200);
    }
}

/// Acts and looks at values use the requests' connections: each for a moment only, however long it waits.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_served_while_acts_wait_for_the_audit() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    dead_letter(&engine, "dead").await;
    finish(&engine, "before").await;
    let page = desk.request(id_of(&engine, "dead").await).await;
    let reveal = page.form("/reveal").with("what", "parameters").with("reason", "look");
    let erase = desk.submit(&page.form("/plan").with("act", "erase")).await.is(200);
    let erase = erase.form("/act").with("reason", "because");
    let mut lock = pg(&url_of(&db)).await;
    lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_audit IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let acts = (0..60).map(|number| desk.submit(if number % 2 == 0 { &reveal } else { &erase }));
    let requests = async {
        // They have come as far as the audit.
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                       AND datname = current_database()";
        until(async || db.number(waiting).await >= 2).await;
        for number in 0..10 {
            finish(&engine, &format!("meanwhile-{number}")).await;
        }
    };
    let (acts, ()) = tokio::join!(futures_util::future::join_all(acts), requests);
    // None of them shows or does anything without its row.
    assert!(acts.iter().all(|page| page.status == 503), "{:?}", acts[0]);
    for page in &acts {
        page.has("Whether it was done is not known");
    }
    lock.batch_execute("ROLLBACK").await.unwrap();
    desk.submit(&reveal).await.is(200).has("Revealed: parameters");
}

/// A search and a review are sent as forms, and change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_only_reads_and_is_given_up_says_that_nothing_was_changed() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    let hurried = Console::new(engine.clone(), operator).time_limit(Duration::from_secs(3));
    let hurried = Desk::with(hurried.unwrap()).await;
    dead_letter(&engine, "dead").await;
    let find = desk.get("requests").await.form("/find").with("scope", "tenant-1");
    let page = desk.request(id_of(&engine, "dead").await).await;
    let review = page.form("/plan").with("act", "retry");
    let act = desk.submit(&review).await.is(200).form("/act").with("reason", "r");
    let bulk = desk.get("requests?state=dead_letter").await.form("/bulk/plan").with("act", "retry");
    // With a filter by a reason, which is another than that of the act.
    let list = desk.get("requests?state=dead_letter&reason=asked").await;
    let start = desk.submit(&list.form("/bulk/plan").with("act", "retry")).await;
    let start = start.form("/bulk/act").with("because", "the line is up");
    let mut lock = pg(&url_of(&db)).await;
    lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_keys IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let give_up = async |form: &Form| hurried.submit(&hurried.here(form)).await.is(503);
    for look in [find, review, bulk] {
        give_up(&look).await.has("Nothing was changed").has_not("Whether it was done");
    }
    give_up(&act).await.has("Whether it was done is not known");
    let told = give_up(&start).await;
    lock.batch_execute("ROLLBACK").await.unwrap();
    told.has("name=\"because\" required").has("value=\"the line is up\"");
    told.has("type=\"hidden\" name=\"reason\" value=\"asked\"");
    assert_eq!(told.text.matches("<label").count(), 1, "{}", told.text);
    let started = desk.submit(&desk.here(&told.form("/bulk/act"))).await;
    desk.follow(&started).await.is(200).has("the line is up");
}

/// The database ends the statement, whose condition is that the phase still stands as it was reviewed.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_pause_that_is_not_answered_is_not_known_and_is_sent_again() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    let choice = desk.get("pauses").await.form("/pauses/plan").with("definition", "book");
    let choice = choice.with("phase", "charged").with("act", "pause");
    let pause = desk.submit(&choice).await.is(200).form("/pauses/act").with("reason", "by Ada");
    let mut lock = pg(&url_of(&db)).await;
    lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_pauses IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let is_cancelled = async || {
        db.number(
            "SELECT count(*) FROM (SELECT pg_cancel_backend(pid) AS done FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock') AS waiting WHERE done",
        )
        .await
            == 1
    };
    let (told, ()) = tokio::join!(desk.submit(&pause), async {
        until(is_cancelled).await;
        lock.batch_execute("ROLLBACK").await.unwrap();
    });
    let again = told.is(503).has("Whether it was done is not known").form("/pauses/act");
    assert!(admin(&engine).pauses().await.unwrap().is_empty());
    assert!(admin(&engine).audit(None, None, 1).await.unwrap().rows.is_empty());
    assert_eq!(desk.submit(&again).await.location().query(), Some("said=paused"));
}
