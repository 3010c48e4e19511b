//! The steps of docs/console.md, as its reader does them: the flagship makes trouble, the console shows it, and an
//! operator reports what happened. With `BOOK_PICTURES=docs/pictures`, it takes the chapter's pictures, and writes how
//! long each step took into docs/bench/walk.md.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atomic_phases::store::Sqlite;

use super::browser::{alone, soon};
use super::webdriver::Browser;
use crate::support::TestDb;
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
    let console = console.unwrap();
    assert!(console.starts_with("http://127.0.0.1:"), "{console} is open to others");
    let mut trouble = Vec::new();
    trouble.extend(lines.by_ref().take_while(|line| !line.starts_with("trouble: made")));
    let was_declined = |line: &String| line.starts_with("trouble: a card was declined: 402");
    assert!(trouble.iter().any(was_declined), "{trouble:?}");
    std::thread::spawn(move || lines.for_each(drop));
    (flagship, console)
}

/// How a page is shown: what its picture is called behind the page's name, the scheme, the window.
type Look = (&'static str, &'static str, (u32, u32));

/// Wide enough for tables: below 60rem they are cards.
const DESK: (u32, u32) = (1280, 800);

const DESKTOP: Look = ("", "light", DESK);
const DESKTOP_DARK: Look = ("-dark", "dark", DESK);
const PHONE: Look = ("-narrow", "light", (380, 560));
const PHONE_DARK: Look = ("-narrow-dark", "dark", (380, 560));

/// Pictures of a page from this part of it on.
async fn pictures(browser: &Browser, name: &str, part: &str, looks: &[Look]) {
    for (look, scheme, (width, height)) in looks {
        browser.scheme(scheme).await;
        browser.size(*width, *height).await;
        browser.eval(&format!("document.querySelector('{part}').scrollIntoView()")).await;
        if let Some(folder) = folder() {
            let bytes = browser.picture().await;
            assert!(bytes.len() <= 200_000, "{name}: {} bytes", bytes.len());
            std::fs::write(format!("{folder}/{name}{look}.png"), bytes).unwrap();
        }
    }
    browser.scheme("light").await;
    browser.size(DESK.0, DESK.1).await;
}

fn folder() -> Option<String> {
    std::env::var("BOOK_PICTURES").ok()
}

/// How long the steps took.
struct Times {
    began: Instant,
    steps: Vec<(&'static str, Duration)>,
}

impl Times {
    fn step(&mut self, name: &'static str) {
        let before: Duration = self.steps.iter().map(|(_, took)| *took).sum();
        self.steps.push((name, self.began.elapsed() - before));
    }

    fn whole(&self) -> Duration {
        self.steps.iter().map(|(_, took)| *took).sum()
    }

    fn write(&self, folder: &str) {
        let mut page = String::from(
            "# The times of the console's walk\n\n\
             Written by the test that takes the pictures of [the console](../console.md):\n\n\
             ```sh\nBOOK_PICTURES=docs/pictures cargo test --all-features --test operators console::walk::\n```\n\n\
             A browser does the steps of *Five minutes* and does not stop to read. The flagship is built before:\n\
             [Building](building.md) says how long a build takes. The test fails if the steps take five minutes or more.\n\n\
             | step | seconds |\n|---|---|\n",
        );
        for (name, took) in &self.steps {
            page.push_str(&format!("| {name} | {:.1} |\n", took.as_secs_f64()));
        }
        page.push_str(&format!("| all | {:.1} |\n", self.whole().as_secs_f64()));
        std::fs::write(format!("{folder}/../bench/walk.md"), page).unwrap();
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
    let browser = Browser::start().await;
    browser.scheme("light").await;
    browser.size(DESK.0, DESK.1).await;
    let mut times = Times { began: Instant::now(), steps: Vec::new() };
    let (_flagship, console) = tokio::task::block_in_place(|| start(dir.path()));
    times.step("start the program; it has made its trouble");
    browser.open(&console).await;
    assert!(browser.url().await.ends_with("/console/overview"));
    let again = reqwest::get(&console).await.unwrap().status();
    assert_eq!(again, 404, "the token is good for one visit");
    let rows = "return document.querySelectorAll('#counts tbody tr').length";
    soon("both are unknown", async || browser.eval(rows).await == 2).await;
    pictures(&browser, "overview", "body", &[DESKTOP]).await;
    times.step("the lease of the killed server ends; see what waits");
    browser.click("header a[href$=waiting]").await;
    soon("the inbox", async || browser.has("Settle").await).await;
    pictures(&browser, "waiting", "body", &[PHONE]).await;
    browser.click(".brand").await;
    soon("both are unknown", async || browser.eval(rows).await == 2).await;

    let (mut answers, mut seen) = (HashSet::new(), HashSet::new());
    for number in 0..2 {
        browser.click("#counts td a.button").await;
        soon("its page", async || browser.has("pilot_notified").await).await;
        if number == 0 {
            browser.eval("scrollTo(0, 0)").await;
            pictures(&browser, "request", "body", &[DESKTOP]).await;
        }
        assert!(browser.has("Whether the call of pilot_notified was executed is unknown").await);
        times.step("open the one that waits the longest, and why it waits");
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
        times.step("reveal its outputs, and find the ride in the pilots' log");
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
            pictures(&browser, "review", "body", &[DESKTOP]).await;
        }
        browser.click("form.act button").await;
        soon("done", async || browser.has("Done. It is written").await).await;
        times.step("report what happened: choose, review, give the reason");
        browser.open(&page).await;
        // The workers continue the request.
        soon("finished", async || {
            browser.open(&page).await;
            browser.has("It is finished").await
        })
        .await;
        times.step("a worker finishes the request");
        // The request whose server was killed before the pilot was notified.
        if line.is_none() {
            pictures(&browser, "timeline", "#timeline", &[DESKTOP, PHONE_DARK]).await;
        }
        browser.click(".brand").await;
        soon("the overview", async || browser.has("The newest").await).await;
    }
    assert_eq!(answers, HashSet::from([true, false]), "one was told, the other was not");
    browser.click("header a[href$=audit]").await;
    soon("the audit", async || browser.has("resolve.executed").await).await;
    assert!(browser.has("resolve.not_executed").await && browser.has("reveal.outputs").await);
    pictures(&browser, "audit", "body", &[DESKTOP]).await;
    times.step("see who did what");
    browser.click("header a[href$=definitions]").await;
    soon("the processes", async || browser.has("rocket_rides on 127.0.0.1").await).await;
    pictures(&browser, "definitions", "body", &[DESKTOP, PHONE_DARK]).await;
    times.step("see which builds there are");
    assert!(times.whole() < Duration::from_secs(5 * 60), "{:?}", times.steps);
    if let Some(folder) = folder() {
        times.write(&folder);
    }

    let told = told(dir.path());
    assert_eq!(told.len(), 10, "8 that went well, and the two");
    assert_eq!(told.iter().collect::<HashSet<_>>().len(), 10, "no pilot was told twice");
    the_other_pages(&browser, dir.path()).await;
}

/// The pages that the walk does not need, with something on each.
async fn the_other_pages(browser: &Browser, folder: &Path) {
    // A job that nothing delivers: the flagship's own are delivered.
    let file = folder.join("rocket_rides.db");
    let db = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    db.sql(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, args, \
         staged_at, attempts, reason) SELECT scope, request_id, 9, randomblob(16), idempotency_key, 'receipt', \
         x'7b7d', created_at, 8, 'the mail server refused it' FROM atomic_phases_keys WHERE status = 'completed' \
         ORDER BY created_at LIMIT 1",
    )
    .await;
    browser.click("header a[href$=jobs]").await;
    soon("the job", async || browser.has("the mail server refused it").await).await;
    pictures(browser, "jobs", "body", &[DESKTOP]).await;

    browser.click("header a[href$=requests]").await;
    soon("the requests", async || browser.has("finished").await).await;
    pictures(browser, "requests", "body", &[DESKTOP_DARK]).await;
    browser.click(".filters summary").await;
    browser.click("input[value=finished]").await;
    browser.click(".filters button").await;
    browser.click("button[value=erase]").await;
    soon("the plan", async || browser.has("Review: erase").await).await;
    browser.fill("#because", "the trial is over").await;
    browser.click("form.act button").await;
    soon("its end", async || browser.has("ended").await).await;
    pictures(browser, "bulk", "body", &[DESKTOP]).await;

    browser.click("header a[href$=pauses]").await;
    browser.click("button[value=pause]").await;
    soon("the review", async || browser.has("Review: Pause").await).await;
    browser.fill("#for", "2h").await;
    browser.fill("#reason", "maintenance of the provider").await;
    browser.click("form.act button").await;
    soon("paused", async || browser.has("Done. Within five seconds").await).await;
    pictures(browser, "pauses", "body", &[DESKTOP_DARK]).await;
}
