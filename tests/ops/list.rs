//! Lists: filters, pages, and cursors that hold while rows move.

use std::collections::BTreeSet;
use std::time::Duration;

use atomic_phases::engine::Resolution;
use atomic_phases::ops::{
    Actor, BulkAct, Filter, HeldBy, OperatorStore, OpsError, Permissions, Scopes, Selection, State,
    Summary,
};
use atomic_phases::worker::{Announcer, DeliveryError, Enqueuer, Handlers, Job};
use atomic_phases::{Engine, Outcome, Scope};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::cast::*;
use crate::support::work::config;
use crate::support::*;

on_every_store! {
    each_filter_finds_its_rows_and_no_others,
    a_cursor_neither_skips_nor_repeats_while_rows_move,
    a_list_of_several_indexes_tells_each_row_once,
    a_request_that_is_being_reconciled_is_listed_once,
    a_request_whose_holder_died_is_found_without_workers,
    counts_are_bounded_and_within_the_scopes,
    g18_a_job_that_no_node_takes_is_counted_and_listed_as_late,
    g16_no_list_leaves_the_scopes_of_its_actor,
    a_number_of_rows_that_no_page_has_is_refused_and_not_reduced,
}

async fn a_list_of_several_indexes_tells_each_row_once<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    // Unknown rows are in the index of waiting rows, and in that of due ones.
    let states =
        [State::Unknown, State::DeadLetter, State::BackingOff, State::Due, State::Accepted];
    for page in [1, 2, 50] {
        let filter = Filter::new().states(states).page(page);
        let rows = all(&engine, filter).await;
        let ids: BTreeSet<Uuid> = rows.iter().map(|row| row.request_id).collect();
        assert_eq!((rows.len(), ids.len()), (6, 6), "pages of {page}");
        let waits = |row: &Summary| matches!(row.state, State::Unknown | State::DeadLetter);
        assert!(rows[..3].iter().all(waits), "what waits comes first");
    }
}

/// A reconciler has taken the request, or has died: its row is in the index of waiting rows and in that of due
/// ones, and is in progress. Its outcome is still unknown.
async fn a_request_that_is_being_reconciled_is_listed_once<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    unknown(&engine, "k").await;
    let ops = admin(&engine);
    let before = ops.find(&scope(), &key("k")).await.unwrap();
    let of_books = Engine::builder(db.another().await).app(App::default());
    let of_books: TestEngine<S> = of_books.register::<Book>().build().unwrap();
    for lease in ["expires_at", "created_at"] {
        let columns =
            format!("status = 'in_progress', locked_until = {lease}, run_after = {lease}");
        set(&engine, "k", &columns).await;
        let counts = ops.counts().await.unwrap();
        let millis = |since: Option<DateTime<Utc>>| since.map(|since| since.timestamp_millis());
        assert_eq!(counts.unknown.number, 1);
        assert_eq!(millis(counts.oldest_waiting), millis(before.waiting_since));
        assert_eq!((counts.due.number, counts.stranded.number), (0, 0));
        let found = ops.find(&scope(), &key("k")).await.unwrap();
        assert_eq!(found.state, State::Unknown);
        assert_eq!(millis(found.waiting_since), millis(before.waiting_since));
        let why = ops.why(found.request_id).await.unwrap();
        assert_eq!(why.held_by, HeldBy::UnknownAsked, "{why:?}");
        assert!(
            why.sentence.contains("is unknown") && why.sentence.contains("looked into"),
            "{why:?}"
        );
        let inbox = ops.list(Filter::waiting()).await.unwrap().rows;
        assert_eq!(inbox.iter().map(|row| row.request_id).collect::<Vec<_>>(), [found.request_id]);
        let filters = [
            (&engine, Filter::new().states([State::Unknown, State::LeaseEnded])),
            (&engine, Filter::new().states([State::Unknown, State::Running])),
            (&engine, Filter::new()),
            (&of_books, Filter::new().stranded()),
        ];
        for (engine, filter) in filters {
            for page in [1, 50] {
                let rows = all(engine, filter.clone().page(page)).await;
                let states: Vec<_> = rows.iter().map(|row| row.state).collect();
                assert_eq!(states, [State::Unknown], "pages of {page}: {filter:?}");
            }
        }
        let stranded = Selection::Filter(Filter::new().stranded());
        let plan = admin(&of_books).plan_bulk(BulkAct::Erase, &stranded).await;
        assert_eq!(plan.unwrap().count, 1);
        for other in [State::Running, State::LeaseEnded] {
            assert!(all(&engine, Filter::new().states([other])).await.is_empty(), "{other}");
        }
    }
}

/// No worker runs, or none has met it yet: it is in no index but that of all rows.
async fn a_request_whose_holder_died_is_found_without_workers<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    set(&engine, "leased", "locked_until = created_at").await;
    let ops = admin(&engine);
    let leased = ops.find(&scope(), &key("leased")).await.unwrap();
    assert_eq!((leased.state, leased.next_at), (State::LeaseEnded, None));
    let ended = all(&engine, Filter::new().states([State::LeaseEnded])).await;
    assert_eq!(ended.iter().map(|row| row.request_id).collect::<Vec<_>>(), [leased.request_id]);
    let due = [State::Accepted, State::Due, State::LeaseEnded];
    let waits = [&due[..], &[State::Unknown, State::DeadLetter, State::BackingOff]].concat();
    for (states, number) in [(due.to_vec(), 3), (waits, 7)] {
        let rows = all(&engine, Filter::new().states(states)).await;
        let ids: BTreeSet<Uuid> = rows.iter().map(|row| row.request_id).collect();
        assert_eq!((rows.len(), ids.len()), (number, number), "each once");
        assert_eq!(rows.last().unwrap().request_id, leased.request_id, "behind the due ones");
    }
    // A search for it costs ten thousand rows, so it is not counted.
    let counts = ops.counts().await.unwrap();
    assert_eq!((counts.due.number, counts.due.or_more, counts.none_announced), (2, true, true));
    Announcer::new(&engine, config()).run_once().await.unwrap();
    let counts = ops.counts().await.unwrap();
    assert_eq!((counts.due.number, counts.due.or_more, counts.none_announced), (2, false, false));
    // A completer has met it.
    set(&engine, "leased", "run_after = locked_until").await;
    assert_eq!(ops.counts().await.unwrap().due.number, 3);
    let rows = all(&engine, Filter::new().states(due)).await;
    assert_eq!(rows.iter().filter(|row| row.request_id == leased.request_id).count(), 1);
}

/// Two unknown, one dead, one backing off, one due, one accepted, one leased, one finished.
async fn cast<S: TestDb + OperatorStore>(engine: &TestEngine<S>) {
    unknown(engine, "unknown-1").await;
    unknown(engine, "unknown-2").await;
    dead_letter(engine, "dead").await;
    back_off(engine, "backing-off").await;
    set(engine, "backing-off", "run_after = expires_at").await;
    back_off(engine, "due").await;
    set(engine, "due", "run_after = created_at").await;
    engine.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    leased(engine, "leased").await;
    finish(engine, "finished").await;
}

/// A person has written it into two rows, on PostgreSQL.
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_time_that_is_infinity_hides_no_other_row_of_a_list() {
    let db = <atomic_phases::store::Postgres as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    set(&engine, "unknown-1", "waiting_since = 'infinity'").await;
    set(&engine, "due", "run_after = 'infinity', created_at = '-infinity'").await;
    assert_eq!(all(&engine, Filter::new()).await.len(), 8);
    assert_eq!(all(&engine, Filter::new().states([State::Unknown])).await.len(), 2);
    let backs_off = all(&engine, Filter::new().states([State::BackingOff])).await;
    let last = backs_off.last().unwrap();
    assert_eq!((backs_off.len(), last.request_id), (2, id_of(&engine, "due").await));
    assert_eq!(admin(&engine).why(last.request_id).await.unwrap().held_by, HeldBy::BackOff);
    assert_eq!(admin(&engine).counts().await.unwrap().unknown.number, 2);
}

/// All pages of a list; in pages of one and of two rows it is the same list, and no page is empty.
async fn all<S: TestDb + OperatorStore>(engine: &TestEngine<S>, filter: Filter) -> Vec<Summary> {
    let whole = in_pages(engine, &filter, 100).await;
    for rows in [1, 2] {
        assert_eq!(in_pages(engine, &filter, rows).await.len(), whole.len());
    }
    whole
}

async fn in_pages<S: TestDb + OperatorStore>(
    engine: &TestEngine<S>,
    filter: &Filter,
    size: u32,
) -> Vec<Summary> {
    let (mut rows, mut next) = (Vec::new(), None);
    loop {
        let filter = filter.clone().page(size);
        let filter = match next {
            Some(cursor) => filter.after(cursor),
            None => filter,
        };
        let page = admin(engine).list(filter).await.unwrap();
        assert!(rows.is_empty() || !page.rows.is_empty(), "the page before was the last");
        rows.extend(page.rows);
        match page.next {
            // As a client would send it back.
            Some(cursor) => next = Some(cursor.to_string().parse().unwrap()),
            None => return rows,
        }
    }
}

async fn each_filter_finds_its_rows_and_no_others<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    let mut names = Vec::new();
    for name in
        ["unknown-1", "unknown-2", "dead", "backing-off", "due", "accepted", "leased", "finished"]
    {
        names.push((id_of(&engine, name).await, name));
    }
    let found = async |filter: Filter| {
        let rows = all(&engine, filter).await;
        let name = |row: &Summary| names.iter().find(|(id, _)| *id == row.request_id).unwrap().1;
        let mut found: Vec<&str> = rows.iter().map(name).collect();
        found.sort_unstable();
        found
    };
    let of = |state| Filter::new().states([state]);
    assert_eq!(found(Filter::new()).await.len(), 8);
    assert_eq!(found(Filter::waiting()).await, ["dead", "unknown-1", "unknown-2"]);
    assert_eq!(found(of(State::Unknown)).await, ["unknown-1", "unknown-2"]);
    assert_eq!(found(of(State::DeadLetter)).await, ["dead"]);
    assert_eq!(found(of(State::BackingOff)).await, ["backing-off"]);
    assert_eq!(found(of(State::Due)).await, ["due"]);
    assert_eq!(found(of(State::Accepted)).await, ["accepted"]);
    assert_eq!(found(of(State::Running)).await, ["leased"]);
    assert_eq!(found(of(State::Finished)).await, ["finished"]);
    assert!(found(of(State::Erased)).await.is_empty());

    let notifies = Filter::new().definition("notify", Some(1));
    assert_eq!(found(notifies).await, ["leased", "unknown-1", "unknown-2"]);
    assert!(found(Filter::new().definition("notify", Some(2))).await.is_empty());
    assert!(found(Filter::new().definition("other", None)).await.is_empty());
    // The phase whose call is open, or that is next.
    let called = Filter::new().phase("notified");
    assert_eq!(found(called).await, ["leased", "unknown-1", "unknown-2"]);
    assert_eq!(found(Filter::new().phase("charged")).await, ["backing-off", "dead", "due"]);
    assert_eq!(found(Filter::waiting().phase("charged")).await, ["dead"]);
    assert_eq!(found(Filter::new().phase("booked")).await, ["accepted"]);
    assert!(found(Filter::new().phase("answered")).await.is_empty());
    assert_eq!(found(Filter::waiting().reason("asked for")).await.len(), 3);
    assert!(found(Filter::waiting().reason("no such reason")).await.is_empty());
    assert_eq!(found(Filter::new().scope(&scope())).await.len(), 8);
    assert!(found(Filter::new().scope(&Scope::new("other").unwrap())).await.is_empty());

    let hour = Duration::from_secs(3600);
    assert!(found(Filter::new().older_than(hour)).await.is_empty());
    assert!(found(Filter::waiting().waiting_for(hour)).await.is_empty());
    let earlier = match is_postgres::<S>() {
        true => {
            "created_at = (SELECT now() - interval '2 hours'), waiting_since = (SELECT now() - interval '2 hours')"
        }
        false => "created_at = created_at - 7200000, waiting_since = waiting_since - 7200000",
    };
    set(&engine, "unknown-2", earlier).await;
    assert_eq!(found(Filter::new().older_than(hour)).await, ["unknown-2"]);
    assert_eq!(found(Filter::new().waiting_for(hour)).await, ["unknown-2"]);
    assert_eq!(all(&engine, Filter::waiting()).await[0].request_id, names[1].0, "the oldest first");

    // Unfinished, with a phase list or a definition that this build does not have.
    assert!(found(Filter::new().stranded()).await.is_empty());
    set(&engine, "accepted", "phases = 'booked pay=i answered'").await;
    assert!(found(Filter::new().stranded()).await.is_empty(), "it has called nothing");
    set(&engine, "backing-off", "phases = 'booked pay=i answered'").await;
    assert_eq!(found(Filter::new().stranded()).await, ["backing-off"]);
    assert_eq!(admin(&engine).counts().await.unwrap().stranded.number, 1);
    // A resolution says that the last attempt made no call.
    set(&engine, "backing-off", "resolution = 'not_executed charged 1'").await;
    assert!(found(Filter::new().stranded()).await.is_empty());
    assert_eq!(admin(&engine).counts().await.unwrap().stranded.number, 0);
    set(&engine, "backing-off", "resolution = 'not_executed charged 0'").await;
    assert_eq!(found(Filter::new().stranded()).await, ["backing-off"]);
    assert_eq!(admin(&engine).counts().await.unwrap().stranded.number, 1);
    set(&engine, "backing-off", "resolution = 'not_executed charged 1'").await;
    for name in ["unknown-1", "due", "finished"] {
        set(&engine, name, "definition_version = 9").await;
    }
    assert_eq!(found(Filter::new().stranded()).await, ["due", "unknown-1"]);
    assert_eq!(found(of(State::Due).stranded()).await, ["due"]);

    for rows in [0, 1001] {
        let refused = admin(&engine).list(Filter::new().page(rows)).await;
        let Err(OpsError::BadPage { rows: told, most: 1000 }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(told, rows);
    }
    let filters = [
        Filter::new().reason("\0"),
        Filter::new().phase("\0"),
        Filter::new().definition("\0", None),
        Filter::new().reason(""),
        Filter::new().phase(" "),
        Filter::waiting().definition("", None),
        // A time that no database has.
        Filter::new().older_than(Duration::MAX),
        Filter::new().waiting_for(Duration::from_secs(11 * 365 * 86_400)),
    ];
    for filter in filters {
        let refused = admin(&engine).list(filter).await;
        assert!(matches!(refused, Err(OpsError::BadFilter(_))), "{refused:?}");
    }
}

async fn a_cursor_neither_skips_nor_repeats_while_rows_move<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    for number in 0..9 {
        unknown(&engine, &format!("k-{number}")).await;
    }
    // All have the same time: the request's id distinguishes them.
    db.sql(
        "UPDATE atomic_phases_keys SET waiting_since = created_at WHERE idempotency_key < 'k-3'",
    )
    .await;
    let before: BTreeSet<Uuid> =
        all(&engine, Filter::waiting()).await.iter().map(|row| row.request_id).collect();
    assert_eq!(before.len(), 9);
    let ops = admin(&engine);
    let filter = Filter::waiting().page(2);
    let mut page = ops.list(filter.clone()).await.unwrap();
    let mut seen = Vec::new();
    let mut round = 0;
    while let Some(cursor) = page.next.take() {
        seen.append(&mut page.rows);
        // The shown rows are deleted, and the new ones are the youngest.
        let settled = seen.pop().unwrap();
        let word = Resolution::not_executed("notified", settled.attempts);
        let _ = ops.resolve(settled.request_id, &settled.version, word, "test").await.unwrap();
        seen.push(settled);
        round += 1;
        if round < 4 {
            unknown(&engine, &format!("z-{round}")).await;
        }
        page = ops.list(filter.clone().after(cursor)).await.unwrap();
    }
    seen.extend(page.rows);
    let ids: BTreeSet<Uuid> = seen.iter().map(|row| row.request_id).collect();
    assert_eq!(ids.len(), seen.len(), "none came twice");
    assert!(before.is_subset(&ids), "none was skipped");
    assert_eq!(ids.len(), 12, "those that came meanwhile are behind");

    let cursor = ops.list(filter).await.unwrap().next.unwrap();
    let other = ops.list(Filter::new().after(cursor)).await;
    assert!(matches!(other, Err(OpsError::BadCursor)), "{other:?}");
}

async fn counts_are_bounded_and_within_the_scopes<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL WHERE name = 'receipt'").await;
    Announcer::new(&engine, config()).run_once().await.unwrap();
    let ops = admin(&engine);
    let counts = ops.counts().await.unwrap();
    let numbers =
        [counts.unknown, counts.dead_letters, counts.due, counts.stranded, counts.dead_jobs];
    // Accepted and released requests are due; the leased one becomes due later.
    assert_eq!(numbers.map(|count| count.number), [2, 1, 2, 0, 1]);
    assert!(numbers.iter().all(|count| !count.or_more), "{counts:?}");
    assert!(counts.oldest_waiting.is_some());
    set(&engine, "due", "definition = 'gone'").await;
    set(&engine, "dead", "definition = 'gone'").await;
    assert_eq!(ops.counts().await.unwrap().stranded.number, 2);

    let elsewhere = Scopes::Only(vec![Scope::new("other").unwrap()]);
    let other = Actor::new("eve", Permissions::admin(), elsewhere).unwrap();
    let none = engine.ops(other).counts().await.unwrap();
    assert_eq!(none, Default::default());
}

/// Its name has no handler: it is neither a dead letter nor a request that waits.
async fn g18_a_job_that_no_node_takes_is_counted_and_listed_as_late<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    finish(&engine, "with-jobs").await;
    let left = Enqueuer::new(&engine, Handlers::new(), config()).run_once().await.unwrap();
    assert_eq!((left.left, left.delivered), (1, 0), "{left:?}");
    let ops = admin(&engine);
    let late = async || {
        let counts = ops.counts().await.unwrap();
        assert!(!counts.late_jobs.or_more && counts.dead_jobs.number == 0, "{counts:?}");
        let jobs = ops.late_jobs(10).await.unwrap();
        assert_eq!(counts.late_jobs.number as usize, jobs.len(), "{jobs:?}");
        jobs
    };
    assert!(late().await.is_empty(), "it has been due for a moment");
    let due = async |name: &str, minutes: u32| {
        let ago = match is_postgres::<S>() {
            true => format!("staged_at - interval '{minutes} minutes'"),
            false => format!("staged_at - {}", minutes * 60_000),
        };
        let set = format!("SET run_after = {ago} WHERE name = '{name}'");
        db.sql(&format!("UPDATE atomic_phases_staged_jobs {set}")).await;
    };
    due("receipt", 2).await;
    let jobs = late().await;
    let [job] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!((&*job.name, job.attempts, &job.reason), ("receipt", 0, &None));
    assert_eq!(job.request_id, id_of(&engine, "with-jobs").await);
    let due_for = job.staged_at - job.next_at.unwrap();
    assert_eq!(due_for.num_minutes(), 2, "{job:?}");

    let elsewhere = Scopes::Only(vec![Scope::new("other").unwrap()]);
    let other = engine.ops(Actor::new("eve", Permissions::admin(), elsewhere).unwrap());
    assert_eq!(other.counts().await.unwrap().late_jobs.number, 0);
    assert!(other.late_jobs(10).await.unwrap().is_empty());

    // A node has claimed it, and returned it.
    db.sql("UPDATE atomic_phases_staged_jobs SET reason = 'not here' WHERE name = 'receipt'").await;
    due("thanks", 3).await;
    let names: Vec<(String, Option<String>)> =
        late().await.into_iter().map(|job| (job.name, job.reason)).collect();
    let expected =
        [("thanks".to_owned(), None), ("receipt".to_owned(), Some("not here".to_owned()))];
    assert_eq!(names, expected, "the longest due first");
    let first = ops.late_jobs(1).await.unwrap();
    assert_eq!((first.len(), &*first[0].name), (1, "thanks"));

    let jobs = Handlers::new()
        .on("receipt", async |_: String, _: Job| Ok::<_, DeliveryError>(()))
        .on("thanks", async |_: String, _: Job| Ok::<_, DeliveryError>(()));
    let mut enqueuer = Enqueuer::new(&engine, jobs, config());
    let mut delivered = 0;
    for _ in 0..3 {
        delivered += enqueuer.run_once().await.unwrap().delivered;
    }
    assert_eq!(delivered, 2);
    assert!(late().await.is_empty());
}

async fn a_number_of_rows_that_no_page_has_is_refused_and_not_reduced<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let told = async |list: &str, rows: u32| match list {
        "requests" => ops.list(Filter::new().page(rows)).await.map(drop),
        "dead jobs" => ops.dead_jobs(None, rows).await.map(drop),
        "late jobs" => ops.late_jobs(rows).await.map(drop),
        "audit" => ops.audit(None, None, rows).await.map(drop),
        _ => ops.bulks(None, rows).await.map(drop),
    };
    let lists = [
        ("requests", 1000),
        ("dead jobs", 1000),
        ("late jobs", 1000),
        ("audit", 1000),
        ("bulks", 100),
    ];
    for (list, largest) in lists {
        for rows in [1, largest] {
            assert!(told(list, rows).await.is_ok(), "{list} {rows}");
        }
        for rows in [0, largest + 1, u32::MAX] {
            let refused = told(list, rows).await.unwrap_err();
            let text = refused.to_string();
            let says = format!("{rows} rows were asked for, and a page has 1 to {largest}");
            assert!(matches!(refused, OpsError::BadPage { .. }) && text.contains(&says), "{text}");
        }
    }
}

async fn g16_no_list_leaves_the_scopes_of_its_actor<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    for tenant in ["eu/a", "eu/b", "us/a"] {
        let scope = Scope::new(tenant).unwrap();
        let call = engine.call(&scope, &key("k"), notify(Trouble::UnknownForeign)).await;
        assert!(matches!(call, Ok(Outcome::Unknown { .. })));
    }
    let sees = async |scopes: Scopes| {
        let ops = engine.ops(Actor::new("ada", Permissions::admin(), scopes).unwrap());
        let all = ops.list(Filter::new()).await.unwrap().rows.len();
        let waiting = ops.list(Filter::waiting()).await.unwrap().rows.len();
        assert_eq!(all, waiting);
        let mut found = 0;
        for tenant in ["eu/a", "eu/b", "us/a"] {
            match ops.find(&Scope::new(tenant).unwrap(), &key("k")).await {
                Ok(summary) => {
                    found += 1;
                    ops.show(summary.request_id).await.unwrap();
                }
                Err(OpsError::NoSuchRequest) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(found, all);
        assert_eq!(ops.counts().await.unwrap().unknown.number as usize, all);
        all
    };
    assert_eq!(sees(Scopes::All).await, 3);
    assert_eq!(sees(Scopes::Only(vec![Scope::new("eu/b").unwrap()])).await, 1);
    assert_eq!(sees(Scopes::Only(vec![])).await, 0);
    assert_eq!(sees(Scopes::Prefix("eu/".into())).await, 2);
    assert_eq!(sees(Scopes::Prefix("%".into())).await, 0, "no pattern");
}
