//! At most once, with a reconcile function that sees what its phase saw.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase(foreign(at_most_once))]
    async fn charge_created(&self, _call: ForeignCall, ride: &Ride) -> PhaseResult<Charge> {
        Ok(Charge { id: ride.id })
    }

    #[reconcile(charge_created)]
    async fn charge_or_not(
        &self,
        key: &DerivedKey,
        app: &App,
        ctx: &RequestContext,
        ride: &Ride,
    ) -> PhaseResult<Reconciled<Charge>> {
        let _ = (key, app, ctx.attempt());
        Ok(Reconciled::Executed(Charge { id: ride.id }))
    }

    #[phase(foreign(at_most_once))]
    async fn mail_sent(
        &self,
        _call: ForeignCall,
        charge: &Charge,
    ) -> PhaseResult<Flow<()>, ForeignError> {
        let _ = charge;
        Ok(Flow::Continue(()))
    }

    #[reconcile(mail_sent)]
    async fn mail_or_not(&self) -> PhaseResult<Reconciled<()>> {
        Ok(Reconciled::Executed(()))
    }

    #[phase(foreign(at_most_once))]
    async fn answered(&self, _call: ForeignCall) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }

    #[reconcile(answered)]
    async fn answered_or_not(&self) -> PhaseResult<Reconciled<Reply>> {
        Ok(Reconciled::NotExecuted)
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 4);
}
