//! What SQLite makes of the statements that go on behind a place of an index, and of those of operators.

use diesel::query_builder::QueryFragment;
use diesel::sql_types::Text;
use diesel::sqlite::Sqlite as Db;
use diesel::{Connection, QueryableByName, RunQueryDsl, SqliteConnection};
use diesel_migrations::MigrationHarness;
use uuid::Uuid;

use super::{MIGRATIONS, ops_statements as ops, statements as sql};
use crate::store::ExpiryPlace;
use crate::store::audit::AuditSearch;
use crate::store::in_millis::Allowed;
use crate::store::in_millis::bulk::{Bulks, CountedBulks};
use crate::store::in_millis::census::Groups;
use crate::store::in_millis::jobs::{DeadJobsAfter, EndOfDeadJobs, LateJobs};
use crate::store::operators::{ListRequests, ScopeLimits, Walk};

#[derive(QueryableByName)]
struct Line {
    #[diesel(sql_type = Text)]
    detail: String,
}

fn migrated() -> SqliteConnection {
    let mut conn = SqliteConnection::establish(":memory:").unwrap();
    conn.run_pending_migrations(MIGRATIONS).unwrap();
    conn
}

/// Its plan, line by line.
fn plan_of<T: QueryFragment<Db>>(conn: &mut SqliteConnection, statement: &T) -> Vec<String> {
    let text = diesel::debug_query::<Db, _>(statement).to_string();
    let text = text.split(" -- binds:").next().unwrap_or_default();
    let plan = ["EXPLAIN QUERY PLAN ", text].concat();
    let plan = diesel::sql_query(plan).load::<Line>(conn).unwrap();
    plan.into_iter().map(|line| line.detail).collect()
}

/// By the comparison of rows, and not by the first column's bound, which MySQL needs: of ten thousand rows of one moment
/// each page would read all that were read before it.
#[test]
fn a_page_is_read_from_its_place_on() {
    let mut conn = migrated();
    let (scope, key, request_id) = (String::new(), String::new(), Vec::new());
    let allowed = Allowed::by::<Db>(&ScopeLimits::default());
    macro_rules! searches {
        ($statement:expr, $by:literal) => {
            let plan = plan_of(&mut conn, &$statement);
            assert!(
                plan.iter().any(|line| line.contains($by)),
                "{}: {plan:#?}",
                stringify!($statement)
            );
        };
    }
    searches!(
        sql::DueJobs {
            run_after: 0,
            scope: scope.clone(),
            request_id: request_id.clone(),
            position: 0,
            limit: 1
        },
        "(run_after,scope,request_id,position)>(?,?,?,?)"
    );
    searches!(
        sql::DueKeys { grace_ms: 0, run_after: 0, scope, key, limit: 1 },
        "(run_after,scope,idempotency_key)>(?,?,?)"
    );
    searches!(sql::ExpiredKeys::after(&ExpiryPlace::default(), 1), "atomic_phases_keys_expiry");
    let place = ExpiryPlace::default();
    searches!(
        sql::Reap { completed: sql::CompletedBetween::new(&place, &place) },
        "atomic_phases_keys_expiry (expires_at>? AND expires_at<?)"
    );
    searches!(
        DeadJobsAfter { staged_at: 0, id: request_id.clone(), allowed, limit: 1 },
        "(staged_at,job_id)>(?,?)"
    );
    searches!(Bulks { started_at: 0, id: request_id.clone(), limit: 1 }, "(started_at,id)<(?,?)");
    searches!(EndOfDeadJobs { staged_at: 0, id: request_id }, "(staged_at,job_id)>(?,?)");
}

/// How a statement comes to the rows of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// From a place of the index on.
    From,
    /// From either of its ends on.
    Along,
}

/// Whether it reads a table from end to end. What is scanned besides are the rows that were found, and a list that was
/// bound. `i`: the items of a bulk act.
fn is_bare(line: &str) -> bool {
    let table = line.strip_prefix("SCAN ").and_then(|scan| scan.split(' ').next());
    let is_table = |name: &str| name.starts_with("atomic_phases_") || name == "i";
    table.is_some_and(is_table) && !line.contains(" INDEX ")
}

/// The rows are read by this index, and no table is read from end to end.
#[track_caller]
fn goes_by(plan: &[String], how: Goes, index: &str) {
    let is_good = plan.iter().any(|line| {
        let is_from_a_place = line.starts_with("SEARCH ") || how == Goes::Along;
        is_from_a_place && line.split_whitespace().any(|word| word == index)
    });
    assert!(is_good, "{index}: {plan:#?}");
    assert!(!plan.iter().any(|line| is_bare(line)), "{index}: {plan:#?}");
}

/// The driver interrupts no statement: that a search looks at ten thousand rows is its only bound.
#[test]
fn a_search_of_operators_goes_by_an_index() {
    let mut conn = migrated();
    let limits = ScopeLimits { only: Some(vec!["tenant-1".to_owned()]), ..ScopeLimits::default() };
    for (walk, index) in [
        (Walk::Waiting, "atomic_phases_keys_waiting"),
        (Walk::Due, "atomic_phases_keys_due"),
        (Walk::Newest, "atomic_phases_keys_expiry"),
    ] {
        let mut list = ListRequests::of(walk, walk.start(), limits.clone());
        list.states = Some(vec!["unknown".to_owned()]);
        list.reason = Some("no answer".to_owned());
        goes_by(&plan_of(&mut conn, &ops::List::new::<Db>(&list)), Goes::From, index);
        goes_by(&plan_of(&mut conn, &ops::EndOfLook::new(&list)), Goes::From, index);
    }

    for (of, index) in [
        // The primary key.
        (None, "sqlite_autoindex_atomic_phases_audit_1"),
        (Some(Uuid::nil()), "atomic_phases_audit_request"),
    ] {
        let search = AuditSearch { actor: Some("ada".to_owned()), ..AuditSearch::of_request(of) };
        let audit = ops::Audit::new::<Db>(&search, (0, Vec::new()), &limits, 1);
        goes_by(&plan_of(&mut conn, &audit), Goes::From, index);
        let end = ops::EndOfAudit::new(&search, (0, Vec::new()));
        goes_by(&plan_of(&mut conn, &end), Goes::From, index);
    }

    let by_ids = plan_of(&mut conn, &ops::ByIds::new::<Db>(&[Uuid::nil()], &limits));
    goes_by(&by_ids, Goes::From, "atomic_phases_keys_request");

    let bulks = plan_of(&mut conn, &Bulks { started_at: 0, id: Vec::new(), limit: 1 });
    let counted = plan_of(&mut conn, &CountedBulks::of::<Db>(&[]));
    for plan in [bulks, counted] {
        goes_by(&plan, Goes::From, "atomic_phases_bulk_started");
    }

    let count = plan_of(&mut conn, &ops::Count::new::<Db>(&limits));
    let groups = plan_of(&mut conn, &Groups::of::<Db>(&limits, "paused"));
    for index in ["atomic_phases_keys_waiting", "atomic_phases_keys_due"] {
        goes_by(&count, Goes::Along, index);
        goes_by(&groups, Goes::Along, index);
    }
    let allowed = Allowed::by::<Db>(&limits);
    let late = plan_of(&mut conn, &LateJobs { late_ms: 1, allowed, limit: 1 });
    for plan in [count, late] {
        goes_by(&plan, Goes::From, "atomic_phases_staged_jobs_due");
    }
}

#[test]
fn a_plan_without_an_index_is_seen() {
    for bare in ["SCAN atomic_phases_keys", "SCAN i"] {
        assert!(is_bare(bare), "{bare}");
    }
    for bounded in [
        "SCAN atomic_phases_keys USING INDEX atomic_phases_keys_expiry",
        "SEARCH b USING COVERING INDEX atomic_phases_bulk_started ((started_at,id)<(?,?))",
        "SCAN b",
        "SCAN looked",
        "SCAN json_each VIRTUAL TABLE INDEX 1:",
    ] {
        assert!(!is_bare(bounded), "{bounded}");
    }
}
