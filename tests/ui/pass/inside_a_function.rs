//! A request declared inside a function, by a macro of the user's own.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::*;

macro_rules! request {
    ($request:ident, $output:ty, $value:expr) => {
        #[atomic_phases(name = "rides.made", version = 1)]
        impl $request {
            #[phase]
            async fn made(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<$output> {
                Ok($value)
            }

            #[phase]
            async fn answered(
                &self,
                _tx: &mut Tx<'_, Sqlite>,
                made: &$output,
            ) -> PhaseResult<Reply> {
                Ok(Reply::json(200, made)?)
            }
        }
    };
}

pub(super) fn main() {
    #[derive(Serialize, Deserialize)]
    struct Local;

    request!(Local, Vec<Ride>, vec![Ride { id: 1 }]);
    assert_eq!(phases::<Sqlite, App, Local>(), 2);
}
