//! A phase that may finish early; later ones see its output.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Flow<Ride>> {
        Ok(if self.user_id == 0 {
            Flow::Finish(Reply::new(402))
        } else {
            Flow::Continue(Ride { id: 1 })
        })
    }

    #[phase(foreign(idempotent))]
    async fn charge_created(
        &self,
        _call: ForeignCall,
        ride: &Ride,
    ) -> PhaseResult<Flow<Charge>, ForeignError> {
        Ok(Flow::Continue(Charge { id: ride.id }))
    }

    #[phase]
    async fn answered(
        &self,
        _tx: &mut Tx<'_, Sqlite>,
        ride: &Ride,
        charge: &Charge,
    ) -> PhaseResult<Reply> {
        Ok(Reply::json(200, &(ride, charge))?)
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 3);
}
