//! A service that is asked over HTTP, and what answers in its place.

use super::every_way::does_what_needs_code;
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_asked_with_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let engine = with_requests(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let before = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    let before = Engine::builder(before).register::<Leave>().build().unwrap();
    let (of, key) = (Scope::new("tenant-1").unwrap(), IdempotencyKey::new("leave").unwrap());
    before.call(&of, &key, Leave).accept().await.unwrap();
    let node = WorkerConfig::default().node("api-1", "9f2c1d");
    Announcer::new(&engine, node).run_once().await.unwrap();
    let api = Api::new(engine, |head| {
        let token = head.headers.get("authorization")?.to_str().ok()?;
        let may = match token {
            "Bearer secret" => Permissions::admin(),
            "Bearer weak" => Permissions::viewer(),
            _ => return None,
        };
        Some(Actor::new("ada", may, Scopes::All).unwrap())
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ops/", listener.local_addr().unwrap());
    let routes = axum::Router::new().nest("/ops", api.router());
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });

    let checked = tokio::task::spawn_blocking(move || {
        let as_whom = |token: &str| Run::on(&["--url", &url, "--token", token]);
        let (code, told) = as_whom("wrong").told(&["status"]);
        assert_eq!((code, told.contains("--token")), (3, true), "{told}");
        let weak = as_whom("weak");
        let id = weak.id("dead_letter");
        let (code, told) = weak.told(&["retry", &id, "--reason", "r"]);
        assert_eq!(code, 3, "{told}");
        assert!(
            told.contains("this needs the permission to act") || told.contains("permission to act"),
            "{told}"
        );

        let run = as_whom("secret");
        does_what_needs_code(&run);
        let (code, told) = run.told(&["nodes"]);
        assert_eq!((code, told.lines().count()), (0, 2), "{told}");
        assert!(
            told.contains("api-1") && told.contains("9f2c1d") && !told.contains("gone"),
            "{told}"
        );
        let (code, told) = run.told(&["definitions", "-o", "jsonl"]);
        assert_eq!((code, told.lines().count()), (6, 2), "a request is stranded: {told}");
        assert!(told.contains(r#""nodes":1"#) && told.contains(r#""stranded":1"#), "{told}");
        let (_, told) = run.told(&["definitions"]);
        assert!(
            told.contains("pilots.leave v2  left ") && told.contains("noted called answered"),
            "{told}"
        );
        let bulk = ["bulk", "retry", "--state", "dead_letter", "--because", "the line is mended"];
        let (code, out, said) = run.with("", &bulk);
        assert_eq!((code, out.lines().count()), (0, 1), "{said}");
        assert!(said.contains("retry: 1 requests, of which 1 stand") && said.contains("--plan"));
        assert_eq!(run.told(&["bulk", "list"]).1.lines().count(), 1, "a plan starts nothing");
        // Exactly the reviewed plan is started, once.
        let planned = [&bulk[..], &["--plan", out.trim()]].concat();
        let other = [&planned[..], &["--older-than", "0s", "--definition", "pilots.call"]].concat();
        let other: Vec<&str> =
            other.iter().map(|word| if *word == "retry" { "erase" } else { word }).collect();
        assert_eq!(run.told(&other).0, 5, "another act");
        let (code, started, said) = run.with("", &planned);
        assert_eq!((code, said.as_str()), (0, ""), "{started}");
        assert_eq!(run.told(&planned), (0, started.clone()), "sent again");
        let none = [&bulk[..], &["--plan", "none"]].concat();
        assert_eq!(run.told(&none).0, 5);
        assert_eq!(run.told(&[&planned[..], &["--yes"]].concat()).0, 2, "one of both");
        let started = started.trim();
        assert_eq!(run.told(&["bulk", "list"]).1.lines().count(), 2, "one bulk act");
        let (code, anew, said) = run.with("", &[&bulk[..], &["--yes"]].concat());
        assert!(
            code == 0 && anew.trim() != started && said.contains("which was made now"),
            "{said}"
        );
        assert_eq!(run.told(&["bulk", "stop", anew.trim(), "--reason", "r"]).0, 0);
        let (_, told) = run.told(&["bulk", "list"]);
        assert!(told.contains(started) && told.contains("under way, 0 of 1"), "{told}");
        let stop = ["bulk", "stop", started, "--reason", "a slip"];
        assert_eq!(run.told(&stop), (0, "applied\n".to_owned()));
        let (code, told) = run.told(&["bulk", "show", started]);
        assert!(code == 0 && told.contains("stopped by ada"), "{told}");
        assert_eq!(run.told(&["bulk", "retry", "--because", "r"]).0, 2, "a condition, or ids");
        let all = ["bulk", "erase", "--older-than", "0s", "--because", "r"];
        assert_eq!(run.told(&all).0, 2, "every request is as old");
        assert_eq!(run.told(&["bulk", "show", "none"]).0, 4);
        // As JSON, a reply near its limit is larger than that.
        let unknown = run.id("unknown");
        let quotes = "\"".repeat(1 << 20);
        let finish = ["resolve", &unknown, "finish", "--status", "200", "--body", "-"];
        let finish = [&finish[..], &["--reason", "r"]].concat();
        // Its call may have been made: an operator says that they have seen that.
        let (code, told, said) = run.with(&quotes, &finish);
        assert_eq!((code, &*told), (5, ""), "{said}");
        let seen = version(&run, &unknown);
        let first = format!(
            "{unknown} nothing was done: called may have been called. Look it up at the provider."
        );
        assert!(
            said.starts_with(&first) && said.contains("stays, and nothing undoes it: noted."),
            "{said}"
        );
        assert!(said.trim_end().ends_with(&format!("--version {seen}")), "{said}");
        let finish = [&finish[..], &["--version", &seen]].concat();
        let (code, told, said) = run.with(&quotes, &finish);
        assert_eq!((code, told), (0, format!("{unknown} applied\n")), "{said}");
        let reply = ["reveal", &unknown, "--what", "reply", "--reason", "r"];
        let (code, told) = run.told(&reply);
        assert_eq!((code, told.matches("\\\"").count()), (0, 1 << 20));
        assert!(told.contains("text/plain; charset=utf-8"), "as the console sends it");
        let elsewhere = Run::on(&["--url", "http://example.invalid", "--token", "secret"]);
        let (code, told) = elsewhere.told(&["status"]);
        assert_eq!((code, told.contains("https")), (2, true), "{told}");
        let refused = Run::on(&["--url", "http://127.0.0.1:9", "--timeout", "2"]);
        let (code, told) = refused.told(&["status"]);
        assert_eq!((code, told.contains("audit")), (1, false), "nothing was to be done: {told}");
        let pause = ["pause", "pilots.call", "called", "--reason", "r"];
        let (code, told) = refused.told(&pause);
        assert_eq!((code, told.contains("audit")), (1, true), "{told}");
    });
    checked.await.unwrap();
    server.abort();
}

/// A sign-in page, or another program's JSON: neither is taken for the answer that nothing is stuck.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_of_ours_is_no_good_news() {
    const PAGES: [(&str, &str); 4] = [
        ("html", "<html>Sign in</html>"),
        ("none", ""),
        ("other", r#"{"ok":true}"#),
        ("list", "[]"),
    ];
    let mut routes = axum::Router::new();
    for (path, page) in PAGES {
        routes = routes.nest(&format!("/{path}"), axum::Router::new().fallback(async move || page));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });
    let checked = tokio::task::spawn_blocking(move || {
        let (id, because) = ("00000000-0000-4000-8000-000000000000", ["--reason", "r"]);
        let acts: [&[&str]; 7] = [
            &["retry", id],
            &["erase", id, "--yes"],
            &["jobs", "discard", id],
            &["pause", "a", "b"],
            &["unpause", "a", "b"],
            &["bulk", "stop", id],
            &["reveal", id, "--what", "key"],
        ];
        let acts = acts.map(|act| [act, &because].concat());
        let reads: [&[&str]; 12] = [
            &["status"],
            &["list"],
            &["find", "--scope", "a"],
            &["show", id],
            &["why", id],
            &["definitions"],
            &["nodes"],
            &["pauses"],
            &["jobs", "list"],
            &["jobs", "show", id],
            &["bulk", "list"],
            &["audit"],
        ];
        for (path, _) in PAGES {
            let run = Run::on(&["--url", &format!("http://{place}/{path}")]);
            for words in reads.iter().copied().chain(acts.iter().map(|act| &act[..])) {
                let (code, out, said) = run.with("k", words);
                assert_eq!((code, out.as_str()), (1, ""), "{path} {words:?}: {said}");
                assert!(said.contains("none of atomic-phases' API"), "{path} {words:?}: {said}");
            }
        }
    });
    checked.await.unwrap();
    server.abort();
}

/// The page of a gateway, or of another intermediary, does not tell the result of the act behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateways_page_says_where_to_find_the_act() {
    use axum::http::StatusCode;
    const PAGES: [(&str, u16, &str); 6] = [
        ("bad", 502, "<html>502 Bad Gateway</html>"),
        ("late", 504, ""),
        ("json", 504, r#"{"code":504,"message":"upstream request timeout"}"#),
        ("problem", 500, r#"{"code":"gateway_timeout","title":"Timeout","detail":"It is late."}"#),
        ("page", 200, "<html>Sign in</html>"),
        (
            "ours",
            503,
            r#"{"code":"unavailable","title":"Not available now",
                "detail":"Whether an act was done is in the audit. Read it again."}"#,
        ),
    ];
    let mut routes = axum::Router::new();
    for (path, status, page) in PAGES {
        let seen = async || ([("etag", "\"v\"")], r#"{"id":"a"}"#);
        let told = async move || (StatusCode::from_u16(status).unwrap(), page);
        let service = axum::Router::new().route("/{*any}", axum::routing::get(seen).post(told));
        routes = routes.nest(&format!("/{path}"), service);
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });
    let checked = tokio::task::spawn_blocking(move || {
        let id = "00000000-0000-4000-8000-000000000000";
        let acts: [&[&str]; 8] = [
            &["retry", id, "--reason", "r"],
            &["erase", id, "--yes", "--reason", "r"],
            &["resolve", id, "finish", "--status", "200", "--reason", "r"],
            &["jobs", "discard", id, "--reason", "r"],
            &["pause", "a", "b", "--reason", "r"],
            &["bulk", "retry", id, "--because", "r", "--plan", "v"],
            &["bulk", "stop", id, "--reason", "r"],
            &["reveal", id, "--what", "key", "--reason", "r"],
        ];
        let looks: [&[&str]; 3] =
            [&["list"], &["find", "--scope", "a"], &["bulk", "retry", id, "--because", "r"]];
        for (path, ..) in PAGES {
            let run = Run::on(&["--url", &format!("http://{place}/{path}")]);
            for act in acts {
                let (code, out, said) = run.with("", act);
                assert_eq!((code, out.as_str()), (1, ""), "{path} {act:?}: {said}");
                assert_eq!(said.matches("is in the audit").count(), 1, "{path} {act:?}: {said}");
                assert!(!said.contains(".."), "{said}");
            }
            for look in looks.iter().filter(|_| path != "ours") {
                let (code, out, said) = run.with("k", look);
                assert_eq!((code, out.as_str()), (1, ""), "{path} {look:?}: {said}");
                assert!(!said.contains("audit"), "nothing was to be done: {path} {said}");
            }
        }
    });
    checked.await.unwrap();
    server.abort();
}

/// A service that answers with these texts, by the beginning of the request. It closes each connection after its
/// answer.
fn service(answers: &'static [(&str, &str)]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            // The bodies here arrive together with their heads, or before the answer is read.
            while !request.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut part).unwrap() {
                    0 => break,
                    read => request.extend(&part[..read]),
                }
            }
            let request = String::from_utf8(request).unwrap();
            let (_, answer) = answers.iter().find(|(start, _)| request.starts_with(start)).unwrap();
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

/// The answer to GET /overview if nothing waits.
const NOTHING_WAITS: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
     {\"unknown\":{\"number\":0,\"or_more\":false},\"dead_letters\":{\"number\":0,\"or_more\":false},\
     \"due\":{\"number\":0,\"or_more\":false},\"stranded\":{\"number\":0,\"or_more\":false},\
     \"dead_jobs\":{\"number\":0,\"or_more\":false},\"oldest_waiting\":null}";

/// A proxy that the environment names for all programs of a machine would read the token.
#[test]
fn a_token_for_this_machine_is_sent_to_no_proxy() {
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let at = format!("http://{}", proxy.local_addr().unwrap());
    let url = service(&[("GET /overview ", NOTHING_WAITS)]);
    for variable in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_atomic-phases"));
        program.env_clear().env(variable, &at).args(["--url", &url, "--token", "sesame"]);
        let ran = program.args(["--timeout", "5", "status"]).output().unwrap();
        let met = proxy.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(met, Err(std::io::ErrorKind::WouldBlock), "{variable}: the proxy was asked");
        assert_eq!(ran.status.code(), Some(0), "{variable}: {ran:?}");
    }
}

/// An operator with some scopes, whose requests come after ten thousand rows of other scopes.
#[test]
fn none_or_more_is_not_fine() {
    let run = Run::on(&[
        "--url",
        &service(&[(
            "GET /overview ",
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
         {\"unknown\":{\"number\":0,\"or_more\":true},\"dead_letters\":{\"number\":0,\"or_more\":true},\
         \"due\":{\"number\":0,\"or_more\":false},\"stranded\":{\"number\":0,\"or_more\":false},\
         \"dead_jobs\":{\"number\":0,\"or_more\":false},\"oldest_waiting\":null}",
        )]),
    ]);
    let (code, told) = run.told(&["status"]);
    assert_eq!((code, told.contains("0 or more unknown")), (6, true), "{told}");
}

/// A later build has written its list of phases, which the service cannot read and does not show.
#[test]
fn a_finish_is_refused_if_a_call_is_open_and_no_phase_is_shown() {
    const SHOWN: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
         etag: \"7\"\r\n\r\n{\"request\":{\"id\":\"r\",\"state\":\"unknown\",\"version\":\"7\",\
         \"perhaps_called\":\"called\"},\"phases\":[]}";
    let run = Run::on(&["--url", &service(&[("GET /requests/r ", SHOWN)])]);
    let finish = ["resolve", "r", "finish", "--status", "410", "--reason", "r"];
    let (code, told) = run.told(&finish);
    assert_eq!((code, told.contains("called may have been called")), (5, true), "{told}");
    assert!(told.trim_end().ends_with("--version 7"), "{told}");
}

/// A service of an earlier version shows an open call, and whether the next one may have been made, each by itself.
#[test]
fn a_finish_is_refused_if_a_service_of_an_earlier_version_shows_a_call() {
    const OPEN: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
         etag: \"7\"\r\n\r\n{\"request\":{\"id\":\"r\",\"state\":\"unknown\",\"version\":\"7\",\"phase\":\"called\",\
         \"open_call\":\"called\",\"may_have_been_called\":false},\"phases\":[]}";
    const MAY_HAVE_BEEN: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
         etag: \"7\"\r\n\r\n{\"request\":{\"id\":\"r\",\"state\":\"due\",\"version\":\"7\",\"phase\":\"called\",\
         \"open_call\":null,\"may_have_been_called\":true},\"phases\":[]}";
    for url in
        [service(&[("GET /requests/r ", OPEN)]), service(&[("GET /requests/r ", MAY_HAVE_BEEN)])]
    {
        let finish = ["resolve", "r", "finish", "--status", "410", "--reason", "r"];
        let (code, told) = Run::on(&["--url", &url]).told(&finish);
        assert_eq!((code, told.contains("called may have been called")), (5, true), "{told}");
    }
}

/// What is erased does not tell any more that a call was open when an operator finished the request.
#[test]
fn an_erasure_tells_of_a_call_that_was_open_at_the_end() {
    const SHOWN: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
         etag: \"7\"\r\n\r\n{\"request\":{\"id\":\"r\",\"state\":\"finished\",\"version\":\"7\",\
         \"open_call\":null,\"perhaps_called\":\"called\"},\"phases\":[]}";
    const ERASED: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{}";
    let answers = &[("GET /requests/r ", SHOWN), ("POST /requests/r/erase ", ERASED)];
    let run = Run::on(&["--url", &service(answers)]);
    let (_, _, said) = run.with("", &["erase", "r", "--yes", "--reason", "r"]);
    assert!(said.contains("note: called may have been called"), "{said}");
}

/// Only of an unknown outcome does the state tell: a dead letter may be one, and so may a request that waits for a retry.
#[test]
fn a_list_says_which_phase_may_have_been_called() {
    const ROWS: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
         {\"rows\":[\
         {\"id\":\"a\",\"state\":\"due\",\"phase\":\"charged\",\"perhaps_called\":\"charged\"},\
         {\"id\":\"b\",\"state\":\"due\",\"phase\":\"charged\",\"perhaps_called\":null},\
         {\"id\":\"c\",\"state\":\"dead_letter\",\"phase\":\"booked\",\"perhaps_called\":\"booked\"},\
         {\"id\":\"d\",\"state\":\"unknown\",\"phase\":\"booked\",\"perhaps_called\":\"booked\"},\
         {\"id\":\"e\",\"state\":\"finished\",\"phase\":null,\"perhaps_called\":\"charged\"}],\
         \"next\":null,\"searched_to\":null}";
    let run = Run::on(&["--url", &service(&[("POST /requests/search ", ROWS)])]);
    let (code, told) = run.told(&["list"]);
    assert_eq!((code, told.lines().count()), (0, 6), "{told}");
    let cells = told.lines().skip(1).map(|line| line.split("  ").filter(|cell| !cell.is_empty()));
    let at_phase: Vec<_> = cells.map(|mut cells| cells.nth(3).unwrap().trim().to_owned()).collect();
    let [perhaps, open] = ["charged (may have been called)", "booked (may have been called)"];
    assert_eq!(at_phase, [perhaps, "charged", open, "booked", "-"]);
}

/// 0+ stranded requests may be some: not all were counted.
#[test]
fn definitions_that_may_be_stranded_are_not_fine() {
    const ROWS: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
         {\"rows\":[{\"definition\":\"d\",\"definition_version\":1,\"phases\":[],\"nodes\":0,\"requests\":9,\
         \"waiting\":9,\"stranded\":0,\"or_more\":true,\"oldest\":null}]}";
    let run = Run::on(&["--url", &service(&[("GET /definitions ", ROWS)])]);
    let (code, told) = run.told(&["definitions"]);
    assert_eq!((code, told.contains("0+")), (6, true), "{told}");
}

/// The clock of the terminal may be off, and that of the service: ages are counted from the time in the answer.
#[test]
fn ages_are_of_the_databases_clock_and_not_of_the_terminals() {
    macro_rules! told {
        ($json:literal) => {
            concat!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n",
                "database-time: 2018-03-01T12:00:00.000000Z\r\n\r\n",
                $json
            )
        };
    }
    const WAITS: &str = told!(
        r#"{"unknown":{"number":1,"or_more":false},"dead_letters":{"number":0,"or_more":false},
            "due":{"number":0,"or_more":false},"stranded":{"number":0,"or_more":false},
            "dead_jobs":{"number":0,"or_more":false},"oldest_waiting":"2018-03-01T11:19:00Z"}"#
    );
    const REQUESTS: &str = told!(
        r#"{"rows":[{"id":"a","waiting_since":"2018-03-01T11:19:00Z",
            "next_at":"2018-03-01T12:12:00Z"}],"next":null,"searched_to":null}"#
    );
    const FOUND: &str =
        told!(r#"{"id":"a","created_at":"2018-03-01T11:19:00Z","next_at":"2018-03-01T12:12:00Z"}"#);
    const SHOWN: &str = told!(
        r#"{"request":{"id":"a"},"jobs":[{"id":"b","staged_at":"2018-03-01T11:19:00Z",
            "next_at":"2018-03-01T12:12:00Z"}]}"#
    );
    const JOBS: &str = told!(
        r#"{"rows":[{"id":"b","staged_at":"2018-03-01T11:19:00Z",
            "next_at":"2018-03-01T12:12:00Z"}],"next":null,"searched_to":null}"#
    );
    const A_JOB: &str = told!(r#"{"id":"b","staged_at":"2018-03-01T11:19:00Z","next_at":null}"#);
    const PAUSES: &str = told!(
        r#"{"rows":[{"definition":"d","phase":"p","paused_at":"2018-03-01T11:19:00Z",
            "ends_at":"2018-03-01T12:12:00Z"}]}"#
    );
    const DEFINITIONS: &str =
        told!(r#"{"rows":[{"definition":"d","oldest":"2018-03-01T11:19:00Z"}]}"#);
    const NODES: &str = told!(r#"{"rows":[{"id":"n","seen_at":"2018-03-01T11:19:00Z"}]}"#);
    const ACTS: &str = told!(
        r#"{"rows":[{"id":"c","at":"2018-03-01T11:19:00Z"}],"next":null,"searched_to":null}"#
    );
    const BULKS: &str = told!(
        r#"{"rows":[{"id":"e","started_at":"2018-03-01T11:19:00Z"}],"next":null,"searched_to":null}"#
    );
    const BULK: &str = told!(r#"{"id":"e","started_at":"2018-03-01T11:19:00Z","refusals":[]}"#);
    let run = Run::on(&[
        "--url",
        &service(&[
            ("GET /overview ", WAITS),
            ("POST /requests/search ", REQUESTS),
            ("POST /requests/find ", FOUND),
            ("GET /requests/a ", SHOWN),
            ("GET /jobs?", JOBS),
            ("GET /jobs/b ", A_JOB),
            ("GET /pauses ", PAUSES),
            ("GET /definitions ", DEFINITIONS),
            ("GET /nodes ", NODES),
            ("GET /audit?", ACTS),
            ("GET /bulk?", BULKS),
            ("GET /bulk/e ", BULK),
        ]),
    ]);
    let asked: [(&[&str], bool); 12] = [
        (&["status"], false),
        (&["list"], true),
        (&["find", "--scope", "tenant-1"], true),
        (&["show", "a"], true),
        (&["jobs", "list"], true),
        (&["jobs", "show", "b"], false),
        (&["pauses"], true),
        (&["definitions"], false),
        (&["nodes"], false),
        (&["audit"], false),
        (&["bulk", "list"], false),
        (&["bulk", "show", "e"], false),
    ];
    for (words, has_a_wait) in asked {
        let (_, told, said) = run.with("k", words);
        assert_eq!(told.matches("41m ago").count(), 1, "{words:?}: {told}{said}");
        assert_eq!(told.contains("in 12m"), has_a_wait, "{words:?}: {told}{said}");
    }
}

/// A service that could not ask the database answers without its time.
#[test]
fn ages_by_the_clock_of_the_terminal_are_said_to_be_so_once() {
    const JSON: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
         {\"rows\":[{\"definition\":\"d\",\"phase\":\"p\",\"paused_at\":\"2018-03-01T11:19:00Z\"},\
         {\"definition\":\"e\",\"phase\":\"q\",\"paused_at\":\"2018-03-01T11:19:00Z\"}]}";
    let run = Run::on(&["--url", &service(&[("GET /pauses ", JSON)])]);
    let (code, told, said) = run.with("", &["pauses"]);
    assert_eq!((code, told.matches("d ago").count()), (0, 2), "{told}{said}");
    assert_eq!(said.matches("ages are by this machine's clock").count(), 1, "{said}");
    let (code, told, said) = run.with("", &["pauses", "-o", "jsonl"]);
    assert_eq!((code, said.as_str()), (0, ""), "it tells no age: {told}");
}

/// What a service answers to a look at the request of an act.
const A_REQUEST: (&str, &str) = (
    "GET ",
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\netag: \"v\"\r\nconnection: close\r\n\r\n{\"id\":\"a\"}",
);

/// The answer to an act breaks off: the outcome of the act is unknown.
#[test]
fn an_answer_that_breaks_off_says_where_to_find_the_act() {
    let run = Run::on(&[
        "--url",
        &service(&[
            A_REQUEST,
            (
                "POST ",
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"outc",
            ),
        ]),
    ]);
    let (code, told) =
        run.told(&["retry", "00000000-0000-4000-8000-000000000000", "--reason", "r"]);
    assert_eq!((code, told.contains("is in the audit")), (1, true), "{told}");
}

/// A request that another transaction holds: a script tries again later.
#[test]
fn what_is_in_use_is_tried_again_later() {
    let run = Run::on(&[
        "--url",
        &service(&[
            A_REQUEST,
            (
                "POST ",
                "HTTP/1.1 409 Conflict\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
             connection: close\r\n\r\n{\"code\":\"in_use\",\"title\":\"The request is in use\",\
             \"detail\":\"The request is in use: try again.\"}",
            ),
        ]),
    ]);
    let id = "00000000-0000-4000-8000-000000000000";
    for act in [
        &["erase", id, "--yes", "--reason", "r"][..],
        &["resolve", id, "finish", "--status", "200", "--reason", "r"],
    ] {
        let (code, told) = run.told(act);
        assert_eq!((code, told.contains("in use: try again")), (7, true), "{act:?}: {told}");
    }
}
