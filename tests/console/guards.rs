//! Who may use the console, from which origin, and which routes: matrices over every route.

use std::collections::HashSet;
use std::time::Duration;

use atomic_phases::console::Console;
use atomic_phases::ops::{Actor, BulkAct, OperatorStore, Permissions, Scopes, Selection};
use atomic_phases::store::Sqlite;
use axum::body::Body;
use reqwest::{Method, RequestBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;
use uuid::Uuid;

use super::cast::*;
use super::desk::{Desk, operator, permissions};
use crate::support::*;

on_every_store! {
    each_route_needs_its_permission,
    g16_what_is_outside_of_the_scopes_is_on_no_page,
    a_form_of_another_site_is_refused_on_every_route,
    every_answer_forbids_what_is_not_of_the_console,
    a_console_for_each_tenant_has_every_page,
}

/// A route, and the permission that it needs.
struct Route {
    method: Method,
    path: String,
    form: Vec<(&'static str, String)>,
    needs: &'static str,
    /// The status for an admin.
    answer: u16,
}

/// Where the rows of the tests are, for an operator.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rows {
    OfAllScopes,
    /// The operator may see their scope, and not all others.
    Inside,
    Outside,
}

impl Route {
    /// Whether the route acts or reveals. Then the audit has a row, also of a refusal.
    fn acts(&self) -> bool {
        let ends = ["/act", "/reveal", "/stop"];
        self.method == Method::POST && ends.iter().any(|end| self.path.ends_with(end))
    }

    /// Whether its answer is a list, which is empty for an operator who may see none of the rows.
    fn is_list(&self) -> bool {
        let is_page = self.method != Method::POST && !self.path.contains('/');
        is_page || self.form.len() == 1 && self.path.ends_with("find")
    }

    /// Whether it is about a pause, which concerns every scope.
    fn is_of_a_pause(&self) -> bool {
        self.method == Method::POST && self.path.starts_with("pauses/")
    }

    /// The status for an admin who may see none of the rows.
    fn outside(&self) -> u16 {
        match self.path.as_str() {
            _ if self.needs == "none" => self.answer,
            _ if self.is_list() => 200,
            _ if self.is_of_a_pause() => 403,
            // A filter that finds nothing.
            "bulk/plan" | "bulk/act" => 400,
            _ => 404,
        }
    }

    /// The status for an operator with these permissions.
    fn expected(&self, held: Permissions, rows: Rows) -> u16 {
        // It looks for the request before it looks at the permission for the act.
        let is_review = self.method == Method::POST
            && self.path.starts_with("requests/")
            && self.path.ends_with("/plan");
        let is_there = rows != Rows::Outside;
        match held.contain(permissions(self.needs)) {
            false if is_review && !is_there && held.contain(Permissions::READ) => 404,
            false => 403,
            true if !is_there => self.outside(),
            true if rows == Rows::Inside && self.is_of_a_pause() => 403,
            true => self.answer,
        }
    }
}

/// Every route, each with a form that is checked against the row, and names another version than the row has.
fn routes(id: Uuid, job: Uuid, bulk: Uuid, version: &str) -> Vec<Route> {
    let get = |path: &str, needs, answer| {
        [Method::GET, Method::HEAD].map(|method| Route {
            method,
            path: path.to_owned(),
            form: Vec::new(),
            needs,
            answer,
        })
    };
    let post = |path: &str, form: &[(&'static str, &str)], needs, answer| Route {
        method: Method::POST,
        path: path.to_owned(),
        form: form.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        needs,
        answer,
    };
    let of = |what: &str| format!("requests/{id}/{what}");
    let (plan, act, reveal) = (of("plan"), of("act"), of("reveal"));
    let (one, stop) = (format!("bulk/{bulk}"), format!("bulk/{bulk}/stop"));
    let job = job.to_string();
    let dead = ("state", "dead_letter");
    let (definition, phase) = (("definition", "book"), ("phase", "charged"));
    let (seen, reason) = (("version", version), ("reason", "because"));
    let stale = ("version", "stale");
    let (retry, erase, finish) = (("act", "retry"), ("act", "erase"), ("act", "finish"));
    let (executed, not_executed) = (("act", "executed"), ("act", "not_executed"));
    let (ok, body, attempt, output) =
        (("status", "200"), ("body", "1"), ("attempt", "9"), ("output", "1"));
    let pages = [
        get("overview", "read", 200),
        get("waiting", "read", 200),
        get("requests", "read", 200),
        get("jobs", "read", 200),
        get("audit", "audit", 200),
        get("definitions", "read", 200),
        get("pauses", "read", 200),
        get("bulk", "read", 200),
        get(&format!("requests/{id}"), "read", 200),
        get(&one, "read", 200),
        // The way in; the way back from a form's address; the files.
        get("", "none", 303),
        get("requests/find", "none", 303),
        get(&plan, "none", 303),
        get(&act, "none", 303),
        get(&reveal, "none", 303),
        get("jobs/plan", "none", 303),
        get("jobs/act", "none", 303),
        get("pauses/plan", "none", 303),
        get("pauses/act", "none", 303),
        get("bulk/plan", "none", 303),
        get("bulk/act", "none", 303),
        get(&stop, "none", 303),
        get("assets/0011223344556677/console.css", "none", 200),
    ];
    let forms = [
        post("requests/find", &[("scope", "tenant-1"), ("key", "k")], "read", 303),
        post("requests/find", &[("scope", "tenant-1")], "read", 200),
        post(&plan, &[retry, seen], "read,act", 200),
        post(&plan, &[erase, seen], "read,erase", 200),
        post(&plan, &[finish, ok, body, seen], "read,act", 200),
        post(&plan, &[not_executed, phase, attempt, seen], "read,act", 200),
        post(&act, &[retry, stale, reason], "act", 412),
        post(&act, &[erase, stale, reason], "erase", 412),
        post(&act, &[finish, ok, body, stale, reason], "act", 412),
        post(&act, &[not_executed, phase, attempt, stale, reason], "act", 412),
        post(&act, &[executed, phase, output, stale, reason], "act", 412),
        post(&reveal, &[("what", "key"), reason], "reveal", 200),
        post(&reveal, &[("what", "parameters"), reason], "reveal", 200),
        post(&reveal, &[("what", "context"), reason], "reveal", 200),
        post(&reveal, &[("what", "outputs"), reason], "reveal", 200),
        post(&reveal, &[("what", "reply"), reason], "reveal", 200),
        post("jobs/plan", &[retry, ("id", &job)], "read,act", 200),
        post("jobs/plan", &[("act", "discard"), ("id", &job)], "read,act", 200),
        post("jobs/act", &[retry, ("id", &job), ("attempts", "99"), reason], "act", 412),
        post(
            "jobs/act",
            &[("act", "discard"), ("id", &job), ("attempts", "99"), reason],
            "act",
            412,
        ),
        post("pauses/plan", &[("act", "pause"), definition, phase], "read,pause", 200),
        post("pauses/plan", &[("act", "unpause"), definition, phase], "read,pause", 200),
        // A phase that does not exist.
        post(
            "pauses/act",
            &[("act", "pause"), definition, ("phase", "gone"), reason],
            "pause",
            404,
        ),
        // One that is not paused.
        post("pauses/act", &[("act", "unpause"), definition, phase, reason], "pause", 303),
        post("bulk/plan", &[retry, dead], "read,act,bulk", 200),
        post("bulk/plan", &[erase, dead], "read,erase,bulk", 200),
        // A number that does not match.
        post("bulk/act", &[retry, dead, ("planned", "99"), ("because", "r")], "read,act,bulk", 412),
        post(
            "bulk/act",
            &[erase, dead, ("planned", "99"), ("because", "r")],
            "read,erase,bulk",
            412,
        ),
        // It has been stopped before.
        post(&stop, &[("because", "r")], "bulk", 303),
    ];
    pages.into_iter().flatten().chain(forms).collect()
}

/// The routes of the router, as its source has them. A route that the matrices do not ask for is one that any
/// operator might use.
#[test]
fn the_matrices_have_every_route_of_the_router() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/console/pages/mod.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let all = routes(Uuid::from_u128(7), Uuid::from_u128(8), Uuid::from_u128(9), "v");
    let mut found = 0;
    for registered in source.split(".route(\"").skip(1) {
        let (path, handlers) = registered.split_once('"').unwrap();
        let handlers = handlers.lines().next().unwrap();
        let path: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        // Of the paths of the matrices, the parameters alone have digits.
        let is_it = |route: &&Route| {
            let parts: Vec<&str> = route.path.split('/').collect();
            let fits = |(one, part): (&&str, &&str)| match one.starts_with('{') {
                true => part.contains(|letter: char| letter.is_ascii_digit() || letter == '.'),
                false => one == part,
            };
            parts.len() == path.len() && path.iter().zip(&parts).all(fits)
        };
        let methods = match handlers.contains(".post(") {
            true => &[Method::GET, Method::HEAD, Method::POST][..],
            false => &[Method::GET, Method::HEAD],
        };
        for method in methods {
            let is_asked = all.iter().filter(is_it).any(|route| route.method == *method);
            assert!(is_asked, "no {method} {path:?}");
            found += 1;
        }
    }
    let asked: HashSet<_> = all.iter().map(|route| (&route.method, &route.path)).collect();
    assert_eq!(found, asked.len(), "the matrices ask for something that is not a route");
}

/// How many there are.
const ROUTES: usize = 2 * 23 + 29;

fn asked(desk: &Desk, route: &Route) -> RequestBuilder {
    let request = desk.ask(route.method.clone(), desk.url(&route.path));
    match route.method {
        Method::POST => request.form(&route.form),
        _ => request,
    }
}

async fn prepared_routes<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Vec<Route> {
    finish(engine, "with-jobs").await;
    engine.store().sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    dead_letter(engine, "k").await;
    let row = admin(engine).find(&scope(), &key("k")).await.unwrap();
    let job = admin(engine).dead_jobs(None, 1).await.unwrap().rows[0].id;
    let one = Selection::Requests(vec![row.request_id]);
    // By an operator of the rows' scope, so that each operator who may see the rows may see the bulk act.
    let of_the_scope = Scopes::Only(vec![scope()]);
    let of_the_scope = Actor::new("ada", Permissions::admin(), of_the_scope).unwrap();
    let of_the_scope = engine.ops(of_the_scope);
    let bulk = of_the_scope.start_bulk(BulkAct::Erase, &one, 1, "a slip").await.unwrap();
    let _ = of_the_scope.stop_bulk(bulk, "a slip").await.unwrap();
    let all = routes(row.request_id, job, bulk, row.version.as_str());
    assert_eq!(all.len(), ROUTES);
    all
}

/// The one with this path and so many fields in its form.
fn one<'r>(routes: &'r [Route], path: &str, fields: usize) -> &'r Route {
    routes.iter().find(|route| route.path == path && route.form.len() == fields).unwrap()
}

/// Sets of permissions: each preset and each permission by itself, those that an act needs together, and all but one.
const SETS: [&str; 18] = [
    "stranger",
    "none",
    "viewer",
    "responder",
    "admin",
    "read",
    "reveal",
    "act",
    "erase",
    "audit",
    "pause",
    "bulk",
    "read,act,bulk",
    "reveal,act,erase,audit",
    "read,act,erase,audit",
    "read,reveal,erase,audit",
    "read,reveal,act,audit",
    "read,reveal,act,erase",
];

/// The scopes of an operator, as the header of the desk has them.
const SCOPES: [(&str, Rows); 6] = [
    ("all", Rows::OfAllScopes),
    ("only=tenant-1", Rows::Inside),
    ("prefix=tenant-", Rows::Inside),
    ("only=", Rows::Outside),
    ("only=tenant-2", Rows::Outside),
    ("prefix=tenant-11", Rows::Outside),
];

fn held(may: &str) -> Permissions {
    match may {
        "viewer" => permissions("read"),
        "responder" => permissions("read,act,audit,pause,bulk"),
        "admin" => permissions("read,reveal,act,erase,audit,pause,bulk"),
        names => permissions(names),
    }
}

/// Whether the page about operating tells this size.
#[track_caller]
fn is_told(size: &str) {
    println!("{size}");
    assert!(
        include_str!("../../docs/operating.md").contains(size),
        "docs/operating.md has another size than {size}"
    );
}

async fn each_route_needs_its_permission<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = prepared_routes(&engine).await;
    let desk = Desk::of(&engine).await;
    let before = dump(&db).await;
    let mut checked = 0;
    let rows = "SELECT count(*) FROM atomic_phases_audit";
    for route in &routes {
        let audited = db.number(rows).await;
        for (scopes, place) in SCOPES {
            for may in SETS {
                let request = asked(&desk, route).header("sec-fetch-site", "same-origin");
                let request = request.header("x-may", may).header("x-scopes", scopes);
                let page = desk.send(request).await;
                let held = held(may);
                let expected = match may {
                    "stranger" => 404,
                    _ => route.expected(held, place),
                };
                // An act by an operator without `READ` ends where the console would show how it stands.
                let is_unpause = route.method == Method::POST && route.path == "pauses/act";
                let shows = expected == 412 || is_unpause && expected == 303;
                let is_blind = shows && !held.contain(Permissions::READ);
                let what = format!("{} {} by {may} of {scopes}", route.method, route.path);
                match is_blind {
                    true => assert_eq!(page.status, 403, "{what}"),
                    false => assert_eq!(page.status, expected, "{what}: {}", page.text),
                }
                if may == "stranger" && route.method != Method::HEAD {
                    assert_eq!(page.text, "not found\n");
                }
                checked += 1;
            }
        }
        // Each act of an admitted operator, done or refused, has one.
        let acts = if route.acts() { SCOPES.len() * (SETS.len() - 1) } else { 0 };
        let written = db.number(rows).await - audited;
        assert_eq!(written, acts as i64, "{} {} {:?}", route.method, route.path, route.form);
    }
    assert_eq!((ROUTES, checked), (75, 75 * 18 * 6));
    is_told("75 routes x 18 sets of permissions x 6 kinds of scopes = 8,100");

    // No route has another method, for any operator.
    let paths: Vec<&str> = routes
        .iter()
        .filter(|route| route.method == Method::GET)
        .map(|route| route.path.as_str())
        .collect();
    let (mut checked, audited) = (0, db.number(rows).await);
    for path in &paths {
        for method in [Method::PUT, Method::DELETE, Method::PATCH] {
            for (scopes, _) in SCOPES {
                for may in SETS {
                    let request = desk.ask(method.clone(), desk.url(path));
                    let request = request.header("sec-fetch-site", "same-origin");
                    let request = request.header("x-may", may).header("x-scopes", scopes);
                    let expected = if may == "stranger" { 404 } else { 405 };
                    let status = desk.send(request).await.status;
                    assert_eq!(status, expected, "{method} {path} by {may} of {scopes}");
                    checked += 1;
                }
            }
        }
    }
    assert_eq!((paths.len(), checked), (23, 23 * 3 * 18 * 6));
    is_told("23 paths x 3 other methods x 18 sets of permissions x 6 kinds of scopes = 7,452");
    assert_eq!(db.number(rows).await, audited);
    assert_eq!(dump(&db).await, before, "nothing was changed");
}

async fn g16_what_is_outside_of_the_scopes_is_on_no_page<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = prepared_routes(&engine).await;
    let desk = Desk::of(&engine).await;
    let before = dump(&db).await;
    let id = id_of(&engine, "k").await.simple().to_string();
    for scopes in ["only=tenant-2", "prefix=tenant-11"] {
        for route in &routes {
            let request = asked(&desk, route).header("sec-fetch-site", "same-origin");
            let page = desk.send(request.header("x-scopes", scopes)).await;
            let expected = route.outside();
            assert_eq!(page.status, expected, "{} {}: {}", route.method, route.path, page.text);
            if route.is_list() {
                page.has_not(&id[24..]).has_not("receipt");
            }
        }
    }
    assert_eq!(dump(&db).await, before);
    let inside = asked(&desk, one(&routes, "requests", 0)).header("x-scopes", "prefix=tenant-1");
    desk.send(inside).await.is(200).has(&id[24..]);
}

async fn a_form_of_another_site_is_refused_on_every_route<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = prepared_routes(&engine).await;
    let desk = Desk::of(&engine).await;
    let before = dump(&db).await;
    let audited = db.number("SELECT count(*) FROM atomic_phases_audit").await;
    let host = desk.root.authority().to_owned();
    let own = format!("http://{host}");
    let cases: [(&[(&str, &str)], bool); 12] = [
        (&[("sec-fetch-site", "same-origin")], true),
        (&[("sec-fetch-site", "same-origin"), ("origin", &own)], true),
        (&[("origin", &own)], true),
        (&[("sec-fetch-site", "cross-site")], false),
        (&[("sec-fetch-site", "same-site")], false),
        (&[("sec-fetch-site", "cross-site"), ("origin", &own)], false),
        (&[("origin", "https://evil.example")], false),
        (&[("origin", "null")], false),
        (&[("origin", "")], false),
        (&[("origin", &host)], false),
        (&[("origin", &format!("{own}.evil.example"))], false),
        (&[], false),
    ];
    let with = |request: RequestBuilder, headers: &[(&str, &str)]| {
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    };
    let forms = || routes.iter().filter(|route| route.method == Method::POST);
    let (mut refused, mut taken) = (0, 0);
    for route in forms() {
        for &(headers, _) in cases.iter().filter(|(_, is_own)| !*is_own) {
            let page = desk.send(with(asked(&desk, route), headers)).await;
            assert_eq!(page.status, 403, "{} {headers:?}", route.path);
            refused += 1;
            // To a stranger there is no console, whichever page sent the form.
            let stranger = asked(&desk, route).header("x-may", "stranger");
            let page = desk.send(with(stranger, headers)).await;
            assert_eq!(
                (page.status, &*page.text),
                (404, "not found\n"),
                "{} {headers:?}",
                route.path
            );
        }
    }
    // Of the console's own pages, each form that changes nothing.
    let looks =
        || forms().filter(|route| ["plan", "find"].iter().any(|end| route.path.ends_with(end)));
    for route in looks() {
        for &(headers, _) in cases.iter().filter(|(_, is_own)| *is_own) {
            let page = desk.send(with(asked(&desk, route), headers)).await;
            assert_eq!(page.status, route.answer, "{} {headers:?}: {}", route.path, page.text);
            taken += 1;
        }
    }
    assert_eq!((forms().count(), refused), (29, 29 * 9));
    assert_eq!((looks().count(), taken), (12, 12 * 3));
    is_told(
        "29 forms x 9 origins of other sites = 261; 12 forms that change nothing x 3 own origins = 36",
    );
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_audit").await, audited);
    // A read may come from any origin.
    let look = asked(&desk, one(&routes, "overview", 0)).header("sec-fetch-site", "cross-site");
    desk.send(look).await.is(200);
    for method in [Method::PUT, Method::DELETE, Method::PATCH] {
        for route in &routes {
            let request = desk.ask(method.clone(), desk.url(&route.path));
            let status = desk.send(request.header("sec-fetch-site", "cross-site")).await.status;
            assert_eq!(status, 403, "{method} {}", route.path);
        }
    }
    assert_eq!(dump(&db).await, before);
}

/// All of it: what is left out of it is allowed, and of `form-action`, `frame-ancestors` and `base-uri` there is no default.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// On every answer; `cache-control`, too, which is another one for files.
const EVERYWHERE: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
];

async fn every_answer_forbids_what_is_not_of_the_console<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = prepared_routes(&engine).await;
    let desk = Desk::of(&engine).await;
    let mut pages = vec![
        desk.get("nowhere").await,
        desk.get("requests/nonsense").await,
        desk.get("requests?state=nonsense").await,
        desk.send(desk.ask(Method::GET, desk.url("overview")).header("x-may", "stranger")).await,
        desk.send(
            desk.ask(Method::DELETE, desk.url("overview")).header("sec-fetch-site", "same-origin"),
        )
        .await,
    ];
    for route in &routes {
        pages.push(desk.send(asked(&desk, route).header("sec-fetch-site", "same-origin")).await);
        // Refused as cross-site, if it is a form.
        pages.push(desk.send(asked(&desk, route)).await);
    }
    assert_eq!(pages.len(), 5 + 2 * ROUTES);
    for page in &pages {
        let header = |name: &str| -> Vec<&str> {
            page.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
        };
        for (name, value) in EVERYWHERE {
            assert_eq!(header(name), [value], "{name} of {}", page.url);
        }
        let is_file = page.url.path().contains("/assets/");
        assert_eq!(header("cache-control") == ["no-store"], !is_file, "{}", page.url);
        super::hostile::has_nothing_inline(page);
    }
    assert_eq!((pages.len(), EVERYWHERE.len() + 1), (155, 7));
    is_told("155 answers x 7 headers = 1,085");
    // Files without data are cached under their address; under the address of another build they are served, too.
    let overview = desk.get("overview").await;
    let style = super::html::links(&overview.url, &overview.text);
    let style = style.into_iter().find(|url| url.path().ends_with(".css")).unwrap();
    let kept = desk.send(desk.ask(Method::GET, style)).await.is(200);
    assert_eq!(kept.headers["cache-control"], "public, max-age=31536000, immutable");
    assert_eq!(kept.headers["content-type"], "text/css; charset=utf-8");
    let other = desk.get("assets/0011223344556677/console.css").await.is(200);
    assert_eq!(other.headers["cache-control"], "no-cache");
    desk.get("assets/0011223344556677/mod.rs").await.is(404);
}

/// The parameters of the path that it is mounted under are none of the console's.
async fn a_console_for_each_tenant_has_every_page<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = prepared_routes(&engine).await;
    let console = Console::new(engine.clone(), operator);
    let desk = Desk::under(console, "/{tenant}/{id}/ops", "/eu/7/ops").await;
    for route in &routes {
        let page = desk.send(asked(&desk, route).header("sec-fetch-site", "same-origin")).await;
        assert_eq!(page.status, route.answer, "{} {}: {}", route.method, route.path, page.text);
    }
    let overview = desk.get("overview").await.is(200);
    for file in super::html::links(&overview.url, &overview.text) {
        desk.send(desk.ask(Method::GET, file)).await.is(200);
    }
    desk.get("requests/%ff").await.is(404).has("No such request");
}

/// It was sent by a browser that stopped, or on a line that is too slow: the database has nothing to do with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_does_not_arrive_is_refused_and_is_no_act() {
    let db = Sqlite::fresh().await;
    let engine = engine(&db, &App::default());
    dead_letter(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let console =
        Console::new(engine.clone(), operator).time_limit(Duration::from_millis(300)).unwrap();
    let desk = Desk::with(console).await;
    let (url, host) = (desk.url(&format!("requests/{id}/act")), desk.root.authority());
    let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {host}\r\nsec-fetch-site: same-origin\r\ncontent-length: 900\r\n\r\n",
        url.path()
    );
    stream.write_all(format!("{head}act=retry").as_bytes()).await.unwrap();
    let mut told = [0; 4096];
    let read = stream.read(&mut told).await.unwrap();
    let told = String::from_utf8_lossy(&told[..read]).into_owned();
    assert!(told.starts_with("HTTP/1.1 408"), "{told}");
    assert!(told.contains("Nothing was done"), "{told}");
    // One that breaks off is not too large either.
    let parts = [Ok("act="), Err(std::io::Error::other("the connection is gone"))];
    let broken = Body::from_stream(futures_util::stream::iter(parts));
    let act = http::Request::post(format!("/requests/{id}/act"));
    let act = act.header("sec-fetch-site", "same-origin").body(broken).unwrap();
    let page = Console::new(engine.clone(), operator).router().oneshot(act).await.unwrap();
    assert_eq!(page.status(), 408);
    let text = axum::body::to_bytes(page.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("Nothing was done"), "{text}");
    assert!(admin(&engine).audit(None, None, 1).await.unwrap().rows.is_empty());
}
