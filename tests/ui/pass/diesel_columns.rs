//! Constants and unit structs of any name meet nothing of ours: a diesel user imports one unit
//! struct for each column. Neither do types that are called as the standard library's.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::{
    App, Batch, Charge, CreateRide, ForeignCall, PhaseResult, Reply, Ride, Sqlite, Tx,
    atomic_phases, phases,
};

#[allow(non_camel_case_types, dead_code)]
mod columns {
    pub struct tx;
    pub struct batch;
    pub struct call;
    pub struct scene;
    pub struct index;
    pub struct ended;
    pub struct found;
    pub struct output_0;
}
#[allow(unused_imports)]
use columns::*;

#[allow(non_camel_case_types, dead_code)]
struct usize;

#[allow(dead_code)]
enum Outcome {
    Ok,
    Err,
    Some,
    None,
}
#[allow(unused_imports)]
use Outcome::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_created(&self, _db: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        PhaseResult::Ok(Ride { id: 1 })
    }

    #[phase(foreign(idempotent, window = "24h"))]
    async fn charge_created(&self, _once: ForeignCall, ride: &Ride) -> PhaseResult<Charge> {
        PhaseResult::Ok(Charge { id: ride.id })
    }

    #[phase]
    async fn charge_stored(&self, _later: &mut Batch<'_, Sqlite>) -> PhaseResult<[u8; 1]> {
        PhaseResult::Ok([1])
    }

    #[phase]
    async fn answered(&self, _db: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        PhaseResult::Ok(Reply::new(200))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 4);
}
