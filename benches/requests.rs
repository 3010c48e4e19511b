//! The requests that are measured, over every store.

// A chain of phases needs only a part of it.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

diesel::table! { bench_rides (id) { id -> Text, amount -> BigInt, charge -> Text, } }
diesel::table! { bench_audits (id) { id -> Text, action -> Text, } }

/// The foreign system: in this process, and immediately; or, closed, never.
#[derive(Clone, Default)]
pub struct App {
    pub closed: Arc<AtomicBool>,
    pub parked: Arc<AtomicUsize>,
    /// How often it was called.
    pub calls: Arc<AtomicU64>,
}

impl App {
    pub async fn charge(&self, key: &str) -> String {
        if self.closed.load(Ordering::Relaxed) {
            self.parked.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        format!("ch_{key}")
    }
}

macro_rules! requests {
    ($module:ident, $store:ident) => {
        pub mod $module {
            use atomic_phases::phase::ForeignError;
            use atomic_phases::store::$store;
            use atomic_phases::{
                Batch, ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
            };
            use diesel::{ExpressionMethods, QueryDsl};
            use diesel_async::RunQueryDsl;
            use serde::{Deserialize, Serialize};

            use super::{App, bench_audits, bench_rides};

            /// Three phases: local, foreign, local.
            #[derive(Clone, Serialize, Deserialize)]
            pub struct Ride {
                pub user: i64,
                pub amount: i64,
            }

            #[derive(Serialize, Deserialize)]
            pub struct Created {
                pub ride: String,
            }

            #[derive(Serialize, Deserialize)]
            pub struct Charged {
                pub charge: String,
            }

            #[atomic_phases(name = "bench.ride", version = 1)]
            impl Ride {
                #[phase]
                async fn created(
                    &self,
                    tx: &mut Tx<'_, $store>,
                    ctx: &RequestContext,
                ) -> PhaseResult<Created> {
                    use bench_rides as r;
                    let (ride, audit) = (ctx.uuid(0).to_string(), ctx.uuid(1).to_string());
                    let row = (r::id.eq(&ride), r::amount.eq(self.amount), r::charge.eq(""));
                    diesel::insert_into(r::table).values(row).execute(tx).await?;
                    step(tx, &audit).await?;
                    Ok(Created { ride })
                }

                #[phase(foreign(idempotent))]
                async fn charged(
                    &self,
                    call: ForeignCall,
                    app: &App,
                ) -> PhaseResult<Charged, ForeignError> {
                    foreign(call, app).await
                }

                #[phase]
                async fn answered(
                    &self,
                    tx: &mut Tx<'_, $store>,
                    created: &Created,
                    charged: &Charged,
                ) -> PhaseResult<Reply> {
                    use bench_rides as r;
                    let (ride, charge) = (&created.ride, &charged.charge);
                    diesel::update(r::table.find(ride))
                        .set(r::charge.eq(charge))
                        .execute(tx)
                        .await?;
                    tx.stage_job("receipt", &self.amount)?;
                    Ok(Reply::json(201, &(created, charged))?)
                }
            }

            /// The same request, which needs no answer of the database and so hands its statements
            /// over.
            #[derive(Clone, Serialize, Deserialize)]
            pub struct BatchRide {
                pub user: i64,
                pub amount: i64,
                /// Whether the two inserts of the first phase are independent; else in order.
                pub independent: bool,
            }

            #[atomic_phases(name = "bench.batch", version = 1)]
            impl BatchRide {
                #[phase]
                async fn created(
                    &self,
                    batch: &mut Batch<'_, $store>,
                    ctx: &RequestContext,
                ) -> PhaseResult<Created> {
                    use {bench_audits as a, bench_rides as r};
                    let (ride, audit) = (ctx.uuid(0).to_string(), ctx.uuid(1).to_string());
                    let row = (r::id.eq(ride.clone()), r::amount.eq(self.amount), r::charge.eq(""));
                    batch.add(diesel::insert_into(r::table).values(row));
                    let row = (a::id.eq(audit), a::action.eq("created"));
                    let audit = diesel::insert_into(a::table).values(row);
                    match self.independent {
                        true => batch.add_independent(audit),
                        false => batch.add(audit),
                    }
                    Ok(Created { ride })
                }

                #[phase(foreign(idempotent))]
                async fn charged(
                    &self,
                    call: ForeignCall,
                    app: &App,
                ) -> PhaseResult<Charged, ForeignError> {
                    foreign(call, app).await
                }

                #[phase]
                async fn answered(
                    &self,
                    batch: &mut Batch<'_, $store>,
                    created: &Created,
                    charged: &Charged,
                ) -> PhaseResult<Reply> {
                    use bench_rides as r;
                    let (ride, charge) = (created.ride.clone(), charged.charge.clone());
                    batch.add(diesel::update(r::table.find(ride)).set(r::charge.eq(charge)));
                    batch.stage_job("receipt", &self.amount)?;
                    Ok(Reply::json(201, &(created, charged))?)
                }
            }

            pub async fn step(tx: &mut Tx<'_, $store>, id: &str) -> PhaseResult<()> {
                use bench_audits as a;
                let row = (a::id.eq(id), a::action.eq("created"));
                diesel::insert_into(a::table).values(row).execute(tx).await?;
                Ok(())
            }

            pub async fn foreign(
                call: ForeignCall,
                app: &App,
            ) -> PhaseResult<Charged, ForeignError> {
                let charge =
                    call.make(async |key| Ok::<_, ForeignError>(app.charge(key.as_str()).await));
                Ok(Charged { charge: charge.await? })
            }
        }
    };
}

requests!(postgres, Postgres);
requests!(sqlite, Sqlite);
#[cfg(feature = "mysql")]
requests!(mysql, Mysql);
