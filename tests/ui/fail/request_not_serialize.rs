//! The request's parameters cannot be stored.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

#[derive(Deserialize)]
struct Unstorable;

#[atomic_phases(name = "rides.create", version = 1)]
impl Unstorable {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
