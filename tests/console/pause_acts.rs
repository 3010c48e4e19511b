//! A phase is paused and its pause is ended, by forms.

use atomic_phases::ops::OperatorStore;
use atomic_phases::phase::{DerivedKey, ForeignError};
use atomic_phases::{Engine, ForeignCall, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use super::acts::audit;
use super::cast::*;
use super::desk::Desk;
use super::html::Form;
use super::refused_acts::field;
use crate::support::*;

on_every_store! {
    a_phase_is_paused_and_its_pause_is_ended,
    g3_a_pause_that_moved_on_is_told_and_not_replaced_or_ended,
    g14_the_end_of_one_of_two_pauses_says_that_the_phase_is_still_paused,
}

async fn a_phase_is_paused_and_its_pause_is_ended<S: TestDb + OperatorStore>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let desk = Desk::of(&engine).await;
    let choice = desk.get("pauses").await.is(200).form("/pauses/plan");
    let choice = choice.with("definition", "book").with("phase", "charged");
    let review = desk.submit(&choice.clone().with("act", "pause")).await.is(200);
    review.has("Review: Pause a phase").has("window goes on");
    let form = review.form("/pauses/act").with("reason", "the bank is closed");
    desk.submit(&form.clone().with("reason", "")).await.is(422).has("a reason is 1 to 500");
    desk.submit(&form.clone().with("for", "soon")).await.is(400).has("a number and a unit");
    desk.submit(&form.clone().with("for", "0"))
        .await
        .is(422)
        .has("a pause lasts a second at least");
    assert!(admin(&engine).pauses().await.unwrap().is_empty(), "a review changes nothing");
    // Twice, by a double click.
    let form = form.with("for", "2h");
    for _ in 0..2 {
        let done = desk.submit(&form).await;
        let told = desk.follow(&done).await.is(200);
        told.has("no engine begins the phase").has("the bank is closed").has("ends <time");
    }
    failed(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 0);
    desk.request(id_of(&engine, "k").await).await.has("is paused until");

    // A pause that was reviewed as it stands is replaced, and the page says how it was.
    for (length, said) in [
        ("", "replaced a pause that lasted until <time"),
        ("15m", "replaced a pause that had no end."),
    ] {
        let review = desk.submit(&choice.clone().with("act", "pause")).await.is(200);
        let form = review.form("/pauses/act").with("for", length).with("reason", "longer");
        let done = desk.submit(&form).await;
        desk.follow(&done).await.is(200).has(said).has("no engine begins the phase");
    }
    desk.get("pauses?said=replaced&until=%3Cb%3E").await.is(200).has("had no end").has_not("<b>");

    let review = desk.submit(&choice.with("act", "unpause")).await.is(200);
    let form = review.form("/pauses/act").with("reason", "it is open");
    for told in ["begin the phase again", "was not paused any more"] {
        let done = desk.submit(&form).await;
        desk.follow(&done).await.is(200).has(told);
    }
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 1);
    desk.get("audit").await.is(200).has("unpause").has("the bank is closed").has("charged");
}

/// The review of a pause, of another length for it, or of its end, and then another operator acts.
async fn g3_a_pause_that_moved_on_is_told_and_not_replaced_or_ended<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let (desk, ops) = (Desk::of(&engine).await, admin(&engine));
    let choice = desk.get("pauses").await.form("/pauses/plan");
    let choice = choice.with("definition", "book").with("phase", "charged");
    let review = async |act: &str| {
        let review = desk.submit(&choice.clone().with("act", act)).await.is(200);
        review.form("/pauses/act").with("reason", "<i>88")
    };
    let is_told = async |form: &Form, stands: &str| {
        let told = desk.submit(form).await.is(412);
        told.has(stands).has("what you typed is kept");
        let again = told.form("/pauses/act");
        assert_eq!(field(&again, "reason"), "<i>88");
        again
    };
    let begin = review("pause").await.with("for", "15m");
    ops.pause("book", "charged", None, "until the bank says so").await.unwrap();
    is_told(&begin, "until the bank says so").await;
    let (longer, end) = (review("pause").await, review("unpause").await);
    let seen = pause_of(&ops, ("book", "charged")).await.version;
    ops.replace_pause("book", "charged", &seen, None, "until noon").await.unwrap();
    is_told(&longer, "until noon").await;
    let again = is_told(&end, "until noon").await;
    assert_eq!(ops.pauses().await.unwrap()[0].reason, "until noon");
    // As it stands by then.
    assert_eq!(desk.submit(&again).await.location().query(), Some("said=ended"));

    ops.pause("book", "charged", None, "once more").await.unwrap();
    let (longer, end) = (review("pause").await, review("unpause").await);
    unpause(&ops, ("book", "charged")).await;
    is_told(&longer, "runs").await;
    let told = desk.submit(&end).await;
    desk.follow(&told).await.is(200).has("It was not paused any more");
    assert!(ops.pauses().await.unwrap().is_empty());
    assert_eq!(audit(&engine).await[0].outcome, "refused");

    // One's own, for the same reason, and for another time: the review was not done.
    let stale = review("pause").await.with("for", "2h");
    assert_eq!(
        desk.submit(&stale.clone().with("for", "15m")).await.location().query(),
        Some("said=paused")
    );
    is_told(&stale, "ends <time").await;
}

/// A build of a definition: whether it knows the earlier name of its phase.
macro_rules! build {
    ($name:ident $(, was $was:literal)?) => {
        #[derive(Serialize, Deserialize)]
        struct $name;

        #[atomic_phases(name = "renamed", version = 1)]
        impl<Db: TestDb> $name {
            #[phase(foreign(idempotent) $(, was = $was)?)]
            async fn charged(&self, call: ForeignCall) -> PhaseResult<(), ForeignError> {
                call.make(async |_: DerivedKey| Ok::<_, ForeignError>(())).await
            }

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
                Db::insert_step(tx, "-", "answered").await?;
                Ok(Reply::new(204))
            }
        }
    };
}

build!(Renamed, was "paid");
build!(Newest);

/// Each build has paused the phase, under the oldest name that it knows.
async fn g14_the_end_of_one_of_two_pauses_says_that_the_phase_is_still_paused<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let builder = |db: S| Engine::builder(db).app(App::default());
    let newest: TestEngine<S> = builder(db.clone()).register::<Newest>().build().unwrap();
    let engine: TestEngine<S> = builder(db).register::<Renamed>().build().unwrap();
    for (engine, reason) in [(&engine, "the bank is closed"), (&newest, "the line is cut")] {
        admin(engine).pause("renamed", "charged", None, reason).await.unwrap();
    }
    let desk = Desk::of(&engine).await;
    let ends = async || {
        let choice = desk.get("pauses").await.is(200).form("/pauses/plan").with("act", "unpause");
        let choice = choice.with("definition", "renamed").with("phase", "charged");
        let form = desk.submit(&choice).await.is(200).form("/pauses/act");
        let done = desk.submit(&form.with("reason", "it is open")).await;
        desk.follow(&done).await.is(200)
    };
    let told = ends().await;
    let left = admin(&engine).pauses().await.unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    told.has("Done. The phase is still paused, as below").has(&left[0].reason);
    told.has_not("Engines begin the phase again");
    let told = ends().await;
    told.has("Done. Engines begin the phase again").has_not("still paused");
    assert!(admin(&engine).pauses().await.unwrap().is_empty());
}
