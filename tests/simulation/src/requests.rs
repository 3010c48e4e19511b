//! The requests of the simulation.

use std::time::Duration;

use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::simulation::{Memory, Node, Write};
use atomic_phases::{
    Batch, ForeignCall, PhaseError, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use diesel_async::RunQueryDsl;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::provider::{Answer, Caller, Honours, Provider, REFUSED_FOR, SHORT_WINDOW, WINDOW};

/// An amount that the first phase of a ride rejects, and at which that of a parcel fails the first time.
pub const REJECTED: i64 = 13;

pub struct App {
    pub provider: Provider,
    pub store: Memory,
}

impl App {
    fn caller(&self, ctx: &RequestContext, phase: &'static str, life: &str) -> Caller {
        Caller {
            scope: ctx.scope().as_str().to_owned(),
            key: ctx.key().as_str().to_owned(),
            phase,
            life: life.to_owned(),
            request: ctx.request_id(),
            created_at: ctx.created_at().to_rfc3339(),
            store: self.store.clone(),
            patience: 1,
            attempt: ctx.attempt(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Booked {
    id: String,
    at: String,
}

#[derive(Serialize, Deserialize)]
pub struct Charged {
    pub id: String,
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

/// The reply of a request that reached its effect.
pub fn reply(life: &str, amount: i64, charge: &str) -> PhaseResult<Reply> {
    let body = json!({ "life": life, "amount": amount, "charge": charge });
    Ok(Reply::json(201, &body)?.header("location", format!("/requests/{life}")))
}

async fn note(tx: &mut Tx<'_, Memory>, ctx: &RequestContext, amount: i64) -> PhaseResult<Booked> {
    let id = ctx.uuid(0).to_string();
    Write::insert("rides", &id, amount).execute(tx).await?;
    Ok(Booked { id, at: ctx.created_at().to_rfc3339() })
}

async fn book(tx: &mut Tx<'_, Memory>, ctx: &RequestContext, amount: i64) -> PhaseResult<Booked> {
    let id = ctx.uuid(0).to_string();
    Write::insert("rides", &id, amount).execute(tx).await?;
    if amount == REJECTED {
        return Err(PhaseError::reject(Reply::text(402, "no credit")));
    }
    Ok(Booked { id, at: ctx.created_at().to_rfc3339() })
}

async fn charge(
    call: ForeignCall,
    app: &App,
    ctx: &RequestContext,
    booked: &Booked,
) -> PhaseResult<Charged, ForeignError> {
    let caller = app.caller(ctx, "charged", &booked.id);
    let make = async |key: DerivedKey| {
        let honours = Honours::For(WINDOW);
        charged(app.provider.call(key.as_str(), honours, caller).await)
    };
    call.make(make).await
}

async fn answer(
    tx: &mut Tx<'_, Memory>,
    booked: &Booked,
    charged: &Charged,
    amount: i64,
) -> PhaseResult<Reply> {
    let total = tx.conn().get_for_update("totals", "rides").await?;
    let total = total.and_then(|total| total.as_i64()).unwrap_or(0);
    Write::put("totals", "rides", total + amount).execute(tx).await?;
    Write::append("receipts", json!({ "life": booked.id, "at": booked.at })).execute(tx).await?;
    tx.stage_job("receipt", &booked.id)?;
    reply(&booked.id, amount, &charged.id)
}

/// A ride as one build of the application declares it.
macro_rules! ride {
    ($name:ident, version $version:literal $(, $checked:ident)? $(; asked by $find:ident)?) => {
        #[derive(Clone, Serialize, Deserialize)]
        pub struct $name {
            pub amount: i64,
        }

        #[atomic_phases(name = "ride", version = $version)]
        impl $name {
            #[phase]
            async fn booked(
                &self,
                tx: &mut Tx<'_, Memory>,
                ctx: &RequestContext,
            ) -> PhaseResult<Booked> {
                book(tx, ctx, self.amount).await
            }

            #[phase(foreign(idempotent, window = "60s"), timeout = "5s")]
            async fn charged(
                &self,
                call: ForeignCall,
                app: &App,
                ctx: &RequestContext,
                booked: &Booked,
            ) -> PhaseResult<Charged, ForeignError> {
                charge(call, app, ctx, booked).await
            }

            $(#[reconcile(charged)]
            async fn $find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<Charged>> {
                Ok(found(key, app))
            })?

            $(#[phase(commit)]
            async fn $checked(&self, tx: &mut Tx<'_, Memory>, charged: &Charged) -> PhaseResult<()> {
                Write::put("checked", &charged.id, self.amount).execute(tx).await?;
                Ok(())
            })?

            #[phase]
            async fn answered(
                &self,
                tx: &mut Tx<'_, Memory>,
                booked: &Booked,
                charged: &Charged,
            ) -> PhaseResult<Reply> {
                answer(tx, booked, charged, self.amount).await
            }
        }
    };
}

ride!(Ride, version 1);
ride!(LongRide, version 1, checked; asked by find);
ride!(NextRide, version 2; asked by find);

/// A ride at a provider that forgets its key within seconds.
#[derive(Clone, Serialize, Deserialize)]
pub struct Fare {
    pub amount: i64,
}

#[atomic_phases(name = "fare", version = 1)]
impl Fare {
    #[phase]
    async fn asked(&self, tx: &mut Tx<'_, Memory>, ctx: &RequestContext) -> PhaseResult<Booked> {
        note(tx, ctx, self.amount).await
    }

    #[phase(foreign(idempotent, window = "10s"), timeout = "5s")]
    async fn paid(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
        asked: &Booked,
    ) -> PhaseResult<Charged, ForeignError> {
        let caller = app.caller(ctx, "paid", &asked.id);
        let make = async |key: DerivedKey| {
            let honours = Honours::For(SHORT_WINDOW);
            match app.provider.call(key.as_str(), honours, caller).await {
                Answer::Refused => Err(ForeignError::not_executed_after("refused", REFUSED_FOR)),
                answer => charged(answer),
            }
        };
        call.make(make).await
    }

    #[reconcile(paid)]
    async fn find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<Charged>> {
        Ok(found(key, app))
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Memory>,
        asked: &Booked,
        paid: &Charged,
    ) -> PhaseResult<Reply> {
        Write::append("receipts", json!({ "life": asked.id, "at": asked.at })).execute(tx).await?;
        reply(&asked.id, self.amount, &paid.id)
    }
}

/// A note as one node declares it, half-way through a rollout: this node may wait longer for an answer than another
/// one does, `patience` times as long.
macro_rules! note {
    ($name:ident, $limit:literal, patience $patience:literal) => {
        #[derive(Clone, Serialize, Deserialize)]
        pub struct $name {
            pub amount: i64,
        }

        #[atomic_phases(name = "note", version = 1)]
        impl $name {
            #[phase]
            async fn noted(&self, tx: &mut Tx<'_, Memory>, ctx: &RequestContext) -> PhaseResult<Booked> {
                note(tx, ctx, self.amount).await
            }

            #[phase(foreign(at_most_once), timeout = $limit)]
            async fn notified(
                &self,
                call: ForeignCall,
                app: &App,
                ctx: &RequestContext,
                noted: &Booked,
            ) -> PhaseResult<Charged, ForeignError> {
                let caller = Caller { patience: $patience, ..app.caller(ctx, "notified", &noted.id) };
                let make = async |key: DerivedKey| {
                    charged(app.provider.call(key.as_str(), Honours::Never, caller).await)
                };
                call.make(make).await
            }

            #[reconcile(notified)]
            async fn find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<Charged>> {
                Ok(found(key, app))
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
    };
}

note!(Note, "5s", patience 1);
note!(PatientNote, "30s", patience 6);

/// The outcome of a call, as far as its provider can be queried.
fn found(key: &DerivedKey, app: &App) -> Reconciled<Charged> {
    match app.provider.search(key.as_str()) {
        None => Reconciled::StillUnknown,
        Some(None) => Reconciled::NotExecuted,
        Some(Some(id)) => Reconciled::Executed(Charged { id }),
    }
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Alert {
    pub amount: i64,
}

#[atomic_phases(name = "alert", version = 1)]
impl Alert {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Memory>, ctx: &RequestContext) -> PhaseResult<Booked> {
        note(tx, ctx, self.amount).await
    }

    #[phase(foreign(at_most_once), timeout = "5s")]
    async fn alerted(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
        noted: &Booked,
    ) -> PhaseResult<Reply, ForeignError> {
        let caller = app.caller(ctx, "alerted", &noted.id);
        let make = async |key: DerivedKey| {
            charged(app.provider.call(key.as_str(), Honours::Never, caller).await)
        };
        let alerted = call.make(make).await?;
        Ok(reply(&noted.id, self.amount, &alerted.id)?)
    }

    #[reconcile(alerted)]
    async fn find(
        &self,
        key: &DerivedKey,
        app: &App,
        noted: &Booked,
    ) -> PhaseResult<Reconciled<Reply>> {
        Ok(match found(key, app) {
            Reconciled::Executed(alerted) => {
                Reconciled::Executed(reply(&noted.id, self.amount, &alerted.id)?)
            }
            Reconciled::NotExecuted => Reconciled::NotExecuted,
            Reconciled::StillUnknown => Reconciled::StillUnknown,
        })
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
        if self.amount == REJECTED && ctx.attempt() == 1 {
            // The row exists already.
            batch.add(Write::insert("totals", "parcels", 0));
        }
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
        let caller = app.caller(ctx, "sent", &packed.id);
        let make = async |key: DerivedKey| {
            charged(app.provider.call(key.as_str(), Honours::ForEver, caller).await)
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

#[derive(Clone, Serialize, Deserialize)]
pub struct Stray {
    pub amount: i64,
}

#[atomic_phases(name = "stray", version = 1)]
impl Stray {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Memory>, ctx: &RequestContext) -> PhaseResult<Booked> {
        note(tx, ctx, self.amount).await
    }

    #[phase(foreign(at_most_once), timeout = "5s")]
    async fn notified(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
        noted: &Booked,
    ) -> PhaseResult<Charged, ForeignError> {
        let (provider, caller) = (app.provider.clone(), app.caller(ctx, "notified", &noted.id));
        let make = async move |key: DerivedKey| {
            charged(provider.call(key.as_str(), Honours::Never, caller).await)
        };
        if ctx.attempt() > 1 {
            return call.make(make).await;
        }
        // A mistake of the author: the phase ends before its call is made.
        let node = Node::current().expect("a phase runs on a node");
        node.spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let _ = call.make(make).await;
        });
        Err(ForeignError::retryable("left behind"))
    }

    #[reconcile(notified)]
    async fn find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<Charged>> {
        Ok(found(key, app))
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

/// How long the provider of a flood delays its answers.
const HANGS: Duration = Duration::from_secs(60);

#[derive(Clone, Serialize, Deserialize)]
pub struct Flood {
    /// An odd amount: its job takes long, too.
    pub amount: i64,
}

#[atomic_phases(name = "flood", version = 1)]
impl Flood {
    #[phase]
    async fn staged(&self, tx: &mut Tx<'_, Memory>) -> PhaseResult<()> {
        for _ in 0..self.amount {
            tx.stage_job("slow", &())?;
        }
        Ok(())
    }

    #[phase(foreign(idempotent), timeout = "90s")]
    async fn hung(&self, call: ForeignCall, app: &App) -> PhaseResult<()> {
        let hang = async |_| {
            if app.provider.is_slow_for_floods() {
                tokio::time::sleep(HANGS).await;
            }
            Ok::<_, PhaseError>(())
        };
        call.make(hang).await
    }

    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Memory>) -> PhaseResult<Reply> {
        Ok(Reply::new(204))
    }
}
