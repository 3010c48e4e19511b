//! Unknown outcomes across builds: one build has the phase's reconcile function, and the other has not.

use std::time::Duration;

use atomic_phases::engine::StrandedBecause;
use atomic_phases::ops::{Actor, Filter, Permissions, Scopes};
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::Status;
use atomic_phases::{Engine, ForeignCall, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use crate::support::work::*;
use crate::support::*;

on_every_store! {
    g14_what_this_build_cannot_ask_about_is_left_and_reported,
    g17_a_build_with_the_reconcile_function_asks_about_what_one_before_it_left,
}

macro_rules! errand {
    ($name:ident $($find:tt)*) => {
        #[derive(Clone, Serialize, Deserialize)]
        struct $name;

        #[atomic_phases(name = "errand", version = 1)]
        impl<Db: TestDb> $name {
            #[phase(foreign(idempotent))]
            async fn ran(&self, call: ForeignCall, app: &App) -> PhaseResult<String, ForeignError> {
                call.make(async |key: DerivedKey| {
                    app.provider.call(key.as_str(), "errand").await;
                    Err(ForeignError::unknown("no answer"))
                })
                .await
            }

            $($find)*

            #[phase]
            async fn answered(&self, _tx: &mut Tx<'_, Db>, ran: &str) -> PhaseResult<Reply> {
                Ok(Reply::text(200, ran))
            }
        }
    };
}

errand!(Unasked);
errand!(Asked
    #[reconcile(ran)]
    async fn find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<String>> {
        Ok(match app.provider.search(key.as_str()) {
            None => Reconciled::StillUnknown,
            Some(None) => Reconciled::NotExecuted,
            Some(Some(id)) => Reconciled::Executed(id),
        })
    }
);

fn running<S: TestDb, R: RequestDefinition<S, App>>(db: &S, app: &App) -> TestEngine<S> {
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<R>();
    builder.lease(Duration::from_secs(60)).build().unwrap()
}

async fn g14_what_this_build_cannot_ask_about_is_left_and_reported<S: TestDb>(db: S) {
    let app = App::default();
    let (asked, unasked) = (running::<S, Asked>(&db, &app), running::<S, Unasked>(&db, &app));
    let told = asked.call(&scope(), &key("k"), Asked).await;
    assert!(matches!(told, Ok(Outcome::Unknown { is_asked: true, .. })), "{told:?}");
    db.let_time_pass().await;
    assert_eq!(reconciled(&unasked).await.left, 1);
    let report = unasked.check().await.unwrap();
    let because: Vec<_> = report.stranded.iter().map(|found| found.because).collect();
    assert_eq!(because, [StrandedBecause::NotAskedHere]);
    assert!(asked.check().await.unwrap().stranded.is_empty());
    // Operators of each build see the same, for one request and for all.
    let actor = || Actor::new("ada", Permissions::READ, Scopes::All).unwrap();
    for (build, stranded) in [(&asked.ops(actor()), 0), (&unasked.ops(actor()), 1)] {
        let listed = build.list(Filter::new().stranded()).await.unwrap().rows;
        let definitions = build.definitions().await.unwrap();
        let counted = build.counts().await.unwrap().stranded.number;
        assert_eq!(
            (listed.len(), definitions[0].stranded, counted),
            (stranded as usize, Some(stranded), stranded)
        );
        assert!(listed.iter().all(|row| row.stranded == Some(StrandedBecause::NotAskedHere)));
    }
}

async fn g17_a_build_with_the_reconcile_function_asks_about_what_one_before_it_left<S: TestDb>(
    db: S,
) {
    let app = App::default();
    app.provider.answer_searches();
    let (asked, unasked) = (running::<S, Asked>(&db, &app), running::<S, Unasked>(&db, &app));
    let told = unasked.call(&scope(), &key("k"), Unasked).await;
    assert!(matches!(told, Ok(Outcome::Unknown { is_asked: false, .. })), "{told:?}");
    db.let_time_pass().await;
    assert_eq!(reconciled(&unasked).await.total(), 0, "it waits for an operator");
    // It waits once more before the reconcile function is called: its call may be under way for as long as the
    // limit under which it began (G2).
    assert_eq!(reconciled(&asked).await.total(), 0);
    let told = asked.call(&scope(), &key("k"), Asked).await;
    assert!(matches!(told, Ok(Outcome::Unknown { is_asked: true, .. })), "{told:?}");
    db.let_time_pass().await;
    assert_eq!(reconciled(&asked).await.finished, 1);
    assert_eq!(status(&asked, "k").await.status, Status::Completed);
    assert_eq!(app.provider.effects(), 1);
}
