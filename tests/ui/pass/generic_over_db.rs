//! One request over several databases: the impl's parameters belong to the phases.

#![deny(warnings, missing_docs, unreachable_pub, unused, unused_lifetimes, unused_qualifications)]

use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::Sqlite;
use atomic_phases::{ForeignCall, PhaseResult, Reply, Store, Tx, atomic_phases};
use diesel_async::SimpleAsyncConnection;
use serde::{Deserialize, Serialize};

trait RidesDb: Store {
    const TABLE: &'static str;
}

impl RidesDb for Sqlite {
    const TABLE: &'static str = "rides";
}

struct App {
    charges: u32,
}

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
    id: u32,
}

#[atomic_phases(name = "rides.create", version = 1)]
impl<Db> CreateRide
where
    Db: RidesDb,
{
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Ride> {
        self.insert(tx).await?;
        Ok(Ride { id: self.user_id })
    }

    #[phase(foreign(at_most_once))]
    async fn charge_created(
        &self,
        call: ForeignCall,
        app: &App,
        ride: &Ride,
    ) -> PhaseResult<Charge, ForeignError> {
        let id =
            call.make(async |_key| Ok::<_, ForeignError>(app.charges + ride.id as u32)).await?;
        Ok(Charge { id })
    }

    // Mentions the store in its body only.
    #[reconcile(charge_created)]
    async fn charge_or_not(&self, key: &DerivedKey) -> PhaseResult<Reconciled<Charge>> {
        let _ = (key.as_str(), Db::TABLE);
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn receipt_staged(
        &self,
        tx: &mut Tx<'_, Db>,
        ride: &Ride,
        charge: &Charge,
    ) -> PhaseResult<Reply> {
        tx.stage_job("send_receipt", &charge.id)?;
        Ok(Reply::json(201, ride)?)
    }

    async fn insert(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        let sql = format!("INSERT INTO {} VALUES ({})", Db::TABLE, self.user_id);
        tx.batch_execute(&sql).await?;
        Ok(())
    }
}

fn request<S: Store, R: RequestDefinition<S, App>>() -> usize {
    R::DEFINITION.phases.len()
}

pub(super) fn main() {
    assert_eq!(request::<Sqlite, CreateRide>(), 3);
}
