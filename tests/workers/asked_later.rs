//! Unknown outcomes across builds: one build has the phase's reconcile function, and the other has not.

use std::time::Duration;

use atomic_phases::engine::StrandedBecause;
use atomic_phases::ops::{Actor, Filter, Permissions, Scopes};
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::{Postgres, Status};
use atomic_phases::worker::Reconciler;
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

/// One that is due is asked about first, and the walk over the others passes those that the server refuses.
#[tokio::test(flavor = "multi_thread")]
async fn g16_an_outcome_whose_row_the_server_refuses_keeps_no_other_from_being_asked_about() {
    let db = <Postgres as TestDb>::fresh().await;
    let app = App::default();
    let (asked, unasked) =
        (running::<Postgres, Asked>(&db, &app), running::<Postgres, Unasked>(&db, &app));
    for name in ["bad-1", "good", "bad-2"] {
        let told = unasked.call(&scope(), &key(name), Unasked).await;
        assert!(matches!(told, Ok(Outcome::Unknown { is_asked: false, .. })), "{told:?}");
    }
    let told = asked.call(&scope(), &key("due"), Asked).await;
    assert!(matches!(told, Ok(Outcome::Unknown { is_asked: true, .. })), "{told:?}");
    db.let_time_pass().await;
    db.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF OLD.idempotency_key LIKE 'bad%' THEN RAISE EXCEPTION 'refused'; END IF; \
         RETURN NEW; END $$; CREATE TRIGGER refuse BEFORE UPDATE ON atomic_phases_keys \
         FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .await;
    app.provider.answer_searches();
    let refused = Reconciler::new(&asked, config()).run_once().await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(status(&asked, "due").await.status, Status::Completed);
    let told = asked.call(&scope(), &key("good"), Asked).await;
    assert!(matches!(told, Ok(Outcome::Unknown { is_asked: true, .. })), "{told:?}");
}
