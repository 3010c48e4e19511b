//! A request whose phase stages one job: its commit is a statement of a special form.

use crate::support::*;
use atomic_phases::store::Postgres;
use atomic_phases::{Engine, PhaseResult, Reply, Tx, atomic_phases};

#[derive(serde::Serialize, serde::Deserialize)]
struct StagesOne;

#[atomic_phases(name = "stages-one", version = 1)]
impl StagesOne {
    #[phase]
    async fn staged(&self, tx: &mut Tx<'_, Postgres>) -> PhaseResult<Reply> {
        tx.stage_job("receipt", &1)?;
        Ok(Reply::new(201))
    }
}

/// Runs it under this key.
pub async fn stages_one(db: &Postgres, name: &str) {
    let engine = Engine::builder(db.clone()).register::<StagesOne>().build().unwrap();
    finished(engine.call(&scope(), &key(name), StagesOne).await);
}
