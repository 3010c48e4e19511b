//! Acts by forms: each is reviewed, does what it says, and does it once. It is refused if the row is not as the
//! operator saw it.

use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::ops::{AuditRecord, OperatorStore, State};
use atomic_phases::phase::{DerivedKey, ForeignError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::cast::*;
use super::desk::{Desk, Page};
use super::html::Form;
use crate::support::work::{completed, reconciled};
use crate::support::*;
use atomic_phases::worker::BulkRunner;
use atomic_phases::{Engine, ForeignCall, PhaseResult, Reply, Tx, atomic_phases};

on_every_store! {
    g1_g2_each_act_is_reviewed_done_and_audited,
    a_review_changes_nothing,
    g1_a_review_says_what_may_have_been_called_and_what_stays,
    g3_a_double_click_is_one_act,
    g3_of_two_operators_one_is_told_that_it_moved_on,
    g3_what_moved_in_between_is_told_and_not_done,
    g3_what_was_typed_is_kept_and_sent_by_one_more_click,
    what_was_typed_is_kept_by_each_refusal,
    g3_a_resolution_behind_the_end_of_a_request_is_not_told_as_done,
    what_is_wrong_with_an_act_is_said_beside_what_was_given,
    g18_a_dead_job_is_retried_and_discarded,
    a_phase_is_paused_and_its_pause_is_ended,
    g3_a_pause_that_moved_on_is_told_and_not_replaced_or_ended,
    g14_the_end_of_one_of_two_pauses_says_that_the_phase_is_still_paused,
    g3_all_that_match_are_retried_as_they_were_planned,
}

/// The form of the act after its review, with a reason.
async fn reviewed(desk: &Desk, id: Uuid, act: &str, fields: &[(&str, &str)]) -> Form {
    let choice = desk.request(id).await.form("/plan").with("act", act);
    let choice = fields.iter().fold(choice, |form, (name, value)| form.with(name, value));
    let review = desk.submit(&choice).await.is(200);
    review.has("Do it").has("Review: ");
    review.form("/act").with("reason", "the pilot said so")
}

async fn audit<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Vec<AuditRecord> {
    admin(engine).audit(None, None, 100).await.unwrap().rows
}

async fn state<S: TestDb + OperatorStore>(engine: &TestEngine<S>, name: &str) -> State {
    admin(engine).find(&scope(), &key(name)).await.unwrap().state
}

const OUTPUT: (&str, &str) = ("output", "{\"id\": \"effect-9\",\r\n \"padding\": \"\"}");

async fn g1_g2_each_act_is_reviewed_done_and_audited<S: TestDb + OperatorStore>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let desk = Desk::of(&engine).await;
    let json = [("status", "409"), ("media", "json"), ("body", "{\"settled\":\r\n\"by hand\"}")];
    let text = [("status", "200"), ("media", "text"), ("body", "two\r\nlines")];
    for name in ["executed", "not_executed", "finish", "finish-text"] {
        unknown(&engine, name).await;
    }
    dead_letter(&engine, "retry").await;
    dead_letter(&engine, "erase").await;
    let effects = app.provider.effects();
    let acts: [(&str, &str, &[_], _, _); 6] = [
        ("executed", "executed", &[OUTPUT], "resolve.executed", State::Due),
        ("not_executed", "not_executed", &[], "resolve.not_executed", State::Due),
        ("finish", "finish", &json, "resolve.finish", State::Finished),
        ("finish-text", "finish", &text, "resolve.finish", State::Finished),
        ("retry", "retry", &[], "retry", State::Due),
        ("erase", "erase", &[], "erase", State::Erased),
    ];
    for (name, act, fields, audited, after) in acts {
        let id = id_of(&engine, name).await;
        let done = desk.submit(&reviewed(&desk, id, act, fields).await).await;
        let landed = desk.follow(&done).await.is(200);
        landed.has("role=\"status\"").has("Done.").has("the pilot said so").has(audited);
        assert_eq!(state(&engine, name).await, after, "{name}");
        let row = audit(&engine).await.remove(0);
        assert_eq!((row.act.as_str(), row.outcome.as_str()), (audited, "applied"));
        assert_eq!((row.actor.as_str(), row.request_id), ("ada", Some(id)));
        // The first of them is about a call, whose phase it tells.
        desk.get("audit").await.is(200).has(audited).has("notified");
    }
    assert_eq!(app.provider.effects(), effects, "no act makes a call");
    let status = engine.status(&scope(), &key("finish-text")).await.unwrap().unwrap();
    assert_eq!(status.reply.unwrap().bytes(), b"two\nlines");
    let status = engine.status(&scope(), &key("finish")).await.unwrap().unwrap().reply.unwrap();
    assert_eq!((status.status(), status.bytes().first()), (409, Some(&b'{')));
    // The executed call is not made again; the call that was not executed and the retried one are.
    completed(&engine).await;
    assert_eq!(state(&engine, "executed").await, State::Finished);
    assert_eq!(app.provider.effects(), effects + 2);
}

async fn a_review_changes_nothing<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    unknown(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let before = (dump(&db).await, admin(&engine).show(id).await.unwrap().summary);
    for (act, fields) in [
        ("executed", &[OUTPUT][..]),
        ("not_executed", &[]),
        ("finish", &[("status", "200"), ("body", "{}")]),
    ] {
        reviewed(&desk, id, act, fields).await;
    }
    assert_eq!((dump(&db).await, admin(&engine).show(id).await.unwrap().summary), before);
    assert!(audit(&engine).await.is_empty());
    // Nor by a reload of its address.
    let back = desk.get(&format!("requests/{id}/plan")).await;
    assert_eq!(back.location(), desk.url(&format!("requests/{id}")));
    let back = desk.get(&format!("requests/{id}/act")).await;
    assert_eq!(back.location(), desk.url(&format!("requests/{id}")));
}

/// The provider has the charge, and no intent tells.
async fn g1_a_review_says_what_may_have_been_called_and_what_stays<S: TestDb + OperatorStore>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    let desk = Desk::of(&engine).await;
    dead_letter(&engine, "k").await;
    assert_eq!(app.provider.effects(), 1);
    let id = id_of(&engine, "k").await;
    let page = desk.request(id).await;
    page.has("may have been called").has("committed").has_not(">next<");
    desk.get("requests").await.is(200).has("may have been called");
    let review = async |act: &str| {
        let choice = page.form("/plan").with("act", act).with("body", "{}");
        desk.submit(&choice).await.is(200)
    };
    for act in ["finish", "erase"] {
        review(act)
            .await
            .has("Look it up at the provider first")
            .has("What is committed stays")
            .has("<bdi>booked</bdi>");
    }
    review("retry").await.has("called again under the same derived").has_not("is committed stays");
    let bulk = desk.get("requests?state=dead_letter").await.is(200);
    let plan = desk.submit(&bulk.form("/bulk/plan").with("act", "erase")).await.is(200);
    plan.has("look each up at its provider first");
    // Finished by hand: of what came later, it is known that it did not run.
    let form = reviewed(&desk, id, "finish", &[("body", "{}")]).await;
    let landed = desk.follow(&desk.submit(&form).await).await.is(200);
    landed.has("may have been called").has("not run");
    finish(&engine, "fine").await;
    let finished = desk.request(id_of(&engine, "fine").await).await;
    finished.has("may have run").has_not("<span class=\"stands\">finished");
}

async fn g3_a_double_click_is_one_act<S: TestDb + OperatorStore>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    let desk = Desk::of(&engine).await;
    let finish_fields = [("status", "200"), ("media", "text"), ("body", "enough")];
    let acts: [(&str, &[_]); 5] = [
        ("executed", &[OUTPUT]),
        ("not_executed", &[]),
        ("finish", &finish_fields),
        ("retry", &[]),
        ("erase", &[]),
    ];
    for (act, fields) in acts {
        match act {
            "retry" | "erase" => dead_letter(&engine, act).await,
            _ => unknown(&engine, act).await,
        }
        let form = reviewed(&desk, id_of(&engine, act).await, act, fields).await;
        let (one, two) = tokio::join!(desk.submit(&form), desk.submit(&form));
        let again = desk.submit(&form).await;
        let ends: Vec<String> = [one, two, again].iter().map(ended).collect();
        let applied = ends.iter().filter(|end| *end == "said=applied").count();
        assert_eq!(applied, 1, "{act}: {ends:?}");
        // The second click may arrive while the first act is under way; the third arrives after both.
        assert_eq!(ends[2], "said=already", "{act}");
        let rows = audit(&engine).await;
        let id = id_of(&engine, act).await;
        let mine = rows.iter().filter(|row| row.request_id == Some(id) && row.outcome == "applied");
        assert_eq!(mine.count(), 1, "{act}: {rows:?}");
    }
}

/// The result of a click: the word in the address to which it leads, or its status.
fn ended(page: &Page) -> String {
    match page.status {
        303 => page.location().query().unwrap().to_owned(),
        status => status.to_string(),
    }
}

async fn g3_of_two_operators_one_is_told_that_it_moved_on<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    unknown(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let yes = reviewed(&desk, id, "executed", &[OUTPUT]).await;
    let no = reviewed(&desk, id, "not_executed", &[]).await;
    let by = |form: &Form, name: &str| desk.filled(form).header("x-name", name);
    let (yes, no) = tokio::join!(desk.send(by(&yes, "ada")), desk.send(by(&no, "bob")));
    let (won, lost) = if yes.status == 303 { (yes, no) } else { (no, yes) };
    assert_eq!(ended(&won), "said=applied");
    assert!([409, 412].contains(&lost.status), "{lost:?}");
    // Once more after both, so that the result is certain.
    let outcomes: Vec<_> = audit(&engine).await.into_iter().map(|row| row.outcome).collect();
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "applied").count(), 1, "{outcomes:?}");
    assert_eq!(outcomes.len(), 2);
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

fn field<'a>(form: &'a Form, name: &str) -> &'a str {
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

async fn g18_a_dead_job_is_retried_and_discarded<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    finish(&engine, "k").await;
    engine.store().sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    for (act, said, left) in [("retry", "delivered again", 1), ("discard", "never delivered", 0)] {
        let choice = desk.get("jobs").await.form("/jobs/plan").with("act", act);
        let review = desk.submit(&choice).await.is(200);
        review.has("Review: ").has("gave up after");
        let form = review.form("/jobs/act");
        desk.submit(&form).await.is(422).has("a reason is 1 to 500 characters").has("Do it");
        let form = form.with("reason", "the mailer is back");
        let done = desk.submit(&form).await;
        desk.follow(&done).await.is(200).has(said);
        assert_eq!(admin(&engine).dead_jobs(None, 10).await.unwrap().rows.len(), left);
        assert_eq!(audit(&engine).await[0].act, format!("job.{act}"));
        // Again: the bulk act has ended.
        desk.submit(&form).await.is(404).has("There is no dead job of this id");
        assert_eq!(audit(&engine).await[0].outcome, "refused");
    }
    desk.get("jobs").await.is(200).has("No job gave up");
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

async fn g3_all_that_match_are_retried_as_they_were_planned<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    for name in ["one", "two", "three"] {
        dead_letter(&engine, name).await;
    }
    desk.get("requests").await.is(200).has_not("Retry all that match");
    let list = desk.get("requests?state=dead_letter&reason=asked+for").await.is(200);
    let choice = list.form("/bulk/plan").with("act", "retry");
    let review = desk.submit(&choice).await.is(200);
    review.has("Review: retry 3 requests").has("Each dead letter tries again");
    let form = review.form("/bulk/act").with("because", "the provider is back");
    desk.submit(&form.clone().with("because", "")).await.is(422).has("a reason is 1 to 500");
    assert!(
        admin(&engine).bulks(None, 10).await.unwrap().rows.is_empty(),
        "a review changes nothing"
    );
    // One more request matches by now.
    dead_letter(&engine, "four").await;
    let told = desk.submit(&form).await.is(412);
    told.has("other requests match by now").has("Review: retry 4 requests");
    // The same number of requests, of which one gave up once more.
    let row = admin(&engine).find(&scope(), &key("three")).await.unwrap();
    let _ = admin(&engine).retry(row.request_id, &row.version, "by hand").await.unwrap();
    dead_letter(&engine, "three").await;
    let form = told.form("/bulk/act").with("because", "the provider is back");
    let told = desk.submit(&form).await.is(412);
    told.has("or stand otherwise").has("Review: retry 4 requests");
    let form = told.form("/bulk/act").with("because", "the provider is back");
    let started = desk.submit(&form).await;
    // A double click, or a browser that sends it again.
    assert_eq!(desk.submit(&form).await.location(), started.location());
    desk.follow(&started).await.is(200).has("Started.").has("0 of 4").has("the provider is back");
    // One of them changes before its turn.
    let row = admin(&engine).find(&scope(), &key("two")).await.unwrap();
    let _ = admin(&engine).retry(row.request_id, &row.version, "by hand").await.unwrap();
    BulkRunner::new(&engine, crate::support::work::config()).run_once().await.unwrap();
    let page = desk.follow(&started).await.is(200);
    page.has("3 of 4 requests").has("Left as it was").has(&row.request_id.to_string());
    page.has_not("Stop it");
    assert_eq!(state(&engine, "one").await, State::Due);
    desk.get("bulk").await.is(200).has("3 of 4").has("ended");
    desk.get("audit").await.is(200).has("bulk.start").has("in bulk");

    let list = desk.get("requests?state=due").await.is(200);
    let review = desk.submit(&list.form("/bulk/plan").with("act", "erase")).await.is(200);
    review.has("4, which do not stand where the act is taken");
    let form = review.form("/bulk/act").with("because", "a slip");
    let page = desk.follow(&desk.submit(&form).await).await.is(200);
    let stop = page.form("/stop");
    desk.submit(&stop.clone().with("because", "")).await.is(422).has("Not stopped");
    for said in ["Stopped.", "at its end"] {
        let done = desk.submit(&stop.clone().with("because", "a slip")).await;
        desk.follow(&done).await.is(200).has(said);
    }
    desk.get("bulk/nonsense").await.is(404).has("No such bulk act");
}
