//! An application may call a type of its own `Batch`: ours is the one with a store.

#![deny(warnings)]

#[path = "../support.rs"]
mod support;
use support::{
    App, CreateRide, Deserialize, PhaseResult, Reply, Serialize, Sqlite, Tx, atomic_phases, phases,
};

#[derive(Serialize, Deserialize)]
struct Batch(Vec<i64>);

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn collected(&self, _tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Batch> {
        Ok(Batch(vec![self.user_id]))
    }

    #[phase]
    async fn written(
        &self,
        statements: &mut atomic_phases::Batch<'_, Sqlite>,
        batch: &Batch,
    ) -> PhaseResult<Reply> {
        statements.stage_job("collected", &batch.0)?;
        Ok(Reply::new(200))
    }
}

pub(super) fn main() {
    assert_eq!(phases::<Sqlite, App, CreateRide>(), 2);
}
