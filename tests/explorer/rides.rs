//! The flagship's own request, as in `examples/rocket_rides`, through the explorer on each store, with its own
//! provider over HTTP.

use std::sync::atomic::{AtomicU64, Ordering};

use atomic_phases::Engine;
use atomic_phases::fault::{Explore, Report, crash_test, explore};
use atomic_phases::phase::ForeignError;
use atomic_phases::request::RequestDefinition;
#[cfg(feature = "mysql")]
use atomic_phases::store::Mysql;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use diesel_async::SimpleAsyncConnection;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::charge_api::{Charge, ChargeApi, ChargeParams};
use crate::create_ride::{App, CURRENCY, CreateRide, PRICE};
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

/// How long a duplicate waits.
const CREATION_WAIT: std::time::Duration = std::time::Duration::from_millis(30);

const README: &str = include_str!("../../README.md");

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
        (engine.creation_wait(CREATION_WAIT).build().unwrap(), world)
    };
    explore(world, ride(user_id, -122.39))
        .and_another(ride(user_id, -122.38))
        .crash_at_every_point()
        .with_competitor()
        .and_two_workers(1)
        .and_lost_rows()
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

/// README.md shows the counts of this report.
#[tokio::test(flavor = "multi_thread")]
async fn a_ride_on_sqlite_survives_everything() {
    let report = a_ride(GOOD, sqlite).run().await;
    println!("{report}");
    report.assert_ok();
    let text = report.to_string();
    let (counts, _) = text.split_once(" unknown").unwrap();
    let shown = format!("`{counts} unknown`");
    assert!(README.contains(&shown), "README.md shows another result of the explorer than {shown}");
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

/// The card is declined after the ride was committed: the ride is undone, once.
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

/// The parameters about a ride that the provider receives.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Told {
    Uuid,
    CreatedAt,
    RequestId,
    KeyUuid,
}

/// The flagship's ride and charge, as written by authors who did not consider a lost row.
#[derive(Serialize, Deserialize)]
struct Careless {
    told: Told,
}

#[derive(Serialize, Deserialize)]
struct Booked {
    customer: String,
}

#[atomic_phases(name = "rides.careless", version = 1)]
impl<Db: RidesDb> Careless {
    #[phase]
    async fn booked(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Booked> {
        let customer = Db::customer(tx, GOOD).await?;
        Db::insert_ride(tx, &ctx.uuid(0).to_string(), &ride(GOOD, -122.39), ctx).await?;
        Ok(Booked { customer })
    }

    #[phase(foreign(idempotent, window = "24h"))]
    async fn charged(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
        booked: &Booked,
    ) -> PhaseResult<Charge, ForeignError> {
        let about = match self.told {
            Told::Uuid => ctx.uuid(0).to_string(),
            Told::CreatedAt => ctx.created_at().to_rfc3339(),
            Told::RequestId => ctx.request_id().to_string(),
            Told::KeyUuid => ctx.key_uuid(0).to_string(),
        };
        let params = ChargeParams {
            amount: PRICE,
            currency: CURRENCY,
            customer: &booked.customer,
            description: "a ride",
            ride: &about,
        };
        Ok(call.make(|key| app.charges.create(key, params)).await?)
    }

    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Db>, charge: &Charge) -> PhaseResult<Reply> {
        Ok(Reply::json(201, charge)?)
    }
}

/// The same with a phase in between, whose commit may be lost alone.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Quoted {
    Uuid,
    /// Another one each time that the phase runs.
    Counted,
    KeyUuid,
}

#[derive(Serialize, Deserialize)]
struct CarelessQuote {
    quoted: Quoted,
}

#[derive(Serialize, Deserialize)]
struct Quote {
    number: String,
}

static QUOTES: AtomicU64 = AtomicU64::new(0);

#[atomic_phases(name = "rides.careless_quote", version = 1)]
impl<Db: RidesDb> CarelessQuote {
    #[phase]
    async fn booked(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Booked> {
        let customer = Db::customer(tx, GOOD).await?;
        Db::insert_ride(tx, &ctx.uuid(0).to_string(), &ride(GOOD, -122.39), ctx).await?;
        Ok(Booked { customer })
    }

    #[phase]
    async fn quoted(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Quote> {
        let (id, ride) = (ctx.uuid(1).to_string(), ctx.uuid(0).to_string());
        Db::insert_audit_record(tx, &id, GOOD, &ride).await?;
        let number = match self.quoted {
            Quoted::Uuid => ctx.uuid(2).to_string(),
            Quoted::Counted => QUOTES.fetch_add(1, Ordering::Relaxed).to_string(),
            Quoted::KeyUuid => ctx.key_uuid(0).to_string(),
        };
        Ok(Quote { number })
    }

    #[phase(foreign(idempotent, window = "24h"))]
    async fn charged(
        &self,
        call: ForeignCall,
        app: &App,
        booked: &Booked,
        quote: &Quote,
    ) -> PhaseResult<Charge, ForeignError> {
        let params = ChargeParams {
            amount: PRICE,
            currency: CURRENCY,
            customer: &booked.customer,
            description: "a ride",
            ride: &quote.number,
        };
        Ok(call.make(|key| app.charges.create(key, params)).await?)
    }

    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Db>, charge: &Charge) -> PhaseResult<Reply> {
        Ok(Reply::json(201, charge)?)
    }
}

async fn explored_with_lost_rows<Db, R>(fresh: &impl AsyncFn() -> Db, request: R) -> Report
where
    Db: Counts,
    R: RequestDefinition<Db, App>,
{
    let world = async || {
        let store = fresh().await;
        let world = World::new(store.clone()).await;
        let charges = ChargeApi::new(&world.url, "sk_test").unwrap();
        let app = App { charges, pilots: PilotApi::new(&world.url).unwrap() };
        (Engine::builder(store).app(app).register::<R>().build().unwrap(), world)
    };
    let report = explore(world, request)
        .and_lost_rows()
        .always("G1: one charge at most", async |world: &World<Db>| {
            assert!(world.listed("charges").await <= 1);
        })
        .effects(async |world: &World<Db>| {
            (
                world.listed("charges").await,
                world.store.count("rides").await,
                world.store.count("audit_records").await,
            )
        })
        .run()
        .await;
    println!("{report}");
    report
}

/// A failover may lose the row of a request whose call was made, or its last commits. What runs again with the key must
/// send the provider the same parameters.
async fn what_is_made_of_a_lost_row_is_found_where_a_provider_is_told_it<Db: Counts>(
    fresh: impl AsyncFn() -> Db,
) {
    for told in [Told::Uuid, Told::CreatedAt, Told::RequestId, Told::KeyUuid] {
        let report = explored_with_lost_rows(&fresh, Careless { told }).await;
        match (told, report.failure()) {
            (Told::KeyUuid, failure) => assert_eq!((failure, report.cases()), (None, 2)),
            (_, Some(wrong)) => {
                let tells =
                    wrong.contains("its row was lost") && wrong.contains("of a row that was lost");
                assert!(tells, "the class, and the reason that an operator sees: {wrong}");
            }
            (_, None) => panic!("{told:?} was not found"),
        }
    }
    for quoted in [Quoted::Uuid, Quoted::Counted, Quoted::KeyUuid] {
        let report = explored_with_lost_rows(&fresh, CarelessQuote { quoted }).await;
        let (wrong, cases) = (report.failure().unwrap_or_default(), report.cases());
        // The cases that lose the last commit alone come first, and the id survives in the row.
        match quoted {
            Quoted::Counted => {
                assert!(wrong.contains("acknowledged commits were lost"), "{report}")
            }
            Quoted::Uuid => assert!(wrong.contains("its row was lost") && cases == 3, "{report}"),
            Quoted::KeyUuid => assert_eq!((wrong, cases), ("", 4), "{report}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_what_is_made_of_a_lost_row_is_found_where_a_provider_is_told_it_on_sqlite() {
    what_is_made_of_a_lost_row_is_found_where_a_provider_is_told_it(sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_what_is_made_of_a_lost_row_is_found_where_a_provider_is_told_it_on_postgres() {
    let store = Postgres::connect(&cluster::new_database()).await.unwrap();
    store.prepare().await.unwrap();
    let fresh = async || postgres(&store).await;
    what_is_made_of_a_lost_row_is_found_where_a_provider_is_told_it(fresh).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g1_what_is_made_of_a_lost_row_is_found_where_a_provider_is_told_it_on_mariadb() {
    let store = mariadb().await;
    let fresh = async || emptied(&store).await;
    what_is_made_of_a_lost_row_is_found_where_a_provider_is_told_it(fresh).await;
}
