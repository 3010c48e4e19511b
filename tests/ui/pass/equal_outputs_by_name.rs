//! Two equal output types, told apart by name; hostile names meet nothing of ours.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn scene(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn out(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        Ok(Ride { id: 1 })
    }

    #[phase]
    async fn index(&self, _tx: &mut Tx<'_, Sqlite>, scene: &Ride, out: &Ride) -> PhaseResult<Ride> {
        Ok(Ride { id: scene.id + out.id })
    }

    #[phase]
    async fn answered(
        &self,
        out: &Ride,
        scene: &Ride,
        ctx: &RequestContext,
        _tx: &mut Tx<'_, Sqlite>,
    ) -> PhaseResult<Reply> {
        Ok(Reply::json(200, &(out, scene, ctx.attempt()))?)
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 4);
}
