//! The request of `requests`, with the statements of its first phase in one round trip: what a phase
//! can do by itself where it does not need one answer for the next question.

use atomic_phases::*;
use diesel::ExpressionMethods;
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use serde::{Deserialize, Serialize};
use tokio::try_join;

use crate::requests::postgres::{Charged, Created, foreign};
use crate::requests::{App, SetCharge, bench_audits as a, bench_rides as r};

#[derive(Clone, Serialize, Deserialize)]
pub struct PipelinedRide {
    pub user: i64,
    pub amount: i64,
}

#[atomic_phases(name = "bench.pipelined", version = 1)]
impl PipelinedRide {
    #[phase]
    async fn created(
        &self,
        tx: &mut Tx<'_, Postgres>,
        ctx: &RequestContext,
    ) -> PhaseResult<Created> {
        let (ride, audit) = (ctx.uuid(0).to_string(), ctx.uuid(1).to_string());
        // Shared, a connection sends the second statement without waiting for the first.
        let conn: &AsyncPgConnection = tx.conn();
        let row = (r::id.eq(&ride), r::amount.eq(self.amount), r::charge.eq(""));
        let insert_ride = diesel::insert_into(r::table).values(row);
        let row = (a::id.eq(&audit), a::action.eq("created"));
        let insert_audit = diesel::insert_into(a::table).values(row);
        try_join!(insert_ride.execute(&mut &*conn), insert_audit.execute(&mut &*conn))?;
        Ok(Created { ride })
    }

    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall, app: &App) -> PhaseResult<Charged, ForeignError> {
        foreign(call, app).await
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Postgres>,
        created: &Created,
        charged: &Charged,
    ) -> PhaseResult<Reply> {
        SetCharge { ride: &created.ride, charge: &charged.charge }.execute(tx).await?;
        tx.stage_job("receipt", &self.amount)?;
        Ok(Reply::json(201, &(created, charged))?)
    }
}
