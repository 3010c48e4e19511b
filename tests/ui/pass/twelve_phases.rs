//! Twelve phases; the last asks for the first ones.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn ride_1(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 1]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_2(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 2]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_3(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 3]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_4(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 4]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_5(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 5]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_6(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 6]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_7(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 7]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_8(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 8]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_9(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 9]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_10(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 10]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn ride_11(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<[Ride; 11]> {
        Ok(std::array::from_fn(|id| Ride { id: id as i64 }))
    }

    #[phase]
    async fn answered(
        &self,
        _tx: &mut Tx<'_, Sqlite>,
        one: &[Ride; 1],
        two: &[Ride; 2],
        eleven: &[Ride; 11],
    ) -> PhaseResult<Reply> {
        Ok(Reply::json(200, &(one, two, eleven))?)
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 12);
}
