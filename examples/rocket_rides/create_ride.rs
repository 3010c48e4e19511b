//! The request: book a ride, charge the card, tell a pilot, stage the receipt. This is all that an
//! application writes; everything around it makes these four phases survive a crash.

use atomic_phases::{
    Batch, ForeignCall, ForeignError, PhaseError, PhaseResult, Reconciled, Reply, RequestContext,
    Tx, Unfingerprinted, atomic_phases,
};
use serde::{Deserialize, Serialize};

use crate::charge_api::{ChargeApi, ChargeParams};
use crate::db::RidesDb;
use crate::pilot_api::PilotApi;

/// 20 US dollars, in cents.
const PRICE: u32 = 2000;

/// The parameters of `POST /rides`, checked by the HTTP side.
#[derive(Debug, Serialize, Deserialize)]
pub struct CreateRide {
    pub user_id: i64,
    pub origin_lat: f64,
    pub origin_lon: f64,
    pub target_lat: f64,
    pub target_lon: f64,
    /// A switch for demonstrations: the charge fails once, after the card was charged. No part of
    /// the request, so the retry may leave it out.
    pub raise_error: Unfingerprinted<bool>,
}

/// What the phases share.
pub struct App {
    pub charges: ChargeApi,
    pub pilots: PilotApi,
}

/// Output of `ride_created`.
#[derive(Serialize, Deserialize)]
pub struct Ride {
    id: String,
    customer: String,
}

/// Output of `charge_created`.
#[derive(Serialize, Deserialize)]
pub struct Charge {
    pub id: String,
}

/// Output of `pilot_notified`.
#[derive(Serialize, Deserialize)]
pub struct Notification {
    id: String,
}

#[atomic_phases(name = "rides.create", version = 1)]
impl<Db: RidesDb> CreateRide {
    /// Local: the ride, its audit record and the recovery point are one commit.
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Ride> {
        let customer = Db::customer(tx, self.user_id).await?;
        let id = ctx.uuid(0).to_string();
        Db::insert_ride(tx, &id, self, ctx.key()).await?;
        Db::insert_audit_record(tx, &ctx.uuid(1).to_string(), self.user_id, &id).await?;
        Ok(Ride { id, customer })
    }

    /// Foreign: no transaction is open while the card is charged, and a repeated call sends the same
    /// key with the same parameters.
    #[phase(foreign(idempotent, window = "24h"))]
    async fn charge_created(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
        ride: &Ride,
    ) -> PhaseResult<Charge, ForeignError> {
        let params = ChargeParams {
            amount: PRICE,
            currency: "usd",
            customer: &ride.customer,
            description: &format!("Charge for ride {}", ride.id),
            ride: &ride.id,
        };
        let id = call.make(|key| app.charges.create(key, params)).await?;
        if *self.raise_error && ctx.attempt() == 1 {
            return Err(PhaseError::retryable("raise_error was asked for").into());
        }
        Ok(Charge { id })
    }

    /// Foreign, at an API without keys: the intent is committed before the call, and where nobody
    /// knows what became of it, nobody repeats it.
    #[phase(foreign(at_most_once), timeout = "2s")]
    async fn pilot_notified(
        &self,
        call: ForeignCall,
        app: &App,
        ride: &Ride,
    ) -> PhaseResult<Notification, ForeignError> {
        let id = call.make(|_no_use_for_a_key| app.pilots.notify(&ride.id)).await?;
        Ok(Notification { id })
    }

    /// Asks the API what it was told. It tells at once and for ever, and no call of ours is on its way
    /// any longer than the phase takes at most; so a ride that it does not know was not told.
    #[reconcile(pilot_notified)]
    async fn find_notification(
        &self,
        app: &App,
        ride: &Ride,
    ) -> PhaseResult<Reconciled<Notification>> {
        Ok(match app.pilots.find(&ride.id).await {
            Ok(Some(id)) => Reconciled::Executed(Notification { id }),
            Ok(None) => Reconciled::NotExecuted,
            Err(_) => Reconciled::StillUnknown,
        })
    }

    /// Local, and the last: the charge, the receipt to be sent and the answer are one commit. No
    /// answer of the database is needed for it, so it hands over what is to be written.
    #[phase]
    async fn receipt_staged(
        &self,
        batch: &mut Batch<'_, Db>,
        ride: &Ride,
        charge: &Charge,
        pilot: &Notification,
    ) -> PhaseResult<Reply> {
        Db::add_charge(batch, &ride.id, &charge.id);
        let receipt = serde_json::json!({ "ride": ride.id, "amount": PRICE });
        batch.stage_job("send_receipt", &receipt)?;
        let body = serde_json::json!({
            "id": ride.id, "charge": charge.id, "amount": PRICE, "notification": pilot.id,
        });
        Ok(Reply::json(201, &body)?.header("location", format!("/rides/{}", ride.id)))
    }
}
