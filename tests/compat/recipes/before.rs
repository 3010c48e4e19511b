//! The program that each recipe begins with.

use atomic_phases::compat::Definitions;
use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::App;
use crate::support::TestDb;

#[derive(Serialize, Deserialize)]
pub struct CreateOrder {
    pub cents: u32,
}

#[derive(Serialize, Deserialize)]
pub struct Order {
    pub id: String,
}

#[derive(Serialize, Deserialize)]
pub struct Payment {
    pub id: String,
}

#[derive(Serialize, Deserialize)]
pub struct Stock {
    pub left: u32,
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

    #[phase(foreign(idempotent, window = "24h"))]
    async fn paid(&self, call: ForeignCall, app: &App, order: &Order) -> PhaseResult<Payment> {
        let id = call.make(async |key| app.charge(key, &order.id).await).await?;
        app.pass("paid")?;
        Ok(Payment { id })
    }

    #[phase]
    async fn stock_taken(
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
