//! The flagship's own request, as it stands in `examples/rocket_rides`, through the explorer on each
//! store, with its own provider behind HTTP.

#[cfg(feature = "mysql")]
use atomic_phases::Mysql;
use atomic_phases::fault::{Explore, crash_test, explore};
use atomic_phases::{Engine, Postgres, Sqlite};
use diesel_async::SimpleAsyncConnection;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::charge_api::ChargeApi;
use crate::create_ride::{App, CreateRide};
use crate::db::RidesDb;
use crate::pilot_api::PilotApi;
use crate::provider;
use crate::support::cluster;

/// A provider for each case: all cases have the same key.
struct World<Db> {
    store: Db,
    url: String,
    provider: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl<Db> Drop for World<Db> {
    fn drop(&mut self) {
        self.provider.abort();
    }
}

impl<Db: Counts> World<Db> {
    async fn new(store: Db) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ledger = dir.path().join("ledger");
        let options = provider::Options { ignore_keys: false, webhook: None };
        let provider = tokio::spawn(async move {
            provider::serve(listener, &ledger, options).await.unwrap();
        });
        Self { store, url, provider, _dir: dir }
    }

    async fn listed(&self, what: &str) -> usize {
        let list = reqwest::get(format!("{}/v1/{what}", self.url)).await.unwrap();
        list.json::<Value>().await.unwrap()["data"].as_array().unwrap().len()
    }
}

/// A count in the business tables.
trait Counts: RidesDb {
    async fn count(&self, what: &str) -> i64;
}

#[derive(diesel::QueryableByName)]
struct Count {
    #[diesel(sql_type = diesel::sql_types::BigInt)]
    n: i64,
}

macro_rules! counts {
    ($store:ty, |$db:ident| $conn:expr) => {
        impl Counts for $store {
            async fn count(&self, what: &str) -> i64 {
                let $db = self;
                let query = diesel::sql_query(format!("SELECT count(*) AS n FROM {what}"));
                diesel_async::RunQueryDsl::get_result::<Count>(query, &mut *$conn).await.unwrap().n
            }
        }
    };
}

counts!(Sqlite, |db| db.connection().await.unwrap());
counts!(Postgres, |db| db.pool().get().await.unwrap());
#[cfg(feature = "mysql")]
counts!(Mysql, |db| db.connection().await.unwrap());

/// Enough for MariaDB, where it bounds all that the statement takes.
const LOCK_WAIT_MS: u64 = 150;

const GOOD: i64 = 1;
const DECLINED: i64 = 2;

fn ride(user_id: i64, target_lon: f64) -> CreateRide {
    let ride = json!({
        "user_id": user_id, "origin_lat": 37.77, "origin_lon": -122.42, "target_lat": 37.79,
        "target_lon": target_lon, "raise_error": false,
    });
    serde_json::from_value(ride).unwrap()
}

fn a_ride<Db: Counts>(user_id: i64, fresh: impl AsyncFn() -> Db) -> impl Explore {
    let world = async move || {
        let store = fresh().await;
        let world = World::new(store.clone()).await;
        let app = App {
            charges: ChargeApi::new(&world.url, "sk_test").unwrap(),
            pilots: PilotApi::new(&world.url).unwrap(),
        };
        let engine = Engine::builder(store).app(app).register::<CreateRide>();
        (engine.lock_wait(std::time::Duration::from_millis(LOCK_WAIT_MS)).build().unwrap(), world)
    };
    explore(world, ride(user_id, -122.39))
        .and_another(ride(user_id, -122.38))
        .crash_at_every_point()
        .with_competitor()
        .and_two_workers(1)
        .always("one charge and one pilot at most", async |world: &World<Db>| {
            assert!(world.listed("charges").await <= 1 && world.listed("notifications").await <= 1);
        })
        .always("no ride flies that is not paid for", async |world: &World<Db>| {
            let unpaid = "rides WHERE charge_id IS NULL AND NOT canceled";
            assert!(
                world.listed("notifications").await == 0 || world.store.count(unpaid).await == 0
            );
        })
        .effects(async |world: &World<Db>| {
            (
                (world.listed("charges").await, world.listed("notifications").await),
                world.store.count("rides WHERE charge_id IS NOT NULL AND NOT canceled").await,
                world.store.count("rides WHERE charge_id IS NULL AND canceled").await,
                world.store.count("rides").await,
                world.store.count("audit_records WHERE action = 'declined'").await,
            )
        })
}

async fn sqlite() -> Sqlite {
    let store = Sqlite::connect(":memory:").await.unwrap();
    store.prepare().await.unwrap();
    store
}

async fn postgres(store: &Postgres) -> Postgres {
    let tables = "TRUNCATE atomic_phases_keys, atomic_phases_staged_jobs, rides, audit_records";
    store.pool().get().await.unwrap().batch_execute(tables).await.unwrap();
    store.clone()
}

#[crash_test]
async fn a_ride_on_sqlite_survives_everything() -> impl Explore {
    a_ride(GOOD, sqlite)
}

#[crash_test]
async fn a_ride_on_postgres_survives_everything() -> impl Explore {
    let store = Postgres::connect(&cluster::new_database()).await.unwrap();
    store.prepare().await.unwrap();
    a_ride(GOOD, async move || postgres(&store).await)
}

#[cfg(feature = "mysql")]
async fn mariadb() -> Mysql {
    let store = Mysql::connect(&crate::support::mariadb::new_database()).await.unwrap();
    store.prepare().await.unwrap();
    store
}

#[cfg(feature = "mysql")]
async fn emptied(store: &Mysql) -> Mysql {
    let tables = "DELETE FROM atomic_phases_keys; DELETE FROM atomic_phases_staged_jobs; \
        DELETE FROM audit_records; DELETE FROM rides";
    store.connection().await.unwrap().batch_execute(tables).await.unwrap();
    store.clone()
}

#[cfg(feature = "mysql")]
#[crash_test]
async fn a_ride_on_mariadb_survives_everything() -> impl Explore {
    let store = mariadb().await;
    a_ride(GOOD, async move || emptied(&store).await)
}

#[cfg(feature = "mysql")]
#[crash_test]
async fn a_declined_ride_on_mariadb_is_undone_through_everything() -> impl Explore {
    let store = mariadb().await;
    a_ride(DECLINED, async move || emptied(&store).await)
}

/// The card is declined after the ride was committed: it is undone, once.
#[crash_test]
async fn a_declined_ride_on_sqlite_is_undone_through_everything() -> impl Explore {
    a_ride(DECLINED, sqlite)
}

#[crash_test]
async fn a_declined_ride_on_postgres_is_undone_through_everything() -> impl Explore {
    let store = Postgres::connect(&cluster::new_database()).await.unwrap();
    store.prepare().await.unwrap();
    a_ride(DECLINED, async move || postgres(&store).await)
}
