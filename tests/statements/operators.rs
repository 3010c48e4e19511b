//! The plans of the searches at 100,000 rows: each walks its index, and reads a bounded part of it.

use atomic_phases::Scope;
use atomic_phases::ops::{
    Actor, AuditFilter, BulkAct, Filter, Permissions, Scopes, Selection, State,
};
use atomic_phases::store::Postgres;
use atomic_phases::worker::{Announcer, BulkRunner, Census, WorkerConfig};

use crate::recorded::{self, alone};
use crate::support::*;

/// The statements since the last call that contain this text, or have it in their values.
fn sent(with: &str) -> Vec<String> {
    recorded::sent().into_iter().filter(|sql| sql.contains(with)).collect()
}

/// The plan of a statement, with its actual row counts.
const PLAN_OF: &str = "CREATE FUNCTION plan_of(call text) RETURNS text LANGUAGE plpgsql AS $$ \
    DECLARE line text; plan text := ''; BEGIN \
    PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), \
    set_config('jit', 'off', true); \
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) ' || call LOOP \
    plan := plan || line || chr(10); END LOOP; RETURN plan; END $$";

/// 100,000 finished rows, of which 12,000 are made to wait and 12,000 others to be due.
async fn filled() -> Postgres {
    let db = Postgres::fresh().await;
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    db.sql(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
         definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
         run_after, waiting_since, advanced_at, created_at, expires_at, params) \
         SELECT 'tenant-' || n % 100, n, gen_random_uuid(), 'book', 1, 'booked charged=i answered', 'v1:', \
         (CASE n % 8 WHEN 0 THEN 'dead_letter' WHEN 1 THEN 'failed_retryable' ELSE 'completed' END)::atomic_phases_status, \
         'booked', 1, 1, CASE n % 8 WHEN 1 THEN t END, CASE n % 8 WHEN 0 THEN t END, t, t, \
         t + interval '1 day', repeat('x', 200)::bytea FROM (SELECT n, now() - n * interval '1 second' AS t \
         FROM generate_series(1, 100000) AS n ORDER BY random()) AS rows; \
         INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, \
         args, staged_at, run_after) SELECT 'tenant-' || n % 100, gen_random_uuid(), 1, gen_random_uuid(), n, \
         'receipt', '', now() - n * interval '1 second', CASE WHEN n % 2 = 0 THEN now() - n * interval '1 second' END \
         FROM generate_series(1, 100000) AS n; ANALYZE",
    )
    .await;
    db.sql(PLAN_OF).await;
    db
}

/// The plan of a statement as it was sent, with the values that it was sent with.
async fn plan_of(db: &Postgres, sql: &str) -> String {
    db.text(&format!("SELECT plan_of($plan${}$plan$)", with_values(sql))).await
}

/// A statement as it was sent, with its values in their places.
pub fn with_values(sql: &str) -> String {
    let (text, binds) = sql.split_once(" -- binds: ").unwrap_or((sql, "[]"));
    let mut text = text.to_owned();
    let binds = values(binds);
    for (index, value) in binds.iter().enumerate().rev() {
        text = text.replace(&format!("${}", index + 1), value);
    }
    text
}

/// The values after a statement, as literals.
fn values(binds: &str) -> Vec<String> {
    let inside = binds.trim().strip_prefix('[').unwrap().strip_suffix(']').unwrap();
    let (mut all, mut depth, mut quoted, mut value) = (Vec::new(), 0, false, String::new());
    for letter in inside.chars() {
        match letter {
            '"' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth -= 1,
            _ => {}
        }
        if letter == ',' && depth == 0 && !quoted {
            all.push(std::mem::take(&mut value));
        } else {
            value.push(letter);
        }
    }
    if !value.is_empty() {
        all.push(value);
    }
    all.iter().map(|value| literal(value.trim())).collect()
}

fn literal(value: &str) -> String {
    if value == "None" {
        return "NULL".to_owned();
    }
    let value = value.strip_prefix("Some(").map_or(value, |rest| rest.strip_suffix(')').unwrap());
    if let Some(list) = value.strip_prefix('[') {
        return format!("ARRAY[{}]::text[]", list.strip_suffix(']').unwrap().replace('"', "'"));
    }
    match value.parse::<i64>() {
        Ok(_) => value.to_owned(),
        Err(_) => format!("'{}'", value.trim_matches('"')),
    }
}

/// Asserts that no table is scanned, and that no node had more rows than a search may read.
#[track_caller]
fn is_bounded(plan: &str, index: &str) {
    is_bounded_to(10_033, plan, index);
}

#[track_caller]
fn is_bounded_to(bound: u64, plan: &str, index: &str) {
    assert!(plan.contains(index), "not by {index}: {plan}");
    assert!(!plan.contains("Seq Scan"), "{plan}");
    let counts = plan.split("(actual rows=").skip(1);
    let most =
        counts.map(|rest| rest.split(' ').next().unwrap().parse::<f64>().unwrap() as u64).max();
    assert!(most.unwrap() <= bound, "{most:?} rows: {plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_search_walks_a_bounded_part_of_its_index_at_100_000_rows() {
    let _alone = alone().await;
    let db = filled().await;
    let engine = engine(&db, &App::default());
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    let of = |state| Filter::new().states([state]);
    let searches = [
        (Filter::waiting(), "atomic_phases_keys_waiting"),
        (of(State::Due), "atomic_phases_keys_due"),
        (Filter::new(), "atomic_phases_keys_expiry"),
        (of(State::Running), "atomic_phases_keys_expiry"),
        (Filter::new().stranded(), "atomic_phases_keys_waiting"),
    ];
    // A page that is full immediately, and one that finds nothing.
    for (number, (filter, index)) in searches.into_iter().enumerate() {
        for (kind, filter) in [
            ("full", filter.clone()),
            ("empty", filter.clone().reason(format!("marker-{number}"))),
            ("limited", filter.definition("book", Some(1)).scope(&Scope::new("tenant-7").unwrap())),
        ] {
            sent("");
            let mut page = ops.list(filter.clone().page(31)).await.unwrap();
            let is_full = kind == "full" && number < 3;
            // A deep page, from its cursor, costs as much as the first.
            for _ in 0..if is_full { 3 } else { 0 } {
                assert_eq!(page.rows.len(), 31);
                let behind = filter.clone().page(31).after(page.next.take().unwrap());
                page = ops.list(behind).await.unwrap();
            }
            let mine = sent("FROM atomic_phases_keys WHERE");
            assert!(!mine.is_empty(), "{kind}");
            for sql in mine.iter().filter(|sql| !sql.contains("idempotency_key = $")) {
                let plan = plan_of(&db, sql).await;
                let is_of_next = plan.contains("atomic_phases_keys_due");
                is_bounded(&plan, if is_of_next { "atomic_phases_keys_due" } else { index });
            }
        }
    }

    sent("");
    ops.counts().await.unwrap();
    let counts = sent("AS waiting,");
    let plan = plan_of(&db, &counts[0]).await;
    for index in ["keys_waiting", "keys_due", "staged_jobs_dead", "staged_jobs_due"] {
        is_bounded(&plan, index);
    }
    sent("");
    assert_eq!(ops.late_jobs(31).await.unwrap().len(), 31);
    let late = sent("ORDER BY run_after, scope");
    is_bounded(&plan_of(&db, &late[0]).await, "atomic_phases_staged_jobs_due");
    sent("");
    let mut census = Census::new(&engine, WorkerConfig::default());
    assert!(census.run_once().await.unwrap());
    let mut sent_by_census = sent("atomic_phases_");
    // The settings of each transaction.
    sent_by_census.retain(|sql| !sql.starts_with("SELECT set_config"));
    // The lease, the requests, the jobs, the processes.
    assert_eq!(sent_by_census.len(), 4, "{sent_by_census:#?}");
    assert!(
        sent_by_census[3].contains("FROM atomic_phases_nodes")
            && sent_by_census[3].contains("LIMIT 1000")
    );
    let (groups, jobs) = (&sent_by_census[1], &sent_by_census[2]);
    let plan = plan_of(&db, groups).await;
    // Of each index ten thousand.
    for index in ["keys_waiting", "keys_due"] {
        is_bounded_to(20_000, &plan, index);
    }
    let plan = plan_of(&db, jobs).await;
    for index in ["staged_jobs_due", "staged_jobs_dead"] {
        is_bounded(&plan, index);
    }
    sent("");
    Announcer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    let announced = sent("INSERT INTO atomic_phases_nodes");
    assert_eq!(announced.len(), 1, "a process says that it is there in one statement");
    sent("");
    ops.definitions().await.unwrap();
    let unfinished = sent("AS is_counted");
    assert_eq!(unfinished.len(), 1);
    let plan = plan_of(&db, &unfinished[0]).await;
    for index in ["keys_waiting", "keys_due"] {
        is_bounded_to(20_000, &plan, index);
    }
    sent("");
    let id = ops.list(Filter::new().page(1)).await.unwrap().rows[0].request_id;
    ops.show(id).await.unwrap();
    let found = sent("WHERE request_id = $");
    is_bounded(&plan_of(&db, &found[0]).await, "atomic_phases_keys_request");
    sent("");
    let job = ops.dead_jobs(None, 31).await.unwrap().rows[0].id;
    let jobs = sent("ORDER BY staged_at");
    is_bounded(&plan_of(&db, &jobs[0]).await, "atomic_phases_staged_jobs_dead_oldest");
    sent("");
    ops.discard_job(job, 0, "reason").await.unwrap();
    let found = sent("run_after IS NULL AND job_id = $");
    is_bounded(&plan_of(&db, &found[0]).await, "atomic_phases_staged_jobs_dead_id");
    sent("");
    db.sql(
        "INSERT INTO atomic_phases_audit (at, id, actor, act, outcome, reason, request_id) SELECT now() - \
         n * interval '1 second', gen_random_uuid(), 'eve', 'retry', 'applied', 'r', gen_random_uuid() \
         FROM generate_series(1, 100000) AS n; ANALYZE atomic_phases_audit",
    )
    .await;
    let found_none = AuditFilter::new().actor("bob").act("reveal");
    for (filter, index) in [
        (AuditFilter::new(), "atomic_phases_audit_pkey"),
        (found_none.clone(), "atomic_phases_audit_pkey"),
        (found_none.request(id), "atomic_phases_audit_request"),
    ] {
        sent("");
        ops.audit(filter, None, 31).await.unwrap();
        for audit in sent("FROM atomic_phases_audit") {
            is_bounded(&plan_of(&db, &audit).await, index);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_acts_are_found_by_their_indexes_at_20_000_of_them() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    db.sql(PLAN_OF).await;
    db.sql(
        "INSERT INTO atomic_phases_bulk (id, act, actor, reason, limits, items, started_at, ended_at) \
         SELECT gen_random_uuid(), 'retry', 'ada', 'r', '{\"only\":null,\"prefix\":\"\"}', 5, t, t \
         FROM (SELECT now() - n * interval '1 minute' AS t FROM generate_series(1, 20000) AS n) AS rows; \
         INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen, outcome) \
         SELECT id, n, gen_random_uuid(), 'seen', 'applied' FROM atomic_phases_bulk, generate_series(0, 4) AS n; \
         ANALYZE",
    )
    .await;
    let engine = engine(&db, &App::default());
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    sent("");
    let mut runner = BulkRunner::new(&engine, WorkerConfig::default());
    assert_eq!(runner.run_once().await.unwrap(), 0);
    let look = sent("FROM atomic_phases_bulk AS b");
    assert_eq!(look.len(), 1, "an idle worker sends one statement: {look:?}");
    is_bounded(&plan_of(&db, &look[0]).await, "atomic_phases_bulk_open");
    sent("");
    let bulks = ops.bulks(None, 100).await.unwrap().rows;
    assert_eq!((bulks.len(), bulks[0].applied), (100, 5));
    let list = sent("FROM atomic_phases_bulk AS b WHERE");
    assert_eq!(list.len(), 2, "the page, and how far those on it came: {list:?}");
    is_bounded(&plan_of(&db, &list[0]).await, "atomic_phases_bulk_started");
    is_bounded(&plan_of(&db, &list[1]).await, "atomic_phases_bulk_pkey");
    sent("");
    ops.bulk(bulks[7].id).await.unwrap();
    let one = sent("FROM atomic_phases_bulk_items WHERE");
    is_bounded(&plan_of(&db, &one[0]).await, "atomic_phases_bulk_items_pkey");
}

/// Of a thousand bulk acts, an operator of one scope may see every hundredth.
#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_a_bulk_act_are_counted_only_where_it_is_listed() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    db.sql(PLAN_OF).await;
    db.sql(
        "INSERT INTO atomic_phases_bulk (id, act, actor, reason, limits, items, started_at, ended_at) \
         SELECT gen_random_uuid(), 'retry', 'ada', 'r', CASE n % 100 WHEN 0 THEN '{\"only\":[\"tenant-1\"],\"prefix\":\"\"}' \
         ELSE '{\"only\":null,\"prefix\":\"\"}' END, 100, t, t \
         FROM (SELECT n, now() - n * interval '1 minute' AS t FROM generate_series(1, 1000) AS n) AS rows; \
         INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen, outcome) \
         SELECT id, n, gen_random_uuid(), 'seen', 'applied' FROM atomic_phases_bulk, generate_series(0, 99) AS n; \
         UPDATE atomic_phases_bulk SET ended_at = NULL WHERE started_at < now() - interval '900 minutes'; ANALYZE",
    )
    .await;
    let engine = engine(&db, &App::default());
    let one = Scopes::Only(vec![Scope::new("tenant-1").unwrap()]);
    for scopes in [one, Scopes::All] {
        let ops = engine.ops(Actor::new("bob", Permissions::admin(), scopes).unwrap());
        sent("");
        let bulks = ops.bulks(None, 5).await.unwrap().rows;
        assert_eq!(bulks.len(), 5);
        assert!(bulks.iter().all(|bulk| (bulk.settled, bulk.applied) == (100, 100)), "{bulks:?}");
        let statements = sent("FROM atomic_phases_bulk");
        // Once those that had their turn, and once those to which the act was applied.
        assert_eq!(items_read(&db, &statements).await, 2 * 100 * 5, "{statements:#?}");
    }
    sent("");
    // A worker looks at a hundred that are open.
    let mut runner = BulkRunner::new(&engine, WorkerConfig::default());
    runner.run_once().await.unwrap();
    let look = sent("ended_at IS NULL AND coalesce");
    assert_eq!(items_read(&db, &look[..1]).await, 0, "{look:#?}");
}

/// How many requests of bulk acts these statements read.
async fn items_read(db: &Postgres, statements: &[String]) -> u64 {
    let mut read = 0;
    for sql in statements {
        let plan = plan_of(db, sql).await;
        for line in plan.lines().filter(|line| line.contains(" on atomic_phases_bulk_items")) {
            let number = |before: &str| {
                let rest = line.split_once(before).unwrap().1;
                let end = rest.find([' ', ')']).unwrap();
                rest[..end].parse::<f64>().unwrap() as u64
            };
            read += number("actual rows=") * number("loops=");
        }
    }
    read
}

/// As docs/operating.md says: of values, only the row of one request is read.
#[tokio::test(flavor = "multi_thread")]
async fn g19_no_list_count_or_audit_reads_a_value() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let reads_values = || {
        let statements = sent("FROM atomic_phases_");
        assert!(!statements.is_empty());
        let values = ["params", "context", "outputs", "response_", "args"];
        // Without what it was sent with: the name of an act, for example.
        let forms = statements.iter().filter_map(|sql| sql.split(" -- binds: ").next());
        forms.into_iter().any(|sql| values.iter().any(|value| sql.contains(value)))
    };
    sent("");
    ops.list(Filter::new()).await.unwrap();
    ops.list(Filter::waiting().reason("r").scope(&scope())).await.unwrap();
    ops.counts().await.unwrap();
    ops.definitions().await.unwrap();
    ops.nodes().await.unwrap();
    ops.dead_jobs(None, 10).await.unwrap();
    ops.late_jobs(10).await.unwrap();
    ops.bulks(None, 10).await.unwrap();
    ops.audit(AuditFilter::new().act("reveal"), None, 10).await.unwrap();
    let listed = ops.list(Filter::new()).await.unwrap().rows.remove(0);
    for some in [
        Selection::Filter(Filter::new().states([State::Finished])),
        Selection::Requests(vec![listed.request_id]),
    ] {
        assert_eq!(ops.plan_bulk(BulkAct::Erase, &some).await.unwrap().count, 1);
    }
    assert!(!reads_values());
    let id = ops.find(&scope(), &key("k")).await.unwrap().request_id;
    assert!(reads_values());
    ops.show(id).await.unwrap();
    assert!(reads_values());
}
