//! Methods without attribute stay what they are.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    const FARE: i64 = 7;

    pub(crate) fn fare(&self) -> i64 {
        Self::FARE * self.user_id
    }

    fn described<T: ToString>(by: T) -> String {
        by.to_string()
    }

    #[phase]
    async fn ride_created(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: self.fare() })
    }

    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Sqlite>, ride: &Ride) -> PhaseResult<Reply> {
        Ok(Reply::text(200, Self::described(ride.id)))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 2);
}
