//! The acts in a real Chromium: by keyboard alone, without JavaScript, and over plain HTTP.

use atomic_phases::ops::State;
use atomic_phases::worker::BulkRunner;
use serde_json::Value;

use super::browser::{alone, desk, is_read_here, reached, soon, state};
use super::cast::*;
use super::webdriver::{Browser, DOWN, ENTER, SPACE};
use crate::support::work::config;
use crate::support::*;

/// The page, the button, and the message after the act: of jobs and of pauses.
const ACTS: [(&str, &str, &str); 4] = [
    ("jobs", "retry", "Done. It is delivered again"),
    ("jobs", "discard", "Done. It is never delivered"),
    ("pauses", "pause", "Done. Within five seconds"),
    ("pauses", "unpause", "Done. Engines begin the phase again"),
];

/// A request is found, read and settled without a mouse.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_settled_by_keyboard_alone() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    let browser = Browser::start().await;
    let enter = ENTER.to_string();
    browser.open(desk.url("overview")).await;
    browser.tab_to(".skip").await;
    browser.press(&enter).await;
    assert!(browser.focused().await.starts_with("MAIN"));
    browser.tab_to("a[href^='waiting?state=unknown']").await;
    browser.press(&enter).await;
    reached(&browser, "/waiting?state=unknown").await;
    browser.tab_to("td a[href$='#settle']").await;
    browser.press(&enter).await;
    reached(&browser, "#settle").await;
    browser.tab_to("#settle input[type=radio]").await;
    browser.press(&SPACE.to_string()).await;
    browser.press(&DOWN.to_string()).await;
    assert!(browser.focused().await.contains("act-not_executed"), "{}", browser.focused().await);
    browser.tab_to("#settle button").await;
    browser.press(&enter).await;
    reached(&browser, "/plan").await;
    assert!(browser.has("Review: It was not executed").await);
    // The reason has the focus already.
    browser.press("ticket 88").await;
    browser.tab_to("form.act button").await;
    browser.press(&enter).await;
    reached(&browser, "?said=applied").await;
    assert!(browser.has("Done. It is written").await);
    assert!(browser.has("ticket 88").await);
    let due = [state(&engine, "unknown").await, state(&engine, "unasked").await];
    assert!(due.contains(&State::Due), "{due:?}");
    // "/" leads to the search, from any page.
    browser.tab_to(".brand").await;
    browser.press("/").await;
    reached(&browser, "/requests#find").await;
    soon("focus", async || browser.focused().await.contains("find scope")).await;
    browser.press("tenant-1").await;
    browser.tab_to("#key").await;
    browser.press("dead-letter").await;
    browser.press(&enter).await;
    let id = id_of(&engine, "dead-letter").await;
    reached(&browser, &id.to_string()).await;
}

/// Each act of the console, with scripts switched off.
#[tokio::test(flavor = "multi_thread")]
async fn every_act_is_done_without_javascript() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    unknown(&engine, "by-hand").await;
    let browser = Browser::start().await;
    browser.scripts(false).await;
    /// The fields, and the text for each.
    type Typed = &'static [(&'static str, &'static str)];
    let fields: [(&str, &str, Typed, State); 5] = [
        ("unknown", "executed", &[("#output", "{\"id\": \"e\", \"padding\": \"\"}")], State::Due),
        ("unasked", "not_executed", &[], State::Due),
        ("by-hand", "finish", &[("#body", "{\"done\": true}")], State::Finished),
        ("dead-letter", "retry", &[], State::Due),
        ("finished", "erase", &[], State::Erased),
    ];
    for (page, act, said) in ACTS {
        browser.open(desk.url(page)).await;
        browser.click(&format!("button[value={act}]")).await;
        soon("the review", async || browser.has("Review: ").await).await;
        browser.fill("#reason", "ticket 88").await;
        browser.click("form.act button").await;
        soon(said, async || browser.has(said).await).await;
        let paused = admin(&engine).pauses().await.unwrap().len();
        assert_eq!(paused, usize::from(act == "pause"));
    }
    // Another operator pauses the phase while the page shows that it runs: the review tells that pause, which is replaced.
    browser.open(desk.url("pauses")).await;
    admin(&engine).pause("book", "charged", None, "until the bank says so").await.unwrap();
    browser.click("button[value=pause]").await;
    soon("the review", async || browser.has("until the bank says so").await).await;
    browser.fill("#for", "15m").await;
    browser.fill("#reason", "ticket 88").await;
    browser.click("form.act button").await;
    let said = "Done. It replaced a pause that had no end";
    soon(said, async || browser.has(said).await).await;
    let paused = admin(&engine).pauses().await.unwrap();
    let [pause] = &paused[..] else { panic!("{paused:?}") };
    assert_eq!((&*pause.reason, pause.ends_at.is_some()), ("ticket 88", true));
    unpause(&admin(&engine), ("book", "charged")).await;
    // An erasure requires that no jobs are left.
    engine.store().sql("DELETE FROM atomic_phases_staged_jobs").await;
    for (name, act, fields, after) in fields {
        let id = id_of(&engine, name).await;
        browser.open(desk.url(&format!("requests/{id}"))).await;
        browser.click(&format!("#act-{act}")).await;
        for (field, text) in fields {
            browser.fill(field, text).await;
        }
        browser.click("#settle button").await;
        soon("the review", async || browser.has("Review: ").await).await;
        browser.fill("#reason", "ticket 88").await;
        browser.click("form.act button").await;
        soon("done", async || browser.has("Done. It is written").await).await;
        assert_eq!(state(&engine, name).await, after, "{name}");
    }
    let id = id_of(&engine, "running").await;
    browser.open(desk.url(&format!("requests/{id}"))).await;
    browser.click("#what option[value=parameters]").await;
    browser.fill("#reveal-reason", "ticket 88").await;
    browser.click("#values button").await;
    soon("the value", async || browser.has("\"who\": \"pilot\"").await).await;
    // A bulk act that runs to its end, and one that is stopped.
    for names in [["one", "other"], ["third", "fourth"]] {
        for name in names {
            dead_letter(&engine, name).await;
        }
        browser.open(desk.url("requests?state=dead_letter")).await;
        browser.click("button[value=retry]").await;
        soon("the review", async || browser.has("Review: retry 2 requests").await).await;
        browser.fill("#because", "the line is up").await;
        browser.click("form.act button").await;
        let said = "Started. The workers do it";
        soon(said, async || browser.has(said).await).await;
        if names[0] == "one" {
            BulkRunner::new(&engine, config()).run_once().await.unwrap();
            // The page does not refresh here: the operator reloads it.
            browser.open(browser.url().await).await;
            assert!(browser.has("2 of 2 requests").await && browser.has("ended").await);
            assert_eq!(state(&engine, "other").await, State::Due);
            continue;
        }
        browser.fill("#because", "a slip").await;
        browser.click("form.act button").await;
        soon("stopped", async || browser.has("Stopped. What was done stays done").await).await;
        assert_eq!(state(&engine, "fourth").await, State::DeadLetter);
    }
    // The two that were left are erased.
    browser.open(desk.url("requests?state=dead_letter")).await;
    browser.click("button[value=erase]").await;
    soon("the review", async || browser.has("Review: erase 2 requests").await).await;
    browser.fill("#because", "ticket 88").await;
    browser.click("form.act button").await;
    let said = "Started. The workers do it";
    soon(said, async || browser.has(said).await).await;
    until(async || {
        BulkRunner::new(&engine, config()).run_once().await.unwrap();
        state(&engine, "fourth").await == State::Erased
    })
    .await;
    assert_eq!(state(&engine, "third").await, State::Erased);
    browser.open(browser.url().await).await;
    assert!(browser.has("2 of 2 requests").await && browser.has("ended").await);
    browser.open(desk.url("requests")).await;
    browser.click(".filters summary").await;
    browser.click("input[value=erased]").await;
    browser.click(".filters button").await;
    reached(&browser, "/requests?state=erased&definition=&version=&phase=&reason=&older=&waiting=")
        .await;
}

/// Over plain HTTP, a browser sends no `Sec-Fetch-Site` to another machine. Its `Origin` decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_is_taken_over_plain_http_from_another_machine() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    let browser = Browser::start().await;
    let mut pauses = desk.url("pauses");
    pauses.set_host(Some("console.example")).unwrap();
    browser.open(&pauses).await;
    browser.click("button[value=pause]").await;
    soon("the review", async || browser.has("Review: ").await).await;
    browser.fill("#reason", "ticket 88").await;
    browser.click("form.act button").await;
    soon("done", async || browser.has("Done. Within five seconds").await).await;
    assert_eq!(admin(&engine).pauses().await.unwrap().len(), 1);
}

/// Each act of the console without a mouse, on a screen of 320 pixels, in dark mode; each page in between is
/// checked for readability there.
#[tokio::test(flavor = "multi_thread")]
async fn each_act_is_done_by_keyboard_alone_at_320_pixels_and_in_the_dark() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    unknown(&engine, "by-hand").await;
    let browser = Browser::start().await;
    browser.scheme("dark").await;
    browser.size(320, 700).await;
    for (page, act, said) in ACTS {
        browser.open(desk.url(page)).await;
        is_read_here(&browser).await;
        press_on(&browser, &format!("button[value={act}]")).await;
        reviewed(&browser, said).await;
    }
    // An erasure requires that no jobs are left.
    engine.store().sql("DELETE FROM atomic_phases_staged_jobs").await;
    for (name, act, field, text) in [
        ("unknown", "executed", "#output", "{\"id\": \"e\", \"padding\": \"\"}"),
        ("unasked", "not_executed", "", ""),
        ("by-hand", "finish", "#body", "{\"done\": true}"),
        ("dead-letter", "retry", "", ""),
        ("finished", "erase", "", ""),
    ] {
        let id = id_of(&engine, name).await;
        browser.open(desk.url(&format!("requests/{id}"))).await;
        browser.tab_to("#settle input[type=radio]").await;
        browser.press(&SPACE.to_string()).await;
        for _ in 0..6 {
            if browser.focused().await.contains(&format!("act-{act} ")) {
                break;
            }
            browser.press(&DOWN.to_string()).await;
        }
        assert!(browser.focused().await.contains(&format!("act-{act} ")), "{name}: {act}");
        if !field.is_empty() {
            browser.tab_to(field).await;
            browser.press(text).await;
        }
        is_read_here(&browser).await;
        press_on(&browser, "#settle button").await;
        reviewed(&browser, "Done. It is written").await;
    }
    let id = id_of(&engine, "running").await;
    browser.open(desk.url(&format!("requests/{id}"))).await;
    browser.tab_to("#what").await;
    browser.press("p").await;
    browser.tab_to("#reveal-reason").await;
    browser.press("ticket 88").await;
    press_on(&browser, "#values button").await;
    soon("the value", async || browser.has("\"who\": \"pilot\"").await).await;
    is_read_here(&browser).await;
    // A bulk act, and its end.
    for name in ["one", "other"] {
        dead_letter(&engine, name).await;
    }
    browser.open(desk.url("requests?state=dead_letter")).await;
    is_read_here(&browser).await;
    press_on(&browser, "button[value=retry]").await;
    reviewed(&browser, "Started. The workers do it").await;
    browser.tab_to("#because").await;
    browser.press("a slip").await;
    press_on(&browser, "form.act button").await;
    soon("stopped", async || browser.has("Stopped. What was done stays done").await).await;
    is_read_here(&browser).await;
    let log = browser.logged().await;
    assert_eq!(log, Vec::<Value>::new());
}

async fn press_on(browser: &Browser, css: &str) {
    browser.tab_to(css).await;
    browser.press(&ENTER.to_string()).await;
}

/// Completes a review, whose reason field has the focus already.
async fn reviewed(browser: &Browser, said: &str) {
    soon("the review", async || browser.has("Review: ").await).await;
    is_read_here(browser).await;
    browser.press("ticket 88").await;
    press_on(browser, "form.act button").await;
    soon(said, async || browser.has(said).await).await;
    is_read_here(browser).await;
}
