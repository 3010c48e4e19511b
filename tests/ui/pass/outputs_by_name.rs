//! Outputs are found by the last names of their types, and borrowed as clippy would have it.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

mod outs {
    #[derive(super::Serialize, super::Deserialize)]
    pub struct Seat(pub u8);
}

use outs::Seat;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    #[rustfmt::skip]
    async fn seats(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Vec<outs::Seat,>> {
        Ok(vec![Seat(1)])
    }

    #[phase]
    async fn name(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<String> {
        Ok("ride".into())
    }

    #[phase]
    async fn voucher(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Option<String>> {
        Ok(None)
    }

    #[phase]
    async fn charge(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Option<Charge>> {
        Ok(Some(Charge { id: 1 }))
    }

    #[phase]
    async fn ride(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Box<Ride>> {
        Ok(Box::new(Ride { id: 1 }))
    }

    #[phase]
    #[allow(clippy::ptr_arg, clippy::borrowed_box)]
    async fn as_they_are(
        &self,
        _tx: &mut Tx<'_, Sqlite>,
        seats: &Vec<Seat>,
        name: &String,
        voucher: &Option<String>,
        ride: &Box<Ride>,
    ) -> PhaseResult<(usize, usize, bool, i64)> {
        Ok((seats.len(), name.len(), voucher.is_none(), ride.id))
    }

    #[phase]
    async fn answered<'s>(
        &'s self,
        _tx: &mut Tx<'_, Sqlite>,
        seats: &'s [outs::Seat],
        name: &str,
        voucher: Option<&str>,
        charge: Option<&Charge>,
        ride: &support::Ride,
        counted: &(usize, usize, bool, i64),
        _ctx: &RequestContext,
    ) -> PhaseResult<Reply> {
        let charge = charge.map(|charge| charge.id);
        Ok(Reply::json(200, &(seats[0].0, name, voucher, charge, ride.id, counted))?)
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 7);
}
