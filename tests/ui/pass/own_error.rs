//! Error types of the user's own, converted exhaustively.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

struct Declined;

impl From<Declined> for ForeignError {
    fn from(Declined: Declined) -> Self {
        Self::reject(Reply::new(402))
    }
}

struct Missing;

impl From<Missing> for PhaseError {
    fn from(Missing: Missing) -> Self {
        Self::reject(Reply::new(404))
    }
}

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: ForeignCall, app: &App) -> Result<Charge, Declined> {
        let _ = app;
        let id = call
            .make(async |key| if key.as_str().is_empty() { Err(Declined) } else { Ok(1) })
            .await?;
        Ok(Charge { id })
    }

    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply, Missing> {
        Ok(Reply::new(201))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 2);
}
