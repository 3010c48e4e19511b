//! The requests of the simulation.

use atomic_phases::simulation::{Memory, Write};
use atomic_phases::*;
use diesel_async::RunQueryDsl;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::provider::{Answer, Honours, Provider};

/// An amount that the first phase of a ride rejects.
pub const REJECTED: i64 = 13;

pub struct App {
    pub provider: Provider,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Ride {
    pub amount: i64,
}

#[derive(Serialize, Deserialize)]
struct Booked {
    id: String,
    at: String,
}

#[derive(Serialize, Deserialize)]
struct Charged {
    id: String,
}

#[derive(Serialize, Deserialize)]
struct Read {
    balance: i64,
}

fn charged(answer: Answer) -> PhaseResult<Charged, ForeignError> {
    match answer {
        Answer::Done(id) => Ok(Charged { id }),
        Answer::Refused => Err(ForeignError::not_executed("refused")),
        Answer::Declined => Err(ForeignError::reject(Reply::text(402, "declined"))),
        Answer::Reset => Err(ForeignError::retryable("reset")),
    }
}

fn reply(life: &str, amount: i64, charge: &str) -> PhaseResult<Reply> {
    Ok(Reply::json(201, &json!({ "life": life, "amount": amount, "charge": charge }))?)
}

#[atomic_phases(name = "ride", version = 1)]
impl Ride {
    #[phase]
    async fn booked(&self, tx: &mut Tx<'_, Memory>, ctx: &RequestContext) -> PhaseResult<Booked> {
        let id = ctx.uuid(0).to_string();
        Write::insert("rides", &id, self.amount).execute(tx).await?;
        if self.amount == REJECTED {
            return Err(PhaseError::reject(Reply::text(402, "no credit")));
        }
        Ok(Booked { id, at: ctx.created_at().to_rfc3339() })
    }

    #[phase(foreign(idempotent, window = "60s"), timeout = "5s")]
    async fn charged(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
        booked: &Booked,
    ) -> PhaseResult<Charged, ForeignError> {
        let make = async |key: DerivedKey| {
            let honours = Honours::ForSixtySeconds;
            charged(app.provider.call(key.as_str(), &booked.id, honours, ctx).await)
        };
        call.make(make).await
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Memory>,
        booked: &Booked,
        charged: &Charged,
    ) -> PhaseResult<Reply> {
        let total = tx.conn().get_for_update("totals", "rides").await?;
        let total = total.and_then(|total| total.as_i64()).unwrap_or(0);
        Write::put("totals", "rides", total + self.amount).execute(tx).await?;
        Write::append("receipts", json!({ "life": booked.id, "at": booked.at }))
            .execute(tx)
            .await?;
        tx.stage_job("receipt", &booked.id)?;
        reply(&booked.id, self.amount, &charged.id)
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Note {
    pub amount: i64,
}

#[atomic_phases(name = "note", version = 1)]
impl Note {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Memory>, ctx: &RequestContext) -> PhaseResult<Booked> {
        let id = ctx.uuid(0).to_string();
        Write::insert("rides", &id, self.amount).execute(tx).await?;
        Ok(Booked { id, at: ctx.created_at().to_rfc3339() })
    }

    #[phase(foreign(at_most_once), timeout = "5s")]
    async fn notified(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
        noted: &Booked,
    ) -> PhaseResult<Charged, ForeignError> {
        let make = async |key: DerivedKey| {
            charged(app.provider.call(key.as_str(), &noted.id, Honours::Never, ctx).await)
        };
        call.make(make).await
    }

    #[reconcile(notified)]
    async fn find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<Charged>> {
        Ok(match app.provider.search(key.as_str()) {
            None => Reconciled::StillUnknown,
            Some(None) => Reconciled::NotExecuted,
            Some(Some(id)) => Reconciled::Executed(Charged { id }),
        })
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Memory>,
        noted: &Booked,
        notified: &Charged,
    ) -> PhaseResult<Reply> {
        Write::append("receipts", json!({ "life": noted.id, "at": noted.at })).execute(tx).await?;
        reply(&noted.id, self.amount, &notified.id)
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Parcel {
    pub amount: i64,
}

#[atomic_phases(name = "parcel", version = 1)]
impl Parcel {
    #[phase]
    async fn packed(
        &self,
        batch: &mut Batch<'_, Memory>,
        ctx: &RequestContext,
    ) -> PhaseResult<Booked> {
        let id = ctx.uuid(0).to_string();
        batch.add(Write::insert("rides", &id, self.amount));
        Ok(Booked { id, at: ctx.created_at().to_rfc3339() })
    }

    #[phase(foreign(idempotent), timeout = "5s")]
    async fn sent(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
        packed: &Booked,
    ) -> PhaseResult<Charged, ForeignError> {
        let make = async |key: DerivedKey| {
            charged(app.provider.call(key.as_str(), &packed.id, Honours::ForEver, ctx).await)
        };
        call.make(make).await
    }

    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Memory>,
        packed: &Booked,
        sent: &Charged,
    ) -> PhaseResult<Reply> {
        batch.add(Write::calculate("totals", "parcels", 1, self.amount));
        batch.add(Write::append("receipts", json!({ "life": packed.id, "at": packed.at })));
        batch.stage_job("receipt", &packed.id)?;
        batch.stage_job("thanks", &packed.id)?;
        reply(&packed.id, self.amount, &sent.id)
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Transfer {
    pub amount: i64,
}

#[atomic_phases(name = "transfer", version = 1)]
impl Transfer {
    #[phase(isolation = "serializable")]
    async fn taken(&self, tx: &mut Tx<'_, Memory>, ctx: &RequestContext) -> PhaseResult<Read> {
        let balance = tx.conn().get("totals", "from").await?;
        let balance = balance.and_then(|balance| balance.as_i64()).unwrap_or(0);
        Write::put("totals", "from", balance - self.amount).execute(tx).await?;
        Write::insert("rides", ctx.uuid(0).to_string(), self.amount).execute(tx).await?;
        Ok(Read { balance })
    }

    #[phase(isolation = "repeatable_read", commit)]
    async fn given(
        &self,
        tx: &mut Tx<'_, Memory>,
        ctx: &RequestContext,
        taken: &Read,
    ) -> PhaseResult<Reply> {
        let balance = tx.conn().get("totals", "to").await?;
        let balance = balance.and_then(|balance| balance.as_i64()).unwrap_or(0);
        Write::put("totals", "to", balance + self.amount).execute(tx).await?;
        let life = ctx.uuid(0).to_string();
        Write::append("receipts", json!({ "life": life, "at": "" })).execute(tx).await?;
        tx.stage_job("receipt", &life)?;
        reply(&life, self.amount, &taken.balance.to_string())
    }
}
