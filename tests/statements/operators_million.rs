//! Every route and page of operators among a million requests of which ten thousand wait: what each sends, by which
//! index, how many rows and blocks that is, and how long it takes beside a read by the primary key.
//!
//! ```sh
//! OPERATORS_INTO=docs/bench/operators.md cargo test --all-features --test statements \
//!     the_one_stuck_request -- --ignored --nocapture
//! ```
//!
//! `OPERATORS_ROWS` is another number of requests.

use std::fmt::Write;
use std::time::{Duration, Instant};

use atomic_phases::console::{Api, Console};
use atomic_phases::ops::{
    Actor, BulkAct, Filter, JobView, OperatorStore, Ops, Permissions, Scopes, Selection, Summary,
};
use atomic_phases::store::Postgres;
use atomic_phases::worker::{Announcer, WorkerConfig};
use atomic_phases::{IdempotencyKey, Outcome, Scope};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use tower::ServiceExt;

use crate::operators::with_values;
use crate::recorded::{self, alone};
use crate::support::*;

/// The number of waiting requests.
pub const WAITING: usize = 10_000;

/// The reason by which the one request is searched.
pub const NEEDLE: &str = "pilot 4711 hung up";

/// The number of repetitions; the median counts.
pub const TIMES: usize = 7;

/// Explains a search as it is run: the plan, its rows and blocks, and the server's time for it.
const PLAN_OF: &str = "CREATE FUNCTION plan_of(call text) RETURNS text LANGUAGE plpgsql AS $$ \
    DECLARE line text; plan text := ''; BEGIN \
    PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), \
    set_config('jit', 'off', true); \
    FOR line IN EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY ON) ' || call LOOP \
    plan := plan || line || chr(10); END LOOP; RETURN plan; END $$";

pub fn rows() -> usize {
    std::env::var("OPERATORS_ROWS").map_or(1_000_000, |rows| rows.parse().unwrap())
}

/// Copies of two real rows with times within a month, in random order. A fifth of those that wait is unknown, and
/// one has a reason of its own.
async fn filled() -> (Postgres, TestEngine<Postgres>) {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    let unknown = engine.call(&scope(), &key("unknown"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    let finished = engine.call(&scope(), &key("finished"), notify(Trouble::None)).await;
    assert!(matches!(finished, Ok(Outcome::Finished(_))), "{finished:?}");
    let (rows, each) = (rows(), rows() / WAITING);
    db.sql("DROP TRIGGER forward_only ON atomic_phases_keys").await;
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, definition_version, phases, \
         fingerprint, status, recovery_point, open_intent, lease_token, attempts, reason, run_after, waiting_since, \
         advanced_at, created_at, expires_at, params, context, outputs, response_status, response_headers, \
         response_body, events, events_written) \
         SELECT 'tenant-' || n / {each} % 100, 'key-' || n, gen_random_uuid(), of.definition, of.definition_version, of.phases, \
         of.fingerprint, CASE WHEN kind IN (1, 2, 3, 4) THEN 'dead_letter' WHEN kind = 5 THEN 'failed_retryable' \
         ELSE of.status END, of.recovery_point, CASE WHEN kind = 0 THEN of.open_intent END, of.lease_token, 1, \
         CASE WHEN n = {needle} THEN '{NEEDLE}' WHEN kind < 6 THEN 'the line is down' END, \
         CASE WHEN kind = 5 THEN t END, CASE WHEN kind < 5 THEN t END, t, t, t + interval '60 days', of.params, \
         of.context, of.outputs, of.response_status, of.response_headers, of.response_body, of.events, \
         of.events_written \
         FROM (SELECT n, CASE WHEN n % {each} = 0 THEN n / {each} % 5 WHEN n % {each} = 1 AND n % 5 = 1 THEN 5 ELSE 6 \
         END AS kind, now() - n * interval '2 seconds' AS t FROM generate_series(1, {rows}) AS n ORDER BY random()) \
         AS requests JOIN atomic_phases_keys AS of \
         ON of.idempotency_key = CASE WHEN kind < 6 THEN 'unknown' ELSE 'finished' END",
        needle = needle(),
    ))
    .await;
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, \
         args, staged_at, run_after) SELECT 'tenant-' || n % 100, gen_random_uuid(), 1, gen_random_uuid(), n, \
         'receipt', '', now() - n * interval '1 second', CASE WHEN n % 2 = 0 THEN now() END \
         FROM generate_series(1, {}) AS n; \
         INSERT INTO atomic_phases_audit (at, id, actor, act, outcome, reason, request_id) \
         SELECT now() - n * interval '1 minute', gen_random_uuid(), 'ada', 'retry', 'applied', 'r', gen_random_uuid() \
         FROM generate_series(1, 100000) AS n; \
         INSERT INTO atomic_phases_bulk (id, act, actor, reason, limits, items, started_at, ended_at) \
         SELECT gen_random_uuid(), 'retry', 'ada', 'r', '{{\"only\":null,\"prefix\":\"\"}}', 5, t, t \
         FROM (SELECT now() - n * interval '1 hour' AS t FROM generate_series(1, 1000) AS n) AS rows; \
         INSERT INTO atomic_phases_bulk_items (bulk_id, position, request_id, seen, outcome) \
         SELECT id, n, gen_random_uuid(), 'seen', 'applied' FROM atomic_phases_bulk, generate_series(0, 4) AS n",
        rows / 10
    ))
    .await;
    db.sql("DELETE FROM atomic_phases_keys WHERE idempotency_key IN ('unknown', 'finished')").await;
    db.sql("VACUUM ANALYZE").await;
    db.sql(PLAN_OF).await;
    (db, engine)
}

/// The index of the one request: in the middle of the unknown ones.
pub fn needle() -> usize {
    let each = rows() / WAITING;
    rows() / 2 / (5 * each) * 5 * each
}

/// A route or page.
pub struct Ask {
    pub face: Face,
    /// Its purpose, if the address does not say it.
    note: &'static str,
    pub path: String,
    body: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Face {
    Api,
    Page,
}

impl Ask {
    pub fn is_of_pauses(&self) -> bool {
        self.path.starts_with("/pauses")
    }

    pub fn title(&self) -> String {
        let method = if self.body.is_some() { "POST" } else { "GET" };
        let what = match self.face {
            Face::Api => format!("`{method} {}`", self.path),
            Face::Page => format!("page `{}`", self.path.trim_start_matches('/')),
        };
        if self.note.is_empty() { what } else { format!("{what} {}", self.note) }
    }
}

/// The cost of one.
struct Cost {
    title: String,
    /// The time of the whole answer.
    took: Duration,
    statements: Vec<Statement>,
}

struct Statement {
    sql: String,
    /// The same without its values.
    form: String,
    plan: String,
    /// The server's time.
    ms: f64,
    blocks: u64,
    rows: u64,
    indexes: Vec<String>,
}

/// The greatest number after a word in a plan.
fn most(plan: &str, before: &str) -> u64 {
    let numbers = plan.split(before).skip(1).map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
        rest[..end.unwrap_or(rest.len())].parse::<f64>().unwrap_or(0.0)
    });
    numbers.fold(0.0, f64::max) as u64
}

fn time_in(plan: &str, name: &str) -> f64 {
    let rest = plan.split(name).nth(1).unwrap();
    rest.trim().split(' ').next().unwrap().parse().unwrap()
}

pub fn median<T: PartialOrd + Copy>(mut all: Vec<T>) -> T {
    all.sort_by(|one, other| one.partial_cmp(other).unwrap());
    all[all.len() / 2]
}

/// The plan of a sent statement: the one with the median time.
async fn explained(db: &Postgres, sql: &str) -> Statement {
    let text = with_values(sql);
    let mut plans = Vec::new();
    for _ in 0..TIMES {
        let plan = db.text(&format!("SELECT plan_of($plan${text}$plan$)")).await;
        plans.push((time_in(&plan, "Execution Time:"), plan));
    }
    plans.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (ms, plan) = plans.swap_remove(TIMES / 2);
    // The top node's numbers are the sum.
    let buffers = plan.split("Buffers: ").nth(1).map_or("", |rest| rest.lines().next().unwrap());
    let blocks = ["hit=", "read="].map(|kind| most(buffers, kind)).iter().sum();
    let mut indexes: Vec<String> = plan
        .split(" using ")
        .skip(1)
        .filter_map(|rest| rest.split(' ').next())
        .map(|index| index.trim_start_matches("atomic_phases_").to_owned())
        .collect();
    indexes.sort();
    indexes.dedup();
    let form = sql.split(" -- binds: ").next().unwrap_or_default().to_owned();
    Statement { ms, blocks, rows: most(&plan, "(actual rows="), indexes, sql: text, form, plan }
}

/// The statements since the last call that read the engine's rows.
fn read() -> Vec<String> {
    let sent = recorded::sent().into_iter();
    sent.filter(|sql| {
        ["SELECT", "WITH", "("].iter().any(|word| sql.starts_with(word))
            && sql.contains("atomic_phases_")
            && !sql.contains("set_config(")
    })
    .collect()
}

pub async fn answer(router: &Router, ask: &Ask) -> String {
    let mut request = Request::builder().uri(&ask.path).header("authorization", "Bearer ada");
    if ask.body.is_some() {
        let media = match ask.face {
            Face::Api => "application/json",
            Face::Page => "application/x-www-form-urlencoded",
        };
        request = request.method("POST").header("content-type", media);
    }
    let request = request.body(ask.body.clone().map_or_else(Body::empty, Body::from)).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    assert!(status.is_success(), "{}: {status} {text}", ask.path);
    text
}

async fn cost(db: &Postgres, router: &Router, ask: &Ask) -> Cost {
    let mut times = Vec::new();
    let mut sent = Vec::new();
    for _ in 0..TIMES {
        read();
        let begun = Instant::now();
        answer(router, ask).await;
        times.push(begun.elapsed());
        sent = read();
    }
    if ask.is_of_pauses() {
        sent.push(recorded::query_of_pauses());
    }
    assert!(!sent.is_empty(), "{} sent nothing", ask.path);
    let mut statements = Vec::new();
    for sql in &sent {
        statements.push(explained(db, sql).await);
    }
    read();
    Cost { title: ask.title(), took: median(times), statements }
}

/// What questions are about.
pub struct Known {
    /// The one request, and its version.
    pub id: String,
    pub version: String,
    pub bulk: String,
    /// A dead job.
    pub job: String,
}

impl Known {
    pub async fn of<S: OperatorStore>(ops: &Ops<S>, needle: &Summary) -> Self {
        let jobs = ops.dead_jobs(None, 50).await.unwrap().rows;
        // MariaDB writes the bytes of an id into a plan, and a byte that ends a line would end the plan's line.
        let is_plain = |job: &&JobView| !job.id.as_bytes().iter().any(u8::is_ascii_control);
        Self {
            id: needle.request_id.to_string(),
            version: needle.version.as_str().to_owned(),
            bulk: ops.bulks(None, 1).await.unwrap().rows[0].id.to_string(),
            job: jobs.iter().find(is_plain).unwrap().id.to_string(),
        }
    }

    /// The same for any of them.
    pub fn without_ids(&self, title: &str) -> String {
        [&self.id, &self.bulk, &self.job]
            .into_iter()
            .fold(title.to_owned(), |title, id| title.replace(id.as_str(), "ID"))
    }
}

/// Every route and page that reads, those that reveal a value among them. Only those of the pauses have the query of the
/// pauses, a table of a few rows: a timer sends it, too.
pub fn asks(Known { id, version, bulk, job }: &Known) -> Vec<Ask> {
    let found = NEEDLE.replace(' ', "+");
    let get = |face, path: &str, note| Ask { face, note, path: path.to_owned(), body: None };
    let post = |path: &str, body: String, note| Ask {
        face: Face::Api,
        note,
        path: path.to_owned(),
        body: Some(body),
    };
    let form = |path: &str, body: String, note| Ask {
        face: Face::Page,
        note,
        path: path.to_owned(),
        body: Some(body),
    };
    let mut all = vec![
        get(Face::Api, "/overview", ""),
        get(Face::Api, "/requests", "the newest"),
        get(Face::Api, "/requests?state=unknown,dead_letter", ""),
        get(Face::Api, "/requests?state=due", ""),
        get(Face::Api, "/requests?state=running", "none: ten thousand are read"),
        get(Face::Api, &format!("/requests?state=unknown,dead_letter&reason={found}"), "the one"),
        get(Face::Api, "/requests?stranded=true", ""),
        get(Face::Api, "/requests?definition=other", "none"),
        post("/requests/search", r#"{"scope":"tenant-7"}"#.to_owned(), "by scope"),
    ];
    let key = key_of_needle();
    all.push(post("/requests/find", format!(r#"{{"scope":"{}","key":"{}"}}"#, key.0, key.1), ""));
    let id_of = |rest: &str| format!("/requests/{id}{rest}");
    let retry =
        r#"{"act":"retry","filter":{"state":["dead_letter"],"scope":"tenant-7"}}"#.to_owned();
    all.extend([
        get(Face::Api, &id_of(""), ""),
        get(Face::Api, &id_of("/why"), ""),
        get(Face::Api, "/definitions", ""),
        get(Face::Api, "/nodes", ""),
        get(Face::Api, "/jobs", ""),
        get(Face::Api, &format!("/jobs/{job}"), ""),
        get(Face::Api, "/pauses", ""),
        get(Face::Api, "/bulk", ""),
        get(Face::Api, &format!("/bulk/{bulk}"), ""),
        post("/bulk/plan", retry, "those of one scope"),
        get(Face::Api, "/audit", ""),
        get(Face::Api, &format!("/audit?request={id}"), ""),
        get(Face::Api, "/audit?actor=bob&act=reveal", "none: ten thousand are read"),
        get(Face::Page, "/overview", ""),
        get(Face::Page, "/waiting", ""),
        get(Face::Page, "/requests", ""),
        get(Face::Page, &format!("/requests?state=unknown&reason={found}"), "the one"),
        get(Face::Page, "/requests?definition=other", "none"),
        form("/requests/find", "scope=tenant-7".to_owned(), "by scope"),
        get(Face::Page, &id_of(""), ""),
        form(
            &id_of("/plan"),
            format!("act=not_executed&phase=notified&attempt=1&version={version}"),
            "a review",
        ),
        get(Face::Page, "/definitions", ""),
        get(Face::Page, "/pauses", ""),
        form("/pauses/plan", "act=pause&definition=book&phase=charged".to_owned(), "a review"),
        get(Face::Page, "/jobs", ""),
        form("/jobs/plan", format!("act=retry&id={job}"), "a review"),
        get(Face::Page, "/bulk", ""),
        get(Face::Page, &format!("/bulk/{bulk}"), ""),
        form("/bulk/plan", format!("act=retry&state=unknown&reason={found}"), "a review: the one"),
        get(Face::Page, "/audit", ""),
        get(Face::Page, &format!("/audit?request={id}"), ""),
        get(Face::Page, "/audit?actor=bob&act=reveal", "none: ten thousand are read"),
        // Last, because each of them writes a row of the audit, too.
        post(&id_of("/values"), r#"{"what":"parameters","reason":"r"}"#.to_owned(), "a reveal"),
        form(&id_of("/reveal"), "what=parameters&reason=r".to_owned(), "parameters"),
    ]);
    all
}

/// The same for an operator of some scopes, who may pause no phase.
fn asks_of_some_scopes(known: &Known) -> Vec<Ask> {
    let mut all = asks(known);
    all.retain(|ask| ask.path != "/pauses/plan");
    all
}

/// As a person does it, each page the first of its kind: what waits, which of it has the known reason, and why. The last one
/// says what to do. Returns the id of the request, and how long the three pages took.
pub async fn walked<S: OperatorStore>(pages: &Router, ops: &Ops<S>) -> (String, Duration) {
    let page = async |path: String| {
        answer(pages, &Ask { face: Face::Page, note: "", path, body: None }).await
    };
    let begun = Instant::now();
    page("/overview".to_owned()).await;
    let reason = NEEDLE.replace(' ', "+");
    let list = page(format!("/requests?state=unknown&state=dead_letter&reason={reason}")).await;
    let links: Vec<&str> = list.split("href=\"requests/").skip(1).collect();
    let [link] = links[..] else { panic!("{} requests have the reason: {list}", links.len()) };
    let id = link.split('"').next().unwrap().to_owned();
    let request = page(format!("/requests/{id}")).await;
    let took = begun.elapsed();
    assert!(request.contains(NEEDLE), "{request}");
    assert!(took < Duration::from_secs(60), "{took:?}");
    // What holds it and what ends that, and the form in which an operator ends it.
    let sentence = ops.why(id.parse().unwrap()).await.unwrap().sentence;
    assert!(texts(&request).contains(&sentence.replace('`', "")), "{sentence}: {request}");
    for part in ["id=\"settle\"", "id=\"act-executed\"", "id=\"act-not_executed\""] {
        assert!(request.contains(part), "no {part} in {request}");
    }
    (id, took)
}

/// The texts of a page, without its tags.
fn texts(page: &str) -> String {
    page.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
}

/// Its scope and its key.
pub fn key_of_needle() -> (String, String) {
    (format!("tenant-{}", needle() / (rows() / WAITING) % 100), format!("key-{}", needle()))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fills a million rows: some minutes"]
async fn the_one_stuck_request_among_a_million_is_found_within_a_minute() {
    let _alone = alone().await;
    let (db, engine) = filled().await;
    Announcer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    let ada = Actor::new("ada", Permissions::admin(), Scopes::All).unwrap();
    let faces = faces_of(&engine, &ada);
    let ops = engine.ops(ada);

    let (id, walk) = walked(&faces.1, &ops).await;
    let counts = ops.counts().await.unwrap();
    assert_eq!(counts.unknown.number + counts.dead_letters.number, WAITING as u32);
    let found = ops.list(Filter::waiting().reason(NEEDLE)).await.unwrap().rows;
    assert_eq!(found.len(), 1);
    let shown = ops.show(found[0].request_id).await.unwrap();
    assert!(shown.why.sentence.contains(NEEDLE), "{}", shown.why.sentence);
    assert_eq!(id, found[0].request_id.to_string());

    let (scope, key) = key_of_needle();
    let (scope, key) = (Scope::new(scope).unwrap(), IdempotencyKey::new(key).unwrap());
    let mut times = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        assert!(engine.status(&scope, &key).await.unwrap().is_some());
        times.push(begun.elapsed());
    }
    let by_key = median(times);
    read();
    engine.status(&scope, &key).await.unwrap();
    let key_read = explained(&db, &read().pop().unwrap()).await;

    let known = Known::of(&ops, &found[0]).await;
    let costs = costs(&db, &faces, &known, asks(&known)).await;

    // Two of the hundred scopes: that of the request, and that by which some of the questions ask.
    let some = Scopes::Only(vec![scope, Scope::new("tenant-7").unwrap()]);
    let eve = Actor::new("eve", Permissions::admin(), some).unwrap();
    let faces = faces_of(&engine, &eve);
    let ops = engine.ops(eve);
    let one = Selection::Requests(vec![found[0].request_id]);
    // The others were started by operators of all scopes.
    ops.start_bulk(BulkAct::Retry, &one, 1, "reason").await.unwrap();
    let known = Known::of(&ops, &found[0]).await;
    let limited = self::costs(&db, &faces, &known, asks_of_some_scopes(&known)).await;
    let statements = |costs: &[Cost]| {
        let newest = costs.iter().find(|cost| cost.title == "`GET /requests` the newest");
        newest.unwrap().statements.len()
    };
    let (of_all, of_some) = (statements(&costs), statements(&limited));
    assert!(of_some > of_all, "where the list may end: {of_some} statements, and {of_all}");

    let version = db.text("SELECT version()").await;
    let page = page(&costs, &limited, (by_key, &key_read), walk, &version);
    match std::env::var("OPERATORS_INTO") {
        Ok(file) => std::fs::write(file, page).unwrap(),
        Err(_) => println!("{page}"),
    }
}

/// The API and the console, for this operator.
fn faces_of(engine: &TestEngine<Postgres>, actor: &Actor) -> (Router, Router) {
    let (one, other) = (actor.clone(), actor.clone());
    let api = Api::new(engine.clone(), move |_| Some(one.clone()));
    let pages = Console::new(engine.clone(), move |_| Some(other.clone()));
    (api.router(), pages.router())
}

/// What each costs, which is bounded.
async fn costs(
    db: &Postgres,
    (api, pages): &(Router, Router),
    known: &Known,
    asks: Vec<Ask>,
) -> Vec<Cost> {
    let mut costs = Vec::new();
    for ask in asks {
        let router = if ask.face == Face::Api { api } else { pages };
        let mut cost = cost(db, router, &ask).await;
        for one in &cost.statements {
            // At most ten thousand rows of each of two indexes; a table is scanned only if it has a few dozen rows.
            assert!(one.rows <= 20_100, "{}: {}", ask.path, one.plan);
            let mut scans = one.plan.split("Seq Scan on atomic_phases_").skip(1);
            let is_small =
                |rest: &str| ["nodes", "pauses"].iter().any(|name| rest.starts_with(name));
            assert!(scans.all(is_small), "{}: {}", ask.path, one.plan);
        }
        cost.title = known.without_ids(&cost.title);
        assert!(cost.took < Duration::from_secs(5), "{}: {:?}", ask.path, cost.took);
        costs.push(cost);
    }
    costs
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// `limited`: of an operator of some scopes.
fn page(
    costs: &[Cost],
    limited: &[Cost],
    by_key: (Duration, &Statement),
    walk: Duration,
    version: &str,
) -> String {
    let (key_took, key_read) = by_key;
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let version = version.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let mut page = format!(
        "# What operators' questions cost among a million requests\n\n\
         Written by `OPERATORS_INTO=docs/bench/operators.md cargo test --all-features --test statements \
         the_one_stuck_request -- --ignored`: {rows} requests of which {WAITING} wait, {jobs} staged jobs of which half are \
         dead, 100000 audit rows, on {version} with `shared_buffers = 64MB`, everything in the caches of the system. The \
         client is built without optimization. Medians of {TIMES}; load average at the end {load}.\n\n\
         On the pages of the console, to see what waits, to find the one whose reason is known among the {WAITING} that \
         wait, and to read all about it took {walk:.0} ms together.\n\n\
         A read by the primary key, `Engine::status`, took {key:.2} ms, and the server {server:.3} ms of it, for {blocks} \
         blocks: a ratio is to these two. *Rows* are the most that a node of a plan had; a search looks at ten thousand at most. \
         A reveal also writes a row of the audit, which is in the time of the answer and in no other column.\n\n",
        rows = rows(),
        load = load.split(' ').next().unwrap_or_default(),
        jobs = rows() / 10,
        walk = ms(walk),
        key = ms(key_took),
        server = key_read.ms,
        blocks = key_read.blocks,
    );
    rows_of(&mut page, costs, by_key);
    page.push_str(
        "\n## For an operator of some scopes\n\nThe same for an operator who may see two of the hundred scopes. More searches \
         find out where each list may end: they read rows of all scopes, and tell none of them. Only an operator of all \
         scopes may pause a phase.\n\n",
    );
    rows_of(&mut page, limited, by_key);
    page.push_str("\n## Plans\n\nOf each statement once, by the first that sends it.\n");
    let mut seen: Vec<&str> = Vec::new();
    for cost in costs.iter().chain(limited) {
        for one in &cost.statements {
            if !seen.contains(&&*one.form) {
                let plan = one.plan.trim_end();
                write!(page, "\n{}\n\n```\n{}\n\n{plan}\n```\n", cost.title, one.sql).unwrap();
                seen.push(&one.form);
            }
        }
    }
    page
}

/// A table with a row for each.
fn rows_of(page: &mut String, costs: &[Cost], (key_took, key_read): (Duration, &Statement)) {
    page.push_str(
        "| asked | statements | rows | blocks | the server's ms | x by key | answer ms | x by key | indexes |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for cost in costs {
        let all = &cost.statements;
        let server: f64 = all.iter().map(|statement| statement.ms).sum();
        let mut indexes: Vec<&str> =
            all.iter().flat_map(|one| &one.indexes).map(String::as_str).collect();
        indexes.sort_unstable();
        indexes.dedup();
        writeln!(
            page,
            "| {} | {} | {} | {} | {server:.2} | {:.0} | {:.1} | {:.1} | {} |",
            cost.title,
            all.len(),
            all.iter().map(|one| one.rows).max().unwrap_or(0),
            all.iter().map(|one| one.blocks).sum::<u64>(),
            server / key_read.ms,
            ms(cost.took),
            ms(cost.took) / ms(key_took),
            indexes.join(", "),
        )
        .unwrap();
    }
}
