//! **Retype a member**, in two deploys: `first` reads both forms and writes the old one, so that a node of the
//! previous build reads what it writes. When all nodes run `first`, deploy `second`, which writes the new form.

use atomic_phases::{ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::before::{Order, Payment, Stock};
use super::*;

/// A number, or a text that contains one.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(u32),
    Text(String),
}

/// Reads both, writes a number.
mod as_number {
    use super::Either;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(cents: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(*cents)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        match Either::deserialize(from)? {
            Either::Number(cents) => Ok(cents),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Reads both, writes a text.
mod as_text {
    use serde::Serializer;

    pub(super) use super::as_number::deserialize;

    pub(super) fn serialize<S: Serializer>(cents: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(cents)
    }
}

mod first {
    use super::*;

    #[derive(Serialize, Deserialize)]
    pub struct CreateOrder {
        #[serde(with = "super::as_number")]
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
}

mod second {
    use super::*;

    #[derive(Serialize, Deserialize)]
    pub struct CreateOrder {
        #[serde(with = "super::as_text")]
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
}

on_every_store! {
    g9_a_member_is_retyped_in_two_deploys_and_no_retry_is_a_mismatch,
}

async fn g9_a_member_is_retyped_in_two_deploys_and_no_retry_is_a_mismatch<S: TestDb>(db: S) {
    let app = App::default();
    in_flight(&db, &app).await;
    let one = lints(&before::definitions::<S>(), &first::definitions());
    assert!(none_denies(&one), "{one:?}");
    let between = deployed(&db, &app, first::definitions());
    // A row of the first deploy, which the previous build can read, too.
    stop_in(&app, Some("answered"));
    let request = || first::CreateOrder { cents: 7 };
    failed(between.call(&scope(), &key("between"), request()).await);
    stop_in(&app, None);
    db.let_time_pass().await;
    let old = deployed(&db, &app, before::definitions());
    let again = before::CreateOrder { cents: 7 };
    finished(old.call(&scope(), &key("between"), again).await);

    let two = lints(&first::definitions::<S>(), &second::definitions());
    assert!(none_denies(&two), "{two:?}");
    let new = deployed(&db, &app, second::definitions());
    let request = || second::CreateOrder { cents: 2000 };
    for stop in STOPS {
        finished(new.call(&scope(), &key(stop), request()).await);
        let other = second::CreateOrder { cents: 1 };
        let mismatch = new.call(&scope(), &key(stop), other).await;
        assert!(matches!(mismatch, Ok(Outcome::Mismatch)), "{mismatch:?}");
    }
    charged_once_each(&db, &new, STOPS.len() + 1).await;
}
