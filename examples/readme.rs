//! README.md's Rust, as parts of one program: a ride that is charged, a payout at a bank without keys, the
//! workers, and the HTTP side. `cargo run --example readme --features axum` needs no server.
//!
//! `tests/first_hour` compiles it with nothing but README's `[dependencies]`, and `tests/readme` holds each
//! block of README against it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use atomic_phases::config::SettingError;
use atomic_phases::diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use atomic_phases::engine::Resolution;
use atomic_phases::http::{Answer, Idempotency, Keyed, Params, Policy};
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::store::Sqlite;
use atomic_phases::worker::{DeliveryError, Handlers, Job, WorkerConfig, Workers};
use atomic_phases::{
    Batch, Engine, ForeignCall, IdempotencyKey, Outcome, PhaseResult, Reply, RequestContext, Scope,
    Store, Tx, atomic_phases,
};
use axum::{Router, routing::post};
use diesel::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;

type Db = Sqlite; // or Postgres; or `impl<Db: YourTrait> CreateRide` for both

mod schema {
    diesel::table! { rides (id) { id -> Text, user_id -> BigInt, charge_id -> Nullable<Text>, } }
}
use schema::rides;

#[derive(Serialize, Deserialize)]
struct CreateRide {
    user_id: i64,
}

#[derive(Serialize, Deserialize)]
struct Ride {
    id: String,
}

#[derive(Serialize, Deserialize)]
struct Charge {
    id: String,
}

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase] // local: in your own diesel transaction
    async fn ride_created(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Ride> {
        let id = ctx.uuid(0).to_string(); // the same in each attempt
        let ride = (rides::id.eq(&id), rides::user_id.eq(self.user_id));
        diesel::insert_into(rides::table).values(ride).execute(tx).await?;
        Ok(Ride { id })
    }

    #[phase(foreign(idempotent, window = "24h"))] // foreign: gets no connection, but one call
    async fn charge_created(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
    ) -> PhaseResult<Charge, ForeignError> {
        let reference = ctx.key_uuid(0).to_string();
        // The derived key is the same in each attempt: the provider charges once.
        call.make(|key| app.stripe.charge(key, 2000, &reference)).await
    }

    #[phase] // local, does not read from the database; the last phase answers
    async fn receipt_staged(
        &self,
        batch: &mut Batch<'_, Db>,
        ride: &Ride,
        charge: &Charge,
    ) -> PhaseResult<Reply> {
        let paid = rides::charge_id.eq(charge.id.clone());
        batch.add(diesel::update(rides::table.find(ride.id.clone())).set(paid));
        batch.stage_job("send_receipt", &Receipt { ride: ride.id.clone() })?;
        Ok(Reply::json(201, ride)?)
    }
}

#[derive(Serialize, Deserialize)]
struct Receipt {
    ride: String,
}

#[derive(Serialize, Deserialize)]
struct PayOut {
    cents: i64,
}

#[derive(Serialize, Deserialize)]
struct Transfer {
    number: usize,
}

#[atomic_phases(name = "payouts.create", version = 1)]
impl PayOut {
    #[phase(foreign(at_most_once), timeout = "2s")] // the intent is committed before the call
    async fn sent(
        &self,
        call: ForeignCall,
        ctx: &RequestContext,
        app: &App,
    ) -> PhaseResult<Transfer, ForeignError> {
        let reference = ctx.key_uuid(0).to_string(); // the same in each attempt
        call.make(async |_no_key| app.bank.pay(&reference, self.cents).await).await
    }

    #[reconcile(sent)] // called by a worker if the outcome is unknown; makes no call with an effect
    async fn find(&self, ctx: &RequestContext, app: &App) -> PhaseResult<Reconciled<Transfer>> {
        Ok(match app.bank.find(&ctx.key_uuid(0).to_string()).await {
            Some(transfer) => Reconciled::Executed(transfer), // the request continues
            None => Reconciled::StillUnknown, // or NotExecuted, if the bank says that it never will be executed
        })
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>, sent: &Transfer) -> PhaseResult<Reply> {
        let _ = batch;
        Ok(Reply::json(201, sent)?)
    }
}

async fn create_ride(keyed: Keyed<Db, App>, Params(ride): Params<CreateRide>) -> Answer {
    keyed.answer(ride).await
}

fn router(engine: Engine<Db, App>) -> Router {
    // The scope of the key, from your authentication; without tenants, use `http::single_tenant()`.
    let idempotency = Idempotency::new(engine, |request| {
        let user = request.headers.get("x-user")?.to_str().ok()?;
        Scope::new(user).ok()
    });
    Router::new()
        .route("/rides", post(create_ride))
        .merge(idempotency.documentation())
        .with_state(idempotency)
}

async fn create_payout(keyed: Keyed<Db, App>, Params(payout): Params<PayOut>) -> Answer {
    keyed.accept(payout).await // 202 once it is stored; a worker runs it
}

fn payouts(idempotency: Idempotency<Db, App>) -> Result<Router, SettingError> {
    let policy = Policy::default().accept_duplicates("/payouts/status/");
    let idempotency = idempotency.with_policy(policy)?;
    Ok(Router::new()
        .route("/payouts", post(create_payout))
        .merge(idempotency.status_resource())
        .with_state(idempotency))
}

async fn serve(
    listener: TcpListener,
    engine: Engine<Db, App>,
    workers: Workers,
    asked_to_stop: impl Future<Output = ()>, // by SIGTERM: `tokio::signal::unix`
) -> Result<(), Box<dyn std::error::Error>> {
    let router = router(engine.clone());
    let (close, closed) = oneshot::channel::<()>();
    let closing = async move { closed.await.unwrap_or_default() }; // when `close` is dropped
    let server = axum::serve(listener, router).with_graceful_shutdown(closing);
    let serving = tokio::spawn(server.into_future());
    asked_to_stop.await;
    // The server still answers while each request ends its current phase and releases its lease.
    if let Err(left) = engine.shutdown(Duration::from_secs(35)).await {
        println!("{left}"); // as after a crash: another process resumes these
    }
    drop(close); // no new connection; ten seconds for those that are open
    if timeout(Duration::from_secs(10), serving).await.is_err() {
        println!("open connections end with this process");
    }
    workers.shutdown(Duration::from_secs(35)).await?;
    Ok(())
}

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Sqlite::connect(":memory:").await?; // or Postgres::connect("postgres://…")
    store.migrate().await?;
    let tables = "CREATE TABLE rides (id TEXT PRIMARY KEY, user_id BIGINT, charge_id TEXT)";
    store.connection().await?.batch_execute(tables).await?; // your own migrations

    let engine = Engine::builder(store)
        .app(App::default())
        .register::<CreateRide>()
        .register::<PayOut>()
        .reconcile_after(Duration::from_secs(2)) // as long as a call to the bank may take
        .build()?;

    let (scope, key) = (Scope::new("user-1")?, IdempotencyKey::new("8e03978e-40d5-43dd-bc93")?);
    match engine.call(&scope, &key, CreateRide { user_id: 1 }).await? {
        Outcome::Finished(done) => println!("{:?}", done.reply), // its first answer, or the replay
        Outcome::InProgress { retry_after } => println!("409, ask again in {retry_after:?}"),
        Outcome::Mismatch => println!("422: the key was used for another request"),
        Outcome::Failed { retry_after, .. } => println!("503, a retry in {retry_after:?} resumes"),
        Outcome::Unknown { retry_after, .. } => println!("409, it is found out in {retry_after:?}"),
        other => println!("{other:?}"), // accepted, given up, erased, or its reply too large to keep
    }

    let handlers = Handlers::new().on("send_receipt", async |receipt: Receipt, job: Job| {
        println!("mail about ride {}, unless job {} was mailed before", receipt.ride, job.id);
        Ok::<_, DeliveryError>(())
    });
    let workers = engine.spawn_workers(WorkerConfig::default().sink(handlers))?;

    let key = IdempotencyKey::new("payout-17")?;
    let told = engine.call(&scope, &key, PayOut { cents: 2500 }).await?;
    println!("the bank's answer was lost: {told:?}");
    // A webhook, or an operator who has called the bank, reports the outcome:
    let resolution = Resolution::executed("sent", &Transfer { number: 1 })?;
    println!("{:?}", engine.resolve(&scope, &key, resolution).await?);
    let told = engine.call(&scope, &key, PayOut { cents: 2500 }).await?;
    println!("a retry gets: {told:?}");

    let _ = payouts(Idempotency::new(engine.clone(), atomic_phases::http::single_tenant()))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    serve(listener, engine, workers, async {}).await
}

#[derive(Default)]
struct App {
    stripe: Stripe,
    bank: Bank,
}

/// Answers a key that it knows as it did before.
#[derive(Default)]
struct Stripe(Mutex<HashMap<String, String>>);

impl Stripe {
    async fn charge(
        &self,
        key: DerivedKey,
        cents: u32,
        reference: &str,
    ) -> Result<Charge, ForeignError> {
        let mut charges = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let charge = format!("charge of {cents} for {reference}");
        Ok(Charge { id: charges.entry(key.as_str().to_owned()).or_insert(charge).clone() })
    }
}

/// Knows no keys and would pay again; and its answers get lost.
#[derive(Default)]
struct Bank(Mutex<Vec<String>>);

impl Bank {
    async fn pay(&self, reference: &str, cents: i64) -> Result<Transfer, ForeignError> {
        println!("the bank pays {cents}");
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(reference.to_owned());
        Err(ForeignError::unknown("the bank's answer was lost"))
    }

    async fn find(&self, reference: &str) -> Option<Transfer> {
        let transfers = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = transfers.iter().position(|transfer| transfer == reference)?;
        Some(Transfer { number: found + 1 })
    }
}
