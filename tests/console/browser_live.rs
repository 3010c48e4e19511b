//! The pages that refresh themselves, in a real Chromium: they follow the database, and disturb no operator.

use std::time::Duration;

use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::ops::{BulkAct, Selection, State};
use atomic_phases::worker::BulkRunner;
use serde_json::Value;

use super::browser::{alone, desk, is_read_here, reached, soon, state};
use super::cast::*;
use super::webdriver::Browser;
use crate::support::work::config;
use crate::support::*;

/// The live pages follow the database, except while an operator works in them.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_follows_what_happens_and_disturbs_no_reader() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    let browser = Browser::start().await;
    browser.open(desk.url("waiting")).await;
    let rows = "return document.querySelectorAll('tbody tr').length";
    assert_eq!(browser.eval(rows).await, 3);
    dead_letter(&engine, "new").await;
    soon("4 rows", async || browser.eval(rows).await == 4).await;
    // A selected text stays selected.
    browser.eval("getSelection().selectAllChildren(document.querySelector('h1'))").await;
    unknown(&engine, "newer").await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(browser.eval(rows).await, 4);
    browser.eval("getSelection().removeAllRanges()").await;
    soon("5 rows", async || browser.eval(rows).await == 5).await;
    // What is paused stays as it is, on the next page, too; until it is to go on.
    browser.click("#live button").await;
    assert!(browser.has("Not refreshed.").await);
    dead_letter(&engine, "newest").await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(browser.eval(rows).await, 5);
    browser.open(desk.url("waiting")).await;
    assert_eq!(browser.eval(rows).await, 6);
    assert!(browser.has("Not refreshed.").await);
    dead_letter(&engine, "last").await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(browser.eval(rows).await, 6);
    browser.click("#live button").await;
    soon("7 rows", async || browser.eval(rows).await == 7).await;
    assert!(browser.has("Refreshed every 5 s.").await);
    // No page tried anything that the policy forbids.
    let log = browser.logged().await;
    assert_eq!(log, Vec::<Value>::new());
}

/// An untouched form follows the request. Typed text stays, and one more click sends it after the request has
/// changed.
#[tokio::test(flavor = "multi_thread")]
async fn the_form_of_a_live_page_is_of_the_request_as_it_is_and_what_is_typed_stays() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    let browser = Browser::start().await;
    let id = id_of(&engine, "dead-letter").await;
    browser.open(desk.url(&format!("requests/{id}"))).await;
    let version = "return document.querySelector('#settle [name=version]').value";
    let seen = browser.eval(version).await;
    let act = async |name: &str, act: &str| {
        let row = admin(&engine).find(&scope(), &key(name)).await.unwrap();
        let word = match act {
            "retry" => Resolution::retry(),
            _ => Resolution::not_executed("notified", 1),
        };
        let done = admin(&engine).resolve(row.request_id, &row.version, word, "r").await;
        assert_eq!(done.unwrap(), Resolved::Applied, "{name}");
    };
    act("dead-letter", "retry").await;
    let retry = "return document.querySelector('#act-retry') === null";
    soon("it is not a dead letter", async || browser.eval(retry).await == true).await;
    assert_ne!(browser.eval(version).await, seen);
    assert_eq!(browser.eval("return document.querySelector('#act-finish') !== null").await, true);

    let id = id_of(&engine, "unknown").await;
    browser.open(desk.url(&format!("requests/{id}"))).await;
    browser.click("#act-finish").await;
    browser.click("#media option[value=text]").await;
    browser.fill("#body", "<b>by hand</b>").await;
    browser.eval("document.activeElement.blur()").await;
    act("unknown", "not_executed").await;
    // Longer than two refreshes.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let typed = "return document.getElementById('body').value";
    assert_eq!(browser.eval(typed).await, "<b>by hand</b>");
    browser.click("#settle button").await;
    soon("told", async || browser.has("It has changed since it was read").await).await;
    assert!(browser.has("In between").await && browser.has("<b>by hand</b>").await);
    is_read_here(&browser).await;
    browser.fill("#reason", "ticket 88").await;
    browser.click("form.act button").await;
    soon("done", async || browser.has("Done. It is written").await).await;
    assert_eq!(state(&engine, "unknown").await, State::Finished);
    assert!(browser.has("not run").await);
}

/// A page that is shown at the address of a refused form refreshes from its own address.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_goes_on_to_follow_what_happens_behind_a_refused_act() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    let browser = Browser::start().await;
    let other = id_of(&engine, "finished").await;
    let both = Selection::Requests(vec![id_of(&engine, "dead-letter").await, other]);
    let id = admin(&engine).start_bulk(BulkAct::Retry, &both, 2, "reason").await.unwrap();
    browser.open(desk.url(&format!("bulk/{id}"))).await;
    browser.fill("#because", " ").await;
    browser.click("form.act button").await;
    soon("refused", async || browser.has("Not stopped").await).await;
    reached(&browser, "/stop").await;
    assert!(browser.has("0 of 2 requests").await);
    // The filled-in form is not disturbed: it is as it was, and no operator is active.
    browser
        .eval(
            "const field = document.getElementById('because'); field.value = field.defaultValue; \
             document.activeElement.blur()",
        )
        .await;
    BulkRunner::new(&engine, config()).run_once().await.unwrap();
    soon("1 of 2", async || browser.has("1 of 2 requests").await).await;
    // A link of the page that was read leads to where it leads there.
    let link = browser.eval("return document.querySelector('#progress a.request').href").await;
    assert_eq!(link, desk.url(&format!("requests/{other}")).to_string());
    let live = browser.eval("return document.getElementById('live').textContent").await;
    assert!(live.as_str().unwrap().contains("Refreshed every"), "{live}");
    // A request to its address returns the page above.
    browser.open(desk.url(&format!("bulk/{id}/stop"))).await;
    reached(&browser, &format!("bulk/{id}")).await;
    // The browser's log contains the refusal and nothing else.
    let log = browser.logged().await;
    assert!(log.iter().all(|line| line.to_string().contains("422")), "{log:?}");
}
