//! **Reorder phases**: in a new version. Here the stock is taken before the card is charged.

use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::before::{Order, Payment, Stock};
use super::*;
use crate::support::TestDb;

#[derive(Serialize, Deserialize)]
struct CreateOrder {
    cents: u32,
}

#[atomic_phases(name = "orders.create", version = 2)]
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

    #[phase(foreign(idempotent, window = "24h"))]
    async fn paid(&self, call: ForeignCall, app: &App, order: &Order) -> PhaseResult<Payment> {
        let id = call.make(async |key| app.charge(key, &order.id).await).await?;
        app.pass("paid")?;
        Ok(Payment { id })
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

/// Version 1 stays registered until no row of it is left.
fn definitions<Db: TestDb>() -> Definitions<Db, App> {
    Definitions::new().with::<before::CreateOrder>().with::<CreateOrder>()
}

on_every_store! {
    g14_rows_in_flight_keep_the_order_that_they_began_in,
}

async fn g14_rows_in_flight_keep_the_order_that_they_began_in<S: TestDb>(db: S) {
    let app = App::default();
    in_flight(&db, &app).await;
    assert!(none_denies(&lints(&before::definitions::<S>(), &definitions())));
    let new = deployed(&db, &app, definitions());
    all_go_on(&db, &new, || CreateOrder { cents: 2000 }).await;
    // A new request takes its stock first: if that fails, nothing is charged.
    stop_in(&app, Some("stock_taken"));
    failed(new.call(&scope(), &key("of-version-2"), CreateOrder { cents: 1 }).await);
    assert_eq!(app.provider.effects(), 4);

    // Reordered in the same version, the phases strand the rows that have passed the first one that moved.
    let mut locks = definitions::<S>().locks();
    let mut moved = locks.remove("orders.create", 2).unwrap();
    moved.version = 1;
    locks.insert(moved);
    let findings = compare(&before::definitions::<S>().locks(), &locks);
    assert!(findings.iter().any(|finding| finding.lint == Lint::PhasesReordered));
}
