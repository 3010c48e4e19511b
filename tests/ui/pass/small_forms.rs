//! A state with a constant, a deprecated phase, the library by another path.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

mod facade {
    pub use atomic_phases as phases;
}

struct Ring<const N: usize>;

#[facade::phases::atomic_phases(
    name = "rides.create",
    version = 1,
    app = Ring<3>,
    crate = facade::phases
)]
impl CreateRide {
    #[phase]
    #[deprecated]
    async fn answered(&self, _tx: &mut Tx<'_, Sqlite>, _ring: &Ring<3>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

#[atomic_phases(name = "rides.find", version = 1, app = Ring<N>)]
impl<const N: usize> Ride {
    #[phase]
    async fn answered(&self, _tx: &mut Tx<'_, Sqlite>, _ring: &Ring<N>) -> PhaseResult<Reply> {
        let _ = N;
        Ok(Reply::new(200))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, Ring<3>, CreateRide>(), 1);
    assert_eq!(phases::<Sqlite, Ring<5>, Ride>(), 1);
}
