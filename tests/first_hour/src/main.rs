//! A ride, a charge and an answer over HTTP: README.md's page, whole.

use atomic_phases::*;
use axum::{Router, routing::post};
use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use serde::{Deserialize, Serialize};

type Db = Postgres;

diesel::table! { rides (id) { id -> BigInt, user_id -> BigInt, charge_id -> Nullable<Text>, } }

#[derive(Serialize, Deserialize)]
struct CreateRide {
    user_id: i64,
}

#[derive(Serialize, Deserialize)]
struct Ride {
    id: i64,
}

#[derive(Serialize, Deserialize)]
struct Charge {
    id: String,
}

struct App {
    stripe: Stripe,
}

struct Stripe;

impl Stripe {
    async fn charge(&self, key: DerivedKey, cents: u32) -> Result<Charge, ForeignError> {
        Ok(Charge { id: format!("{}-{cents}", key.as_str()) })
    }
}

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Ride> {
        let ride = diesel::insert_into(rides::table).values(rides::user_id.eq(self.user_id));
        Ok(Ride { id: ride.returning(rides::id).get_result(tx).await? })
    }

    #[phase(foreign(idempotent, window = "24h"))]
    async fn charge_created(
        &self,
        call: ForeignCall,
        app: &App,
    ) -> PhaseResult<Charge, ForeignError> {
        call.make(|key| app.stripe.charge(key, 2000)).await
    }

    #[phase]
    async fn receipt_staged(
        &self,
        batch: &mut Batch<'_, Db>,
        ride: &Ride,
        charge: &Charge,
    ) -> PhaseResult<Reply> {
        let paid = rides::charge_id.eq(charge.id.clone());
        batch.add(diesel::update(rides::table.find(ride.id)).set(paid));
        batch.stage_job("send_receipt", &ride.id)?;
        Ok(Reply::json(201, ride)?)
    }
}

async fn create_ride(keyed: Keyed<Db, App>, Params(ride): Params<CreateRide>) -> Answer {
    keyed.answer(ride).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Postgres::connect("postgres://localhost/rides").await?;
    store.migrate().await?;
    let app = App { stripe: Stripe };
    let engine = Engine::builder(store).app(app).register::<CreateRide>().build()?;
    let idempotency = Idempotency::new(engine, single_tenant());
    let router = Router::new().route("/rides", post(create_ride)).with_state(idempotency);
    axum::serve(tokio::net::TcpListener::bind("127.0.0.1:5000").await?, router).await?;
    Ok(())
}
