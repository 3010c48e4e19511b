//! The steps of docs/console.md, as its reader does them: the flagship makes trouble, the console shows it, and an
//! operator reports what happened. With `BOOK_PICTURES=docs/pictures`, it takes the chapter's pictures.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::browser::{alone, soon};
use super::webdriver::Browser;
use crate::support::process::program;

struct Flagship(Child);

impl Drop for Flagship {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it, and returns the address of its console once the trouble is made.
fn start(folder: &Path) -> (Flagship, String) {
    let mut child = Command::new(program())
        .args(["--listen", "127.0.0.1:0", "--trouble"])
        .current_dir(folder)
        .env_remove("DATABASE_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let flagship = Flagship(child);
    let console = lines.by_ref().find_map(|line| line.strip_prefix("console: ").map(str::to_owned));
    let made = lines.by_ref().any(|line| line.starts_with("trouble: made"));
    assert!(made, "no trouble was made");
    std::thread::spawn(move || lines.for_each(drop));
    (flagship, console.unwrap())
}

/// A part of a page on a desktop in light mode, and on a phone in dark mode: `name.png`, `name-narrow.png`.
async fn pictures(browser: &Browser, name: &str, part: &str) {
    for (look, scheme, (width, height)) in
        [("", "light", (880, 480)), ("-narrow", "dark", (380, 560))]
    {
        browser.scheme(scheme).await;
        browser.size(width, height).await;
        browser.eval(&format!("document.querySelector('{part}').scrollIntoView()")).await;
        picture(browser, &format!("{name}{look}")).await;
    }
    browser.scheme("light").await;
    browser.size(800, 560).await;
}

async fn picture(browser: &Browser, name: &str) {
    if let Ok(folder) = std::env::var("BOOK_PICTURES") {
        let bytes = browser.picture().await;
        assert!(bytes.len() <= 80_000, "{name}: {} bytes", bytes.len());
        std::fs::write(format!("{folder}/{name}.png"), bytes).unwrap();
    }
}

/// The rides of which a pilot was notified, in order.
fn told(folder: &Path) -> Vec<String> {
    let book = std::fs::read_to_string(folder.join("rocket_rides.pilots")).unwrap();
    book.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_newcomer_settles_what_is_unknown_and_no_pilot_is_told_twice() {
    let _alone = alone().await;
    let dir = tempfile::tempdir().unwrap();
    let (_flagship, console) = tokio::task::block_in_place(|| start(dir.path()));
    let browser = Browser::start().await;
    browser.scheme("light").await;
    browser.size(800, 560).await;
    browser.open(&console).await;
    assert!(browser.url().await.ends_with("/console/overview"));
    let again = reqwest::get(&console).await.unwrap().status();
    assert_eq!(again, 404, "the token is good for one visit");
    let rows = "return document.querySelectorAll('#counts tbody tr').length";
    soon("both are unknown", async || browser.eval(rows).await == 2).await;
    picture(&browser, "overview").await;

    browser.click("header a[href$=definitions]").await;
    soon("the processes", async || browser.has("rocket_rides on 127.0.0.1").await).await;
    pictures(&browser, "definitions", "body").await;
    browser.click(".brand").await;
    soon("both are unknown", async || browser.eval(rows).await == 2).await;

    let (mut answers, mut seen) = (HashSet::new(), HashSet::new());
    for number in 0..2 {
        browser.click("#counts td a.button").await;
        soon("its page", async || browser.has("pilot_notified").await).await;
        if number == 0 {
            browser.eval("scrollTo(0, 0)").await;
            picture(&browser, "request").await;
        }
        assert!(browser.has("Whether the call of pilot_notified was executed is unknown").await);
        let page = browser.url().await;
        assert!(seen.insert(page.clone()), "the same again: {page}");
        // Which ride is it?
        browser.click("#what option[value=outputs]").await;
        browser.fill("#reveal-reason", "ticket 88").await;
        browser.click("#values button").await;
        soon("the outputs", async || browser.has("Revealed: outputs").await).await;
        let outputs = browser.text().await;
        let ride =
            outputs.split("\"id\": \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        let line = told(dir.path()).iter().position(|told| *told == ride);
        browser.open(&page).await;
        match line {
            Some(line) => {
                browser.click("#act-executed").await;
                let id = format!("{{\"id\": \"ntf_{:08}\"}}", line + 1);
                browser.fill("#output", &id).await;
            }
            None => browser.click("#act-not_executed").await,
        }
        answers.insert(line.is_some());
        browser.click("#settle button").await;
        soon("the review", async || browser.has("Do it").await).await;
        browser.fill("#reason", "the pilots' book, ticket 88").await;
        if line.is_some() {
            picture(&browser, "review").await;
        }
        browser.click("form.act button").await;
        soon("done", async || browser.has("Done. It is written").await).await;
        browser.open(&page).await;
        // The workers continue the request.
        soon("finished", async || {
            browser.open(&page).await;
            browser.has("It is finished").await
        })
        .await;
        // The request whose server was killed before the pilot was notified.
        if line.is_none() {
            pictures(&browser, "timeline", "#timeline").await;
        }
        browser.click(".brand").await;
        soon("the overview", async || browser.has("The newest").await).await;
    }
    assert_eq!(answers, HashSet::from([true, false]), "one was told, the other was not");
    browser.click("header a[href$=audit]").await;
    soon("the audit", async || browser.has("resolve.executed").await).await;
    assert!(browser.has("resolve.not_executed").await && browser.has("reveal.outputs").await);
    picture(&browser, "audit").await;
    let told = told(dir.path());
    assert_eq!(told.len(), 10, "8 that went well, and the two");
    assert_eq!(told.iter().collect::<HashSet<_>>().len(), 10, "no pilot was told twice");
}
