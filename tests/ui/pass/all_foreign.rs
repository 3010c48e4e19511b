//! No local phase: any store will do.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase(foreign(idempotent))]
    async fn charge_created(&self, _call: ForeignCall, app: &App) -> PhaseResult<Charge> {
        let _ = app;
        Ok(Charge { id: 1 })
    }

    #[phase(foreign(idempotent))]
    async fn answered(&self, _call: ForeignCall, charge: &Charge) -> PhaseResult<Reply> {
        Ok(Reply::json(200, charge)?)
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 2);
}
