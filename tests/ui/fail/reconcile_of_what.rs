//! Reconcile functions of a local phase, of none, of an unnamed one and of one that has one.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[reconcile(ride_created)]
    async fn ride_or_not(&self, key: &DerivedKey) -> PhaseResult<Reconciled<Ride>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase(foreign(idempotent))]
    async fn charge_created(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[reconcile(charge_crated)]
    async fn misspelt(&self, key: &DerivedKey) -> PhaseResult<Reconciled<Charge>> {
        Ok(Reconciled::StillUnknown)
    }

    #[reconcile(charge_created)]
    async fn charge_or_not(&self, key: &DerivedKey) -> PhaseResult<Reconciled<Charge>> {
        Ok(Reconciled::StillUnknown)
    }

    #[reconcile(charge_created)]
    async fn charge_or_else(&self, key: &DerivedKey) -> PhaseResult<Reconciled<Charge>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.create", version = 1)]
impl Ride {
    #[reconcile]
    async fn of_what(&self) -> PhaseResult<Reconciled<Charge>> {
        Ok(Reconciled::StillUnknown)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
