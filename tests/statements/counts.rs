//! The cost of a request: counted, not timed.

mod log_bytes;
mod paths;

use std::time::Duration;

use crate::recorded::{self, alone};
use crate::support::db::{pg, url_of};
use crate::support::proxy::{Proxy, port_of, proxied};
use crate::support::*;
use atomic_phases::phase::ForeignError;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::traces::{Link, TraceContext, Traceparent};
use atomic_phases::{
    Batch, Engine, ForeignCall, Outcome, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use diesel::{ExpressionMethods, QueryDsl};

/// The first words of the statements since the last call.
fn sent() -> Vec<String> {
    let all = recorded::sent();
    all.iter().map(|sql| sql.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect()
}

/// A fresh request of three phases is 2 commits, a replay 1 statement and no write.
#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_request_commits_twice_and_a_replay_is_one_statement() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = crate::support::engine(&db, &app);
    finished(engine.call(&scope(), &key("warm"), book(20)).await);

    // Read on a separate connection: the last transaction id that the server assigned.
    let mut aside = pg(&url_of(&db)).await;
    let mut look = async || {
        let xid = diesel::dsl::sql::<diesel::sql_types::BigInt>(
            "pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
        );
        let xid = diesel_async::RunQueryDsl::get_result::<i64>(diesel::select(xid), &mut *aside);
        xid.await.unwrap()
    };

    let before = look().await;
    sent();
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    let fresh = sent();
    assert_eq!(
        fresh,
        [
            "SELECT request_id, definition,",
            "BEGIN ISOLATION LEVEL",
            "WITH begun AS",
            "INSERT INTO \"rides\"",
            "WITH advanced AS",
            "COMMIT -- binds:",
            "BEGIN ISOLATION LEVEL",
            KNOW,
            "INSERT INTO \"steps\"",
            "WITH advanced AS",
            "COMMIT -- binds:",
        ]
    );
    let after = look().await;
    assert_eq!(after - before, 2, "transactions that wrote");

    sent();
    assert!(finished(engine.call(&scope(), &key("fresh"), book(20)).await).replayed);
    assert_eq!(sent(), ["SELECT request_id, definition,"]);
    assert_eq!(look().await, after, "a replay takes no transaction id");

    // Phases with a `Batch`: 2 statements on the key's row, and 3 round trips, also with an update in plain diesel.
    let proxy = Proxy::start(port_of(&url_of(&db))).await;
    let store = Postgres::connect(&proxy.url(&url_of(&db))).await.unwrap();
    let with_tx = crate::support::engine(&store, &app);
    let builder = Engine::builder(store).app(app).register::<Hop>().register::<Touch>();
    // A timer sends this query, so it is not counted.
    let engine = builder.pauses_every(Duration::from_secs(3600)).build().unwrap();
    // The first foreign phase starts the polling of pauses, perhaps on a new connection.
    let asked = recorded::asked_for_pauses();
    finished(engine.call(&scope(), &key("first"), Hop(Form::OneByOne)).await);
    until(async || recorded::asked_for_pauses() > asked).await;
    let head = ["SELECT request_id, definition,"];
    let one_by_one = [
        "BEGIN ISOLATION LEVEL",
        "SELECT set_config('client_connection_check_interval', '500',",
        "WITH begun AS",
        "INSERT INTO \"rides\"",
        "UPDATE \"rides\" SET",
        "COMMIT -- binds:",
        "BEGIN ISOLATION LEVEL",
        "SELECT set_config('client_connection_check_interval', '500',",
        "WITH advanced AS",
        "UPDATE \"rides\" SET",
        "INSERT INTO \"steps\"",
        "WITH staged AS",
        "COMMIT -- binds:",
    ];
    let single_statement = ["WITH atomic_phases_begun AS", "WITH atomic_phases_key AS"];
    for (form, sql) in
        [(Form::OneByOne, &one_by_one[..]), (Form::SingleStatement, &single_statement)]
    {
        finished(engine.call(&scope(), &key(&format!("warm-{form:?}")), Hop(form)).await);
        proxy.answer_slowly(100);
        let (before, turns) = (look().await, proxy.turns());
        sent();
        finished(engine.call(&scope(), &key(&format!("{form:?}")), Hop(form)).await);
        assert_eq!(sent(), [&head[..], sql].concat(), "{form:?}");
        assert_eq!(look().await - before, 2, "{form:?}: transactions that wrote");
        assert_eq!(proxy.turns() - turns, 3, "{form:?}: round trips");

        let (before, turns) = (look().await, proxy.turns());
        sent();
        let call = engine.call(&scope(), &key(&format!("new-{form:?}")), Hop(form));
        finished(call.expect_new().await);
        assert_eq!(sent(), sql, "{form:?}: without the look");
        assert_eq!(look().await - before, 2, "{form:?}: transactions that wrote");
        assert_eq!(proxy.turns() - turns, 2, "{form:?}: round trips of a key that is new");
        proxy.answer_slowly(0);
    }

    // An update of plain diesel in a `Tx` is prepared once, and then costs the one round trip.
    finished(engine.call(&scope(), &key("warm-touch"), Touch).await);
    proxy.answer_slowly(100);
    let turns = proxy.turns();
    finished(engine.call(&scope(), &key("touch"), Touch).await);
    assert_eq!(proxy.turns() - turns, 4, "look, reservation, update, commit");

    // And a request of three phases, with a statement in each `Tx`.
    finished(with_tx.call(&scope(), &key("warm-tx"), book(20)).await);
    let turns = proxy.turns();
    finished(with_tx.call(&scope(), &key("with-tx"), book(20)).await);
    assert_eq!(
        proxy.turns() - turns,
        7,
        "look, reservation, insert, commit, begin, insert, commit"
    );
}

/// A page of the table keeps a fifth of its room for updates (`fillfactor`), which suffices for those of the newest row.
/// And they change no column that an index names.
#[tokio::test(flavor = "multi_thread")]
async fn each_update_of_a_fresh_request_is_hot() {
    const REQUESTS: i64 = 200;
    let _alone = alone().await;
    // A `Tx` updates the row that it has reserved; a `Batch` creates it as its first phase leaves it.
    for (path, updates) in [("tx", 2), ("batch", 1), ("new-key", 1)] {
        let db = Postgres::fresh().await;
        let store = db.another().await;
        let engine = engine_with(&store, &App::default(), |builder| builder.register::<Hop>());
        for number in 0..REQUESTS {
            let key = key(&number.to_string());
            finished(match path {
                "tx" => engine.call(&scope(), &key, book(20)).await,
                "batch" => engine.call(&scope(), &key, Hop(Form::OneByOne)).await,
                _ => engine.call(&scope(), &key, Hop(Form::SingleStatement)).expect_new().await,
            });
        }
        drop((engine, store));
        let counted = async |counter: &str| {
            let of_keys = format!(
                "SELECT {counter} FROM pg_stat_user_tables WHERE relname = 'atomic_phases_keys'"
            );
            db.number(&of_keys).await
        };
        // A session reports its counts within a second, or when it ends.
        until(async || counted("n_tup_upd").await >= updates * REQUESTS).await;
        assert_eq!(counted("n_tup_upd").await, updates * REQUESTS, "{path}");
        // Both of one report.
        let others = counted("n_tup_upd - n_tup_hot_upd").await;
        assert_eq!(others, 0, "{path}: updates that are not HOT");
    }
}

/// Seven local phases and five foreign ones: a commit for each local one, which is five statements, and none for a call.
#[tokio::test(flavor = "multi_thread")]
async fn each_of_twelve_phases_costs_the_same() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let builder = Engine::builder(db.another().await).app(App::default()).register::<Long>();
    let engine = builder.pauses_every(Duration::from_secs(3600)).build().unwrap();
    let asked = recorded::asked_for_pauses();
    finished(engine.call(&scope(), &key("warm"), Long).await);
    until(async || recorded::asked_for_pauses() > asked).await;
    let xid = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let before = db.number(xid).await;
    sent();
    finished(engine.call(&scope(), &key("fresh"), Long).await);
    let sent = sent();
    assert_eq!(sent[0], "SELECT request_id, definition,");
    let insert = "INSERT INTO \"steps\"";
    let (begin, advance, commit) =
        ("BEGIN ISOLATION LEVEL", "WITH advanced AS", "COMMIT -- binds:");
    assert_eq!(sent[1..6], [begin, "WITH begun AS", insert, advance, commit]);
    for later in sent[6..].chunks(5) {
        assert_eq!(later, [begin, KNOW, insert, advance, commit]);
    }
    assert_eq!(sent.len(), 1 + 7 * 5);
    assert_eq!(db.number(xid).await - before, 7, "transactions that wrote");
}

/// Twelve phases.
#[derive(serde::Serialize, serde::Deserialize)]
struct Long;

macro_rules! long {
    ($($local:ident $number:literal $foreign:ident),*) => {
        #[atomic_phases(name = "long", version = 1)]
        impl<Db: TestDb> Long {
            $(
                #[phase]
                async fn $local(
                    &self,
                    tx: &mut Tx<'_, Db>,
                    ctx: &RequestContext,
                ) -> PhaseResult<[u8; $number]> {
                    Db::insert_step(tx, &ctx.uuid($number).to_string(), "made").await?;
                    Ok([0; $number])
                }

                #[phase(foreign(idempotent))]
                async fn $foreign(
                    &self,
                    call: ForeignCall,
                    app: &App,
                ) -> PhaseResult<Charge, ForeignError> {
                    let id = call.make(async |key| {
                        Ok::<_, ForeignError>(app.provider.call(key.as_str(), "it").await)
                    });
                    Ok(Charge { id: id.await?, padding: String::new() })
                }
            )*

            #[phase]
            async fn checked(
                &self,
                tx: &mut Tx<'_, Db>,
                ctx: &RequestContext,
            ) -> PhaseResult<[u8; 6]> {
                Db::insert_step(tx, &ctx.uuid(6).to_string(), "checked").await?;
                Ok([0; 6])
            }

            #[phase]
            async fn answered(
                &self,
                tx: &mut Tx<'_, Db>,
                ctx: &RequestContext,
            ) -> PhaseResult<Reply> {
                Db::insert_step(tx, &ctx.uuid(0).to_string(), "answered").await?;
                Ok(Reply::new(200))
            }
        }
    };
}

long!(first 1 one, second 2 two, third 3 three, fourth 4 four, fifth 5 five);

/// SQLite's statements: the second connection reads the key, and the first one writes.
#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_request_commits_twice_on_sqlite_and_a_replay_is_one_statement() {
    let _alone = alone().await;
    let db = Sqlite::fresh().await;
    let engine = crate::support::engine(&db, &App::default());
    // The second has a local phase more.
    for (path, is_tx, commits) in [("tx", true, 2), ("batch", false, 3)] {
        let request = async |name: &str| {
            let key = key(&format!("{path}-{name}"));
            match is_tx {
                true => engine.call(&scope(), &key, book(20)).await,
                false => {
                    engine.call(&scope(), &key, Form::SingleStatement.parcel(Trouble::None)).await
                }
            }
        };
        finished(request("warm").await);
        sent();
        finished(request("fresh").await);
        let fresh = sent();
        let count = |start: &str| fresh.iter().filter(|sql| sql.starts_with(start)).count();
        assert_eq!((count("BEGIN"), count("COMMIT")), (commits, commits), "{path}: {fresh:#?}");
        let on_the_row = [
            count("SELECT request_id, definition,"),
            count("INSERT INTO atomic_phases_keys"),
            count("UPDATE atomic_phases_keys SET"),
        ];
        // A batch creates the row as its first phase leaves it.
        assert_eq!(
            on_the_row,
            [1, 1, if is_tx { commits } else { commits - 1 }],
            "{path}: {fresh:#?}"
        );
        assert!(finished(request("fresh").await).replayed);
        assert_eq!(sent(), ["SELECT request_id, definition,"], "{path}");
    }
}

/// And a `Batch` that is a single statement is two more for each of its transactions, in the same round trips.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_in_an_applications_session_is_two_statements_more_and_no_round_trip() {
    let _alone = alone().await;
    let (_db, own, proxy) = proxied().await;
    let of_the_application = Postgres::with_pool(own.pool().clone());
    let mut counted = Vec::new();
    for (name, store) in [("own", own), ("application", of_the_application)] {
        let builder = Engine::builder(store).app(App::default()).register::<Hop>();
        let engine = builder.pauses_every(Duration::from_secs(3600)).build().unwrap();
        let asked = recorded::asked_for_pauses();
        finished(
            engine.call(&scope(), &key(&format!("{name}-warm")), Hop(Form::SingleStatement)).await,
        );
        until(async || recorded::asked_for_pauses() > asked).await;
        finished(
            engine.call(&scope(), &key(&format!("{name}-more")), Hop(Form::SingleStatement)).await,
        );
        proxy.answer_slowly(100);
        let turns = proxy.turns();
        sent();
        finished(engine.call(&scope(), &key(name), Hop(Form::SingleStatement)).await);
        counted.push((sent(), proxy.turns() - turns));
        proxy.answer_slowly(0);
    }
    let [(own, of_own), (more, of_more)] = &counted[..] else { unreachable!() };
    assert_eq!((of_own, of_more), (&3, &3), "round trips");
    assert_eq!(own.len(), 3, "{own:#?}");
    assert_eq!(more.len(), own.len() + 2 * 2, "{more:#?}");
}

/// As a trace context that is always the same.
struct Constant;

impl TraceContext for Constant {
    fn current(&self) -> Option<Traceparent> {
        Traceparent::new([7; 16], [7; 8], 1).ok()
    }

    fn link(&self, _: &tracing::Span, _: &[Link]) {}
}

/// Statements that are sent anyway carry the contexts of a request's attempts, and no index contains them: updates
/// stay HOT.
#[tokio::test(flavor = "multi_thread")]
async fn traces_cost_no_statement_no_commit_and_no_round_trip() {
    let _alone = alone().await;
    let mut counted = Vec::new();
    for is_traced in [false, true] {
        let (db, store, proxy) = proxied().await;
        let builder = Engine::builder(store).app(App::default()).register::<Hop>();
        let builder = builder.register::<Book>().pauses_every(Duration::from_secs(3600));
        let builder = if is_traced { builder.traces(Constant) } else { builder };
        let engine = builder.build().unwrap();
        let asked = recorded::asked_for_pauses();
        for name in ["warm", "counted"] {
            let (once, retried) = (key(name), key(&format!("{name}-retried")));
            let [one, other] =
                ["one-by-one", "single-statement"].map(|form| key(&format!("{name}-{form}")));
            proxy.answer_slowly(if name == "warm" { 0 } else { 100 });
            let xid = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
            let (before, turns) = (db.number(xid).await, proxy.turns());
            sent();
            finished(engine.call(&scope(), &once, book(20)).await);
            finished(engine.call(&scope(), &once, book(20)).await);
            finished(engine.call(&scope(), &one, Hop(Form::OneByOne)).await);
            finished(engine.call(&scope(), &other, Hop(Form::SingleStatement)).expect_new().await);
            engine.app().forget_bodies();
            for is_retry in [false, true] {
                let request = troubled(Trouble::RetryForeignOnce);
                let told = engine.call(&scope(), &retried, request).await;
                assert_eq!(matches!(told, Ok(Outcome::Finished(_))), is_retry, "{told:?}");
            }
            let words = sent();
            until(async || recorded::asked_for_pauses() > asked).await;
            if name == "counted" {
                counted.push((words, db.number(xid).await - before, proxy.turns() - turns));
            }
        }
        for table in ["keys", "staged_jobs"] {
            let kept =
                format!("SELECT count(*) FROM atomic_phases_{table} WHERE trace IS NOT NULL");
            assert_eq!(db.number(&kept).await > 0, is_traced, "{table}");
        }
        let indexed = "SELECT count(*) FROM pg_index JOIN pg_attribute ON attrelid = indrelid \
            AND (attnum = ANY (indkey) OR indpred::text || indexprs::text LIKE '%:varattno ' || attnum || ' %') \
            WHERE attname = 'trace'";
        assert_eq!(db.number(indexed).await, 0);
    }
    assert_eq!(counted[0], counted[1]);
    assert!(counted[0].0.len() > 40, "{counted:?}");
}

/// The mark of a transaction, and whether its session is set up: one statement after `BEGIN`.
const KNOW: &str = "SELECT pg_current_xact_id()::text, coalesce(to_regclass('atomic_phases_staged_jobs')::oid::text,";

/// In an application's session, the engine sets its settings in each transaction: one more statement, and no more
/// round trip.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_an_applications_session_is_one_statement_more() {
    let _alone = alone().await;
    let (_db, own, proxy) = proxied().await;
    let store = Postgres::with_pool(own.pool().clone());
    let engine = engine_with(&store, &App::default(), |builder| {
        builder.pauses_every(Duration::from_secs(3600))
    });
    finished(engine.call(&scope(), &key("warm"), book(20)).await);
    finished(engine.call(&scope(), &key("more"), book(20)).await);
    proxy.answer_slowly(100);
    let turns = proxy.turns();
    sent();
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    assert_eq!(proxy.turns() - turns, 7, "round trips, as on the engine's own pool");
    assert_eq!(
        sent(),
        [
            "SELECT request_id, definition,",
            "BEGIN ISOLATION LEVEL",
            "SELECT set_config('atomic_phases.lock_timeout', current_setting('lock_timeout'),",
            "WITH begun AS",
            "INSERT INTO \"rides\"",
            "WITH advanced AS",
            "COMMIT -- binds:",
            "BEGIN ISOLATION LEVEL",
            KNOW,
            "INSERT INTO \"steps\"",
            "WITH advanced AS",
            "COMMIT -- binds:",
        ]
    );
}

#[allow(missing_docs)]
mod schema {
    diesel::table! { rides (id) { id -> Text, amount -> BigInt, } }
}

/// One phase with a transaction.
#[derive(serde::Serialize, serde::Deserialize)]
struct Touch;

#[atomic_phases(name = "touch", version = 1)]
impl Touch {
    #[phase]
    async fn touched(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        use diesel_async::RunQueryDsl;
        use schema::rides as r;
        diesel::update(r::table.find("missing")).set(r::amount.eq(1)).execute(tx).await?;
        Ok(Reply::new(200))
    }
}

/// Local, foreign, local; the phases need no answer of the database.
#[derive(serde::Serialize, serde::Deserialize)]
struct Hop(Form);

#[derive(serde::Serialize, serde::Deserialize)]
struct Begun(String);

#[atomic_phases(name = "hop", version = 1)]
impl<Db: TestDb> Hop {
    #[phase]
    async fn begun(&self, batch: &mut Batch<'_, Db>, ctx: &RequestContext) -> PhaseResult<Begun> {
        let id = ctx.uuid(0).to_string();
        Db::add_ride(batch, &id, 1);
        match self.0 {
            Form::OneByOne => Db::add_to_ride(batch, &id, 1, 1),
            Form::SingleStatement => Db::add_independent_step(batch, &id, "begun"),
        }
        Ok(Begun(id))
    }

    #[phase(foreign(idempotent))]
    async fn called(
        &self,
        call: ForeignCall,
        app: &App,
        begun: &Begun,
    ) -> PhaseResult<Charge, ForeignError> {
        let id = call.make(async |key| {
            Ok::<_, ForeignError>(app.provider.call(key.as_str(), &begun.0).await)
        });
        Ok(Charge { id: id.await?, padding: String::new() })
    }

    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Db>,
        begun: &Begun,
        charge: &Charge,
    ) -> PhaseResult<Reply> {
        Db::add_to_ride(batch, &begun.0, 2, 2);
        match self.0 {
            Form::OneByOne => Db::add_step(batch, &charge.id, "answered"),
            Form::SingleStatement => Db::add_independent_step(batch, &charge.id, "answered"),
        }
        batch.stage_job("receipt", &charge.id)?;
        Ok(Reply::new(201))
    }
}

/// The statement that changes the row anyway also writes an event; the statements of a request without interruption
/// name no event.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_no_statement_and_a_request_that_runs_through_has_none() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let engine = crate::support::engine(&db, &app);
    finished(engine.call(&scope(), &key("warm"), book(20)).await);
    recorded::sent();
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    finished(engine.call(&scope(), &key("at-most-once"), notify(Trouble::None)).await);
    for form in [Form::OneByOne, Form::SingleStatement] {
        let name = key(&format!("{form:?}"));
        finished(engine.call(&scope(), &name, form.parcel(Trouble::None)).await);
    }
    let through = recorded::sent();
    assert!(!through.iter().any(|sql| sql.contains("events")), "{through:#?}");

    app.forget_bodies();
    failed(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    let released = recorded::sent();
    let first: Vec<_> = released.iter().map(|sql| sql.split(' ').next().unwrap()).collect();
    // The read, the first phase with its row, and the release.
    assert_eq!(first, ["SELECT", "BEGIN", "WITH", "INSERT", "WITH", "COMMIT", "UPDATE"]);
    assert!(released[6].contains("events_written = coalesce(events_written, 0) + 1"));
    finished(engine.call(&scope(), &key("again"), troubled(Trouble::RetryForeignOnce)).await);
    let resumed = recorded::sent();
    assert!(
        !resumed.iter().any(|sql| sql.contains("events")),
        "a back-off is not an event: {resumed:#?}"
    );
}

/// The statement that lets a request wait also stages its notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_notice_is_no_statement_of_its_own() {
    let _alone = alone().await;
    let db = Postgres::fresh().await;
    let app = App::default();
    let [silent, telling] = [false, true].map(|tells| {
        engine_with(&db, &app, |builder| {
            let builder = builder.lease(Duration::from_secs(60));
            if tells { builder.notify_waiting() } else { builder }
        })
    });
    for engine in [&silent, &telling] {
        finished(engine.call(&scope(), &key("warm"), notify(Trouble::None)).await);
        finished(engine.call(&scope(), &key("warmer"), book(20)).await);
    }
    let mut sent = Vec::new();
    for (engine, name) in [(&silent, "silent"), (&telling, "telling")] {
        recorded::sent();
        let unknown = engine.call(&scope(), &key(name), notify(Trouble::UnknownForeign)).await;
        assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
        sent.push(recorded::sent());
    }
    let texts = |sent: &[String]| -> Vec<String> {
        sent.iter().map(|sql| sql.split(" -- binds:").next().unwrap().to_owned()).collect()
    };
    let (mut silent, mut telling) = (texts(&sent[0]), texts(&sent[1]));
    let (left, with_notice) = (silent.pop().unwrap(), telling.pop().unwrap());
    assert_eq!(silent, telling);
    assert!(left.starts_with("UPDATE") && !left.contains("staged_jobs"), "{left}");
    let notice = "AS told_at) INSERT INTO atomic_phases_staged_jobs";
    assert!(with_notice.contains(notice), "{with_notice}");
    assert!(with_notice.starts_with("WITH written AS (UPDATE"), "{with_notice}");
}
