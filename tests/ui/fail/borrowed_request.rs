//! A request that borrows its data.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct Lookup<'a>(Cow<'a, str>);

#[atomic_phases(name = "lookup", version = 1)]
impl Lookup<'_> {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
