//! What SQLite makes of the statements that go on behind a place of an index.

use diesel::sql_types::Text;
use diesel::sqlite::Sqlite as Db;
use diesel::{Connection, QueryableByName, RunQueryDsl, SqliteConnection};
use diesel_migrations::MigrationHarness;

use super::{MIGRATIONS, statements as sql};
use crate::store::in_millis::Allowed;
use crate::store::in_millis::bulk::{Bulks, UncountedBulks};
use crate::store::in_millis::jobs::{DeadJobsAfter, EndOfDeadJobs};
use crate::store::operators::Limits;

#[derive(QueryableByName)]
struct Line {
    #[diesel(sql_type = Text)]
    detail: String,
}

/// By the comparison of rows, and not by the first column's bound, which MySQL needs: of ten thousand rows of one moment
/// each page would read all that were read before it.
#[test]
fn a_page_is_read_from_its_place_on() {
    let mut conn = SqliteConnection::establish(":memory:").unwrap();
    conn.run_pending_migrations(MIGRATIONS).unwrap();
    let (scope, key, request_id) = (String::new(), String::new(), Vec::new());
    let allowed = Allowed::by::<Db>(&Limits::default());
    macro_rules! searches {
        ($statement:expr, $by:literal) => {
            let text = diesel::debug_query::<Db, _>(&$statement).to_string();
            let text = text.split(" -- binds:").next().unwrap_or_default();
            let plan = ["EXPLAIN QUERY PLAN ", text].concat();
            let plan = diesel::sql_query(plan).load::<Line>(&mut conn).unwrap();
            let plan: Vec<_> = plan.into_iter().map(|line| line.detail).collect();
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
        sql::DueKeys { grace_ms: 0, run_after: 0, scope: scope.clone(), key, limit: 1 },
        "(run_after,scope,idempotency_key)>(?,?,?)"
    );
    searches!(
        sql::ListDeadJobs { scope, job_id: request_id.clone(), limit: 1 },
        "(scope,job_id)>(?,?)"
    );
    searches!(
        DeadJobsAfter { staged_at: 0, id: request_id.clone(), allowed, limit: 1 },
        "(staged_at,job_id)>(?,?)"
    );
    searches!(Bulks { started_at: 0, id: request_id.clone(), limit: 1 }, "(started_at,id)<(?,?)");
    searches!(
        UncountedBulks { started_at: 0, id: request_id.clone(), limit: 1 },
        "(started_at,id)<(?,?)"
    );
    searches!(EndOfDeadJobs { staged_at: 0, id: request_id }, "(staged_at,job_id)>(?,?)");
}
