//! A statement that is sent for each request is planned once for each connection, and not each time; and so that the
//! plan serves any number of rows.

use crate::hot::plan_of;
use crate::one_job::stages_one;
use crate::recorded::{alone, sent};
use crate::support::db::{open_pg, url_of};
use crate::support::work::{config, dies_in_its_call};
use crate::support::*;
use atomic_phases::store::Postgres;
use atomic_phases::worker::{Completer, DeliveryError, Enqueuer, Job, JobSink};
use atomic_phases::{Engine, PhaseResult, Reply, Tx, atomic_phases};

/// The statements that the session of the phase has prepared and that the server plans anew for each set of values,
/// and whether the server made a generic plan in the end: it compares the costs five times.
#[derive(serde::Serialize, serde::Deserialize)]
struct Planned {
    once: bool,
}

#[atomic_phases(name = "planned", version = 1)]
impl Planned {
    #[phase]
    async fn looked(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        use diesel_async::RunQueryDsl;
        let is = if self.once { "generic_plans > 0" } else { "custom_plans > 5" };
        let texts = diesel::dsl::sql::<diesel::sql_types::Text>(&format!(
            "coalesce((SELECT string_agg(statement, E'\\n\\n') FROM pg_prepared_statements \
             WHERE statement LIKE '%atomic_phases%' AND {is}), '')"
        ));
        Ok(Reply::text(200, diesel::select(texts).get_result::<String>(tx).await?))
    }
}

/// For an unknown value, the server estimates the number of rows. If the estimate is large, each custom plan looks
/// cheaper, and planning such a statement takes longer than running it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_sends_is_planned_once_for_a_connection() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let one = open_pg(&url_of(&db), 1).await;
    let engine = engine(&one, &app);
    for round in 0..12 {
        stages_one(&one, &format!("one-job-{round}")).await;
        let name = |what: &str| key(&format!("{what}-{round}"));
        for _ in 0..2 {
            finished(engine.call(&scope(), &name("tx"), book(20)).await);
        }
        for form in [Form::OneByOne, Form::SingleStatement] {
            let name = name(&format!("{form:?}"));
            finished(engine.call(&scope(), &name, form.parcel(Trouble::None)).await);
        }
        finished(engine.call(&scope(), &name("once"), notify(Trouble::None)).await);
    }
    let kinds = [
        "WITH begun",
        "WITH advanced",
        "staged AS (INSERT",
        "FROM atomic_phases_key RETURNING job_id",
        "WITH atomic_phases_key",
    ];
    all_planned_once(one, &kinds).await;
}

struct Accepting;

impl JobSink for Accepting {
    async fn deliver(&self, _: &Job) -> Result<(), DeliveryError> {
        Ok(())
    }
}

/// For any number of rows in one statement, even one.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_workers_send_is_planned_once_for_a_connection() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let one = open_pg(&url_of(&db), 1).await;
    let engine = engine(&one, &App::default());
    for round in 0..20 {
        for number in 0..4 {
            let name = key(&format!("accepted-{round}-{number}"));
            engine.call(&scope(), &name, book(20)).accept().await.unwrap();
        }
        let mut completer = Completer::new(&engine, config().concurrency(8));
        assert_eq!(completer.run_once().await.unwrap().finished, 4);
        Enqueuer::new(&engine, Accepting, config().concurrency(8)).run_once().await.unwrap();
    }
    let kinds = ["SELECT given.number, k.*", "given.retention_ms", "run_after = clock.lease_ends"];
    all_planned_once(one, &kinds).await;
}

/// Asserts this for everything that the pool's only session has prepared for the engine, which must include these
/// kinds.
async fn all_planned_once(one: Postgres, kinds: &[&str]) {
    let looks = Engine::builder(one).register::<Planned>().build().unwrap();
    let told = async |once| {
        let name = key(&format!("planned-{once}"));
        let reply = finished(looks.call(&scope(), &name, Planned { once }).await).reply;
        String::from_utf8(reply.bytes().to_vec()).unwrap()
    };
    let once = told(true).await;
    for kind in kinds {
        assert!(once.contains(kind), "no {kind} in {once}");
    }
    assert_eq!(told(false).await, "");
}

/// A connection keeps its plans, and may have planned while the tables had a few rows. In the tables as they are later,
/// each row is looked up by a condition: else a statement about three hundred rows reads ninety thousand, and one in a
/// large table gets no answer in time.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_planned_for_small_tables_serves_when_they_have_grown() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    sent();
    for number in 0..4 {
        let name = key(&format!("accepted-{number}"));
        engine.call(&scope(), &name, book(20)).accept().await.unwrap();
        dies_in_its_call(&engine, &format!("abandoned-{number}"), book(20)).await;
    }
    db.let_time_pass().await;
    Completer::new(&engine, config().concurrency(8)).run_once().await.unwrap();
    Enqueuer::new(&engine, Accepting, config().concurrency(8)).run_once().await.unwrap();
    let sent = sent();
    let job = "text[], uuid[], bigint[], integer[]";
    let about_many = [
        ("run_after = locked_until", "text[], text[], uuid[], bigint[]".to_owned()),
        (
            "given.retention_ms",
            "text[], text[], uuid[], bigint[], text[], text[], text[], bigint[], bigint[], boolean[], text[], bytea[]".to_owned(),
        ),
        ("run_after = clock.lease_ends", format!("{job}, bigint")),
        ("WITH ended", job.to_owned()),
        ("SELECT given.number, k.*", "text[], text[]".to_owned()),
    ];
    let tables = ["atomic_phases_keys", "atomic_phases_staged_jobs"];
    for (state, rows) in [("never vacuumed", 4), ("vacuumed", 4), ("vacuumed", 0)] {
        for table in tables {
            db.sql(&format!("TRUNCATE {table}")).await;
        }
        for number in 0..rows {
            finished(engine.call(&scope(), &key(&format!("few-{number}")), book(20)).await);
        }
        for table in tables.iter().filter(|_| state == "vacuumed") {
            db.sql(&format!("VACUUM ANALYZE {table}")).await;
        }
        for (kind, types) in &about_many {
            let is_one =
                |two: &&[String]| two[0].contains("'force_generic_plan'") && two[1].contains(kind);
            let two = sent.windows(2).find(is_one);
            let [settings, sql] = two.unwrap_or_else(|| panic!("no {kind} in {sent:#?}")) else {
                unreachable!()
            };
            let settings = settings.split("-- binds:").next().unwrap_or(settings);
            let plan = plan_of(&db, settings, &format!("({types})"), sql).await;
            let whole = read_without_the_key(&plan);
            assert_eq!(whole, Vec::<&str>::new(), "{rows} rows, {state}: {sql}\n{plan}");
        }
    }
}

/// The nodes of a plan that find rows of the engine's tables otherwise than by a key: of a request, its scope and key,
/// or its id. What is due, or dead, are any number of rows.
fn read_without_the_key(plan: &str) -> Vec<&str> {
    let lines: Vec<&str> = plan.lines().collect();
    let reads = |line: &str| {
        let is_scan =
            ["Seq Scan on", "Index Scan using", "Index Only Scan using", "Bitmap Index Scan on"];
        line.contains("atomic_phases_") && is_scan.iter().any(|scan| line.contains(scan))
    };
    let is_by_key = |line: &str, next: &str| {
        let of_one = [
            "atomic_phases_keys_pkey",
            "atomic_phases_keys_request",
            "atomic_phases_staged_jobs_pkey",
        ];
        let given = ["Index Cond: ((scope = ", "Index Cond: (request_id = "];
        of_one.iter().any(|index| line.contains(index)) && given.iter().any(|by| next.contains(by))
    };
    let is_whole = |(place, line): &(usize, &&str)| {
        reads(line) && !is_by_key(line, lines.get(place + 1).unwrap_or(&""))
    };
    lines.iter().enumerate().filter(is_whole).map(|(_, line)| *line).collect()
}

#[test]
fn a_read_of_a_whole_index_is_seen() {
    let looked_up = "Nested Loop\n  ->  Index Scan using atomic_phases_keys_pkey on atomic_phases_keys k\n        \
        Index Cond: ((scope = $1) AND (idempotency_key = $2))\n";
    assert_eq!(read_without_the_key(looked_up), Vec::<&str>::new());
    for whole in [
        "Nested Loop\n  ->  Index Scan using atomic_phases_keys_request on atomic_phases_keys k\n        Filter: (a IS NULL)\n",
        "  ->  Bitmap Index Scan on atomic_phases_staged_jobs_due\n        Index Cond: (scope = $1)\n",
        "Seq Scan on atomic_phases_keys",
    ] {
        assert_eq!(read_without_the_key(whole).len(), 1, "{whole}");
    }
}

/// Of requests that a dead process has left, hundreds at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_statement_about_many_rows_reads_grows_with_their_number() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = engine(&db, &app);
    let mut buffers = Vec::new();
    for many in [50, 400] {
        for number in 0..many {
            dies_in_its_call(&engine, &format!("{many}-{number}"), book(20)).await;
        }
        db.let_time_pass().await;
        db.sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await;
        db.sql("SELECT pg_stat_statements_reset()").await;
        let another = crate::support::engine(&db.another().await, &app);
        let swept = Completer::new(&another, config().batch(500)).run_once().await.unwrap();
        assert_eq!(swept.finished, many);
        let read = "SELECT max(shared_blks_hit + shared_blks_read)::bigint AS n FROM pg_stat_statements \
            WHERE query LIKE '%run_after = locked_until%' AND query LIKE 'WITH given%'";
        buffers.push(db.number(read).await / i64::from(many));
    }
    assert!(buffers.iter().all(|each| (1..100).contains(each)), "{buffers:?} buffers for each row");
}
