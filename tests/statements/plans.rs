//! A statement that is sent for each request is planned once for each connection, and not each time.

use crate::one_job::stages_one;
use crate::recorded::alone;
use crate::support::db::{open_pg, url_of};
use crate::support::work::config;
use crate::support::*;
use atomic_phases::worker::{Completer, DeliveryError, Enqueuer, Job, JobSink};
use atomic_phases::{Engine, PhaseResult, Postgres, Reply, Tx, atomic_phases};

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
        for form in [Form::InTurn, Form::AsOne] {
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
