//! **Insert a phase**: directly before the last one, where no row has passed. Anywhere else, it is a new version
//! (`side_by_side`).

use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::before::{Order, Payment, Stock};
use super::*;
use crate::support::TestDb;

#[derive(Serialize, Deserialize)]
struct CreateOrder {
    cents: u32,
}

#[derive(Serialize, Deserialize)]
struct Parcel {
    label: String,
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
    async fn parcel_labelled(&self, tx: &mut Tx<'_, Db>, order: &Order) -> PhaseResult<Parcel> {
        Db::insert_step(tx, &order.id, "parcel_labelled").await?;
        Ok(Parcel { label: format!("parcel {}", order.id) })
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

fn definitions<Db: TestDb>() -> Definitions<Db, App> {
    Definitions::new().with::<CreateOrder>()
}

on_every_store! {
    g14_a_phase_before_the_last_is_run_by_each_row_in_flight,
}

async fn g14_a_phase_before_the_last_is_run_by_each_row_in_flight<S: TestDb>(db: S) {
    let app = App::default();
    in_flight(&db, &app).await;
    assert_eq!(lints(&before::definitions::<S>(), &definitions()), [Lint::PhaseAdded]);
    let new = deployed(&db, &app, definitions());
    all_go_on(&db, &new, || CreateOrder { cents: 2000 }).await;
    let labelled = "SELECT count(*) FROM steps WHERE step = 'parcel_labelled'";
    assert_eq!(db.number(labelled).await, 4);
}
