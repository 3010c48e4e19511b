//! Several mistakes are told in one go: those of the attributes, then those of the signatures.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(version = 0)]
impl CreateRide {
    #[phase(foreign)]
    async fn charge_created(&self, call: ForeignCall) -> PhaseResult<Charge> {
        Ok(Charge { id: 1 })
    }

    #[phase(comit)]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.create", version = 1)]
impl Ride {
    #[phase]
    fn started(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn two(&mut self) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }
}

fn registered<R: RequestDefinition<Sqlite, App>>() {}

// Nothing is told of this: the requests are definitions, only bad ones.
fn register() {
    registered::<CreateRide>();
    registered::<Ride>();
}

fn main() {}
