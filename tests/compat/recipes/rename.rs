//! **Rename a phase**: `was` has its earlier name. Keep that name of a foreign phase for ever, because the
//! provider's key is derived from it.

use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::before::{Order, Payment, Stock};
use super::*;
use crate::support::TestDb;

#[derive(Serialize, Deserialize)]
pub struct CreateOrder {
    pub cents: u32,
}

#[atomic_phases(name = "orders.create", version = 1)]
impl<Db: TestDb> CreateOrder {
    #[phase]
    async fn order_created(
        &self,
        tx: &mut Tx<'_, Db>,
        app: &App,
        ctx: &RequestContext,
    ) -> PhaseResult<Order> {
        let id = ctx.uuid(0).to_string();
        Db::insert_ride(tx, &id, self.cents.into()).await?;
        app.pass("order_created")?;
        Ok(Order { id })
    }

    #[phase(foreign(idempotent, window = "24h"), was = "paid")]
    async fn card_charged(
        &self,
        call: ForeignCall,
        app: &App,
        order: &Order,
    ) -> PhaseResult<Payment> {
        let id = call.make(async |key| app.charge(key, &order.id).await).await?;
        app.pass("paid")?;
        Ok(Payment { id })
    }

    #[phase(was = "stock_taken")]
    async fn stock_reserved(
        &self,
        tx: &mut Tx<'_, Db>,
        app: &App,
        order: &Order,
    ) -> PhaseResult<Stock> {
        Db::insert_step(tx, &order.id, "stock_taken").await?;
        app.pass("stock_taken")?;
        Ok(Stock { left: 9 })
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Db>,
        app: &App,
        order: &Order,
        payment: &Payment,
    ) -> PhaseResult<Reply> {
        Db::insert_step(tx, &order.id, "answered").await?;
        app.pass("answered")?;
        Ok(Reply::text(201, payment.id.clone()))
    }
}

pub fn definitions<Db: TestDb>() -> Definitions<Db, App> {
    Definitions::new().with::<CreateOrder>()
}

on_every_store! {
    g1_a_renamed_phase_goes_on_under_the_same_provider_key,
}

async fn g1_a_renamed_phase_goes_on_under_the_same_provider_key<S: TestDb>(db: S) {
    let app = App::default();
    in_flight(&db, &app).await;
    let lints = lints(&before::definitions::<S>(), &definitions());
    assert_eq!(lints, [Lint::RenamedWithWas, Lint::RenamedWithWas]);
    let new = deployed(&db, &app, definitions());
    all_go_on(&db, &new, || CreateOrder { cents: 2000 }).await;
}
