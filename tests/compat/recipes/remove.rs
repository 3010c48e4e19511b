//! **Remove a phase**: in a new version. Rows in flight still run it, in the version that they began in.

use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::before::{Order, Payment};
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
    g14_a_removed_phase_is_still_run_by_the_rows_of_its_version,
}

async fn g14_a_removed_phase_is_still_run_by_the_rows_of_its_version<S: TestDb>(db: S) {
    let app = App::default();
    in_flight(&db, &app).await;
    assert!(none_denies(&lints(&before::definitions::<S>(), &definitions())));
    let new = deployed(&db, &app, definitions());
    all_go_on(&db, &new, || CreateOrder { cents: 2000 }).await;
    let taken = "SELECT count(*) FROM steps WHERE step = 'stock_taken'";
    assert_eq!(db.number(taken).await, 4);
    finished(new.call(&scope(), &key("of-version-2"), CreateOrder { cents: 1 }).await);
    assert_eq!(db.number(taken).await, 4, "a new request does not");

    // Removed in the same version, the phase strands the rows that have passed it.
    let mut locks = definitions::<S>().locks();
    let mut removed = locks.remove("orders.create", 2).unwrap();
    removed.version = 1;
    locks.insert(removed);
    let findings = compare(&before::definitions::<S>().locks(), &locks);
    assert!(findings.iter().any(|finding| finding.lint == Lint::PhaseRemoved));
}
