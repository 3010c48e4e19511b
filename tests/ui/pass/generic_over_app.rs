//! The application's state may be a parameter too, with a bound that mentions the store.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

trait Prices<Db>: Send + Sync + 'static {
    fn price(&self) -> i64;
}

impl Prices<Sqlite> for App {
    fn price(&self) -> i64 {
        7
    }
}

#[atomic_phases(name = "rides.create", version = 1, app = State)]
impl<Db: Store, State: Prices<Db>> CreateRide {
    #[phase]
    async fn ride_created(&self, _tx: &mut Tx<'_, Db>) -> PhaseResult<Ride> {
        Ok(Ride { id: self.user_id })
    }

    // Mentions `State`, whose bound mentions `Db`: both move down to it.
    #[phase(foreign(idempotent))]
    async fn charge_created(
        &self,
        call: ForeignCall,
        state: &State,
        ride: &Ride,
    ) -> PhaseResult<Charge, ForeignError> {
        let id = call.make(async |_key| Ok::<_, ForeignError>(state.price() + ride.id)).await?;
        Ok(Charge { id })
    }

    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Db>, charge: &Charge) -> PhaseResult<Reply> {
        Ok(Reply::json(201, charge)?)
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 3);
}
