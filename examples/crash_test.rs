//! A crash test to copy into your `tests/`: one ride, one charge, whatever crashes wherever.
//! `cargo run --example crash_test --features fault-injection`, or `cargo test` instead of `run`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use atomic_phases::diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use atomic_phases::fault::{Explore, crash_test, explore};
use atomic_phases::store::Sqlite;
use atomic_phases::{
    Engine, ForeignCall, PhaseResult, Reply, RequestContext, Store, Tx, atomic_phases, crash_point,
};
use diesel::{dsl::sql, select, sql_types::BigInt};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct BookRide(u32);
#[derive(Serialize, Deserialize)]
struct Ride(String);
/// A bank that honors keys, outside of the database: what it has done, no rollback undoes.
#[derive(Clone, Default)]
struct App(Arc<Mutex<HashMap<String, u32>>>);

impl App {
    fn charge(&self, key: &str, cents: u32) -> PhaseResult<u32> {
        self.0.lock().unwrap().insert(key.to_owned(), cents);
        Ok(cents)
    }
}

#[atomic_phases(name = "rides.book", version = 1)]
impl BookRide {
    #[phase]
    async fn booked(&self, tx: &mut Tx<'_, Sqlite>, ctx: &RequestContext) -> PhaseResult<Ride> {
        let id = ctx.uuid(0).to_string();
        diesel::sql_query(format!("INSERT INTO rides VALUES ('{id}')")).execute(tx).await?;
        Ok(Ride(id))
    }

    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall, app: &App) -> PhaseResult<u32> {
        let charge = call.make(async |key| app.charge(key.as_str(), self.0)).await?;
        crash_point!("bank_was_paid"); // a place of its own at which to crash
        Ok(charge)
    }

    #[phase]
    async fn done(&self, tx: &mut Tx<'_, Sqlite>, r: &Ride, cents: &u32) -> PhaseResult<Reply> {
        tx.stage_job("send_receipt", &r.0)?;
        Ok(Reply::json(201, &(&r.0, cents))?)
    }
}

/// A world for each case: a database, the bank, and an engine on both.
async fn world() -> (Engine<Sqlite, App>, (Sqlite, App)) {
    let (store, app) = (Sqlite::connect(":memory:").await.unwrap(), App::default());
    store.migrate().await.unwrap();
    store.connection().await.unwrap().batch_execute("CREATE TABLE rides (id)").await.unwrap();
    let engine = Engine::builder(store.clone()).app(app.clone()).register::<BookRide>();
    (engine.build().unwrap(), (store, app))
}

fn a_ride() -> impl Explore {
    explore(world, BookRide(2000)) // a fresh database and engine for each case, and the request
        .and_another(BookRide(9))
        .crash_at_every_point()
        .with_competitor()
        .and_two_workers(1)
        .always("one charge at most", async |(_, bank)| assert!(bank.0.lock().unwrap().len() <= 1))
        .effects(async |(store, bank)| {
            let mut conn = store.connection().await.unwrap();
            let rides = select(sql::<BigInt>("(SELECT count(*) FROM rides)"));
            let rides: i64 = rides.get_result(&mut *conn).await.unwrap();
            let jobs = select(sql::<BigInt>("(SELECT count(*) FROM atomic_phases_staged_jobs)"));
            let jobs: i64 = jobs.get_result(&mut *conn).await.unwrap();
            (rides, jobs, bank.0.lock().unwrap().clone())
        })
}

#[crash_test]
async fn a_ride_survives_everything() -> impl Explore {
    a_ride()
}

#[tokio::main]
async fn main() {
    println!("{}", a_ride().run().await);
}
