//! An output that no phase asks for, and its change.

use atomic_phases::compat::{Definitions, Finding, Level, Lint, compare, compare_with};
use atomic_phases::request::RequestDefinition;
use atomic_phases::{
    Engine, Outcome, PhaseError, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

use crate::support::*;

on_every_store! {
    g14_an_output_that_no_phase_asks_for_strands_no_row,
}

macro_rules! note {
    ($name:ident $noted:ty, $value:expr $(, $asked:ident)?) => {
        #[derive(Serialize, Deserialize)]
        struct $name {
            cents: u8,
        }

        #[atomic_phases(name = "notes.create", version = 1)]
        impl<Db: TestDb> $name {
            #[phase]
            async fn noted(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<$noted> {
                let _ = (self, tx);
                Ok($value)
            }

            #[phase]
            async fn answered(
                &self,
                tx: &mut Tx<'_, Db>,
                ctx: &RequestContext
                $(, $asked: &$noted)?
            ) -> PhaseResult<Reply> {
                let _ = (self, tx $(, $asked)?);
                match ctx.attempt() {
                    1 => Err(PhaseError::retryable("asked for")),
                    _ => Ok(Reply::new(204)),
                }
            }
        }
    };
}

note!(Number u32, 7);
note!(Text String, "7".to_owned());
note!(TextAsked String, "7".to_owned(), noted);

/// The verdicts about this change, by the files alone and with the code, and whether the row continues.
async fn changed<S, B>(db: S, cents: u8, request: B) -> ([Vec<Finding>; 2], bool)
where
    S: TestDb,
    B: RequestDefinition<S, ()>,
{
    let old = Definitions::<S>::new().with::<Number>();
    let new = Definitions::<S>::new().with::<B>();
    let said =
        [compare(&old.locks(), &new.locks()), compare_with(&old.locks(), &new.locks(), &new)];
    let key = key(&format!("k{cents}"));
    let before = Engine::builder(db.clone()).definitions(old).build().unwrap();
    failed(before.call(&scope(), &key, Number { cents }).await);
    db.let_time_pass().await;
    let after = Engine::builder(db).definitions(new).build().unwrap();
    let goes_on = matches!(after.call(&scope(), &key, request).await, Ok(Outcome::Finished(_)));
    (said, goes_on)
}

async fn g14_an_output_that_no_phase_asks_for_strands_no_row<S: TestDb>(db: S) {
    let (said, goes_on) = changed(db.clone(), 1, Text { cents: 1 }).await;
    assert!(goes_on);
    for findings in said {
        assert!(findings.iter().any(|finding| finding.lint == Lint::OutputUnasked), "{findings:?}");
        assert!(findings.iter().all(|f| f.lint.level() < Level::Deny), "{findings:?}");
    }
    let (said, goes_on) = changed(db, 2, TextAsked { cents: 2 }).await;
    assert!(!goes_on);
    for findings in said {
        let is_told = |finding: &Finding| finding.lint == Lint::OutputUnreadable;
        assert!(findings.iter().any(is_told), "{findings:?}");
    }
}
