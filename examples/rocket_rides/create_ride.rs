//! The request: book a ride, charge the card, take note of it (or undo the ride), tell a pilot, stage the
//! receipt. This is all that an
//! application writes; everything around it makes these five phases survive a crash.

use atomic_phases::compat::Definitions;
use atomic_phases::fingerprint::Unfingerprinted;
use atomic_phases::phase::{Flow, ForeignError, Reconciled};
use atomic_phases::{
    Batch, ForeignCall, PhaseError, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use diesel::result::{DatabaseErrorKind, Error};
use serde::{Deserialize, Serialize};

use crate::charge_api::{Charge, ChargeApi, ChargeParams};
use crate::db::RidesDb;
use crate::pilot_api::PilotApi;

/// 20 US dollars, in cents.
pub const PRICE: u32 = 2000;
pub const CURRENCY: &str = "usd";

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

/// All requests of this application: for its engine, and for the test that holds them against `phases/`.
pub fn definitions<Db: RidesDb>() -> Definitions<Db, App> {
    Definitions::new().with::<CreateRide>().job::<CreateRide, Receipt>("send_receipt")
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

/// Output of `charge_noted`.
#[derive(Serialize, Deserialize)]
pub struct Paid {
    charge: String,
}

/// Output of `pilot_notified`.
#[derive(Serialize, Deserialize)]
pub struct Notification {
    id: String,
}

/// What the job `send_receipt` is staged with.
#[derive(Serialize, Deserialize)]
pub struct Receipt {
    pub ride: String,
    pub amount: u32,
}

#[atomic_phases(name = "rides.create", version = 1)]
impl<Db: RidesDb> CreateRide {
    /// Local: the ride, its audit record and the recovery point are one commit. The ride's id is what both providers
    /// are told, so it is made of the key: where a failover loses this commit, and the card was charged, the
    /// client's retry asks for the same charge with the same parameters. And a key books one ride, ever.
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Ride> {
        let customer = Db::customer(tx, self.user_id).await?;
        let id = ctx.key_uuid(0).to_string();
        match Db::insert_ride(tx, &id, self, ctx).await {
            Err(Error::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => {
                let text = "A ride was booked with this key, longer ago than answers are kept.";
                let error = serde_json::json!({ "type": "invalid_request_error", "message": text });
                let reply = Reply::json(409, &serde_json::json!({ "error": error }))?;
                return Err(PhaseError::reject(reply));
            }
            inserted => inserted?,
        };
        Db::insert_audit_record(tx, &ctx.uuid(1).to_string(), self.user_id, &id).await?;
        Ok(Ride { id, customer })
    }

    /// Foreign: no transaction is open while the card is charged, and a repeated call sends the same
    /// key with the same parameters. A declined card is an output, and no rejection here: the ride is
    /// committed already, and has to be undone.
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
            currency: CURRENCY,
            customer: &ride.customer,
            description: &format!("Charge for ride {}", ride.id),
            ride: &ride.id,
        };
        let charge = call.make(|key| app.charges.create(key, params)).await?;
        if *self.raise_error && ctx.attempt() == 1 {
            return Err(PhaseError::retryable("raise_error was asked for").into());
        }
        Ok(charge)
    }

    /// Local: the charge and what follows from it are one commit. Where the card was declined, this is
    /// the end: `Flow::Finish` keeps what is written here, as a rejection would not.
    #[phase]
    async fn charge_noted(
        &self,
        batch: &mut Batch<'_, Db>,
        ctx: &RequestContext,
        ride: &Ride,
        charge: &Charge,
    ) -> PhaseResult<Flow<Paid>> {
        match charge {
            Charge::Made { id } => {
                Db::add_charge(batch, &ride.id, id);
                Ok(Flow::Continue(Paid { charge: id.clone() }))
            }
            Charge::Declined { message } => {
                Db::cancel_ride(batch, &ride.id);
                let audit = ctx.uuid(2).to_string();
                Db::add_audit_record(batch, &audit, self.user_id, "declined", &ride.id);
                let error = serde_json::json!({
                    "type": "card_error", "code": "card_declined", "message": message,
                });
                let reply = Reply::json(402, &serde_json::json!({ "error": error }))?;
                Ok(Flow::Finish(reply))
            }
        }
    }

    /// Foreign, at an API without keys: the intent is committed before the call, and a call
    /// whose outcome is unknown is never repeated.
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

    /// Asks the API what it was told. It answers immediately and for ever, and no call of ours is on its way
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

    /// Local, and the last: the receipt to be sent and the answer are one commit. No answer of the
    /// database is needed for it, so it hands over what is to be written.
    #[phase]
    async fn receipt_staged(
        &self,
        batch: &mut Batch<'_, Db>,
        ride: &Ride,
        paid: &Paid,
        pilot: &Notification,
    ) -> PhaseResult<Reply> {
        let receipt = Receipt { ride: ride.id.clone(), amount: PRICE };
        batch.stage_job("send_receipt", &receipt)?;
        let body = serde_json::json!({
            "id": ride.id, "charge": paid.charge, "amount": PRICE, "notification": pilot.id,
        });
        Ok(Reply::json(201, &body)?.header("location", format!("/rides/{}", ride.id)))
    }
}
