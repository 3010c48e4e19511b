//! Who may use the console, from which origin, and which routes: matrices over every route.

use std::time::Duration;

use atomic_phases::Sqlite;
use atomic_phases::console::Console;
use atomic_phases::ops::OperatorStore;
use reqwest::{Method, RequestBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

impl Route {
    /// Whether the route acts or reveals. Then the audit has a row, also of a refusal.
    fn acts(&self) -> bool {
        let ends = ["/act", "/reveal", "/stop"];
        self.method == Method::POST && ends.iter().any(|end| self.path.ends_with(end))
    }
}

/// Every route, each with a form that is checked against the row, and names another version than the row has.
fn routes(id: Uuid, job: Uuid, version: &str) -> Vec<Route> {
    let get = |path: &str, needs| Route {
        method: Method::GET,
        path: path.to_owned(),
        form: Vec::new(),
        needs,
        answer: 200,
    };
    let post = |path: String, form: &[(&'static str, &str)], needs, answer| Route {
        method: Method::POST,
        path,
        form: form.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        needs,
        answer,
    };
    let of = |what: &str| format!("requests/{id}/{what}");
    let job = job.to_string();
    let dead = ("state", "dead_letter");
    let charged = [("definition", "book"), ("phase", "charged")];
    let (seen, reason) = (("version", version), ("reason", "because"));
    let stale = ("version", "stale");
    vec![
        get("overview", "read"),
        get("waiting", "read"),
        get("requests", "read"),
        get("jobs", "read"),
        get("audit", "audit"),
        get("definitions", "read"),
        get("pauses", "read"),
        get(&format!("requests/{id}"), "read"),
        post("requests/find".into(), &[("scope", "tenant-1"), ("key", "k")], "read", 303),
        post("requests/find".into(), &[("scope", "tenant-1")], "read", 200),
        post(of("plan"), &[("act", "retry"), seen], "read,act", 200),
        post(of("plan"), &[("act", "erase"), seen], "read,erase", 200),
        post(
            of("plan"),
            &[("act", "finish"), ("status", "200"), ("body", "1"), seen],
            "read,act",
            200,
        ),
        post(of("act"), &[("act", "retry"), stale, reason], "act", 412),
        post(of("act"), &[("act", "erase"), stale, reason], "erase", 412),
        post(
            of("act"),
            &[("act", "finish"), ("status", "200"), ("body", "1"), stale, reason],
            "act",
            412,
        ),
        post(
            of("act"),
            &[("act", "not_executed"), ("phase", "charged"), ("attempt", "9"), stale, reason],
            "act",
            412,
        ),
        post(
            of("act"),
            &[("act", "executed"), ("phase", "charged"), ("output", "1"), stale, reason],
            "act",
            412,
        ),
        post(of("reveal"), &[("what", "key"), reason], "reveal", 200),
        post(of("reveal"), &[("what", "parameters"), reason], "reveal", 200),
        post("jobs/plan".into(), &[("act", "retry"), ("id", &job)], "read,act", 200),
        post(
            "jobs/act".into(),
            &[("act", "retry"), ("id", &job), ("attempts", "99"), reason],
            "act",
            412,
        ),
        post(
            "jobs/act".into(),
            &[("act", "discard"), ("id", &job), ("attempts", "99"), reason],
            "act",
            412,
        ),
        post("pauses/plan".into(), &[("act", "pause"), charged[0], charged[1]], "read,pause", 200),
        // An id that does not exist.
        post(
            "pauses/act".into(),
            &[("act", "pause"), charged[0], ("phase", "gone"), reason],
            "pause",
            404,
        ),
        get("bulk", "read"),
        post("bulk/plan".into(), &[("act", "retry"), dead], "read,act,bulk", 200),
        post("bulk/plan".into(), &[("act", "erase"), dead], "read,erase,bulk", 200),
        // A number that does not match.
        post(
            "bulk/act".into(),
            &[("act", "retry"), dead, ("planned", "99"), ("because", "r")],
            "read,act,bulk",
            412,
        ),
        post(format!("bulk/{id}/stop"), &[("because", "r")], "bulk", 404),
        post(
            "pauses/act".into(),
            &[("act", "unpause"), charged[0], charged[1], reason],
            "pause",
            303,
        ),
    ]
}

fn asked(desk: &Desk, route: &Route) -> RequestBuilder {
    let request = desk.ask(route.method.clone(), desk.url(&route.path));
    match route.method {
        Method::POST => request.form(&route.form),
        _ => request,
    }
}

async fn scene<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Vec<Route> {
    finish(engine, "with-jobs").await;
    engine.store().sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    dead_letter(engine, "k").await;
    let row = admin(engine).find(&scope(), &key("k")).await.unwrap();
    let job = admin(engine).dead_jobs(None, 1).await.unwrap().rows[0].id;
    routes(row.request_id, job, row.version.as_str())
}

async fn each_route_needs_its_permission<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = scene(&engine).await;
    let desk = Desk::of(&engine).await;
    let before = dump(&db).await;
    let sets = [
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
    let mut checked = 0;
    let rows = "SELECT count(*) FROM atomic_phases_audit";
    for route in &routes {
        let audited = db.number(rows).await;
        for may in sets {
            let request = asked(&desk, route).header("sec-fetch-site", "same-origin");
            let page = desk.send(request.header("x-may", may)).await;
            let held = match may {
                "viewer" => permissions("read"),
                "responder" => permissions("read,act,audit,pause,bulk"),
                "admin" => permissions("read,reveal,act,erase,audit,pause,bulk"),
                names => permissions(names),
            };
            let expected = match may {
                "stranger" => 404,
                _ if held.contain(permissions(route.needs)) => route.answer,
                _ => 403,
            };
            // An act by an operator without `READ` ends where the console would show its page.
            let is_blind = expected == 412 && !held.contain(permissions("read"));
            let what = format!("{} {} by {may}", route.method, route.path);
            match is_blind {
                true => assert_eq!(page.status, 403, "{what}"),
                false => assert_eq!(page.status, expected, "{what}: {}", page.text),
            }
            if may == "stranger" {
                assert_eq!(page.text, "not found\n");
            }
            checked += 1;
        }
        // Each act of an admitted operator, done or refused, has one.
        let acts = if route.acts() { sets.len() as i64 - 1 } else { 0 };
        let written = db.number(rows).await - audited;
        assert_eq!(written, acts, "{} {} {:?}", route.method, route.path, route.form);
    }
    assert_eq!(checked, 31 * 18);
    assert_eq!(dump(&db).await, before, "nothing was changed");
}

async fn g16_what_is_outside_of_the_scopes_is_on_no_page<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = scene(&engine).await;
    let desk = Desk::of(&engine).await;
    let before = dump(&db).await;
    let id = id_of(&engine, "k").await.simple().to_string();
    for scopes in ["only=tenant-2", "prefix=tenant-11"] {
        for route in &routes {
            let request = asked(&desk, route).header("sec-fetch-site", "same-origin");
            let page = desk.send(request.header("x-scopes", scopes)).await;
            let is_list = route.method == Method::GET && !route.path.contains('/');
            let is_list = is_list || route.form.len() == 1 && route.path.ends_with("find");
            let expected = match route.path.starts_with("pauses/") {
                // A pause concerns every scope.
                true => 403,
                false if is_list => 200,
                // A filter that finds nothing.
                false if ["bulk/plan", "bulk/act"].contains(&route.path.as_str()) => 400,
                false => 404,
            };
            assert_eq!(page.status, expected, "{} {}: {}", route.method, route.path, page.text);
            if is_list {
                page.has_not(&id[..8]).has_not("receipt");
            }
        }
    }
    assert_eq!(dump(&db).await, before);
    let inside = asked(&desk, &routes[2]).header("x-scopes", "prefix=tenant-1");
    desk.send(inside).await.is(200).has(&id[..8]);
}

async fn a_form_of_another_site_is_refused_on_every_route<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = scene(&engine).await;
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
    let acts = routes.iter().filter(|route| route.method == Method::POST);
    for route in acts {
        for (headers, is_own) in cases {
            let request = asked(&desk, route);
            let request = headers
                .iter()
                .fold(request, |request, (name, value)| request.header(*name, *value));
            if is_own {
                continue;
            }
            let page = desk.send(request).await;
            assert_eq!(page.status, 403, "{} {headers:?}", route.path);
        }
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_audit").await, audited);
    for (headers, _) in cases.iter().filter(|(_, is_own)| *is_own) {
        let request = asked(&desk, &routes[9]);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        desk.send(request).await.is(200);
    }
    // A read may come from any origin.
    let look = asked(&desk, &routes[0]).header("sec-fetch-site", "cross-site");
    desk.send(look).await.is(200);
    for method in [Method::PUT, Method::DELETE, Method::PATCH] {
        for route in &routes {
            let request = desk.ask(method.clone(), desk.url(&route.path));
            let status = desk.send(request.header("sec-fetch-site", "same-origin")).await.status;
            assert_eq!(status, 405, "{method} {}", route.path);
        }
    }
    assert_eq!(dump(&db).await, before);
}

async fn every_answer_forbids_what_is_not_of_the_console<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let routes = scene(&engine).await;
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
    assert_eq!(pages.len(), 5 + 2 * 31);
    for page in &pages {
        let header =
            |name: &str| page.headers.get(name).map_or("", |value| value.to_str().unwrap());
        let policy = header("content-security-policy");
        for rule in
            ["default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "script-src 'self'"]
        {
            assert!(policy.contains(rule), "{}: {policy}", page.url);
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "same-origin");
        assert_eq!(header("cross-origin-opener-policy"), "same-origin");
        assert_eq!(header("cache-control"), "no-store", "{}", page.url);
        super::hostile::has_nothing_inline(page);
    }
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
    let routes = scene(&engine).await;
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
async fn a_form_that_does_not_arrive_is_no_act_and_is_told_so() {
    let db = Sqlite::fresh().await;
    let engine = engine(&db, &App::default());
    dead_letter(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    let console = Console::new(engine.clone(), operator).time_limit(Duration::from_millis(300));
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
    assert!(admin(&engine).audit(None, None, 1).await.unwrap().rows.is_empty());
}
