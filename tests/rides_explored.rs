//! The flagship's own request, as it stands in `examples/rocket_rides`, through the explorer on both
//! stores, with its own provider behind HTTP.
#![cfg(feature = "fault-injection")]
#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../examples/rocket_rides/charge_api.rs"]
mod charge_api;
#[path = "../examples/rocket_rides/create_ride.rs"]
mod create_ride;
#[path = "../examples/rocket_rides/db.rs"]
mod db;
#[path = "../examples/rocket_rides/pilot_api.rs"]
mod pilot_api;
#[path = "../examples/rocket_rides/pilots.rs"]
mod pilots;
#[path = "../examples/rocket_rides/provider.rs"]
mod provider;
mod support;

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
use crate::support::cluster;

/// A provider for each case: all cases have the same key.
struct World {
    url: String,
    provider: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.provider.abort();
    }
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ledger = dir.path().join("ledger");
        let options = provider::Options { ignore_keys: false, webhook: None };
        let provider = tokio::spawn(async move {
            provider::serve(listener, &ledger, options).await.unwrap();
        });
        Self { url, provider, _dir: dir }
    }

    async fn listed(&self, what: &str) -> usize {
        let list = reqwest::get(format!("{}/v1/{what}", self.url)).await.unwrap();
        list.json::<Value>().await.unwrap()["data"].as_array().unwrap().len()
    }
}

fn ride(target_lon: f64) -> CreateRide {
    let ride = json!({
        "user_id": 1, "origin_lat": 37.77, "origin_lon": -122.42, "target_lat": 37.79,
        "target_lon": target_lon, "raise_error": false,
    });
    serde_json::from_value(ride).unwrap()
}

fn a_ride<Db: RidesDb>(fresh: impl AsyncFn() -> Db) -> impl Explore {
    let world = async move || {
        let (store, world) = (fresh().await, World::new().await);
        let app = App {
            charges: ChargeApi::new(&world.url, "sk_test").unwrap(),
            pilots: PilotApi::new(&world.url).unwrap(),
        };
        let engine = Engine::builder(store).app(app).register::<CreateRide>();
        (engine.lock_wait(std::time::Duration::from_millis(30)).build().unwrap(), world)
    };
    explore(world, ride(-122.39))
        .and_another(ride(-122.38))
        .crash_at_every_point()
        .with_competitor()
        .and_two_workers(1)
        .always("one charge and one pilot at most", async |world: &World| {
            assert!(world.listed("charges").await <= 1 && world.listed("notifications").await <= 1);
        })
        .effects(async |world: &World| {
            (world.listed("charges").await, world.listed("notifications").await)
        })
}

#[crash_test]
async fn a_ride_on_sqlite_survives_everything() -> impl Explore {
    a_ride(async || {
        let store = Sqlite::open(":memory:").await.unwrap();
        store.prepare().await.unwrap();
        store
    })
}

#[crash_test]
async fn a_ride_on_postgres_survives_everything() -> impl Explore {
    let store = Postgres::connect(&cluster::new_database()).await.unwrap();
    store.prepare().await.unwrap();
    a_ride(async move || {
        let tables = "TRUNCATE atomic_phases_keys, atomic_phases_staged_jobs, rides, audit_records";
        store.pool().get().await.unwrap().batch_execute(tables).await.unwrap();
        store.clone()
    })
}
