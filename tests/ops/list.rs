//! Lists: filters, pages, and cursors that hold while rows move.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use atomic_phases::engine::Resolution;
use atomic_phases::ops::{
    Actor, AuditFilter, BulkAct, Cursor, Filter, HeldBy, OperatorStore, OpsError, Permissions,
    Place, Scopes, Selection, State, Summary,
};
use atomic_phases::worker::Announcer;
use atomic_phases::{Engine, Outcome, Scope};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
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
    g16_no_list_leaves_the_scopes_of_its_actor,
    a_page_that_searched_ten_thousand_rows_says_so_and_goes_on,
    g16_a_plan_in_some_scopes_searches_as_far_as_any,
    g16_how_far_a_search_came_tells_nothing_of_other_scopes,
    g14_stranded_requests_are_found_behind_thousands_that_are_not,
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
    // The call's own phase, and the last committed phase of the others.
    let called = Filter::new().phase("notified");
    assert_eq!(found(called).await, ["leased", "unknown-1", "unknown-2"]);
    assert_eq!(found(Filter::new().phase("booked")).await, ["backing-off", "dead", "due"]);
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
        assert!(matches!(refused, Err(OpsError::BadFilter(_))), "{refused:?}");
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

async fn a_page_that_searched_ten_thousand_rows_says_so_and_goes_on<S: TestDb + OperatorStore>(
    db: S,
) {
    if is_memory::<S>() {
        // This store reads all rows: there is no index, and a copy of its rows in SQL takes minutes.
        return;
    }
    let engine = engine(&db, &App::default());
    unknown(&engine, "needle").await;
    let later = match is_postgres::<S>() {
        true => "t.expires_at + n * interval '1 second'",
        false => "t.expires_at + n * 1000",
    };
    let numbers = match is_postgres::<S>() {
        true => "generate_series(1, 25000) AS s(n)",
        false => {
            "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 25000) SELECT n FROM c) AS numbers"
        }
    };
    let id = match is_postgres::<S>() {
        true => "gen_random_uuid()",
        false => "randomblob(16)",
    };
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
         definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
         advanced_at, created_at, expires_at, params) SELECT 'others', 'k-' || n, {id}, 'd', 1, 'p', \
         'v1:', 'completed', 'finished', 1, 1, t.created_at, t.created_at, {later}, t.params \
         FROM atomic_phases_keys AS t, {numbers}"
    ))
    .await;
    let ops = admin(&engine);
    // No index has the finished and the unknown ones by scope, so the search filters them.
    let filter = Filter::new().scope(&scope());
    let (mut pages, mut next, mut found, mut last) = (0, None, Vec::new(), None);
    loop {
        let filter = match next.take() {
            Some(cursor) => filter.clone().after(cursor),
            None => filter.clone(),
        };
        let page = ops.list(filter).await.unwrap();
        found.extend(page.rows);
        pages += 1;
        let Some(cursor) = page.next else { break };
        assert!(last.is_none_or(|last| page.searched_to.unwrap() < last), "it goes on");
        last = page.searched_to;
        next = Some(cursor);
    }
    assert_eq!((pages, found.len()), (3, 1));
}

/// A plan reads a hundred thousand rows, for any operator. If the rows of other scopes are close together, a cursor
/// that this operator may see is far behind the place where the search stopped.
async fn g16_a_plan_in_some_scopes_searches_as_far_as_any<S: TestDb + OperatorStore>(db: S) {
    if is_memory::<S>() {
        // A copy of its rows in SQL takes minutes.
        return;
    }
    let engine = engine(&db, &App::default());
    dead_letter(&engine, "needle").await;
    set(&engine, "needle", "waiting_since = expires_at").await;
    let (id, waits) = match is_postgres::<S>() {
        true => ("gen_random_uuid()", "t.created_at + n * interval '1 millisecond'"),
        false => ("randomblob(16)", "t.created_at + n"),
    };
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
         definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
         advanced_at, created_at, waiting_since, expires_at, params) SELECT 'others', 'k-' || n, {id}, \
         'd', 1, 'p', 'v1:', 'dead_letter', 'started', 1, 1, t.created_at, t.created_at, {waits}, t.expires_at, \
         t.params FROM atomic_phases_keys AS t, {}",
        numbers::<S>(95_000),
    ))
    .await;
    let bob = Actor::new("bob", Permissions::admin(), Scopes::Only(vec![scope()])).unwrap();
    let plan =
        engine.ops(bob).plan_bulk(BulkAct::Retry, &Selection::Filter(Filter::waiting())).await;
    assert_eq!(plan.unwrap().count, 1);
}

/// For an actor with some scopes. The rows of other scopes have odd times.
async fn g16_how_far_a_search_came_tells_nothing_of_other_scopes<S: TestDb + OperatorStore>(db: S) {
    if is_memory::<S>() {
        // A copy of its rows in SQL takes minutes.
        return;
    }
    let engine = engine(&db, &App::default());
    unknown(&engine, "needle").await;
    finish(&engine, "last").await;
    set(&engine, "needle", "waiting_since = expires_at, run_after = NULL").await;
    let of = |millis: &str| match is_postgres::<S>() {
        true => format!("t.created_at + n * interval '{millis} milliseconds'"),
        false => format!("t.created_at + n * {millis}"),
    };
    let nothing = if is_postgres::<S>() { "''" } else { "x''" };
    let numbers = numbers::<S>(25_000);
    let id = if is_postgres::<S>() { "gen_random_uuid()" } else { "randomblob(16)" };
    for (state, waits) in [("dead_letter", of("1013")), ("completed", "NULL".to_owned())] {
        db.sql(&format!(
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
             definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
             advanced_at, created_at, waiting_since, expires_at, params) SELECT 'others', '{state}-' || n, {id}, \
             'd', 1, 'p', 'v1:', '{state}', 'finished', 1, 1, t.created_at, t.created_at, {waits}, {}, t.params \
             FROM (SELECT * FROM atomic_phases_keys WHERE idempotency_key = 'last') AS t, {numbers}",
            of("1013"),
        ))
        .await;
        db.sql(&format!(
            "INSERT INTO atomic_phases_audit (id, at, actor, act, outcome, reason, scope) \
             SELECT {id}, {}, 'eve', 'retry', '{state}', 'r', 'others' \
             FROM (SELECT created_at FROM atomic_phases_keys WHERE idempotency_key = 'last') AS t, {numbers}",
            of("1013"),
        ))
        .await;
        db.sql(&format!(
            "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, args, \
             staged_at) SELECT 'others', {id}, 1, {id}, 'k', 'j', {nothing}, {} \
             FROM (SELECT created_at FROM atomic_phases_keys WHERE idempotency_key = 'last') AS t, {numbers}",
            of("1013"),
        ))
        .await;
    }
    // Of an act that there is none of, a page looks at ten thousand rows, and says so.
    let (mut pages, mut next) = (0, None::<Place>);
    loop {
        let of = AuditFilter::new().act("erase").actor("eve");
        let page = admin(&engine).audit(of, next, 10).await.unwrap();
        assert!(page.rows.is_empty());
        pages += 1;
        assert_eq!(page.searched_to.is_some(), page.next.is_some());
        let Some(place) = page.next else { break };
        next = Some(place);
    }
    assert_eq!(pages, 6, "of fifty thousand rows");
    let bob = Actor::new("bob", Permissions::admin(), Scopes::Only(vec![scope()])).unwrap();
    let bob = engine.ops(bob);
    let seen = admin(&engine).find(&scope(), &key("needle")).await.unwrap().request_id;
    // What a cursor contains: a time, in microseconds, and an id.
    let told = |text: String| {
        let bytes = URL_SAFE_NO_PAD.decode(text).unwrap();
        let (place, id) = bytes[bytes.len() - 24..].split_at(8);
        let id = Uuid::from_slice(id).unwrap();
        (i64::from_be_bytes(place.try_into().unwrap()), id)
    };
    let is_no_row = |text: String| {
        let (micros, id) = told(text);
        let is_round = micros % 60_000_000 == 0 && (id.is_nil() || id.is_max());
        assert!(is_round || id == seen, "{micros} {id}");
    };
    for (filter, found) in [
        (Filter::new().definition("notify", None), 1),
        (Filter::waiting(), 1),
        (Filter::waiting().reason("none"), 0),
    ] {
        let (mut rows, mut pages, mut next) = (Vec::new(), 0, None::<Cursor>);
        loop {
            let on = next.take().map_or(filter.clone(), |cursor| filter.clone().after(cursor));
            let page = bob.list(on).await.unwrap();
            rows.extend(page.rows.into_iter().map(|row| row.request_id));
            pages += 1;
            let Some(cursor) = page.next else { break };
            is_no_row(cursor.to_string());
            assert!(
                page.searched_to
                    .is_none_or(|to| to.timestamp_micros() == told(cursor.to_string()).0)
            );
            next = Some(cursor.to_string().parse().unwrap());
        }
        assert_eq!((rows.len(), rows.first()), (found, Some(&seen).filter(|_| found == 1)));
        assert!((3..12).contains(&pages), "{pages} pages: {filter:?}");
    }
    let (mut pages, mut next) = (0, None::<Place>);
    loop {
        let page = bob.audit(None, next, 10).await.unwrap();
        assert!(page.rows.is_empty());
        pages += 1;
        let Some(place) = page.next else { break };
        is_no_row(place.to_string());
        next = Some(place);
    }
    assert!((5..20).contains(&pages), "{pages} pages of the audit");
    let (mut pages, mut next) = (0, None::<Place>);
    loop {
        let page = bob.dead_jobs(next, 10).await.unwrap();
        assert!(page.rows.is_empty());
        pages += 1;
        let Some(place) = page.next else { break };
        is_no_row(place.to_string());
        next = Some(place);
    }
    assert!((5..20).contains(&pages), "{pages} pages of jobs");

    // With forged cursors: from two places before and after a row that has exactly as many rows after it as one
    // search reads. If the answer said whether there is more, a hundred queries would find out that row's time.
    let micros = async |column: &str, from: &str, order: &str| {
        let behind = db.number(&format!("SELECT count(*) FROM {from}")).await - 10_000;
        let micros = match is_postgres::<S>() {
            true => format!("(extract(epoch FROM {column}) * 1000000)::bigint"),
            false => format!("{column} * 1000"),
        };
        let sql = format!(
            "SELECT {micros} FROM {from} ORDER BY {column} {order} LIMIT 1 OFFSET {behind}"
        );
        db.number(&sql).await
    };
    let keys = "atomic_phases_keys WHERE waiting_since IS NOT NULL";
    let first = bob.list(Filter::waiting().reason("none")).await.unwrap().next.unwrap();
    let newest = bob.list(Filter::new().reason("none")).await.unwrap().next.unwrap();
    let made = |like: &str, micros: i64, id: Uuid| {
        let mut bytes = URL_SAFE_NO_PAD.decode(like).unwrap();
        let at = bytes.len() - 24;
        bytes[at..at + 8].copy_from_slice(&micros.to_be_bytes());
        bytes[at + 8..].copy_from_slice(id.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    };
    let listed = async |filter: Filter, like: &Cursor, micros| {
        let cursor: Cursor = made(&like.to_string(), micros, Uuid::nil()).parse().unwrap();
        let page = bob.list(filter.after(cursor)).await.unwrap();
        (page.rows.len(), page.next.map(|next| next.to_string()))
    };
    let like = Place::from_str(&made("A".repeat(32).as_str(), 0, Uuid::nil())).unwrap();
    for (what, place) in [
        ("waiting", micros("waiting_since", keys, "").await),
        ("newest", micros("expires_at", "atomic_phases_keys", "DESC").await),
        (
            "jobs",
            micros("staged_at", "atomic_phases_staged_jobs WHERE run_after IS NULL", "").await,
        ),
        ("audit", micros("at", "atomic_phases_audit", "DESC").await),
    ] {
        let mut told = Vec::new();
        let sides = [place - 2_000, place + 2_000];
        for micros in sides {
            let place = made(&like.to_string(), micros, Uuid::nil()).parse::<Place>().unwrap();
            told.push(match what {
                "waiting" => listed(Filter::waiting().reason("none"), &first, micros).await,
                "newest" => listed(Filter::new().reason("none"), &newest, micros).await,
                "jobs" => {
                    let page = bob.dead_jobs(Some(place), 10).await.unwrap();
                    (page.rows.len(), page.next.map(|next| next.to_string()))
                }
                _ => {
                    let page = bob.audit(None, Some(place), 10).await.unwrap();
                    (page.rows.len(), page.next.map(|next| next.to_string()))
                }
            });
        }
        // Unless a new minute begins between the two.
        let minutes = sides.map(|side| side.div_euclid(60_000_000));
        assert!(minutes[0] != minutes[1] || told[0] == told[1], "{what}: {told:?}");
    }
}

async fn g14_stranded_requests_are_found_behind_thousands_that_are_not<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    if is_memory::<S>() {
        // A copy of its rows in SQL takes minutes.
        return;
    }
    let engine = engine(&db, &App::default());
    back_off(&engine, "needle").await;
    let (id, numbers, later) = match is_postgres::<S>() {
        true => (
            "gen_random_uuid()",
            "generate_series(1, 25000) AS s(n)",
            "t.run_after + n * interval '1 second'",
        ),
        false => (
            "randomblob(16)",
            "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 25000) \
             SELECT n FROM c) AS numbers",
            "t.run_after + n * 1000",
        ),
    };
    // Another build has written one row in eight thousand.
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
         definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
         run_after, advanced_at, created_at, expires_at, params, outputs) \
         SELECT t.scope, 'k-' || n, {id}, definition, definition_version, \
         CASE WHEN n % 8000 = 0 THEN 'booked pay=i answered' ELSE t.phases END, fingerprint, status, \
         recovery_point, 1, 1, {later}, advanced_at, created_at, expires_at, params, outputs \
         FROM atomic_phases_keys AS t, {numbers}"
    ))
    .await;
    let ops = admin(&engine);
    let (mut next, mut found, mut pages) = (None, Vec::new(), 0);
    loop {
        let filter = Filter::new().stranded().page(2);
        let filter = match next.take() {
            Some(cursor) => filter.after(cursor),
            None => filter,
        };
        let page = ops.list(filter).await.unwrap();
        assert!(page.rows.len() == 2 || page.searched_to.is_some() || page.next.is_none());
        found.extend(page.rows.into_iter().map(|row| row.request_id));
        pages += 1;
        let Some(cursor) = page.next else { break };
        next = Some(cursor);
    }
    let ids: BTreeSet<Uuid> = found.iter().copied().collect();
    assert_eq!((found.len(), ids.len()), (3, 3), "each once");
    assert!((3..=5).contains(&pages), "{pages} pages, each of which looks at ten thousand rows");
    let stranded = ops.counts().await.unwrap().stranded;
    assert_eq!(
        (stranded.number, stranded.or_more),
        (1, true),
        "of the ten thousand that are counted"
    );
}
