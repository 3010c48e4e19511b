//! Acts that are refused: the row is not as the operator saw it, or the form is wrong. What was typed is kept.

use atomic_phases::Reply;
use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::ops::{OperatorStore, State};

use super::acts::{OUTPUT, audit, ended, reviewed, state};
use super::cast::*;
use super::desk::Desk;
use super::html::Form;
use crate::support::work::reconciled;
use crate::support::*;

on_every_store! {
    g3_what_moved_in_between_is_told_and_not_done,
    g3_what_was_typed_is_kept_and_sent_by_one_more_click,
    what_was_typed_is_kept_by_each_refusal,
    g3_a_resolution_behind_the_end_of_a_request_is_not_told_as_done,
    what_is_wrong_with_an_act_is_said_beside_what_was_given,
}

async fn g3_what_moved_in_between_is_told_and_not_done<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    dead_letter(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let stale_choice =
        desk.request(id).await.form("/plan").with("act", "finish").with("body", "{}");
    let stale_act = reviewed(&desk, id, "finish", &[("body", "{}")]).await;
    // Another operator was faster, and the request gave up again.
    let _ = engine.resolve(&scope(), &key("k"), Resolution::retry()).await.unwrap();
    failed(engine.call(&scope(), &key("k"), troubled(Trouble::RetryForeignAlways)).await);
    set(&engine, "k", "status = 'dead_letter', run_after = NULL, waiting_since = created_at").await;
    let before = dump(&db).await;
    for form in [stale_choice, stale_act] {
        let told = desk.submit(&form).await.is(412);
        told.has("It has changed since it was read")
            .has("Nothing was done")
            .has("It is a dead letter")
            .has("When you read it")
            .has("resolved, attempt 1")
            .has("Back, change nothing");
        let kept = told.form("/act");
        let body = kept.fields.iter().find(|(name, _)| name == "body");
        assert_eq!(body.map(|(_, body)| body.as_str()), Some("{}"));
    }
    assert_eq!(dump(&db).await, before);
}

/// Hostile text of several lines: the form escapes it, and returns it as it was.
const TYPED: &str = "{\"id\": \"</textarea><script>'&amp;\",\r\n \"padding\": \"\"}";

pub fn field<'a>(form: &'a Form, name: &str) -> &'a str {
    form.fields.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value)
}

/// A reconcile function that found no outcome; and another operator with another resolution, after which another
/// call is next.
async fn g3_what_was_typed_is_kept_and_sent_by_one_more_click<S: TestDb + OperatorStore>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let desk = Desk::of(&engine).await;
    let reason = "<b>the pilot\"s</b> log";
    for name in ["looked-into", "elsewhere", "again"] {
        unknown(&engine, name).await;
    }
    let review = async |name: &str| {
        let form =
            reviewed(&desk, id_of(&engine, name).await, "executed", &[("output", TYPED)]).await;
        form.with("reason", reason)
    };
    let looked_into = review("looked-into").await;
    db.let_time_pass().await;
    assert_eq!(reconciled(&engine).await.unknown, 3);
    assert_eq!(ended(&desk.submit(&looked_into).await), "said=applied");

    // The call can no longer be resolved: the page shows the texts.
    let (stale, id) = (review("elsewhere").await, id_of(&engine, "elsewhere").await);
    let by_hand = Resolution::finish(Reply::text(200, "by hand"));
    let _ = engine
        .resolve(&scope(), &key("elsewhere"), Resolution::not_executed("notified", 1))
        .await
        .unwrap();
    let told = desk.submit(&stale).await.is(412);
    told.has("Output, as you typed it").has("&lt;/textarea&gt;&lt;script&gt;").has_not("<script>'");
    assert_eq!(field(&told.form("/plan"), "reason"), reason);
    let _ = engine.resolve(&scope(), &key("elsewhere"), by_hand).await.unwrap();
    engine.erase(&scope(), &key("elsewhere")).await.unwrap();
    let told = desk.submit(&stale.clone().with("act", "not_executed")).await.is(412);
    told.has("Reason, as you typed it").has("&lt;b&gt;the pilot").has("Its data was erased");
    assert_eq!(state(&engine, "elsewhere").await, State::Erased, "{id}");

    // The form is about another call by now, which the operator must see before resolving it.
    let stale = review("again").await;
    let _ = engine
        .resolve(&scope(), &key("again"), Resolution::not_executed("notified", 1))
        .await
        .unwrap();
    app.forget_bodies();
    unknown(&engine, "again").await;
    let already = desk.submit(&stale.clone().with("act", "not_executed")).await;
    assert_eq!(ended(&already), "said=already", "of the first call");
    let told = desk.submit(&stale).await.is(412);
    told.has("When you read it").has_not("Do it");
    let choice = told.form("/plan");
    assert_eq!((field(&choice, "output"), field(&choice, "attempt")), (TYPED, "2"));
    assert_eq!(field(&choice, "act"), "executed");
    let review = desk.submit(&told.form("/plan")).await.is(200);
    let act = review.form("/act");
    assert_eq!((field(&act, "output"), field(&act, "reason")), (TYPED, reason));
    assert_eq!(ended(&desk.submit(&act).await), "said=applied");
}

/// The request has ended meanwhile, and its output is not kept: nothing is written, and the page claims nothing
/// else.
async fn g3_a_resolution_behind_the_end_of_a_request_is_not_told_as_done<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    unknown(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let act = reviewed(&desk, id, "executed", &[OUTPUT]).await;
    let by_hand = Resolution::finish(Reply::text(200, "by hand"));
    assert_eq!(engine.resolve(&scope(), &key("k"), by_hand).await.unwrap(), Resolved::Applied);
    let before = dump(&db).await;
    let told = desk.submit(&act).await;
    assert_eq!(ended(&told), "said=finished");
    let landed = desk.follow(&told).await.is(200);
    landed.has("role=\"status\"").has("nothing was written").has_not("Done.");
    assert_eq!(dump(&db).await, before);
    let row = audit(&engine).await.remove(0);
    assert_eq!((row.act.as_str(), row.outcome.as_str()), ("resolve.executed", "already"));
}

async fn what_is_wrong_with_an_act_is_said_beside_what_was_given<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    unknown(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let before = dump(&db).await;
    let choice = desk.request(id).await.form("/plan");
    for (act, field, value, told) in [
        (
            "executed",
            "output",
            "{id: 7}",
            "The output is not JSON: key must be a string at line 1 column 2",
        ),
        ("executed", "output", "", "The output is not JSON"),
        ("finish", "status", "99", "The status of a reply is 200 to 599"),
        ("finish", "status", "600", "The status of a reply is 200 to 599"),
        ("finish", "body", "[1,", "The body of the reply is not JSON: EOF while parsing"),
        ("not_executed", "attempt", "x", "The attempt is a whole number"),
        ("explode", "", "", "Choose what to do"),
        ("", "", "", "Choose what to do"),
    ] {
        let page = desk.submit(&choice.clone().with("act", act).with(field, value)).await.is(400);
        page.has("role=\"alert\"").has(told).has_not("Do it");
    }
    // Before it is reviewed, and of a form that was not.
    let (of_another_type, typed) = (("output", "{\"id\": 7}"), "{&quot;id&quot;: 7}");
    let wrong = choice.clone().with("act", "executed").with(of_another_type.0, of_another_type.1);
    let act = reviewed(&desk, id, "executed", &[OUTPUT]).await;
    for wrong in [wrong, act.clone().with(of_another_type.0, of_another_type.1)] {
        let told = desk.submit(&wrong).await.is(422);
        told.has("cannot be read as what the phase returns")
            .has(typed)
            .has("Review")
            .has_not("Do it");
    }
    let long = "x".repeat(501);
    for reason in ["", "  ", &long] {
        let told = desk.submit(&act.clone().with("reason", reason)).await.is(422);
        told.has("a reason is 1 to 500 characters").has("Do it");
    }
    let other = act.clone().with("act", "retry");
    desk.submit(&other).await.is(409).has("the outcome of a call is unknown");
    assert_eq!(dump(&db).await, before);
}

async fn what_was_typed_is_kept_by_each_refusal<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    let long = "<i>".repeat(200);
    // An unreadable form.
    unknown(&engine, "k").await;
    let choice = desk.request(id_of(&engine, "k").await).await.form("/plan");
    let choice = choice.with("act", "executed").with("output", "{id:\r\n7}").with("body", "<p>");
    let told = desk.submit(&choice).await.is(400).form("/plan");
    let kept = ["act", "output", "body"].map(|name| field(&told, name));
    assert_eq!(kept, ["executed", "{id:\r\n7}", "<p>"]);
    // The reveal of a value.
    let reveal = desk.request(id_of(&engine, "k").await).await.form("/reveal");
    let told = desk.submit(&reveal.with("what", "outputs").with("reason", &long)).await.is(422);
    let told = told.form("/reveal");
    assert_eq!((field(&told, "what"), field(&told, "reason")), ("outputs", &*long));
    // A job that was tried once more, and gave up again.
    finish(&engine, "jobs").await;
    let dies = "UPDATE atomic_phases_staged_jobs SET run_after = NULL, attempts = attempts + 1";
    engine.store().sql(dies).await;
    let choice = desk.get("jobs").await.form("/jobs/plan").with("act", "retry");
    let act = desk.submit(&choice).await.is(200).form("/jobs/act").with("reason", "<i>88");
    engine.store().sql(dies).await;
    let told = desk.submit(&act).await.is(412);
    let again = told.has("what you typed is kept").form("/jobs/act");
    assert_eq!(field(&again, "reason"), "<i>88");
    assert_eq!(desk.submit(&again).await.location().query(), Some("said=retried"));
    // The stop of a bulk act.
    dead_letter(&engine, "dead").await;
    let list = desk.get("requests?state=dead_letter").await.form("/bulk/plan").with("act", "retry");
    let start = desk.submit(&list).await.form("/bulk/act").with("because", "<i>88");
    let page = desk.follow(&desk.submit(&start).await).await;
    let told = desk.submit(&page.form("/stop").with("because", &long)).await.is(422);
    assert_eq!(field(&told.form("/stop"), "because"), long);
}
