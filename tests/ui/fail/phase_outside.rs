//! Attributes outside of an `#[atomic_phases]` impl.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

use atomic_phases::{phase, reconcile};

impl CreateRide {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }

    #[reconcile(answered)]
    async fn answered_or_not(&self) {}
}

fn main() {}
