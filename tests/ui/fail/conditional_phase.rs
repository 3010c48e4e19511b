//! What exists in some builds only: a phase, by itself or by its attribute, and a parameter.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    #[cfg(unix)]
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    #[cfg_attr(unix, allow(unused), cfg(unix))]
    async fn two(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    #[cfg_attr(unix, allow(unused))]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.find", version = 1)]
impl Ride {
    #[phase]
    async fn found(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Sqlite>,
        #[cfg(unix)] charge: &Charge,
    ) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.pay", version = 1)]
impl Charge {
    #[cfg_attr(unix, phase)]
    async fn paid(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ticket> {
        Ok(Ticket)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
