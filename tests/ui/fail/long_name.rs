//! Names that are longer than their columns.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(
    name = "rides.rides.rides.rides.rides.rides.rides.rides.rides.rides.rides.rides.rides.rides.rides.rides.rides.",
    version = 1
)]
impl CreateRide {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(
    name = "€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€",
    version = 1
)]
impl Charge {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.create", version = 1)]
impl Ride {
    #[phase]
    async fn a_name_that_is_longer_than_fifty_characters_in_total(
        &self,
        tx: &mut Tx<'_, Sqlite>,
    ) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
