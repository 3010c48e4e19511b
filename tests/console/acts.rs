//! Acts by forms: each is reviewed, does what it says, and does it once.

use atomic_phases::ops::{AuditRecord, OperatorStore, State};
use atomic_phases::worker::BulkRunner;
use uuid::Uuid;

use super::cast::*;
use super::desk::{Desk, Page};
use super::html::Form;
use crate::support::work::completed;
use crate::support::*;

on_every_store! {
    g1_g2_each_act_is_reviewed_done_and_audited,
    a_review_changes_nothing,
    g1_a_review_says_what_may_have_been_called_and_what_stays,
    g3_a_double_click_is_one_act,
    g3_of_two_operators_one_is_told_that_it_moved_on,
    g18_a_dead_job_is_retried_and_discarded,
    g3_all_that_match_are_retried_as_they_were_planned,
}

/// The form of the act after its review, with a reason.
pub async fn reviewed(desk: &Desk, id: Uuid, act: &str, fields: &[(&str, &str)]) -> Form {
    let choice = desk.request(id).await.form("/plan").with("act", act);
    let choice = fields.iter().fold(choice, |form, (name, value)| form.with(name, value));
    let review = desk.submit(&choice).await.is(200);
    review.has("Do it").has("Review: ");
    review.form("/act").with("reason", "the pilot said so")
}

pub async fn audit<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Vec<AuditRecord> {
    admin(engine).audit(None, None, 100).await.unwrap().rows
}

pub async fn state<S: TestDb + OperatorStore>(engine: &TestEngine<S>, name: &str) -> State {
    admin(engine).find(&scope(), &key(name)).await.unwrap().state
}

pub const OUTPUT: (&str, &str) = ("output", "{\"id\": \"effect-9\",\r\n \"padding\": \"\"}");

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
    // Of a value its length, and its hash for those who may see values.
    desk.get("audit").await.is(200).has(" attempt 1");
    let id = id_of(&engine, "finish-text").await;
    let hash = sha256("two\nlines");
    for path in ["audit", &format!("requests/{id}")] {
        desk.get(path).await.is(200).has("value of 9 bytes, SHA-256 ").has(&hash);
        let asked = desk.ask(reqwest::Method::GET, desk.url(path)).header("x-may", "responder");
        desk.send(asked).await.is(200).has("value of 9 bytes").has_not("SHA-256");
    }
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
pub fn ended(page: &Page) -> String {
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
