//! Batches that the server executes late, for longer than a lease, or not at all.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::batch::mood::{Glad, moods};
use super::races::{Begun, Gate, WAITING};
use crate::support::db::{open_pg, url_of};
use crate::support::proxy::{Cut, Proxy, port_of};
use crate::support::*;
use atomic_phases::engine::FailureCause;
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::Postgres;
use atomic_phases::{
    Batch, Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, RequestContext,
    atomic_phases,
};
use diesel_async::SimpleAsyncConnection;

/// Two first phases that lock the same rows in different orders: the one that the server aborts runs again.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_deadlock_in_a_first_batch_is_run_again() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TABLE pair (id int PRIMARY KEY, n int); INSERT INTO pair VALUES (1, 0), (2, 0)")
        .await;
    let engine = Engine::builder(db.clone()).register::<Crossing>().build().unwrap();
    let one = tokio::spawn(engine.call(&scope(), &key("one"), Crossing([1, 2])).into_future());
    let two = tokio::spawn(engine.call(&scope(), &key("two"), Crossing([2, 1])).into_future());
    finished(one.await.unwrap());
    finished(two.await.unwrap());
    assert_eq!(db.number("SELECT sum(n) FROM pair").await, 4);
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Crossing([i32; 2]);

#[atomic_phases(name = "crossing", version = 1)]
impl Crossing {
    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        for id in self.0 {
            let sql = format!("UPDATE pair SET n = n + 1 WHERE id = {id}");
            batch.add(diesel::sql_query(sql));
            batch.add(diesel::sql_query("SELECT pg_sleep(0.5)"));
        }
        Ok(Reply::new(204))
    }
}

/// How the statements of a batch travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Travel {
    SingleStatement,
    InOrder,
    /// One of them has a type of the application's, so nothing is sent before the answer to what stands in front of it.
    OneByOne,
}

macro_rules! slow {
    ($module:ident, $first:literal, $last:literal) => {
        mod $module {
            use super::*;

            /// Adds this statement to its first or its last batch. Counts how often that phase has run.
            #[derive(Clone, serde::Serialize, serde::Deserialize)]
            pub struct Slow {
                pub first: Option<String>,
                pub last: Option<String>,
                pub(super) travel: Travel,
            }

            #[atomic_phases(name = "slow", version = 1, app = Gate)]
            impl Slow {
                #[phase(timeout = $first)]
                async fn begun(
                    &self,
                    batch: &mut Batch<'_, Postgres>,
                    gate: &Gate,
                ) -> PhaseResult<Begun> {
                    add(batch, gate, self.travel, self.first.as_deref());
                    Ok(Begun)
                }

                #[phase(commit, timeout = $last)]
                async fn answered(
                    &self,
                    batch: &mut Batch<'_, Postgres>,
                    gate: &Gate,
                ) -> PhaseResult<Reply> {
                    add(batch, gate, self.travel, self.last.as_deref());
                    Ok(Reply::new(204))
                }
            }
        }
    };
}

slow!(impatient_first, "1s", "1m");
slow!(impatient_last, "1m", "1s");
slow!(patient, "1m", "1m");

fn add(batch: &mut Batch<'_, Postgres>, gate: &Gate, travel: Travel, slow: Option<&str>) {
    use diesel::ExpressionMethods;
    gate.bodies.fetch_add(u32::from(slow.is_some()), Ordering::SeqCst);
    if travel == Travel::OneByOne && slow.is_some() {
        let row = (moods::id.eq("k"), moods::mood.eq(Glad));
        batch.add(diesel::insert_into(moods::table).values(row));
    }
    let slow = slow.unwrap_or("''");
    batch.add(diesel::sql_query(format!("INSERT INTO steps SELECT 'k', {slow}")));
    if travel == Travel::InOrder {
        batch.add(diesel::sql_query("SELECT nextval('times')"));
    }
}

/// G17: a batch past its time limit is not committed and not run again by itself, and the error names phase and
/// limit.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_batch_past_its_time_limit_is_not_run_again() {
    let db = Postgres::fresh().await;
    db.sql("CREATE SEQUENCE times").await;
    for travel in [Travel::InOrder, Travel::SingleStatement] {
        are_not_run_again(&db, travel).await;
    }
}

/// G17: the same where nothing of it is sent before the answer to what stands in front of it.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_batch_that_travels_one_by_one_is_not_run_again_past_its_time_limit() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TYPE mood AS ENUM ('glad'); CREATE TABLE moods (id text, mood mood)").await;
    are_not_run_again(&db, Travel::OneByOne).await;
    assert_eq!(db.number("SELECT count(*) FROM moods").await, 0);
}

/// A slow first phase and a slow last one.
async fn are_not_run_again(db: &Postgres, travel: Travel) {
    let slow = || Some("pg_sleep(30)::text".to_owned());
    let first = impatient_first::Slow { first: slow(), last: None, travel };
    is_not_run_again(db, "begun", &format!("f-{travel:?}"), first).await;
    let last = impatient_last::Slow { first: None, last: slow(), travel };
    is_not_run_again(db, "answered", &format!("l-{travel:?}"), last).await;
}

/// It is this phase that is slow.
async fn is_not_run_again<R: RequestDefinition<Postgres, Gate>>(
    db: &Postgres,
    phase: &'static str,
    name: &str,
    request: R,
) {
    db.sql("TRUNCATE steps").await;
    let gate = Gate::default();
    let engine = Engine::builder(db.clone()).app(gate.clone()).register::<R>().build().unwrap();
    let cause = failed(engine.call(&scope(), &key(name), request).await);
    let limit = Duration::from_secs(1);
    assert_eq!(cause, FailureCause::TimeLimit { phase, limit }, "{name}");
    assert_eq!(gate.bodies.load(Ordering::SeqCst), 1, "{name}");
    let begun = i64::from(phase == "answered");
    assert_eq!(db.number("SELECT count(*) FROM steps").await, begun, "{name}");
}

/// G3: a batch within its time limit may take longer than the lease, because it holds the row's lock meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_batch_may_be_longer_than_its_lease() {
    use patient::Slow;
    let db = Postgres::fresh().await;
    db.sql("CREATE SEQUENCE times").await;
    for travel in [Travel::InOrder, Travel::SingleStatement] {
        let mut aside = crate::support::db::pg(&url_of(&db)).await;
        aside.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        let gate = Gate::default();
        let engine = Engine::builder(db.clone()).app(gate.clone()).register::<Slow>();
        let engine = engine.lease(Duration::from_millis(400)).build().unwrap();
        let name = key(&format!("k-{travel:?}"));
        // Until the test unlocks it.
        let last = Some("pg_advisory_xact_lock(7)::text".to_owned());
        let request = Slow { first: None, last, travel };
        let call = tokio::spawn(engine.call(&scope(), &name, request.clone()).into_future());
        let in_its_batch = format!("{WAITING} AND wait_event = 'advisory'");
        until(async || db.number(&in_its_batch).await == 1).await;
        let expired =
            "SELECT count(*) FROM atomic_phases_keys WHERE locked_until < clock_timestamp()";
        until(async || {
            let has_expired = db.number(expired).await > 0;
            let is_waited_for = db.number(WAITING).await > 1;
            assert!(has_expired || !is_waited_for, "a connection waits for the row");
            has_expired
        })
        .await;
        let told = engine.call(&scope(), &name, request).await;
        assert!(matches!(told, Ok(Outcome::InProgress { .. })), "{told:?}");
        aside.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
        finished(call.await.unwrap());
        assert_eq!(gate.bodies.load(Ordering::SeqCst), 1);
        db.sql("TRUNCATE steps; DELETE FROM atomic_phases_keys").await;
    }
}

/// A request whose first batch waits for the test, longer than its time limit.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Landing {
    waits: bool,
    in_order: bool,
}

#[atomic_phases(name = "landing", version = 1, app = Gate)]
impl Landing {
    #[phase(timeout = "5s")]
    async fn begun(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Begun> {
        let lock = if self.waits { "pg_advisory_xact_lock(7)::text" } else { "''" };
        let sql = format!("INSERT INTO steps SELECT 'begun', {lock}");
        batch.add(diesel::sql_query(sql));
        if self.in_order {
            let sql = "INSERT INTO rides SELECT 'ride', 1 FROM pg_sleep(0.1)";
            batch.add(diesel::sql_query(sql));
        }
        Ok(Begun)
    }

    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall, gate: &Gate) -> PhaseResult<u8> {
        call.make(async |_| Ok::<_, PhaseError>(gate.bodies.fetch_add(1, Ordering::SeqCst)))
            .await?;
        Ok(0)
    }

    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Postgres>,
        ctx: &RequestContext,
    ) -> PhaseResult<Reply> {
        Postgres::add_step(batch, "answered", "");
        Ok(Reply::text(200, ctx.uuid(0).to_string()))
    }
}

/// The beginning and the end of a batch of [`Landing`], as sent to the server.
const LANDS: [(bool, &str, &str); 2] =
    [(false, "WITH atomic_phases_begun", "WITH atomic_phases_begun"), (true, "BEGIN", "COMMIT")];

/// An engine behind a proxy, whose single connection has prepared all statements; and that proxy.
async fn behind_a_proxy(
    db: &Postgres,
    gate: &Gate,
    in_order: bool,
) -> (Engine<Postgres, Gate>, Proxy) {
    let url = url_of(db);
    let proxy = Proxy::start(port_of(&url)).await;
    let store = open_pg(&proxy.url(&url), 1).await;
    let engine = Engine::builder(store).app(gate.clone()).register::<Landing>().build().unwrap();
    for name in ["warm", "warmer"] {
        let warm = Landing { waits: true, in_order };
        finished(engine.call(&scope(), &key(name), warm).await);
    }
    db.sql("DELETE FROM steps; DELETE FROM rides; DELETE FROM atomic_phases_keys").await;
    gate.bodies.store(0, Ordering::SeqCst);
    (engine, proxy)
}

/// The first batch took longer than its time limit, and its caller got that error. Then the batch commits after
/// all.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_first_batch_that_lands_after_its_time_limit_is_the_first_phase_of_the_retry() {
    let db = Postgres::fresh().await;
    for (in_order, _, ends) in LANDS {
        let gate = Gate::default();
        let (engine, proxy) = behind_a_proxy(&db, &gate, in_order).await;
        let mut aside = crate::support::db::pg(&url_of(&db)).await;
        aside.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
        // The server does not learn that the client has disconnected.
        proxy.arm(ends, 1, Cut::Hold);
        let request = Landing { waits: true, in_order };
        let call = async || engine.call(&scope(), &key("k"), request.clone()).await;
        let limit = Duration::from_secs(5);
        assert_eq!(failed(call().await), FailureCause::TimeLimit { phase: "begun", limit });
        let told = call().await;
        assert!(matches!(told, Ok(Outcome::InProgress { .. })), "G10, {in_order}: {told:?}");
        aside.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
        let steps = "SELECT count(*) FROM steps";
        until(async || db.number(steps).await == 1).await;
        let told = call().await;
        assert!(matches!(told, Ok(Outcome::InProgress { .. })), "a lease: {told:?}");
        db.let_leases_expire().await;
        let done = finished(call().await);
        assert!(finished(call().await).replayed);
        assert_eq!(finished(call().await).reply, done.reply, "G8");
        assert_eq!(db.number(steps).await, 2, "G4: each phase once");
        assert_eq!(db.number("SELECT count(*) FROM rides").await, i64::from(in_order));
        assert_eq!(gate.bodies.load(Ordering::SeqCst), 1, "G1");
        proxy.cut_now();
    }
}

/// The first batch arrives at the server after a retry has finished the request.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_first_batch_that_arrives_after_its_retry_comes_to_nothing() {
    let db = Postgres::fresh().await;
    for (in_order, begins, _) in LANDS {
        let gate = Gate::default();
        let (engine, proxy) = behind_a_proxy(&db, &gate, in_order).await;
        proxy.arm(begins, 1, Cut::Late);
        let request = Landing { waits: false, in_order };
        let call = async || engine.call(&scope(), &key("k"), request.clone()).await;
        let limit = Duration::from_secs(5);
        assert_eq!(failed(call().await), FailureCause::TimeLimit { phase: "begun", limit });
        assert_eq!(proxy.fired(), 1);
        let done = finished(call().await);
        assert!(!done.replayed, "{in_order}");
        let clients = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
            AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let before = db.number(clients).await;
        proxy.arrive_now();
        until(async || db.number(clients).await == before - 1).await;
        assert_eq!(db.number("SELECT count(*) FROM steps").await, 2, "{in_order}");
        assert_eq!(db.number("SELECT count(*) FROM rides").await, i64::from(in_order));
        assert_eq!(gate.bodies.load(Ordering::SeqCst), 1);
        assert_eq!(finished(call().await).reply, done.reply);
    }
}
