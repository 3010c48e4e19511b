//! How far a search reads, and what that reveals.

use std::collections::BTreeSet;
use std::str::FromStr;

use atomic_phases::ops::{
    Actor, AuditFilter, BulkAct, Cursor, Filter, OperatorStore, Permissions, Place, Scopes,
    Selection,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use super::cast::*;
use crate::support::*;

on_every_store! {
    a_page_that_searched_ten_thousand_rows_says_so_and_goes_on,
    g16_a_plan_in_some_scopes_searches_as_far_as_any,
    g16_how_far_a_search_came_tells_nothing_of_other_scopes,
    g14_stranded_requests_are_found_behind_thousands_that_are_not,
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
    // By its whole primary key: else MariaDB reads the table, which grows, once for each number.
    let last = format!("scope = '{}' AND idempotency_key = 'last'", scope().as_str());
    let id = if is_postgres::<S>() { "gen_random_uuid()" } else { "randomblob(16)" };
    for (state, waits) in [("dead_letter", of("1013")), ("completed", "NULL".to_owned())] {
        db.sql(&format!(
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
             definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
             advanced_at, created_at, waiting_since, expires_at, params) SELECT 'others', '{state}-' || n, {id}, \
             'd', 1, 'p', 'v1:', '{state}', 'finished', 1, 1, t.created_at, t.created_at, {waits}, {}, t.params \
             FROM (SELECT * FROM atomic_phases_keys WHERE {last}) AS t, {numbers}",
            of("1013"),
        ))
        .await;
        db.sql(&format!(
            "INSERT INTO atomic_phases_audit (id, at, actor, act, outcome, reason, scope) \
             SELECT {id}, {}, 'eve', 'retry', '{state}', 'r', 'others' \
             FROM (SELECT created_at FROM atomic_phases_keys WHERE {last}) AS t, {numbers}",
            of("1013"),
        ))
        .await;
        db.sql(&format!(
            "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, args, \
             staged_at) SELECT 'others', {id}, 1, {id}, 'k', 'j', {nothing}, {} \
             FROM (SELECT created_at FROM atomic_phases_keys WHERE {last}) AS t, {numbers}",
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
