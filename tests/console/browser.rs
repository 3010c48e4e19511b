//! The pages in a real Chromium: at 320 pixels and wider, light and dark, with enough contrast, and with hostile texts.

use std::time::Duration;

use atomic_phases::console::Console;
use atomic_phases::ops::{Actor, BulkAct, Permissions, Scopes, Selection, State};
use atomic_phases::store::Sqlite;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::accessibility::check_accessibility_of;
use super::cast::*;
use super::desk::Desk;
use super::hostile::hostile_pages;
use super::pages::cast;
use super::webdriver::Browser;
use crate::support::*;

/// One browser at a time: each is a dozen processes.
pub async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// A console with a request in each state, which needs no sign-in.
pub async fn desk() -> (TestEngine<Sqlite>, Desk) {
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

pub async fn state(engine: &TestEngine<Sqlite>, name: &str) -> State {
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

pub async fn reached(browser: &Browser, end: &str) {
    soon(end, async || browser.url().await.ends_with(end)).await;
    soon("loaded", async || browser.eval("return document.readyState").await == "complete").await;
}

/// Waits for a fact in the browser, for a minute at most: each check takes as long as a page.
pub async fn soon(what: &str, fact: impl AsyncFn() -> bool) {
    let is_so = async || if fact().await { Ok(()) } else { Err(what) };
    answer_within(Duration::from_secs(60), is_so).await;
}

/// Checks that the page is readable at this width and in these colors, also for a screen reader.
pub async fn is_read_here(browser: &Browser) {
    let address = browser.url().await;
    let told = browser.eval(FAINT).await;
    assert!(told[0].as_u64().unwrap() > 5, "{address}: {told}");
    assert_eq!(told[1], json!([]), "too faint: {address}");
    assert_eq!(browser.eval(LAYOUT).await, json!([0, []]), "{address}");
    let page = browser.eval("return document.documentElement.outerHTML").await;
    check_accessibility_of(page.as_str().unwrap());
}
