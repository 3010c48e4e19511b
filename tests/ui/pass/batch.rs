//! Local phases that hand their statements over: first, in the middle, last, and beside a `Tx`.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

use diesel::sql_types::BigInt;
use diesel::{ExpressionMethods, QueryDsl};

diesel::table! { rides (id) { id -> BigInt, charge_id -> Nullable<BigInt>, } }

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(
        &self,
        batch: &mut Batch<'_, Sqlite>,
        ctx: &RequestContext,
    ) -> PhaseResult<Ride> {
        let _ = ctx.uuid(0);
        batch.add(diesel::insert_into(rides::table).values(rides::id.eq(self.user_id)));
        Ok(Ride { id: self.user_id })
    }

    #[phase(foreign(idempotent))]
    async fn charge_created(&self, _call: ForeignCall, ride: &Ride) -> PhaseResult<Charge> {
        Ok(Charge { id: ride.id })
    }

    // In the middle, with every option of a local phase, and with an early end.
    #[phase(isolation = "serializable", commit, was = "charge_noted")]
    async fn charge_stored(
        &self,
        batch: &mut atomic_phases::Batch<'_, Sqlite>,
        ride: &Ride,
        charge: &Charge,
    ) -> PhaseResult<Flow<Ticket>> {
        for id in [2, 3] {
            batch.add(diesel::insert_into(rides::table).values(rides::id.eq(id)));
        }
        batch.add(diesel::sql_query("DELETE FROM rides WHERE id = ?").bind::<BigInt, _>(2));
        batch.add(diesel::delete(rides::table).filter(rides::id.eq(3)).into_boxed());
        let ride = rides::table.find(ride.id);
        batch.add(diesel::update(ride).set(rides::charge_id.eq(charge.id)));
        Ok(Flow::Continue(Ticket))
    }

    // Needs an answer, so it keeps its transaction.
    #[phase]
    async fn ride_counted(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<i64> {
        use diesel_async::RunQueryDsl;
        Ok(rides::table.count().get_result(tx).await?)
    }

    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Sqlite>,
        ride_counted: &i64,
        _ticket: &Ticket,
    ) -> PhaseResult<Reply> {
        batch.stage_job("send_receipt", ride_counted)?;
        Ok(Reply::new(201))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 5);
    let all = <CreateRide as RequestDefinition<Sqlite, App>>::DEFINITION.phases;
    let batches: Vec<bool> = all
        .iter()
        .map(|phase| matches!(phase.kind, atomic_phases::definition::PhaseKind::Batch(_)))
        .collect();
    assert_eq!(batches, [true, false, true, false, true]);
}
