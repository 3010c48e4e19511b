//! A state of another name, declared.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

struct AppState {
    price: i64,
}

#[atomic_phases(name = "rides.create", version = 2, app = std::sync::Arc<AppState>)]
impl CreateRide {
    #[phase]
    async fn ride_created(
        &self,
        _tx: &mut Tx<'_, Sqlite>,
        state: &std::sync::Arc<AppState>,
    ) -> PhaseResult<Ride> {
        Ok(Ride { id: state.price })
    }

    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, std::sync::Arc<AppState>, CreateRide>(), 2);
}
