//! What the pages show, and that every link and form of them leads somewhere.

use std::collections::HashSet;
use std::time::Duration;

use atomic_phases::ops::{Actor, BulkAct, OperatorStore, Permissions, Scopes, Selection, What};
use atomic_phases::simulation::{Database, Memory};
use atomic_phases::worker::{Announcer, WorkerConfig};
use chrono::{TimeDelta, Utc};

use super::accessibility::check_accessibility_of;
use super::cast::*;
use super::desk::Desk;
use super::html::{elements, forms, links, tags};
use crate::support::*;

on_every_store! {
    g14_the_page_of_definitions_tells_which_builds_are_waited_for_and_which_run,
    no_link_and_no_form_of_any_page_leads_nowhere,
    a_page_shows_what_waits_and_what_ends_it,
    a_request_is_found_by_a_filter_and_by_its_key,
    the_audit_is_filtered_by_request_operator_and_act,
    g19_nothing_that_users_gave_is_on_a_page_or_in_an_address,
    every_page_is_a_list_that_goes_on,
    g18_a_job_that_no_node_takes_is_on_the_page_of_jobs,
    an_operator_behind_ten_thousand_rows_of_others_is_told_how_far_the_search_came,
}

/// A request in each state, and jobs that gave up.
pub async fn cast<S: TestDb + OperatorStore>(engine: &TestEngine<S>) {
    finish(engine, "finished").await;
    engine.store().sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    back_off(engine, "backing-off").await;
    dead_letter(engine, "dead-letter").await;
    unknown(engine, "unknown").await;
    unknown_unasked(engine, "unasked").await;
    leased(engine, "running").await;
    finish(engine, "erased").await;
    engine.store().sql("DELETE FROM atomic_phases_staged_jobs WHERE run_after IS NOT NULL").await;
    engine.erase(&scope(), &key("erased")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_page_that_the_runbooks_name_is_there() {
    let db = <atomic_phases::store::Sqlite as TestDb>::fresh().await;
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    let desk = Desk::of(&engine).await;
    let runbooks = include_str!("../../docs/runbooks.md");
    let mut named = 0;
    for section in runbooks.split("\n## ").skip(1) {
        let line = section.lines().find_map(|line| line.strip_prefix("Console: "));
        let line = line.unwrap_or_else(|| panic!("no page in {section}"));
        for page in line.split('`').skip(1).step_by(2) {
            desk.get(page).await.is(200);
            named += 1;
        }
    }
    assert!(named > 15, "{named}");
}

/// A service whose clock is years off tells the same ages: they are counted from the database's time.
#[tokio::test(flavor = "multi_thread")]
async fn ages_are_of_the_databases_clock_and_not_of_the_services() {
    for days in [-3000, 3000] {
        let database = Database::starting_at(Utc::now() + TimeDelta::days(days));
        let engine = engine(&Memory::connect(&database), &App::default());
        cast(&engine).await;
        let ops = admin(&engine);
        ops.pause("book", "charged", Some(Duration::from_secs(600)), "r").await.unwrap();
        let one = Selection::Requests(vec![id_of(&engine, "dead-letter").await]);
        let bulk = ops.start_bulk(BulkAct::Retry, &one, 1, "r").await.unwrap();
        Announcer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
        let desk = Desk::of(&engine).await;
        let mut pages = Vec::new();
        for path in ["overview", "waiting", "requests", "jobs", "definitions", "pauses", "bulk"] {
            pages.push(desk.get(path).await.is(200));
        }
        pages.push(desk.get(&format!("bulk/{bulk}")).await.is(200));
        let find = pages[2].form("/find").with("scope", "tenant-1");
        pages.push(desk.submit(&find).await.is(200));
        let filtered = desk.get("requests?state=dead_letter").await.is(200);
        pages.push(desk.submit(&filtered.form("/bulk/plan").with("act", "retry")).await.is(200));
        pages.push(desk.submit(&pages[3].form("/jobs/plan").with("act", "retry")).await.is(200));
        for name in ["finished", "unknown", "running", "backing-off"] {
            pages.push(desk.request(id_of(&engine, name).await).await);
        }
        let erase = pages[11].form("/plan").with("act", "erase");
        pages.push(desk.submit(&erase).await.is(200));
        let inbox = &pages[1];
        assert!(inbox.text.contains("asked <time"), "{}", inbox.text);
        pages[0].has("7 requests in ");
        let mut ages = 0;
        for page in &pages {
            for time in elements(&page.text).iter().filter(|one| one.tag.name == "time") {
                // A date begins with the year.
                if time.text.contains(' ') && !time.text.contains(':') {
                    let days = time.text.split(" d ").next().filter(|_| time.text.contains(" d "));
                    let days = days.and_then(|text| text.rsplit(' ').next()?.parse().ok());
                    assert!(days.unwrap_or(0) < 30, "{} on {}", time.text, page.url);
                    ages += 1;
                }
            }
            let chart = tags(&page.text).into_iter().find(|tag| tag.name == "svg");
            let label = chart.and_then(|chart| chart.get("aria-label").map(str::to_owned));
            assert!(!label.unwrap_or_default().contains(" d "), "{}", page.text);
        }
        assert!(ages > 40, "{ages}");
    }
}

/// The rule behind it, for a page that is not written yet.
#[test]
fn no_page_reads_the_clock_of_its_process() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/console/pages");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let sources: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|end| end == "rs")).collect();
    assert!(sources.len() > 20, "{sources:?}");
    for file in sources {
        let source = std::fs::read_to_string(&file).unwrap();
        for clock in ["Utc::now", "Local::now", "wall_clock", "SystemTime", "Moment", "Instant"] {
            assert!(!source.contains(clock), "{clock} in {}", file.display());
        }
    }
}

async fn no_link_and_no_form_of_any_page_leads_nowhere<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    let desk = Desk::of(&engine).await;
    let entrance = desk
        .ask(reqwest::Method::GET, desk.root.to_string().trim_end_matches('/').parse().unwrap());
    let (mut open, mut seen) = (vec![desk.send(entrance).await.location()], HashSet::new());
    let mut actions = HashSet::new();
    while let Some(url) = open.pop() {
        let mut url = url;
        url.set_fragment(None);
        if !seen.insert(url.clone()) {
            continue;
        }
        assert!(url.as_str().starts_with(desk.root.as_str()), "{url} is outside");
        let page = desk.send(desk.ask(reqwest::Method::GET, url.clone())).await.is(200);
        if !page.headers["content-type"].to_str().unwrap().starts_with("text/html") {
            continue;
        }
        open.extend(links(&url, &page.text));
        for form in forms(&url, &page.text) {
            actions.insert(form.action.path().rsplit('/').next().unwrap().to_owned());
            match form.is_post {
                false => open.push(form.action),
                // If it is sent empty, the page says what is missing, and keeps the form.
                true => {
                    let told = desk.submit(&form).await.status;
                    assert!([200, 400, 404, 422].contains(&told), "{told} of {form:?}");
                }
            }
        }
        check_accessibility_of(&page.text);
    }
    assert!(seen.len() > 15, "{seen:?}");
    assert_eq!(
        actions.len(),
        5,
        "find, plan (of requests, of jobs, of pauses), reveal, requests, audit: {actions:?}"
    );
}

async fn a_page_shows_what_waits_and_what_ends_it<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    desk.get("overview").await.is(200).has("Nothing waits for you").has("There is no request yet");
    cast(&engine).await;

    let overview = desk.get("overview").await.is(200);
    overview
        .has("Unknown outcomes")
        .has("Waiting the longest")
        .has("aria-current=\"page\">Overview");
    overview.has("7 requests in").has("2 finished, 2 in work, 3 waiting").has("<rect");
    let inbox = desk.get("waiting").await.is(200);
    assert_eq!(inbox.text.matches("#settle\"").count(), 3, "{}", inbox.text);
    inbox.has("asked for").has("call of").has("an operator");
    let dead = desk.get("waiting?state=dead_letter").await.is(200);
    assert_eq!(dead.text.matches("#settle\"").count(), 1);

    let unknown = desk.request(id_of(&engine, "unknown").await).await;
    unknown.has("its reconcile function is asked at").has("call without an outcome");
    unknown.has("act-executed").has("act-not_executed").has("act-finish").has_not("act-retry");
    unknown.has_not("act-erase").has("became unknown, attempt 1 at");
    let dead = desk.request(id_of(&engine, "dead-letter").await).await;
    dead.has("It is a dead letter").has("act-retry").has("act-erase").has_not("act-not_executed");
    let running = desk.request(id_of(&engine, "running").await).await;
    running.has("A holder runs it").has_not("id=\"settle\"");
    let finished = desk.request(id_of(&engine, "finished").await).await;
    finished.has("It is finished").has("act-erase").has_not("act-finish").has("gave up");
    let erased = desk.request(id_of(&engine, "erased").await).await;
    erased.has("Its data was erased").has_not("id=\"settle\"");
    let jobs = desk.get("jobs").await.is(200);
    jobs.has("receipt").has("thanks").has("Discard");
    desk.get("audit").await.is(200).has("No act.");
    desk.get("requests/nonsense").await.is(404).has("No such request");
    desk.get("nowhere").await.is(404).has("There is no such page");
    desk.get("a/b/c").await.is(404).has("href=\"../../overview\"");
}

async fn g14_the_page_of_definitions_tells_which_builds_are_waited_for_and_which_run<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let desk = Desk::of(&engine).await;
    let empty = desk.get("definitions").await.is(200);
    empty.has("no request is unfinished").has("None was seen for a day");
    back_off(&engine, "here").await;
    back_off(&engine, "before").await;
    engine
        .store()
        .sql("UPDATE atomic_phases_keys SET phases = 'booked pay=i answered' WHERE idempotency_key = 'before'")
        .await;
    let node = WorkerConfig::default().node("api-1", "9f2c1d");
    Announcer::new(&engine, node).run_once().await.unwrap();
    let page = desk.get("definitions").await.is(200);
    page.has("api-1")
        .has("9f2c1d")
        .has(">none<")
        .has("<bdi>pay</bdi></code> (idempotent)")
        .has_not(">gone<");
    // The number links to the stranded requests, and to no others.
    let to =
        links(&page.url, &page.text).into_iter().find(|to| to.as_str().ends_with("stranded=1"));
    let listed = desk.send(desk.ask(reqwest::Method::GET, to.unwrap())).await.is(200);
    assert_eq!(listed.text.matches("class=\"request\"").count(), 1, "{}", listed.text);
}

async fn a_request_is_found_by_a_filter_and_by_its_key<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    cast(&engine).await;
    let desk = Desk::of(&engine).await;
    let rows = |text: &str| text.matches("class=\"request\"").count();
    for (filter, number) in [
        ("", 7),
        ("state=unknown", 2),
        ("state=unknown&state=finished", 3),
        ("definition=notify", 2),
        ("definition=notify&version=2", 0),
        ("phase=charged", 3),
        ("reason=asked+for", 4),
        ("older=1h", 0),
        ("waiting=0s", 3),
        ("stranded=1", 0),
        ("unheard=of", 7),
    ] {
        let page = desk.get(&format!("requests?{filter}")).await.is(200);
        assert_eq!(rows(&page.text), number, "{filter}: {}", page.text);
    }
    for wrong in ["state=no", "older=1w", "version=1", "version=x&definition=a", "after=x"] {
        desk.get(&format!("requests?{wrong}")).await.is(400).has("role=\"alert\"");
    }
    let find = desk.get("requests").await.form("/find");
    let by_key = desk.submit(&find.clone().with("scope", "tenant-1").with("key", "unknown")).await;
    let id = id_of(&engine, "unknown").await;
    assert_eq!(by_key.location(), desk.url(&format!("requests/{id}")));
    let by_scope = desk.submit(&find.clone().with("scope", "tenant-1")).await.is(200);
    assert_eq!(rows(&by_scope.text), 7);
    let other = desk.submit(&find.clone().with("scope", "tenant-2")).await.is(200);
    other.has("no request of this scope");
    // Another scope, which has the key of none.
    let spaced = find.clone().with("scope", "tenant-1 ");
    desk.submit(&spaced).await.is(200).has("no request of this scope");
    let none = desk.submit(&find.clone().with("scope", "tenant-1").with("key", "none")).await;
    none.is(404).has("there is no such request");
    desk.submit(&find.with("scope", "tenant-1").with("key", "two words")).await.is(400);
    // A reload of the sent form's address leads back to the form.
    let back = desk.get("requests/find").await;
    assert_eq!(back.location(), desk.url("requests"));
}

async fn the_audit_is_filtered_by_request_operator_and_act<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    unknown(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let named =
        |name: &str| engine.ops(Actor::new(name, Permissions::admin(), Scopes::All).unwrap());
    let (bob, eve) = (named("bob"), named("eve"));
    let _ = bob.reveal(id, What::Parameters, "ticket 6").await.unwrap();
    for _ in 0..51 {
        let _ = bob.reveal(id, What::Key, "ticket 7").await.unwrap();
    }
    let _ = eve.reveal(id, What::Key, "ticket 8").await.unwrap();
    eve.pause("book", "charged", None, "the bank is closed").await.unwrap();

    let desk = Desk::of(&engine).await;
    // Each act has its outcome.
    let rows = |text: &str| text.matches("\"chip finished\"").count();
    for (filter, number) in [
        ("", 50),
        ("actor=bob", 50),
        ("actor=bob&act=reveal", 50),
        ("actor=bob&act=reveal.parameters", 1),
        ("actor=bob&act=pause", 0),
        ("actor=eve", 2),
        ("actor=+eve+&act=reveal", 1),
        ("act=pause", 1),
        ("actor=carol", 0),
        (&format!("request={id}&actor=eve"), 1),
        ("request=00000000-0000-4000-8000-000000000000", 0),
        ("request=&actor=&act=", 50),
    ] {
        let page = desk.get(&format!("audit?{filter}")).await.is(200);
        assert_eq!(rows(&page.text), number, "{filter}: {}", page.text);
        assert_eq!(page.text.contains("No act."), number == 0, "{filter}");
    }
    // The next page is of the same filter.
    let first = desk.get("audit?actor=bob&act=reveal").await.is(200);
    let next = tags(&first.text).into_iter().find(|tag| tag.get("rel") == Some("next")).unwrap();
    let next = first.url.join(next.get("href").unwrap()).unwrap();
    assert!(next.query().unwrap().starts_with("actor=bob&act=reveal&before="), "{next}");
    let second = desk.send(desk.ask(reqwest::Method::GET, next)).await.is(200);
    assert_eq!(rows(&second.text), 2);
    second.has_not("ticket 8");
    // The form has what was asked for, and offers what can be.
    for page in [&first, &second] {
        let form = page.form("/audit");
        let field = |name: &str| form.fields.iter().find(|(other, _)| other == name).unwrap();
        assert_eq!([&*field("actor").1, &*field("act").1], ["bob", "reveal"]);
        check_accessibility_of(&page.text);
    }
    let options = tags(&first.text).into_iter().filter(|tag| tag.name == "option");
    let options: Vec<String> = options.map(|tag| tag.get("value").unwrap().to_owned()).collect();
    // All, seventeen acts, and the four kinds that have several.
    assert_eq!(options.len(), 1 + 17 + 4, "{options:?}");
    for act in &options {
        desk.get(&format!("audit?act={act}")).await.is(200);
    }
    for wrong in ["act=erasure", "act=revea", "actor=a%0ab", "request=x", "before=x"] {
        let page = desk.get(&format!("audit?{wrong}")).await.is(400);
        page.has("role=\"alert\"");
        page.form("/audit");
        // Who may not read the audit is not told what is wrong.
        let asked = desk.ask(reqwest::Method::GET, page.url.clone()).header("x-may", "viewer");
        desk.send(asked).await.is(403).has_not("role=\"alert\"");
    }
}

async fn g19_nothing_that_users_gave_is_on_a_page_or_in_an_address<S: TestDb + OperatorStore>(
    db: S,
) {
    let engine = engine(&db, &App::default());
    let (canary, scope) = ("canary", atomic_phases::Scope::new("scope-canary").unwrap());
    let request = Notify { who: "params-canary".into(), trouble: Trouble::UnknownForeign.into() };
    let call = engine.call(&scope, &key("key-canary"), request).context(&"context-canary");
    call.await.unwrap();
    let desk = Desk::of(&engine).await;
    let id = admin(&engine).find(&scope, &key("key-canary")).await.unwrap().request_id;
    for path in [
        "overview",
        "waiting",
        "requests",
        "jobs",
        "definitions",
        "pauses",
        "bulk",
        "audit",
        &format!("requests/{id}"),
    ] {
        desk.get(path).await.is(200).has_not(canary);
    }
    let find = desk.get("requests").await.form("/find").with("scope", "scope-canary");
    assert!(
        !desk
            .submit(&find.clone().with("key", "key-canary"))
            .await
            .location()
            .as_str()
            .contains(canary)
    );

    // A reveal is an act: it needs a reason, and is in the audit before the value is shown.
    let reveal = desk.request(id).await.form("/reveal").with("what", "parameters");
    desk.submit(&reveal).await.is(422).has_not(canary);
    let shown = desk.submit(&reveal.with("reason", "ticket 7")).await.is(200);
    shown.has("scope-canary").has("key-canary").has("params-canary").has_not("context-canary");
    desk.get("audit").await.has("reveal.parameters").has("ticket 7").has_not(canary);
    desk.request(id).await.has("reveal.parameters").has("ticket 7").has_not(canary);
}

async fn every_page_is_a_list_that_goes_on<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    for number in 0..61 {
        finish(&engine, &format!("k-{number}")).await;
    }
    let desk = Desk::of(&engine).await;
    let rows = |text: &str| text.matches("class=\"request\"").count();
    let next = |page: &super::desk::Page| {
        let all = tags(&page.text);
        let next = all.iter().find(|tag| tag.get("rel") == Some("next"));
        next.map(|tag| page.url.join(tag.get("href").unwrap()).unwrap())
    };
    let first = desk.get("requests?state=finished").await.is(200);
    assert_eq!(rows(&first.text), 50);
    let second = next(&first).unwrap();
    assert!(second.query().unwrap().starts_with("state=finished&after="), "{second}");
    let second = desk.send(desk.ask(reqwest::Method::GET, second)).await.is(200);
    assert_eq!((rows(&second.text), next(&second)), (11, None));
    // A search with a scope continues by a form.
    let find = desk.get("requests").await.form("/find").with("scope", "tenant-1");
    let first = desk.submit(&find).await.is(200);
    let mut more = forms(&first.url, &first.text).into_iter();
    let more = more.find(|form| form.names.iter().any(|name| name == "after")).unwrap();
    assert_eq!(rows(&desk.submit(&more).await.is(200).text), 11);
    engine.store().sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    let jobs = desk.get("jobs").await.is(200);
    let jobs = desk.send(desk.ask(reqwest::Method::GET, next(&jobs).unwrap())).await.is(200);
    assert_eq!(jobs.text.matches("value=\"discard\"").count(), 50);
}

async fn g18_a_job_that_no_node_takes_is_on_the_page_of_jobs<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    finish(&engine, "with-jobs").await;
    let desk = Desk::of(&engine).await;
    desk.get("jobs").await.is(200).has("No job gave up").has("No job is late").has_not("receipt");
    let ago = if is_postgres::<S>() { "interval '2 minutes'" } else { "120000" };
    let due = format!("SET run_after = staged_at - {ago} WHERE name = 'receipt'");
    db.sql(&format!("UPDATE atomic_phases_staged_jobs {due}")).await;
    let overview = desk.get("overview").await.is(200);
    let all = tags(&overview.text);
    let is_tile = |class: &str| class.split(' ').any(|class| class == "late");
    let tile = all.iter().find(|tag| tag.get("class").is_some_and(is_tile)).unwrap();
    assert!(tile.get("href").unwrap().ends_with("jobs#late-jobs"), "{tile:?}");
    let jobs = desk.get("jobs").await.is(200);
    jobs.has("No job gave up").has_not("No job is late").has("receipt").has_not("thanks");
    jobs.has("id=\"late-jobs\"").has("was taken by no node");
    check_accessibility_of(&jobs.text);
    db.sql("UPDATE atomic_phases_staged_jobs SET reason = 'not handled here'").await;
    desk.get("jobs").await.is(200).has("not handled here");
}

/// An operator with one scope: matches may come after the rows that the page has read.
async fn an_operator_behind_ten_thousand_rows_of_others_is_told_how_far_the_search_came<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    if is_memory::<S>() {
        // A copy of its rows in SQL takes minutes.
        return;
    }
    let engine = engine(&db, &App::default());
    unknown(&engine, "needle").await;
    set(&engine, "needle", "waiting_since = expires_at, run_after = NULL").await;
    let (id, nothing) = match is_postgres::<S>() {
        true => ("gen_random_uuid()", "''"),
        false => ("randomblob(16)", "x''"),
    };
    let of = |column: &str| match is_postgres::<S>() {
        true => format!("t.{column} + n * interval '1013 milliseconds'"),
        false => format!("t.{column} + n * 1013"),
    };
    let (began, ends, numbers) = (of("created_at"), of("expires_at"), numbers::<S>(10_500));
    let one = "(SELECT * FROM atomic_phases_keys WHERE idempotency_key = 'needle') AS t";
    for sql in [
        format!(
            "INSERT INTO atomic_phases_audit (id, at, actor, act, outcome, reason, scope) SELECT {id}, {began}, \
             'eve', 'retry', 'applied', 'r', 'others' FROM {one}, {numbers}"
        ),
        format!(
            "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, \
             args, staged_at) SELECT 'others', {id}, 1, {id}, 'k', 'j', {nothing}, {began} FROM {one}, {numbers}"
        ),
        format!(
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
             definition_version, phases, fingerprint, status, recovery_point, lease_token, attempts, \
             advanced_at, created_at, waiting_since, expires_at, params) SELECT 'others', 'k-' || n, {id}, \
             'd', 1, 'p', 'v1:', 'dead_letter', 'started', 1, 1, t.created_at, t.created_at, {began}, {ends}, \
             t.params FROM {one}, {numbers}"
        ),
    ] {
        db.sql(&sql).await;
    }
    let desk = Desk::of(&engine).await;
    let get = async |url: reqwest::Url| {
        let asked = desk.ask(reqwest::Method::GET, url).header("x-scopes", "only=tenant-1");
        desk.send(asked).await.is(200)
    };
    let rows = |text: &str| text.matches("class=\"request\"").count();
    let none = "None among the ten thousand searched";
    let behind = |page: &super::desk::Page| -> Vec<reqwest::Url> {
        let all = tags(&page.text);
        let all = all.iter().filter(|tag| tag.get("rel") == Some("next"));
        all.map(|tag| page.url.join(tag.get("href").unwrap()).unwrap()).collect()
    };
    let overview = get(desk.url("overview")).await;
    overview.has_not("Nothing waits for you").has_not("There is no request yet");
    overview.has("none among those searched");
    assert_eq!(overview.text.matches(none).count(), 2, "{}", overview.text);
    check_accessibility_of(&overview.text);
    let next = behind(&overview);
    assert_eq!(next.len(), 2, "{next:?}");
    for next in next {
        assert_eq!(rows(&get(next.clone()).await.text), 1, "{next}");
    }
    for (path, claimed) in [
        ("waiting", "Nothing waits"),
        ("requests", "There is no such request"),
        ("jobs", "No job gave up"),
        ("audit", "No act."),
    ] {
        let page = get(desk.url(path)).await;
        page.has_not(claimed).has(none);
        let next = behind(&page).remove(0);
        let next = get(next).await;
        next.has_not(claimed).has_not(none);
        let is_mine = ["waiting", "requests"].contains(&path);
        assert_eq!(
            (rows(&next.text), next.text.contains("No more.")),
            match is_mine {
                true => (1, false),
                false => (0, true),
            }
        );
    }
    get(desk.url("definitions")).await.has("you may see none that is unfinished");
}
