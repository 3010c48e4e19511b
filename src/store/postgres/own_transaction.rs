//! What the statements of a phase's commit do in a transaction that is not the engine's, and what a deletion
//! does with a row that is not the one that was seen: nothing. Executed one by one, because whatever leads there
//! in practice is found before.

use std::time::Duration;

use chrono::Utc;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use uuid::Uuid;

use super::commit_statements::{
    Advance, AdvanceAndStage, AdvanceAndStageOne, AdvanceFirst, BornRow, Create, Made, UpdateRow,
};
use super::error::{Mark, is_of_the_server};
use super::session::{self, Known, KnownRow};
use super::sql;
use crate::caller::Caller;
use crate::definition::Isolation;
use crate::error::is_lost;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::store::{Birth, Change, Guard, NewRow, Settles, Status, Store};

struct Bench {
    scope: Scope,
    key: IdempotencyKey,
    url: String,
}

impl Bench {
    async fn new() -> Self {
        let url = tokio::task::spawn_blocking(crate::store::cluster::new_database).await.unwrap();
        crate::store::Postgres::connect(&url).await.unwrap().migrate().await.unwrap();
        let (scope, key) = (Scope::new("s").unwrap(), IdempotencyKey::new("k").unwrap());
        Self { scope, key, url }
    }

    async fn connect(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.url).await.unwrap()
    }

    /// A row in progress at `a`, of that id.
    fn row(&self, request_id: Uuid) -> NewRow<'_> {
        NewRow {
            scope: &self.scope,
            key: &self.key,
            request_id,
            definition: "d",
            version: 1,
            phases: "a",
            fingerprint: "v1:f",
            params: b"{}",
            context: None,
            trace: None,
            birth: Birth::Held(Duration::from_secs(60)),
            retention: Duration::from_secs(60),
            creation_wait: Duration::from_secs(1),
            caller: const { &Caller::here() },
            replaces: None,
        }
    }

    fn guard(&self, request_id: Uuid) -> Guard<'_> {
        let (scope, key, recovery_point) = (&self.scope, &self.key, "a");
        Guard { scope, key, request_id, lease_token: 1, recovery_point }
    }

    async fn point(&self, conn: &mut AsyncPgConnection) -> String {
        let read = sql::Read { scope: self.scope.as_str(), key: self.key.as_str() };
        let rows = read.load::<crate::store::row::Row>(conn).await.unwrap();
        rows.into_iter().next().map_or_else(String::new, |row| row.1.1)
    }

    /// The row, created in a transaction of the engine's.
    async fn created(&self, conn: &mut AsyncPgConnection) -> Uuid {
        let id = Uuid::new_v4();
        begun_by_the_engine(conn).await;
        let row = BornRow::new(&self.row(id), Utc::now(), &to("a"));
        Create { row }.load::<Made>(conn).await.unwrap();
        conn.batch_execute("COMMIT").await.unwrap();
        id
    }
}

fn to(recovery_point: &str) -> Change<'_> {
    Change {
        status: Status::InProgress,
        recovery_point,
        outputs: None,
        open_intent: None,
        hold: Some(Duration::from_secs(60)),
        resolution: None,
        settles: Settles::Nothing,
        reason: None,
        forgiven_attempts: 0,
        was_no_attempt: false,
        response: None,
        keep_for: None,
        event: None,
    }
}

async fn begun_by_the_engine(conn: &mut AsyncPgConnection) -> Known {
    sql::Begin(Isolation::ReadCommitted).execute(conn).await.unwrap();
    session::MarkTransactionAndJobs {}.execute(conn).await.unwrap();
    let rows = session::Know {}.load::<KnownRow>(conn).await.unwrap();
    let (number, jobs, _) = rows.into_iter().next().unwrap();
    Known { number, jobs }
}

/// A transaction that other code began after the engine's, which is over.
async fn begun_by_another(conn: &mut AsyncPgConnection) -> Known {
    let known = begun_by_the_engine(conn).await;
    conn.batch_execute("COMMIT; BEGIN").await.unwrap();
    known
}

#[tokio::test]
async fn g4_what_ends_a_batch_is_an_error_in_another_transaction_than_the_engines() {
    let bench = Bench::new().await;
    let mut conn = bench.connect().await;
    begun_by_the_engine(&mut conn).await;
    assert_eq!(session::StillOurs {}.load::<i32>(&mut conn).await.unwrap(), [1]);
    conn.batch_execute("ROLLBACK").await.unwrap();
    begun_by_another(&mut conn).await;
    let error = session::StillOurs {}.load::<i32>(&mut conn).await.unwrap_err();
    assert_eq!(Mark::of(&error), Some(Mark::Left), "{error:?}");
    conn.batch_execute("ROLLBACK").await.unwrap();
    // Nor is there one at all.
    let error = session::StillOurs {}.load::<i32>(&mut conn).await.unwrap_err();
    assert_eq!(Mark::of(&error), Some(Mark::Left), "{error:?}");
}

#[tokio::test]
async fn g4_a_recovery_point_is_committed_in_the_engines_transaction_only() {
    let bench = Bench::new().await;
    let mut conn = bench.connect().await;
    let id = bench.created(&mut conn).await;
    let change = to("b");
    let update = || UpdateRow::new(&bench.guard(id), &change);

    let (name, args) = ("n".to_owned(), vec![]);
    let jobs = [StagedJob { id: Uuid::new_v4(), name, position: 1, args, trace: None }];
    for stages in 0..3 {
        let known = begun_by_another(&mut conn).await;
        let guard = bench.guard(id);
        let advance = Advance::new(&guard, &change, &known);
        let error = match stages {
            0 => advance.load::<i32>(&mut conn).await.unwrap_err(),
            1 => {
                let advance = AdvanceAndStageOne::new(advance, &guard, &jobs[0]);
                advance.load::<i32>(&mut conn).await.unwrap_err()
            }
            _ => {
                let advance = AdvanceAndStage::new(advance, &guard, &jobs);
                advance.load::<i32>(&mut conn).await.unwrap_err()
            }
        };
        assert_eq!(Mark::of(&error), Some(Mark::Left), "{error:?}");
        conn.batch_execute("COMMIT").await.unwrap();
        assert_eq!(bench.point(&mut conn).await, "a");
    }

    // In front of the phase's statements: they must not come to run by themselves, so that the connection ends.
    let mut other = bench.connect().await;
    begun_by_another(&mut other).await;
    let first = AdvanceFirst { update: update() };
    assert!(first.load::<i32>(&mut other).await.is_err());
    assert!(other.batch_execute("COMMIT").await.is_err(), "the server reads no more of it");
    assert_eq!(bench.point(&mut conn).await, "a");

    begun_by_the_engine(&mut conn).await;
    assert_eq!(AdvanceFirst { update: update() }.load::<i32>(&mut conn).await.unwrap(), [1]);
    conn.batch_execute("COMMIT").await.unwrap();
    assert_eq!(bench.point(&mut conn).await, "b");
}

#[tokio::test]
async fn g4_a_row_is_created_in_the_engines_transaction_only() {
    let bench = Bench::new().await;
    let mut conn = bench.connect().await;
    begun_by_another(&mut conn).await;
    let row = BornRow::new(&bench.row(Uuid::new_v4()), Utc::now(), &to("a"));
    assert!(Create { row }.load::<Made>(&mut conn).await.is_err());
    assert!(conn.batch_execute("COMMIT").await.is_err(), "the server reads no more of it");
    let mut conn = bench.connect().await;
    assert_eq!(bench.point(&mut conn).await, "", "there is no row");
}

/// Between the search for expired rows and the deletion of one, the key may have begun another life, and an
/// operator or a late write may have moved the row's expiry.
#[tokio::test]
async fn g15_a_row_is_reaped_only_as_it_was_found() {
    let bench = Bench::new().await;
    let mut conn = bench.connect().await;
    let id = bench.created(&mut conn).await;
    let (scope, key) = (bench.scope.as_str(), bench.key.as_str());
    let reaped = async |conn: &mut AsyncPgConnection, request_id| {
        let reap = sql::Reap { scope, key, request_id };
        reap.execute(conn).await.unwrap()
    };
    let set = async |conn: &mut AsyncPgConnection, columns: &str| {
        conn.batch_execute(&("UPDATE atomic_phases_keys SET ".to_owned() + columns)).await.unwrap();
    };
    set(&mut conn, "expires_at = created_at").await;
    for status in ["pending", "in_progress", "failed_retryable", "unknown", "dead_letter"] {
        set(&mut conn, &("status = '".to_owned() + status + "'")).await;
        assert_eq!(reaped(&mut conn, id).await, 0, "{status}");
    }
    set(&mut conn, "status = 'completed', expires_at = clock_timestamp() + interval '1 minute'")
        .await;
    assert_eq!(reaped(&mut conn, id).await, 0, "its retention was prolonged");
    set(&mut conn, "expires_at = created_at").await;
    assert_eq!(reaped(&mut conn, Uuid::new_v4()).await, 0, "another life of the key");
    let mut aside = bench.connect().await;
    aside.batch_execute("BEGIN; SELECT * FROM atomic_phases_keys FOR UPDATE").await.unwrap();
    assert_eq!(reaped(&mut conn, id).await, 0, "another session has it");
    aside.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(reaped(&mut conn, id).await, 1);
}

/// By it a commit's outcome is unknown (G7), and a connection does not go back to its pool.
#[tokio::test]
async fn g7_a_connection_that_the_server_ended_is_told_from_a_refused_statement() {
    let bench = Bench::new().await;
    let mut conn = bench.connect().await;
    let refused = conn.batch_execute("SELECT 1 / 0").await.unwrap_err();
    assert!(!is_lost(&refused) && is_of_the_server(&refused), "{refused:?}");
    let mut killer = bench.connect().await;
    let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    killer.batch_execute(others).await.unwrap();
    // The first statement may hear of it in the server's words; the next has no connection.
    let _ = conn.batch_execute("SELECT 1").await;
    let lost = conn.batch_execute("SELECT 1").await.unwrap_err();
    assert!(is_lost(&lost) && !is_of_the_server(&lost), "{lost:?}");
}
