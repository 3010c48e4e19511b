//! The crash test of a request on the store in memory, and on SQLite: what its phases say to their own
//! tables stands behind a trait. `cargo run --release --example crash_test_in_memory --features
//! simulation,fault-injection-in-release`, or `cargo test` with `--features simulation`. With `DATABASE_URL`, the
//! address of an empty PostgreSQL database, on that as well.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atomic_phases::diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use atomic_phases::fault::{Explore, Report, crash_test, explore};
use atomic_phases::simulation::{Database, Memory, Write, simulate};
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::{
    Engine, ForeignCall, PhaseResult, Reply, RequestContext, Store, Tx, atomic_phases,
};
use diesel::QueryResult;
use serde::{Deserialize, Serialize};

/// What the phases do to the tables of the application: on each store in its own language.
trait Rides: Store {
    fn insert(tx: &mut Tx<'_, Self>, id: &str) -> impl Future<Output = QueryResult<usize>> + Send;

    fn count(&self) -> impl Future<Output = usize> + Send;
}

impl Rides for Memory {
    async fn insert(tx: &mut Tx<'_, Self>, id: &str) -> QueryResult<usize> {
        Write::insert("rides", id, true).execute(tx).await
    }

    async fn count(&self) -> usize {
        self.database().rows("rides").len()
    }
}

impl Rides for Sqlite {
    async fn insert(tx: &mut Tx<'_, Self>, id: &str) -> QueryResult<usize> {
        diesel::sql_query(format!("INSERT INTO rides VALUES ('{id}')")).execute(tx).await
    }

    async fn count(&self) -> usize {
        use diesel::{dsl::sql, select, sql_types::BigInt};
        let mut conn = self.connection().await.unwrap();
        let rides = select(sql::<BigInt>("(SELECT count(*) FROM rides)"));
        rides.get_result::<i64>(&mut *conn).await.unwrap() as usize
    }
}

impl Rides for Postgres {
    async fn insert(tx: &mut Tx<'_, Self>, id: &str) -> QueryResult<usize> {
        diesel::sql_query(format!("INSERT INTO rides VALUES ('{id}')")).execute(tx).await
    }

    async fn count(&self) -> usize {
        use diesel::{dsl::sql, select, sql_types::BigInt};
        let mut conn = self.connection().await.unwrap();
        let rides = select(sql::<BigInt>("(SELECT count(*) FROM rides)"));
        rides.get_result::<i64>(&mut *conn).await.unwrap() as usize
    }
}

/// A bank that honors keys, outside of the database: what it has done, no rollback undoes.
#[derive(Clone, Default)]
struct Bank(Arc<Mutex<BTreeMap<String, u32>>>);

#[derive(Serialize, Deserialize)]
struct BookRide(u32);
#[derive(Serialize, Deserialize)]
struct Ride(String);

#[atomic_phases(name = "rides.book", version = 1, app = Bank)]
impl<Db: Rides> BookRide {
    #[phase]
    async fn booked(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Ride> {
        let id = ctx.uuid(0).to_string();
        Db::insert(tx, &id).await?;
        Ok(Ride(id))
    }

    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall, bank: &Bank) -> PhaseResult<u32> {
        call.make(async |key| {
            bank.0.lock().unwrap().insert(key.as_str().to_owned(), self.0);
            Ok(self.0)
        })
        .await
    }

    #[phase]
    async fn done(&self, tx: &mut Tx<'_, Db>, ride: &Ride, cents: &u32) -> PhaseResult<Reply> {
        tx.stage_job("send_receipt", &ride.0)?;
        Ok(Reply::json(201, &(&ride.0, cents))?)
    }
}

/// `fresh`: makes a database with the tables.
fn a_ride<Db: Rides>(fresh: impl AsyncFn() -> Db) -> impl Explore {
    // A world for each case: a database, the bank, and an engine on both.
    let world = async move || {
        let (store, bank) = (fresh().await, Bank::default());
        let engine = Engine::builder(store.clone()).app(bank.clone()).register::<BookRide>();
        (engine.build().unwrap(), (store, bank))
    };
    explore(world, BookRide(2000))
        .and_another(BookRide(9))
        .crash_at_every_point()
        .with_competitor()
        .and_two_workers(1)
        .effects(async |(store, bank): &(Db, Bank)| {
            (store.count().await, bank.0.lock().unwrap().clone())
        })
}

async fn memory() -> Memory {
    Memory::connect(&Database::default())
}

async fn sqlite() -> Sqlite {
    let store = Sqlite::connect(":memory:").await.unwrap();
    store.migrate().await.unwrap();
    store.connection().await.unwrap().batch_execute("CREATE TABLE rides (id)").await.unwrap();
    store
}

/// The same database for each case, emptied.
async fn emptied(store: &Postgres) -> Postgres {
    const EMPTY: &str = "CREATE TABLE IF NOT EXISTS rides (id text); DELETE FROM rides; \
        DELETE FROM atomic_phases_staged_jobs; DELETE FROM atomic_phases_keys";
    store.connection().await.unwrap().batch_execute(EMPTY).await.unwrap();
    store.clone()
}

/// On simulated time, as each crash test in memory: a lease that has to run out takes none of yours.
#[crash_test]
async fn a_ride_survives_everything_in_memory() -> impl Explore {
    a_ride(memory)
}

#[crash_test]
async fn a_ride_survives_everything_on_sqlite() -> impl Explore {
    a_ride(sqlite)
}

async fn a_ride_survives_everything_on_postgres() -> impl Explore {
    // A database of its own: no other test may use it concurrently.
    let store = Postgres::connect(&std::env::var("DATABASE_URL").unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    a_ride(async move || emptied(&store).await)
}

#[tokio::main]
async fn main() {
    let in_memory = || simulate(1, || a_ride(memory).run());
    shown("memory", &tokio::task::spawn_blocking(in_memory).await.unwrap());
    shown("SQLite", &a_ride(sqlite).run().await);
    if std::env::var_os("DATABASE_URL").is_some() {
        shown("PostgreSQL", &a_ride_survives_everything_on_postgres().await.run().await);
    }
}

fn shown(store: &str, report: &Report) {
    let a_case = report.took() / report.cases();
    println!("{store}, {a_case:?} a case:\n{report}");
}
