//! The settings that the engine sends once to each session that it opens hold for each phase, whatever happened in
//! the session before; and the state of a session harms no phase.

use std::time::Duration;

use super::batch::mood::{Glad, moods};
use super::changed_sessions::TenantBatch;
use crate::support::db::{open_pg, url_of};
use crate::support::*;
use atomic_phases::store::{PoolSettings, Postgres};
use atomic_phases::{Batch, Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use diesel::sql_types::Text;
use diesel::{ExpressionMethods, QueryDsl};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};

/// The time limits for a disconnected client, as a phase's transaction has them.
const BOUNDS: &str = "current_setting('client_connection_check_interval') || ' ' || \
    current_setting('idle_in_transaction_session_timeout')";

/// Runs a statement in its session, and records the time limits under which each phase begins.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Alters(String);

#[derive(serde::Serialize, serde::Deserialize)]
struct Begun;

#[atomic_phases(name = "alters", version = 1)]
impl Alters {
    #[phase]
    async fn begun(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Begun> {
        noted(tx, "first").await?;
        tx.batch_execute(&self.0).await?;
        Ok(Begun)
    }

    #[phase(commit)]
    async fn answered(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        noted(tx, "later").await?;
        tx.batch_execute(&self.0).await?;
        Ok(Reply::new(204))
    }
}

async fn noted(tx: &mut Tx<'_, Postgres>, phase: &str) -> PhaseResult<()> {
    tx.batch_execute(&format!("INSERT INTO steps SELECT '{phase}', {BOUNDS}")).await?;
    Ok(())
}

#[derive(diesel::QueryableByName)]
struct Bounds {
    #[diesel(sql_type = Text)]
    told: String,
}

/// The time limits of a pool's only connection, as its next user finds them.
async fn bounds(store: &Postgres) -> String {
    let mut conn = store.connection().await.unwrap();
    let sql = diesel::sql_query(format!("SELECT {BOUNDS} AS told"));
    sql.get_result::<Bounds>(&mut conn).await.unwrap().told
}

const ALTERED: [&str; 6] = [
    "RESET ALL",
    "SET client_connection_check_interval = 0",
    "SET SESSION idle_in_transaction_session_timeout = 0",
    "SET idle_in_transaction_session_timeout = '10min'",
    "SELECT set_config('atomic_phases.session', 'x', false)",
    "SET lock_timeout = '1ms'",
];

/// H13: each phase begins under the engine's time limits, even after a phase that changed them for the session.
#[tokio::test(flavor = "multi_thread")]
async fn h13_a_phase_that_alters_its_session_harms_no_other() {
    let db = Postgres::fresh().await;
    let store = open_pg(&url_of(&db), 1).await;
    let engine = Engine::builder(store).register::<Alters>().build().unwrap();
    for (number, altered) in ALTERED.into_iter().enumerate() {
        let call = async |name: &str, sql: &str| {
            let name = key(&format!("{name}-{number}"));
            finished(engine.call(&scope(), &name, Alters(sql.to_owned())).await);
        };
        call("alters", altered).await;
        call("next", "SELECT 1").await;
    }
    let noted = "SELECT string_agg(DISTINCT request || ': ' || step, ', ') FROM steps";
    assert_eq!(db.text(noted).await, "first: 500ms 1min, later: 500ms 1min");
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 4 * ALTERED.len() as i64);
}

/// H13: the same after an application has used the store's connections outside of phases. A single statement that
/// is a transaction by itself notices this, too.
#[tokio::test(flavor = "multi_thread")]
async fn h13_a_session_that_lost_its_bounds_has_them_again_behind_its_next_use() {
    let db = Postgres::fresh().await;
    let store = open_pg(&url_of(&db), 1).await;
    let engine = engine(&store, &App::default());
    finished(
        engine.call(&scope(), &key("warm"), Form::SingleStatement.parcel(Trouble::None)).await,
    );
    for (number, altered) in ALTERED.into_iter().enumerate() {
        for form in [Some(Form::SingleStatement), None] {
            store.connection().await.unwrap().batch_execute(altered).await.unwrap();
            let name = key(&format!("k{number}-{form:?}"));
            finished(match form {
                Some(form) => engine.call(&scope(), &name, form.parcel(Trouble::None)).await,
                None => engine.call(&scope(), &name, book(20)).await,
            });
            assert_eq!(bounds(&store).await, "500ms 1min", "{altered}, {form:?}");
        }
    }
}

/// H13: a batch that is sent statement by statement has the time limits in each transaction, also in a session that has lost
/// them; and its statements wait for locks as long as the session says, not as briefly as the engine waits for the key.
#[tokio::test(flavor = "multi_thread")]
async fn h13_a_batch_in_order_runs_under_the_time_limits_in_a_session_that_lost_them() {
    let db = Postgres::fresh().await;
    db.sql(&format!(
        "CREATE TABLE things (n int); CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         INSERT INTO steps SELECT 'seen', {BOUNDS} || ' ' || current_setting('lock_timeout'); RETURN NEW; END $$; \
         CREATE TRIGGER see BEFORE INSERT ON things FOR EACH ROW EXECUTE FUNCTION see()"
    ))
    .await;
    let store = open_pg(&(url_of(&db) + "?options=-c%20lock_timeout%3D7s"), 1).await;
    let engine = Engine::builder(store.clone()).register::<TenantBatch>().build().unwrap();
    // The last one changes what is asserted here besides.
    let altered = &ALTERED[..ALTERED.len() - 1];
    for (first, in_first) in [("first", true), ("later", false)] {
        for (number, altered) in altered.iter().enumerate() {
            store.connection().await.unwrap().batch_execute(altered).await.unwrap();
            let request = TenantBatch { sql: "SELECT 1".to_owned(), in_first, stages: false };
            finished(engine.call(&scope(), &key(&format!("{first}-{number}")), request).await);
        }
    }
    let seen = "SELECT string_agg(DISTINCT step, ', ') FROM steps";
    assert_eq!(db.text(seen).await, "500ms 1min 7s");
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 2 * altered.len() as i64);
}

/// A shorter bound that the database, its role or the URL says stays.
#[tokio::test(flavor = "multi_thread")]
async fn h13_a_shorter_bound_of_the_sessions_own_stays() {
    let db = Postgres::fresh().await;
    let own = "?options=-c%20idle_in_transaction_session_timeout%3D7s";
    let store = open_pg(&(url_of(&db) + own), 1).await;
    let engine = Engine::builder(store.clone()).register::<Alters>().build().unwrap();
    for name in ["one", "two"] {
        finished(engine.call(&scope(), &key(name), Alters("RESET ALL".to_owned())).await);
    }
    let noted = "SELECT string_agg(DISTINCT step, ', ') FROM steps";
    assert_eq!(db.text(noted).await, "500ms 7s");
}

/// What it reads.
pub const PILOTS: &str =
    "CREATE TABLE pilots (name varchar(10)); INSERT INTO pilots VALUES ('ada')";

diesel::table! { pilots (name) { name -> Text, } }

/// Reads a table of the application in each phase.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub struct Reads;

#[atomic_phases(name = "reads", version = 1)]
impl Reads {
    #[phase]
    async fn begun(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Begun> {
        pilots::table.select(pilots::name).load::<String>(tx).await?;
        Ok(Begun)
    }

    #[phase(commit)]
    async fn answered(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        let pilots = pilots::table.select(pilots::name).load::<String>(tx).await?;
        Ok(Reply::text(200, pilots.join(" ")))
    }
}

/// The server refuses a statement that was prepared earlier (*cached plan must not change result type*), on each
/// connection, as long as the connection lives. There are more such connections than a phase has runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_widens_a_column_harms_no_request_on_a_connection_that_has_read_it() {
    const CONNECTIONS: usize = 12;
    let db = Postgres::fresh().await;
    db.sql(PILOTS).await;
    let store = open_pg(&url_of(&db), CONNECTIONS).await;
    let engine = Engine::builder(store.clone()).register::<Reads>().build().unwrap();
    for length in [20, 30] {
        let mut prepared = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut conn = store.connection().await.unwrap();
            pilots::table.select(pilots::name).load::<String>(&mut *conn).await.unwrap();
            prepared.push(conn);
        }
        drop(prepared);
        db.sql(&format!("ALTER TABLE pilots ALTER COLUMN name TYPE varchar({length})")).await;
        let reply = finished(engine.call(&scope(), &key(&format!("k{length}")), Reads).await);
        assert_eq!(reply.reply.bytes(), b"ada", "varchar({length})");
    }
}

/// What has an enum and a trigger.
const TOLLS: &str = "CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE TABLE moods (id text, mood mood); \
    CREATE TABLE tolls (amount int, twice int); \
    CREATE FUNCTION doubles() RETURNS trigger LANGUAGE plpgsql AS \
        'BEGIN NEW.twice := NEW.amount + NEW.amount; RETURN NEW; END'; \
    CREATE TRIGGER doubles BEFORE INSERT ON tolls FOR EACH ROW EXECUTE FUNCTION doubles()";

/// As PostgreSQL has it, to take a value from an enum.
const MOOD_ANEW: &str = "ALTER TYPE mood RENAME TO mood_before; CREATE TYPE mood AS ENUM ('glad'); \
    ALTER TABLE moods ALTER COLUMN mood TYPE mood USING mood::text::mood; DROP TYPE mood_before";

/// Beside the one before, whose number is still that of a type.
const MOOD_BESIDE: &str = "ALTER TYPE mood RENAME TO mood_before; CREATE TYPE mood AS ENUM ('glad'); \
    ALTER TABLE moods ALTER COLUMN mood TYPE mood USING mood::text::mood";

const TOLLS_WIDENED: &str =
    "ALTER TABLE tolls ALTER COLUMN amount TYPE bigint, ALTER COLUMN twice TYPE bigint";

/// Writes one of the tables in a `Batch`, and before that in a `Tx`.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Pays {
    table: Table,
    only_in_batch: bool,
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
enum Table {
    Moods,
    Tolls,
}

#[atomic_phases(name = "pays", version = 1)]
impl Pays {
    #[phase]
    async fn begun(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Begun> {
        match self.table {
            _ if self.only_in_batch => {}
            Table::Moods => {
                let row = (moods::id.eq("tx"), moods::mood.eq(Glad));
                diesel::insert_into(moods::table).values(row).execute(tx).await?;
            }
            Table::Tolls => tx.batch_execute("INSERT INTO tolls VALUES (1)").await?,
        }
        Ok(Begun)
    }

    #[phase(commit)]
    async fn answered(&self, batch: &mut Batch<'_, Postgres>) -> PhaseResult<Reply> {
        match self.table {
            Table::Moods => {
                let row = (moods::id.eq("batch"), moods::mood.eq(Glad));
                batch.add(diesel::insert_into(moods::table).values(row));
            }
            Table::Tolls => batch.add(diesel::sql_query("INSERT INTO tolls VALUES (1)")),
        }
        Ok(Reply::new(204))
    }
}

/// What a connection remembers of a type, diesel or a function of the server's, is refused for as long as the connection
/// lives. There are more such connections than a phase has runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_of_a_type_harms_no_request_on_a_connection_that_remembers_it() {
    const CONNECTIONS: usize = 12;
    for only_in_batch in [false, true] {
        for (table, migration) in
            [(Table::Moods, MOOD_ANEW), (Table::Moods, MOOD_BESIDE), (Table::Tolls, TOLLS_WIDENED)]
        {
            let db = Postgres::fresh().await;
            db.sql(TOLLS).await;
            let store = open_pg(&url_of(&db), CONNECTIONS).await;
            let engine = Engine::builder(store.clone()).register::<Pays>().build().unwrap();
            let mut used = Vec::new();
            for _ in 0..CONNECTIONS {
                let mut conn = store.connection().await.unwrap();
                let row = (moods::id.eq("before"), moods::mood.eq(Glad));
                diesel::insert_into(moods::table).values(row).execute(&mut *conn).await.unwrap();
                conn.batch_execute("INSERT INTO tolls VALUES (1)").await.unwrap();
                used.push(conn);
            }
            drop(used);
            db.sql(migration).await;
            db.sql("TRUNCATE moods, tolls").await;
            finished(engine.call(&scope(), &key("k"), Pays { table, only_in_batch }).await);
            let written =
                "SELECT count(*) FROM (SELECT 1 FROM moods UNION ALL SELECT 1 FROM tolls) t";
            let expected = if only_in_batch { 1 } else { 2 };
            assert_eq!(db.number(written).await, expected, "{migration}, {only_in_batch}");
        }
    }
}

/// It is refused in the same words as a value of a type that a migration has replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_a_wrong_type_does_not_have_its_connections_closed_again_and_again() {
    let db = Postgres::fresh().await;
    db.sql("CREATE TABLE amounts (amount integer)").await;
    let store = open_pg(&url_of(&db), 1).await;
    let engine = Engine::builder(store.clone()).register::<Alters>().build().unwrap();
    let session = async || {
        let mut conn = store.connection().await.unwrap();
        let sql = diesel::sql_query("SELECT pg_backend_pid()::text AS told");
        sql.get_result::<Bounds>(&mut conn).await.unwrap().told
    };
    let mut sessions = vec![session().await];
    for name in ["a", "b"] {
        let wrong = Alters("INSERT INTO amounts SELECT 'a'::text".to_owned());
        let told = engine.call(&scope(), &key(name), wrong).await;
        assert!(!matches!(told, Ok(Outcome::Finished(_))), "{told:?}");
        sessions.push(session().await);
    }
    assert_ne!(sessions[0], sessions[1], "another connection may have done better");
    assert_eq!(sessions[1], sessions[2]);
}

/// A function that rounds to the digits of a column.
const FEE: &str = "CREATE TABLE prices (price numeric(10,2)); CREATE TABLE fees (amount numeric(14,4)); \
    CREATE FUNCTION fee(x numeric) RETURNS numeric LANGUAGE plpgsql AS \
        'DECLARE v prices.price%TYPE; BEGIN v := x; RETURN v; END'";

/// PostgreSQL does not say that a function goes on with the type that a column had before a migration.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_remembers_lasts_as_long_as_a_connection() {
    let age = Duration::from_millis(100);
    let db = Postgres::fresh().await;
    db.sql(FEE).await;
    let settings = PoolSettings::default().max_size(1).max_age(age);
    let store = Postgres::connect_with(&url_of(&db), settings).await.unwrap();
    let engine = Engine::builder(store).register::<Alters>().build().unwrap();
    let fee = || Alters("INSERT INTO fees VALUES (fee(1.2345))".to_owned());
    finished(engine.call(&scope(), &key("before"), fee()).await);
    db.sql("ALTER TABLE prices ALTER COLUMN price TYPE numeric(14,4); TRUNCATE fees").await;
    tokio::time::sleep(2 * age).await;
    finished(engine.call(&scope(), &key("behind"), fee()).await);
    assert_eq!(db.text("SELECT string_agg(amount::text, ' ') FROM fees").await, "1.2345 1.2345");
}
