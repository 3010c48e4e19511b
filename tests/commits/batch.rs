//! Phases that add statements to a [`Batch`]: it promises what a [`Tx`] promises.

use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::db::{open_pg, prepare_pg, url_of};
use crate::support::proxy::{Cut, proxied};
use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::FailureCause;
use atomic_phases::store::Postgres;
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, RequestContext, atomic_phases};

macro_rules! in_form {
    ($module:ident, $form:ident, $($name:ident),*) => {
        mod $module {
            in_form!(@on on_sqlite, atomic_phases::store::Sqlite, $form, $($name),*);
            in_form!(@on on_postgres, atomic_phases::store::Postgres, $form, $($name),*);
            #[cfg(feature = "mysql")]
            in_form!(@on on_mariadb, atomic_phases::store::Mysql, $form, $($name),*);
        }
    };
    (@on $module:ident, $store:ty, $form:ident, $($name:ident),*) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let db = <$store as crate::support::TestDb>::fresh().await;
                super::super::$name(db, crate::support::Form::$form).await;
            })*
        }
    };
}

/// Each test runs over every store, with the statements one by one, and as a single statement if the store supports
/// it.
macro_rules! in_both_forms {
    ($($name:ident),* $(,)?) => {
        in_form!(one_by_one, OneByOne, $($name),*);
        in_form!(single_statement, SingleStatement, $($name),*);
    };
}

in_both_forms! {
    g4_statements_output_and_recovery_point_commit_together,
    g8_the_answer_is_replayed,
    g4_a_statement_that_fails_leaves_nothing_behind,
    g4_a_statement_that_fails_later_on_fails_its_phase_only,
    g10_of_many_duplicates_the_statements_of_one_are_executed,
    g3_a_holder_that_was_overtaken_writes_nothing,
    g5_the_time_of_creation_is_stored_and_seen_by_each_phase,
    every_end_of_a_first_phase,
    every_end_of_a_later_phase,
    a_reused_key_makes_room_for_its_next_life,
}

async fn counts<S: TestDb>(db: &S) -> [i64; 4] {
    let mut all = [0; 4];
    let tables = ["atomic_phases_keys", "rides", "steps", "atomic_phases_staged_jobs"];
    for (count, table) in all.iter_mut().zip(tables) {
        *count = db.number(&format!("SELECT count(*) FROM {table}")).await;
    }
    all
}

/// The weight after 40 updates, if they are executed in order.
fn in_order(weight: i64) -> i64 {
    (0..40)
        .fold(weight, |weight, plus| weight.wrapping_mul(if plus % 2 == 0 { 3 } else { 1 }) + plus)
}

async fn g4_statements_output_and_recovery_point_commit_together<S: TestDb>(db: S, form: Form) {
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let engine = engine(&db, &app);
    let call = engine.call(&scope(), &key("k"), form.parcel(Trouble::None));
    let call = tokio::spawn(call.into_future());
    let waiting = gate.recv().await.unwrap();
    assert_eq!(counts(&db).await, [1, 1, 1, 1], "the first phase is committed");
    assert_eq!(db.text("SELECT recovery_point FROM atomic_phases_keys").await, "packed");
    waiting.send(()).unwrap();
    assert_eq!(finished(call.await.unwrap()).reply.status(), 201);
    assert_eq!(counts(&db).await, [1, 1, 2, 2]);
    assert_eq!(db.number("SELECT amount FROM rides").await, in_order(3), "in order");
    assert_eq!(app.bodies(), [1, 1, 1]);
}

async fn g8_the_answer_is_replayed<S: TestDb>(db: S, form: Form) {
    let app = App::default();
    let engine = engine(&db, &app);
    let first = finished(engine.call(&scope(), &key("k"), form.parcel(Trouble::None)).await);
    let again = finished(engine.call(&scope(), &key("k"), form.parcel(Trouble::None)).await);
    assert_eq!((first.replayed, again.replayed), (false, true));
    assert_eq!(first.reply, again.reply);
    // The expiry that the first client received is the row's.
    assert_eq!(first.expires_at, again.expires_at);
    assert_eq!(app.bodies(), [1, 1, 1]);
}

async fn g4_a_statement_that_fails_leaves_nothing_behind<S: TestDb>(db: S, form: Form) {
    db.sql("INSERT INTO unique_things VALUES ('taken')").await;
    let app = App::default();
    let engine = engine(&db, &app);
    let call = engine.call(&scope(), &key("k"), form.parcel(Trouble::SwallowError)).into_future();
    let cause = failed(call.await);
    assert!(matches!(cause, FailureCause::Database { phase: "packed", .. }), "{cause:?}");
    assert_eq!(counts(&db).await, [0, 0, 0, 0]);
    db.sql("DELETE FROM unique_things").await;
    finished(engine.call(&scope(), &key("k"), form.parcel(Trouble::SwallowError)).await);
    assert_eq!(counts(&db).await, [1, 1, 2, 2]);
}

async fn g4_a_statement_that_fails_later_on_fails_its_phase_only<S: TestDb>(db: S, form: Form) {
    db.sql("INSERT INTO unique_things VALUES ('taken')").await;
    let app = App::default();
    let engine = engine(&db, &app);
    let call = engine.call(&scope(), &key("k"), form.parcel(Trouble::NestedFailure)).into_future();
    let cause = failed(call.await);
    assert!(matches!(cause, FailureCause::Database { phase: "weighed", .. }), "{cause:?}");
    assert_eq!(db.number("SELECT amount FROM rides").await, 3, "nothing of the 40 updates");
    // The result of the call is not lost with it.
    assert_eq!(db.text("SELECT recovery_point FROM atomic_phases_keys").await, "sent");
    db.sql("DELETE FROM unique_things").await;
    db.let_time_pass().await;
    finished(engine.call(&scope(), &key("k"), form.parcel(Trouble::NestedFailure)).await);
    assert_eq!(db.number("SELECT amount FROM rides").await, in_order(3));
    assert_eq!(app.provider.effects(), 1);
}

async fn g10_of_many_duplicates_the_statements_of_one_are_executed<S: TestDb>(db: S, form: Form) {
    let app = App::default();
    let engines = [engine(&db, &app), engine(&db.another().await, &app)];
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..64 {
        let call = engines[number % 2].call(&scope(), &key("k"), form.parcel(Trouble::None));
        calls.spawn(call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(30))).into_future());
    }
    let mut replies = Vec::new();
    while let Some(outcome) = calls.join_next().await {
        replies.push(finished(outcome.unwrap()).reply);
    }
    assert_eq!(replies.len(), 64);
    assert!(replies.windows(2).all(|two| two[0] == two[1]));
    assert_eq!(counts(&db).await, [1, 1, 2, 2]);
    assert_eq!((app.provider.effects(), app.bodies()[1]), (1, 1), "one executor");
}

async fn g3_a_holder_that_was_overtaken_writes_nothing<S: TestDb>(db: S, form: Form) {
    let app = App::default();
    let mut gate = app.provider.stop_after_the_effect();
    let engines = [engine(&db, &app), engine(&db.another().await, &app)];
    let first = engines[0].call(&scope(), &key("k"), form.parcel(Trouble::None));
    let first = tokio::spawn(first.into_future());
    let sleeping = gate.recv().await.unwrap();
    app.provider.stop_no_more();
    db.let_leases_expire().await;
    let second = engines[1].call(&scope(), &key("k"), form.parcel(Trouble::None)).into_future();
    assert!(!finished(second.await).replayed);
    drop(sleeping);
    assert!(finished(first.await.unwrap()).replayed, "answered as a loser");
    assert_eq!(counts(&db).await, [1, 1, 2, 2]);
    assert_eq!(db.number("SELECT amount FROM rides").await, in_order(3), "once");
}

async fn g5_the_time_of_creation_is_stored_and_seen_by_each_phase<S: TestDb>(db: S, form: Form) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), form.parcel(Trouble::None)).await);
    let told = app.provider.ledger()[0].what.clone();
    let times: Vec<&str> = told.split(' ').skip(1).collect();
    assert_eq!(times[0], times[1], "{told}");
    let seen = chrono::DateTime::parse_from_rfc3339(times[0]).unwrap();
    let stored = match is_postgres::<S>() {
        true => "SELECT extract(epoch FROM created_at) * 1000000 FROM atomic_phases_keys",
        false => "SELECT created_at * 1000 FROM atomic_phases_keys",
    };
    assert_eq!(db.number(stored).await, seen.timestamp_micros());
}

async fn every_end_of_a_first_phase<S: TestDb>(db: S, form: Form) {
    let app = App::default();
    let engine = engine(&db, &app);
    let run = async |name, trouble| engine.call(&scope(), &key(name), form.parcel(trouble)).await;
    assert!(matches!(
        failed(run("retry", Trouble::RetryFirst).await),
        FailureCause::Phase { phase: "packed", .. }
    ));
    assert!(matches!(
        failed(run("panic", Trouble::PanicFirst).await),
        FailureCause::Panic { phase: "packed" }
    ));
    assert_eq!(counts(&db).await, [0, 0, 0, 0], "a first phase that fails leaves no row");
    let rejected = finished(run("reject", Trouble::RejectFirst).await);
    assert_eq!(rejected.reply.status(), 402);
    assert_eq!(counts(&db).await, [1, 0, 0, 0], "its writes are not kept");
    assert!(finished(run("reject", Trouble::RejectFirst).await).replayed);
    let early = finished(run("early", Trouble::FinishEarly).await);
    assert_eq!((early.reply.status(), early.replayed), (200, false));
    assert_eq!(counts(&db).await, [2, 1, 1, 1], "its writes are kept");
    assert!(finished(run("early", Trouble::FinishEarly).await).replayed);
    assert_eq!(app.provider.effects(), 0);
}

async fn every_end_of_a_later_phase<S: TestDb>(db: S, form: Form) {
    let app = App::default();
    let engine = engine(&db, &app);
    let run = async |name, trouble| engine.call(&scope(), &key(name), form.parcel(trouble)).await;
    failed(run("retry", Trouble::RetryLastOnce).await);
    db.let_time_pass().await;
    finished(run("retry", Trouble::RetryLastOnce).await);
    app.forget_bodies();
    failed(run("panic", Trouble::PanicLastOnce).await);
    db.let_time_pass().await;
    finished(run("panic", Trouble::PanicLastOnce).await);
    assert_eq!(finished(run("reject", Trouble::RejectLast).await).reply.status(), 409);
    let weights = format!("SELECT count(*) FROM rides WHERE amount = {}", in_order(3));
    assert_eq!(db.number(&weights).await, 2);
    assert_eq!(db.number("SELECT count(*) FROM rides WHERE amount = 3").await, 1, "rolled back");
    assert_eq!(app.provider.effects(), 3);
}

async fn a_reused_key_makes_room_for_its_next_life<S: TestDb>(db: S, form: Form) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), form.parcel(Trouble::None)).await);
    db.sql("UPDATE atomic_phases_keys SET expires_at = created_at").await;
    let next = Parcel { weight: 4, ..form.parcel(Trouble::None) };
    assert!(!finished(engine.call(&scope(), &key("k"), next).await).replayed);
    assert_eq!(counts(&db).await, [1, 2, 4, 4]);
}

/// A statement after a `BEGIN` that the server refused must not run by itself.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_begin_that_fails_lets_nothing_behind_it_run() {
    let form = Form::OneByOne;
    for (nth, what) in [(1, "the first phase"), (2, "a later phase")] {
        for warm in [false, true] {
            let (db, store, proxy) = proxied().await;
            let app = App::default();
            let engine = engine(&store, &app);
            let mut before = [0; 4];
            if warm {
                finished(engine.call(&scope(), &key("w"), form.parcel(Trouble::FinishEarly)).await);
                before = counts(&db).await;
            }
            proxy.arm("BEGIN", nth, Cut::Spoil);
            let done = finished(engine.call(&scope(), &key("k"), form.parcel(Trouble::None)).await);
            assert_eq!(proxy.fired(), 1, "{what}: a fault that does not happen proves nothing");
            assert_eq!(done.reply.status(), 201);
            let after = counts(&db).await;
            let made: Vec<i64> = after.iter().zip(before).map(|(after, b)| after - b).collect();
            assert_eq!(made, [1, 1, 2, 2], "{what}, warm: {warm}");
            let right = format!("SELECT count(*) FROM rides WHERE amount = {}", in_order(3));
            assert_eq!(db.number(&right).await, 1, "{what}");
            assert_eq!(app.provider.effects(), 1, "{what}");
        }
    }
}

/// H4 and G7: whatever happens to the one round trip, the same call continues and ends with the right answer.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_lost_commit_is_resolved() {
    let one_by_one = [("COMMIT", 1), ("COMMIT", 2), ("COMMIT", 3)];
    let single_statement = [("WITH atomic_phases_begun", 1), ("WITH atomic_phases_key", 1)];
    for cut in [Cut::Before, Cut::After, Cut::Answer, Cut::Shutdown] {
        for (form, commits) in
            [(Form::OneByOne, &one_by_one[..]), (Form::SingleStatement, &single_statement)]
        {
            for &(sql, nth) in commits {
                let (db, store, proxy) = proxied().await;
                let app = App::default();
                proxy.arm(sql, nth, cut);
                let engine = engine(&store, &app);
                let call = engine.call(&scope(), &key("k"), form.parcel(Trouble::None));
                let done = finished(call.await);
                let what = format!("{cut:?} at {sql} {nth}");
                let told = (proxy.fired(), done.reply.status(), done.replayed);
                assert_eq!(told, (1, 201, false), "{what}");
                assert_eq!(counts(&db).await, [1, 1, 2, 2], "{what}");
                assert_eq!(db.number("SELECT amount FROM rides").await, in_order(3), "{what}");
                assert_eq!(app.provider.effects(), 1, "{what}");
            }
        }
    }
}

pub(super) mod mood {
    //! A type that diesel has to look up at the server.
    use diesel::deserialize::{self, FromSql};
    use diesel::pg::{Pg, PgValue};
    use diesel::serialize::{self, IsNull, Output, ToSql};
    use std::io::Write;

    #[derive(diesel::sql_types::SqlType, diesel::query_builder::QueryId)]
    #[diesel(postgres_type(name = "mood"))]
    pub struct MoodSql;

    #[derive(
        Clone, Copy, Debug, diesel::expression::AsExpression, diesel::deserialize::FromSqlRow,
    )]
    #[diesel(sql_type = MoodSql)]
    pub struct Glad;

    impl ToSql<MoodSql, Pg> for Glad {
        fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
            out.write_all(b"glad")?;
            Ok(IsNull::No)
        }
    }

    impl FromSql<MoodSql, Pg> for Glad {
        fn from_sql(_: PgValue<'_>) -> deserialize::Result<Self> {
            Ok(Self)
        }
    }

    diesel::table! {
        use diesel::sql_types::Text;
        use super::MoodSql;
        moods (id) { id -> Text, mood -> MoodSql, }
    }
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Feel(bool);

#[atomic_phases(name = "feel", version = 1)]
impl Feel {
    #[phase]
    async fn felt(
        &self,
        batch: &mut Batch<'_, Postgres>,
        ctx: &RequestContext,
    ) -> PhaseResult<Reply> {
        use diesel::ExpressionMethods;
        use mood::{Glad, moods};
        let row = (moods::id.eq(ctx.uuid(0).to_string()), moods::mood.eq(Glad));
        batch.add(diesel::insert_into(moods::table).values(row));
        if self.0 {
            Postgres::add_unique(batch, "taken");
        }
        Ok(Reply::new(204))
    }
}

/// A type whose number diesel asks the server for, before the lock on which the order depends: `COMMIT` must not
/// overtake the statement.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_statement_with_a_type_of_the_applications_stays_in_its_transaction() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TYPE mood AS ENUM ('glad'); CREATE TABLE moods (id text, mood mood)").await;
    db.sql("INSERT INTO unique_things VALUES ('taken')").await;
    for connections in [1, 16] {
        let store = open_pg(&url_of(&db), connections).await;
        let engine = Engine::builder(store).register::<Feel>().build().unwrap();
        db.sql("DELETE FROM moods; DELETE FROM atomic_phases_keys").await;
        failed(engine.call(&scope(), &key("k"), Feel(true)).await);
        assert_eq!(db.number("SELECT count(*) FROM moods").await, 0, "rolled back with the rest");
        finished(engine.call(&scope(), &key("l"), Feel(false)).await);
        let same = "SELECT count(DISTINCT x) FROM (SELECT xmin::text AS x FROM atomic_phases_keys \
                    UNION ALL SELECT xmin::text FROM moods) AS t";
        assert_eq!(db.number(same).await, 1, "one transaction");

        // The second request learns here, too, that it is the second.
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..16 {
            calls.spawn(engine.call(&scope(), &key("race"), Feel(false)).into_future());
        }
        while let Some(outcome) = calls.join_next().await {
            let outcome = outcome.unwrap();
            let told = matches!(outcome, Ok(Outcome::Finished(_) | Outcome::InProgress { .. }));
            assert!(told, "{outcome:?}");
        }
        assert_eq!(db.number("SELECT count(*) FROM moods").await, 2);
    }
}

/// Everything in one round trip is one transaction, with a cold statement cache and with a warm one,
/// including updates that are prepared anew each time.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_whole_transaction_in_one_round_trip_is_one_transaction() {
    let db = Postgres::fresh().await;
    let app = App::default();
    let mut gate = app.provider.stop_before_the_effect();
    let engine = engine(&db, &app);
    for (name, form) in [
        ("cold", Form::OneByOne),
        ("warm", Form::OneByOne),
        ("cold-single-statement", Form::SingleStatement),
        ("warm-single-statement", Form::SingleStatement),
    ] {
        db.sql("TRUNCATE rides, steps, atomic_phases_staged_jobs").await;
        let call = engine.call(&scope(), &key(name), form.parcel(Trouble::None));
        let call = tokio::spawn(call.into_future());
        let waiting = gate.recv().await.unwrap();
        let same = |tables: &str| {
            format!(
                "SELECT count(DISTINCT x) FROM (SELECT xmin::text AS x FROM atomic_phases_keys \
                 WHERE idempotency_key = '{name}' {tables}) AS t"
            )
        };
        let first = "UNION ALL SELECT xmin::text FROM rides UNION ALL SELECT xmin::text FROM steps \
                     UNION ALL SELECT xmin::text FROM atomic_phases_staged_jobs";
        assert_eq!(db.number(&same(first)).await, 1, "{name}");
        waiting.send(()).unwrap();
        finished(call.await.unwrap());
        let last = "UNION ALL SELECT xmin::text FROM steps WHERE step = 'delivered' UNION ALL \
                    SELECT xmin::text FROM atomic_phases_staged_jobs WHERE name = 'thanks'";
        assert_eq!(db.number(&same(last)).await, 1, "{name}");
    }
}

/// The second request learns that the key is taken by a mark of the engine's: a unique violation would write the
/// key into the server's log.
#[tokio::test(flavor = "multi_thread")]
async fn g19_a_race_leaves_no_key_in_the_servers_log() {
    // A server whose log is in its folder.
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let db = open_pg(&cluster.new_database(), 16).await;
    prepare_pg(&db).await;
    let app = App::default();
    let engine = engine(&db, &app);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..64 {
        let name = key(&format!("canary-{}", number % 8));
        let form = if number % 16 < 8 { Form::OneByOne } else { Form::SingleStatement };
        calls.spawn(engine.call(&scope(), &name, form.parcel(Trouble::None)).into_future());
    }
    while calls.join_next().await.is_some() {}
    let log = db.text("SELECT pg_read_file(current_setting('data_directory') || '/../log')").await;
    assert!(log.contains(":exists:"), "no call came second: that proves nothing");
    assert!(!log.contains("canary-"));
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Many(String);

#[atomic_phases(name = "many", version = 1)]
impl Many {
    #[phase]
    async fn written(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        (0..1000).for_each(|n| Postgres::add_step(batch, &self.0, &n.to_string()));
        Ok(Reply::new(204))
    }
}

/// The same for statements that are prepared once: tokio makes a task pause after a number of its locks, and no
/// statement may overtake another meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_thousand_prepared_statements_keep_their_order() {
    let db = Postgres::fresh().await;
    db.sql("ALTER TABLE steps ADD COLUMN n bigserial").await;
    let single = open_pg(&url_of(&db), 1).await;
    let engine = Engine::builder(single).register::<Many>().build().unwrap();
    let expected: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    for name in ["cold", "warm", "hot"] {
        finished(engine.call(&scope(), &key(name), Many(name.into())).await);
        let order =
            format!("SELECT string_agg(step, ' ' ORDER BY n) FROM steps WHERE request = '{name}'");
        assert_eq!(db.text(&order).await, expected.join(" "), "{name}");
        let same = format!(
            "SELECT count(DISTINCT x) FROM (SELECT xmin::text AS x FROM steps WHERE request = '{name}' \
             UNION ALL SELECT xmin::text FROM atomic_phases_keys WHERE idempotency_key = '{name}') AS t"
        );
        assert_eq!(db.number(&same).await, 1, "{name}");
    }
}

/// More steps than fit into a hundred milliseconds, in one statement, and another statement after it.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Heavy;

#[atomic_phases(name = "heavy", version = 1)]
impl Heavy {
    #[phase(timeout = "100ms")]
    async fn counted(
        &self,
        batch: &mut Batch<'_, atomic_phases::store::Sqlite>,
    ) -> PhaseResult<Reply> {
        batch.add(diesel::sql_query(
            "INSERT INTO steps SELECT 'heavy', max(n) FROM (WITH RECURSIVE numbers(n) AS \
             (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000000) SELECT n FROM numbers)",
        ));
        Ok(Reply::new(204))
    }
}

/// SQLite's thread cannot be interrupted in a statement; what it wrote too late is rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn g17_a_time_limit_of_statements_holds_on_sqlite() {
    let db = <atomic_phases::store::Sqlite as TestDb>::fresh().await;
    let engine = Engine::builder(db.clone()).register::<Heavy>().build().unwrap();
    let began = std::time::Instant::now();
    let outcome = engine.call(&scope(), &key("k"), Heavy).await;
    assert!(began.elapsed() > Duration::from_millis(100), "too light to tell");
    assert!(
        matches!(outcome, Ok(Outcome::Failed { cause: FailureCause::TimeLimit { .. }, .. })),
        "{outcome:?}"
    );
    assert_eq!(counts(&db).await, [0; 4]);
}
