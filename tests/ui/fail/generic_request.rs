//! A request that is many types, and one that borrows.

#![allow(unused_variables)]

#[path = "../support.rs"]
mod support;
use support::*;

struct Batch<T>(T);

#[atomic_phases(name = "rides.create", version = 1)]
impl<T> Batch<T> {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

struct Borrowed<'a>(&'a str);

#[atomic_phases(name = "rides.create", version = 1)]
impl<'a> Borrowed<'a> {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        Ok(Reply::new(200))
    }
}

fn main() {}
