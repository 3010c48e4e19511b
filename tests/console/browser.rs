//! The pages in a real Chromium: by keyboard alone, without JavaScript, at 320 pixels, light and dark, with enough
//! contrast.

use std::time::Duration;

use atomic_phases::console::Console;
use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::ops::{Actor, BulkAct, Permissions, Scopes, Selection, State};
use atomic_phases::store::Sqlite;
use atomic_phases::worker::BulkRunner;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::accessibility::check_accessibility_of;
use super::cast::*;
use super::desk::Desk;
use super::hostile::hostile_pages;
use super::pages::cast;
use super::webdriver::{Browser, DOWN, ENTER, SPACE};
use crate::support::work::config;
use crate::support::*;

/// One browser at a time: each is a dozen processes.
pub async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// A console with a request in each state, which needs no sign-in.
async fn desk() -> (TestEngine<Sqlite>, Desk) {
    let db = Sqlite::fresh().await;
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    let console = Console::new(engine.clone(), |_| {
        Actor::new("ada@example.com", Permissions::admin(), Scopes::All).ok()
    });
    (engine, Desk::with(console).await)
}

/// A page, and what is done to get there: clicks, and texts that are typed.
struct Visit {
    name: String,
    address: String,
    steps: &'static [Step],
}

enum Step {
    Click(&'static str),
    Fill(&'static str, &'static str),
}

/// Every page: one of each kind of request, of a bulk act and of each review.
async fn visits(engine: &TestEngine<Sqlite>, desk: &Desk) -> Vec<Visit> {
    use Step::{Click, Fill};
    let visit = |name: &str, path: &str, steps| Visit {
        name: name.to_owned(),
        address: desk.url(path).to_string(),
        steps,
    };
    let mut all: Vec<Visit> = [
        "overview",
        "waiting",
        "requests?state=unknown",
        "jobs",
        "definitions",
        "pauses",
        "bulk",
        "audit",
        "nowhere",
    ]
    .map(|path| visit(path.split('?').next().unwrap(), path, &[]))
    .into_iter()
    .collect();
    for name in ["unknown", "dead-letter", "running", "finished", "erased", "backing-off"] {
        let id = id_of(engine, name).await;
        all.push(visit(&format!("request-{name}"), &format!("requests/{id}"), &[]));
    }
    let both = [id_of(engine, "dead-letter").await, id_of(engine, "finished").await];
    let [dead, finished] = both.map(|id| format!("requests/{id}"));
    let unknown = format!("requests/{}", id_of(engine, "unknown").await);
    let ops = admin(engine);
    let one = Selection::Requests(both.to_vec());
    let bulk = ops.start_bulk(BulkAct::Retry, &one, 2, "the line is up").await.unwrap();
    let stopped = ops.start_bulk(BulkAct::Erase, &one, 2, "a slip").await.unwrap();
    let _ = ops.stop_bulk(stopped, "a slip").await.unwrap();
    all.push(visit("bulk-under-way", &format!("bulk/{bulk}"), &[]));
    all.push(visit("bulk-stopped", &format!("bulk/{stopped}"), &[]));
    let settle: [(_, _, &'static [Step]); 13] = [
        (
            "review-executed",
            &*unknown,
            &[
                Click("#act-executed"),
                Fill("#output", "{\"id\": \"ntf_00000001\", \"padding\": \"\"}"),
                Click("#settle button"),
            ],
        ),
        (
            "review-executed-refused",
            &unknown,
            &[Click("#act-executed"), Fill("#output", "{\"id\": "), Click("#settle button")],
        ),
        ("review-not-executed", &unknown, &[Click("#act-not_executed"), Click("#settle button")]),
        (
            "review-finish",
            &unknown,
            &[
                Click("#act-finish"),
                Fill("#body", "{\"settled\": \"by hand\"}"),
                Click("#settle button"),
            ],
        ),
        ("review-retry", &dead, &[Click("#act-retry"), Click("#settle button")]),
        ("review-erase", &finished, &[Click("#act-erase"), Click("#settle button")]),
        ("review-job", "jobs", &[Click("button[value=discard]")]),
        ("review-pause", "pauses", &[Click("button[value=pause]")]),
        ("review-bulk", "requests?state=dead_letter", &[Click("button[value=retry]")]),
        (
            "revealed",
            &unknown,
            &[
                Click("#what option[value=parameters]"),
                Fill("#reveal-reason", "ticket 88"),
                Click("#values button"),
            ],
        ),
        ("not-revealed", &unknown, &[Fill("#reveal-reason", " "), Click("#values button")]),
        ("found", "requests", &[Fill("#find", "tenant-1"), Click(".finder button")]),
        (
            "not-stopped",
            &format!("bulk/{bulk}"),
            &[Fill("#because", " "), Click("form.act button")],
        ),
    ];
    all.extend(settle.map(|(name, path, steps)| visit(name, path, steps)));
    all
}

impl Visit {
    async fn go(&self, browser: &Browser) {
        browser.open(&self.address).await;
        for step in self.steps {
            match step {
                Step::Click(css) => browser.click(css).await,
                Step::Fill(css, text) => browser.fill(css, text).await,
            }
        }
        if !self.steps.is_empty() {
            let is_there = "return document.readyState === 'complete' && location.href";
            let address = json!(self.address.split('#').next());
            soon(&self.name, async || {
                let there = browser.eval(is_there).await;
                there != false && (there != address || self.name == "found")
            })
            .await;
        }
    }
}

async fn state(engine: &TestEngine<Sqlite>, name: &str) -> State {
    admin(engine).find(&scope(), &key(name)).await.unwrap().state
}

/// Texts that a person with low vision cannot read: their contrast with the background is below WCAG 2.2's AA, as
/// the browser has computed the colors.
const FAINT: &str = r"
    const rgb = (text) => {
        const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
        canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = ([r, g, b]) => {
        const part = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const behind = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const color = rgb(getComputedStyle(one).backgroundColor);
            if (color[3] === 255) return color;
        }
        return rgb('Canvas');
    };
    const faint = [];
    let looked = 0;
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        const element = node.parentElement;
        if (!node.textContent.trim() || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const [a, b] = [light(rgb(style.color)), light(behind(element))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
        looked += 1;
        if (ratio < (large ? 3 : 4.5)) {
            faint.push(node.textContent.trim().slice(0, 40) + ': ' + ratio.toFixed(2) + ' ' + style.color);
        }
    }
    return [looked, faint];
";

/// Rules that need a layout: nothing is wider than the window or than the cell it is in, and no button is too small.
const LAYOUT: &str = r"
    const wide = document.documentElement.scrollWidth - window.innerWidth;
    const small = [...document.querySelectorAll('button, a.button, input, select, textarea')]
        .filter((one) => one.checkVisibility() && one.type !== 'hidden')
        .filter((one) => { const box = one.getBoundingClientRect(); return box.width < 16 || box.height < 16; });
    // The name of a button is on one line.
    const broken = [...document.querySelectorAll('button, a.button, .chip')].filter((one) => {
        const text = [...one.childNodes].find((node) => node.nodeType === 3 && node.textContent.trim());
        if (!text || !one.checkVisibility()) return false;
        const range = document.createRange();
        range.selectNodeContents(text);
        return new Set([...range.getClientRects()].map((box) => box.top)).size > 1;
    });
    // Nothing sticks out of its cell or its card.
    const out = [...document.querySelectorAll('td, dd, .why, .track li, .tile')]
        .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1);
    return [wide, [...small, ...broken, ...out].map((one) => one.outerHTML)];
";

const WIDTHS: [u32; 7] = [320, 480, 834, 1024, 1280, 1920, 2560];

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_read_at_any_width_in_light_and_in_the_dark() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    let browser = Browser::start().await;
    let visits = visits(&engine, &desk).await;
    assert_eq!(visits.len(), 30);
    for visit in visits {
        // Wide enough for what is clicked on the way.
        browser.size(1280, 900).await;
        visit.go(&browser).await;
        let name = &visit.name;
        let mut backgrounds = Vec::new();
        for scheme in ["light", "dark"] {
            browser.scheme(scheme).await;
            let told = browser.eval(FAINT).await;
            assert!(told[0].as_u64().unwrap() > 5, "{name}: {told}");
            assert_eq!(told[1], json!([]), "too faint, {scheme}: {name}");
            for width in WIDTHS {
                browser.size(width, 900).await;
                assert_eq!(browser.eval(LAYOUT).await, json!([0, []]), "{width}, {scheme}: {name}");
                keep(&browser, name, &format!("{width}-{scheme}")).await;
            }
            let background = "return getComputedStyle(document.body).backgroundColor";
            backgrounds.push(browser.eval(background).await);
        }
        assert_ne!(backgrounds[0], backgrounds[1], "{name}: the same in the dark");
        let page = browser.eval("return document.documentElement.outerHTML").await;
        check_accessibility_of(page.as_str().unwrap());
    }
}

/// Texts that others wrote, on a narrow screen and on a wide one: none runs as a script, none is markup, and none makes
/// the page wider than the window.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_meant_to_break_a_page_breaks_none_in_a_browser() {
    let _alone = alone().await;
    let (engine, desk) = desk().await;
    let pages = hostile_pages(&engine).await;
    let browser = Browser::start().await;
    let look = async |page: &str| {
        for (width, height) in [(320, 700), (1280, 900)] {
            browser.size(width, height).await;
            assert_eq!(browser.eval(LAYOUT).await, json!([0, []]), "{width}: {page}");
            keep(&browser, &format!("hostile-{}", page.replace('/', "-")), &width.to_string())
                .await;
        }
        // A dialog, or a script that ran before this one, fails here.
        let parts = "return [document.images.length, document.scripts.length, \
                     document.querySelectorAll('style, iframe, [onerror], [style]').length, \
                     document.title.endsWith(' · atomic-phases')]";
        assert_eq!(browser.eval(parts).await, json!([0, 1, 0, true]), "{page}");
    };
    for page in &pages {
        browser.open(desk.url(page)).await;
        assert!(browser.text().await.contains("WWWWWW"), "{page}");
        look(page).await;
    }
    // And as an operator types it.
    let unknown = pages.iter().find(|page| page.starts_with("requests/")).unwrap();
    browser.open(desk.url(unknown)).await;
    browser.click("#act-finish").await;
    browser.click("#media option[value=text]").await;
    let typed = format!("</textarea><script>alert(1)</script>{}", "W".repeat(300));
    browser.fill("#body", &typed).await;
    browser.click("#settle button").await;
    soon("the review", async || browser.has("Review: ").await).await;
    look("the review").await;
    browser.open(desk.url("requests")).await;
    browser.fill("#find", &typed[..200]).await;
    browser.click(".finder button").await;
    soon("none", async || browser.has("no request of this scope").await).await;
    look("the search").await;
    assert_eq!(browser.logged().await, Vec::<Value>::new());
}

/// To see the pages: `CONSOLE_PICTURES=folder`.
async fn keep(browser: &Browser, page: &str, kind: &str) {
    if let Ok(folder) = std::env::var("CONSOLE_PICTURES") {
        std::fs::write(format!("{folder}/{page}-{kind}.png"), browser.picture().await).unwrap();
    }
}

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

async fn reached(browser: &Browser, end: &str) {
    soon(end, async || browser.url().await.ends_with(end)).await;
    soon("loaded", async || browser.eval("return document.readyState").await == "complete").await;
}

/// Waits for a fact in the browser, for a minute at most: each check takes as long as a page.
pub async fn soon(what: &str, fact: impl AsyncFn() -> bool) {
    let is_so = async || if fact().await { Ok(()) } else { Err(what) };
    answer_within(Duration::from_secs(60), is_so).await;
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
    for (page, act, said) in [
        ("jobs", "retry", "Done. It is delivered again"),
        ("jobs", "discard", "Done. It is never delivered"),
        ("pauses", "pause", "Done. Within five seconds"),
        ("pauses", "unpause", "Done. Engines begin the phase again"),
    ] {
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
    // The button, and the message after the act: of jobs and of pauses.
    for (page, act, said) in [
        ("jobs", "retry", "Done. It is delivered again"),
        ("jobs", "discard", "Done. It is never delivered"),
        ("pauses", "pause", "Done. Within five seconds"),
        ("pauses", "unpause", "Done. Engines begin the phase again"),
    ] {
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

/// Checks that the page is readable at this width and in these colors, also for a screen reader.
async fn is_read_here(browser: &Browser) {
    let address = browser.url().await;
    let told = browser.eval(FAINT).await;
    assert!(told[0].as_u64().unwrap() > 5, "{address}: {told}");
    assert_eq!(told[1], json!([]), "too faint: {address}");
    assert_eq!(browser.eval(LAYOUT).await, json!([0, []]), "{address}");
    let page = browser.eval("return document.documentElement.outerHTML").await;
    check_accessibility_of(page.as_str().unwrap());
}
