//! **A new version side by side**: for a phase that is inserted anywhere, and for any other change that rows in
//! flight cannot follow. New requests have the type that the handler calls. A retry runs its request in the version
//! in which it began, and so do the workers.

use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::before::{Order, Payment, Stock};
use super::*;
use crate::support::TestDb;

#[derive(Serialize, Deserialize)]
pub struct CreateOrder {
    cents: u32,
    /// All amounts of version 1 are in dollars.
    #[serde(default = "usd")]
    currency: String,
}

impl CreateOrder {
    /// The request of a client of version 1.
    pub fn of_version_1() -> Self {
        Self { cents: 2000, currency: usd() }
    }
}

fn usd() -> String {
    "usd".to_owned()
}

#[derive(Serialize, Deserialize)]
struct Checked {
    risk: u8,
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

    /// This phase must come before the card is charged, a point that rows of version 1 have already passed.
    #[phase]
    async fn risk_checked(&self, tx: &mut Tx<'_, Db>, order: &Order) -> PhaseResult<Checked> {
        Db::insert_step(tx, &order.id, "risk_checked").await?;
        Ok(Checked { risk: u8::from(self.currency != "usd") })
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

/// Version 1 stays registered until no row of it is left.
pub fn definitions<Db: TestDb>() -> Definitions<Db, App> {
    Definitions::new().with::<before::CreateOrder>().with::<CreateOrder>()
}

on_every_store! {
    g14_two_versions_serve_each_others_retries,
}

async fn g14_two_versions_serve_each_others_retries<S: TestDb>(db: S) {
    let app = App::default();
    in_flight(&db, &app).await;
    let lints = lints(&before::definitions::<S>(), &definitions());
    assert_eq!(lints, [Lint::VersionAdded]);
    let new = deployed(&db, &app, definitions());
    all_go_on(&db, &new, CreateOrder::of_version_1).await;
    let checked = "SELECT count(*) FROM steps WHERE step = 'risk_checked'";
    assert_eq!(db.number(checked).await, 0, "they began without it");
    finished(new.call(&scope(), &key("of-version-2"), CreateOrder::of_version_1()).await);
    assert_eq!(db.number(checked).await, 1);
    let other = CreateOrder { cents: 2000, currency: "eur".to_owned() };
    let mismatch = new.call(&scope(), &key("paid"), other).await;
    assert!(matches!(mismatch, Ok(Outcome::Mismatch)), "{mismatch:?}");
}
