//! Lists of many rows, and acts on the version that was seen.

use atomic_phases::ForeignCall;
use atomic_phases::phase::{DerivedKey, ForeignError};

use super::*;

/// A reader of only the first line (`| head -1`), and a full disk.
#[tokio::test]
async fn a_reader_who_goes_ends_no_act_half_way() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let _engine = with_requests(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    let dead = run.id("dead_letter");
    let to = |out: Stdio, is_read: bool, arguments: &[&str]| {
        let mut command = Command::new(&run.program);
        command.env("USER", "ada").env("XDG_CONFIG_HOME", "/nonexistent").args(&run.way);
        let spawned =
            command.args(arguments).stdin(Stdio::piped()).stdout(out).stderr(Stdio::piped());
        let mut child = spawned.spawn().unwrap();
        if !is_read {
            drop(child.stdout.take());
        }
        let ids = format!("{dead}\n{dead}\n");
        let _ = child.stdin.take().unwrap().write_all(ids.as_bytes());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let retry = ["retry", "-", "--reason", "the line is up"];
    assert_eq!(to(Stdio::piped(), false, &retry), (Some(0), String::new()));
    let outcomes = |told: &str| told.matches(r#""act":"retry""#).count();
    assert_eq!(outcomes(&run.told(&["audit", "-o", "jsonl"]).1), 2, "each of both was done");
    for arguments in
        [&["list"][..], &["show", &dead, "-o", "json"], &["man"], &["completions", "bash"]]
    {
        assert_eq!(to(Stdio::piped(), false, arguments), (Some(0), String::new()), "{arguments:?}");
    }
    if cfg!(target_os = "linux") {
        let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let (code, said) = to(full(), true, &["list", "-o", "ids"]);
        assert_eq!((code, said.contains("could not be written")), (Some(1), true), "{said}");
    }
}

#[tokio::test]
async fn a_limit_is_kept_over_several_pages() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let engine = with_requests(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    let ada = Actor::new("ada", Permissions::admin(), Scopes::All).unwrap();
    let dead = Selection::Filter(Filter::new().states([State::DeadLetter]));
    // A page of bulk acts has a hundred.
    for _ in 0..205 {
        let _ = engine.ops(ada.clone()).start_bulk(BulkAct::Retry, &dead, 1, "r").await.unwrap();
    }
    for (limit, lines, is_all) in [("100", 100, false), ("203", 203, false), ("900", 205, true)] {
        let (code, told, said) = run.with("", &["bulk", "list", "--limit", limit, "-o", "ids"]);
        let ids: BTreeSet<&str> = told.lines().collect();
        assert_eq!((code, told.lines().count(), ids.len()), (0, lines, lines), "{limit}");
        assert_eq!(said.is_empty(), is_all, "{limit}: {said}");
    }
    let (mut ids, mut after, mut lines) = (BTreeSet::new(), None::<String>, Vec::new());
    loop {
        let on = after.take();
        let on: Vec<&str> = on.iter().flat_map(|cursor| ["--after", cursor.as_str()]).collect();
        let list = [&["bulk", "list", "--limit", "100", "-o", "ids"][..], &on].concat();
        let (code, told, said) = run.with("", &list);
        assert_eq!(code, 0, "{said}");
        lines.push(told.lines().count());
        ids.extend(told.lines().map(ToOwned::to_owned));
        if said.is_empty() {
            break;
        }
        after = Some(cursor(&said).to_owned());
    }
    assert_eq!((lines, ids.len()), (vec![100, 100, 5], 205), "each once");
}

/// As an operator with some scopes sees it, whose rows come after ten thousand rows of other scopes.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_behind_ten_thousand_rows_of_others_is_reached() {
    use axum::routing::{get, post};
    fn page(cursor: Option<&str>) -> &'static str {
        match cursor {
            None => r#"{"rows":[],"next":"-b_9","searched_to":"2026-11-22T12:00:00.000000Z"}"#,
            Some("-b_9") => r#"{"rows":[{"id":"a"}],"next":null,"searched_to":null}"#,
            Some(_) => "none of ours",
        }
    }
    let search = async |body: String| {
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        page(body["cursor"].as_str())
    };
    let list = async |uri: axum::http::Uri| {
        let mut parts = uri.query().unwrap_or_default().split('&');
        page(parts.find_map(|part| part.strip_prefix("cursor=")))
    };
    let mut routes = axum::Router::new().route("/requests/search", post(search));
    for path in ["/jobs", "/bulk", "/audit"] {
        routes = routes.route(path, get(list));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });
    let checked = tokio::task::spawn_blocking(move || {
        let run = Run::on(&["--url", &url]);
        let lists: [&[&str]; 5] = [
            &["list"],
            &["jobs", "list"],
            &["bulk", "list"],
            &["audit"],
            &["audit", "--request", "7"],
        ];
        for list in lists {
            let list = [list, &["-o", "ids"]].concat();
            let (code, told, said) = run.with("", &list);
            assert_eq!((code, told.as_str()), (0, ""), "{list:?}: {said}");
            assert!(said.contains("ten thousand") && said.contains("2026-11-22T12"), "{said}");
            let on = [&list[..], &["--after", cursor(&said)]].concat();
            assert_eq!(run.with("", &on), (0, "a\n".to_owned(), String::new()), "{list:?}");
        }
    });
    checked.await.unwrap();
    server.abort();
}

/// The command that should have listed the ids may have failed.
#[tokio::test]
async fn to_have_done_nothing_for_want_of_ids_is_not_fine() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let _engine = with_requests(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    let acts: [&[&str]; 6] = [
        &["retry", "-", "--reason", "r"],
        &["erase", "-", "--yes", "--reason", "r"],
        &["jobs", "retry", "-", "--reason", "r"],
        &["jobs", "discard", "-", "--reason", "r"],
        &["bulk", "retry", "-", "--because", "r"],
        &["bulk", "erase", "-", "--because", "r", "--yes"],
    ];
    for act in acts {
        for input in ["", "\n  \n"] {
            let (code, out, said) = run.with(input, act);
            assert_eq!((code, out.as_str()), (4, ""), "{act:?}: {said}");
            assert!(said.contains("no id on the standard input"), "{act:?}: {said}");
        }
    }
    // A resolution is about one request, and the standard input may contain its output.
    let dead = run.id("dead_letter");
    let words: [&[&str]; 4] = [
        &["executed", "--phase", "called", "--output", "-"],
        &["not-executed", "--phase", "called", "--attempt", "1"],
        &["finish", "--status", "200", "--body", "-"],
        &["finish", "--status", "200"],
    ];
    for word in words {
        let word = [&["resolve", "-"], word, &["--reason", "r"]].concat();
        let (code, out, said) = run.with(&dead, &word);
        assert_eq!((code, out.as_str()), (2, ""), "{word:?}: {said}");
        assert!(said.contains("about one request"), "{word:?}: {said}");
    }
    assert_eq!(run.told(&["audit", "-o", "ids"]), (0, String::new()), "no act was done");
}

/// Only on the version that was seen; and once.
#[tokio::test]
async fn each_act_is_done_on_the_version_that_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("app.db").display());
    let engine = with_requests(Sqlite::connect(&url).await.unwrap()).await;
    let run = Run::inside(&url);
    let executed = ["executed", "--phase", "called", "--output", r#"{"id":7}"#];
    let not_executed = ["not-executed", "--phase", "called", "--attempt", "1"];
    let words: [(&str, &str, &[&str]); 4] = [
        ("dead_letter", "retry", &[]),
        ("finished", "erase", &["--yes"]),
        ("unknown", "resolve", &executed),
        ("unknown", "resolve", &not_executed),
    ];
    for (number, (state, act, more)) in words.into_iter().enumerate() {
        if number == 3 {
            assert!(matches!(call(&engine, "other", End::Unknown).await, Outcome::Unknown { .. }));
        }
        let id = run.id(state);
        let seen = version(&run, &id);
        let by = |version: &str| {
            let words = [&[act, &*id][..], more, &["--version", version, "--reason", "r"]];
            run.told(&words.concat())
        };
        let (code, told) = by("0a1b");
        assert!(code == 5 && told.contains("has changed"), "{act} {more:?}: {code} {told}");
        assert_eq!(by(&seen), (0, format!("{id} applied\n")), "{act} {more:?}");
        // The row has changed by now, but the resolution is already true. A second erasure finds what did not exist
        // the first time, and its version is the one from before.
        let again = if act == "erase" { "applied" } else { "already" };
        assert_eq!(version(&run, &id) == seen, act == "erase", "{act} {more:?}");
        assert_eq!(by(&seen), (0, format!("{id} {again}\n")), "{act} {more:?}");
    }
}

/// Another operator has replaced it, or ended it, since it was seen. Without a version, a pause replaces none, and the end
/// is of the pause that is listed.
#[tokio::test]
async fn a_pause_is_replaced_and_ended_on_the_version_that_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("app.db").display());
    let _engine = with_requests(Sqlite::connect(&url).await.unwrap()).await;
    let run = Run::inside(&url);
    let act = |act: &str, reason: &str, more: &[&str]| {
        run.told(&[&[act, "pilots.call", "called", "--reason", reason][..], more].concat())
    };
    let applied = (0, "applied\n".to_owned());
    assert_eq!(act("pause", "the line is cut", &[]), applied);
    let first = pause_version(&run);
    assert!(run.told(&["pauses"]).1.contains(&first), "the table has it, too");
    assert_eq!(act("pause", "once more", &[]).0, 5);
    assert_eq!(act("pause", "for longer", &["--version", &first]), applied);
    let second = pause_version(&run);
    for stale in [&*first, "0a1b", "no/version", ""] {
        for of in ["pause", "unpause"] {
            let (code, told) = act(of, "stale", &["--version", stale]);
            assert!(code == 5 && told.contains("has changed"), "{of} {stale}: {code} {told}");
        }
    }
    let (_, told) = run.told(&["pauses"]);
    assert!(told.contains(&second) && told.contains("for longer"), "nothing was done: {told}");
    // The pause of another phase may be of a phase that was renamed.
    let (code, told) = run.told(&["unpause", "pilots.call", "calls", "--reason", "r"]);
    assert!(code == 4 && told.contains("oldest name"), "{code} {told}");
    assert_eq!(act("unpause", "the line is up", &["--version", &second]), applied);
    for of in ["pause", "unpause"] {
        assert_eq!(act(of, "stale", &["--version", &second]).0, 5, "it has ended: {of}");
    }
    assert_eq!(act("unpause", "the line is up", &[]), (0, "already\n".to_owned()));
    assert_eq!(act("pause", "the line is cut", &[]), applied);
    assert_eq!(act("unpause", "the line is up", &[]), applied);
}

/// A build of a definition: whether it knows the earlier name of its phase.
macro_rules! build {
    ($name:ident $(, was $was:literal)?) => {
        #[derive(Serialize, Deserialize)]
        struct $name;

        #[atomic_phases(name = "pilots.renamed", version = 1)]
        impl<Db: Store> $name {
            #[phase(foreign(idempotent) $(, was = $was)?)]
            async fn charged(&self, call: ForeignCall) -> PhaseResult<(), ForeignError> {
                let _ = self;
                call.make(async |_: DerivedKey| Ok::<_, ForeignError>(())).await
            }

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
                let _ = (self, tx);
                Ok(Reply::new(204))
            }
        }
    };
}

build!(Renamed, was "paid");
build!(Newest);

/// Each build has paused the phase, under the oldest name that it knows.
#[tokio::test]
async fn the_end_of_one_of_two_pauses_says_that_the_phase_is_still_paused() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("app.db").display());
    let store = Sqlite::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let renamed = Engine::builder(store.clone()).register::<Renamed>().build().unwrap();
    let newest = Engine::builder(store).register::<Newest>().build().unwrap();
    for (engine, by) in [(&renamed, "bob"), (&newest, "ada")] {
        let ops = engine.ops(Actor::new(by, Permissions::admin(), Scopes::All).unwrap());
        ops.pause("pilots.renamed", "charged", None, "the bank is closed").await.unwrap();
    }
    // Says to a command without the application's code that both pauses are of one phase.
    Announcer::new(&renamed, WorkerConfig::default()).run_once().await.unwrap();
    let run = Run::on(&["--database-url", &url]);
    let unpause =
        |phase: &str| run.with("", &["unpause", "pilots.renamed", phase, "--reason", "it is open"]);
    let (code, told, said) = unpause("charged");
    assert_eq!((code, &*told), (0, "applied\n"), "{said}");
    let note = "note: the phase is still paused, under the name paid, by bob: end that pause, too";
    assert!(said.contains(note), "{said}");
    let (code, told, said) = unpause("paid");
    assert_eq!((code, &*told), (0, "applied\n"), "{said}");
    assert!(!said.contains("still paused"), "{said}");
    let (code, left, said) = run.with("", &["pauses", "-o", "ids"]);
    assert_eq!((code, &*left), (0, ""), "{said}");
}

#[tokio::test]
async fn a_job_is_retried_and_discarded_on_the_version_that_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let store = Sqlite::connect(file.to_str().unwrap()).await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).register::<Thank>().build().unwrap();
    for key in ["a", "b"] {
        let (scope, key) = (Scope::new("tenant-1").unwrap(), IdempotencyKey::new(key).unwrap());
        assert!(matches!(engine.call(&scope, &key, Thank).await, Ok(Outcome::Finished(_))));
    }
    let gives_up = Handlers::new()
        .on("mail", async |_: i64, _| Err(DeliveryError::dead("the mail server is away")));
    Enqueuer::new(&engine, gives_up, WorkerConfig::default()).run_once().await.unwrap();
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    let (_, told) = run.told(&["jobs", "list", "-o", "jsonl"]);
    let jobs: Vec<serde_json::Value> =
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let id = |job: usize| jobs[job]["id"].as_str().unwrap();
    assert_eq!(jobs.len(), 2, "{told}");
    let (code, told) = run.told(&["jobs", "show", id(0)]);
    let request = jobs[0]["request"].as_str().unwrap();
    assert!(code == 0 && told.contains(id(0)) && told.contains(request), "{code} {told}");
    assert!(told.contains("mail") && told.contains("the mail server is away"), "{told}");
    let (code, told) = run.told(&["jobs", "show", id(0), "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &shown), (0, &jobs[0]), "as in the list");
    let both = ["jobs", "retry", id(0), id(1), "--version", "1", "--reason", "r"];
    assert_eq!(run.told(&both).0, 2, "a version is of one");
    for (job, act) in ["retry", "discard"].into_iter().enumerate() {
        let (id, tries) = (id(job), jobs[job]["attempts"].to_string());
        assert_eq!(jobs[job]["version"].as_str(), Some(&*tries));
        let by = |version: &str| {
            run.told(&["jobs", act, id, "--version", version, "--reason", "the server is back"])
        };
        for other in ["99", "none"] {
            let (code, told) = by(other);
            assert!(code == 5 && told.contains("has changed"), "{act} {other}: {code} {told}");
        }
        assert_eq!(by(&tries), (0, format!("{id} applied\n")), "{act}");
        assert_eq!(by(&tries).0, 4, "{act}: it is not a dead job any more");
        assert_eq!(run.told(&["jobs", "show", id]).0, 4, "{act}");
    }
}

/// No sink handles its name: it is not a dead letter, and no list of requests has it.
#[tokio::test]
async fn a_job_that_no_node_takes_is_told_as_late() {
    let url = cluster::new_database();
    let store = Postgres::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).register::<Thank>().build().unwrap();
    let (scope, key) = (Scope::new("tenant-1").unwrap(), IdempotencyKey::new("a").unwrap());
    assert!(matches!(engine.call(&scope, &key, Thank).await, Ok(Outcome::Finished(_))));
    let run = Run::on(&["--database-url", &url]);
    let late = ["jobs", "list", "--state", "late"];
    let (code, told) = run.told(&["status"]);
    assert!(code == 0 && told.ends_with("late jobs   0\n"), "{code} {told}");
    for list in [&late[..2], &late] {
        let (code, told, said) = run.with("", list);
        assert_eq!((code, told.lines().count()), (0, 1), "{told}");
        assert!(!said.contains("late"), "{said}");
    }
    let minutes_ago = "SET run_after = staged_at - interval '2 minutes'";
    cluster::psql(&url, &format!("UPDATE atomic_phases_staged_jobs {minutes_ago}"));
    let (code, told) = run.told(&["status"]);
    assert!(code == 6 && told.ends_with("dead jobs   0\nlate jobs   1\n"), "{code} {told}");
    let (code, told, said) = run.with("", &["jobs", "list"]);
    assert_eq!((code, told.lines().count()), (0, 1), "{told}");
    assert!(said.contains("note: other jobs are late: jobs list --state late"), "{said}");
    let (code, told, said) = run.with("", &late);
    let is_told = told.lines().count() == 2 && told.contains("  mail  0 ");
    assert!(code == 0 && is_told, "{code} {told}");
    assert!(said.contains("taken by no node") && !said.contains("may be more"), "{said}");
    let (_, told, said) = run.with("", &[&late[..], &["--limit", "1", "-o", "ids"]].concat());
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(said.contains("there may be more"), "{said}");
    cluster::psql(&url, "UPDATE atomic_phases_staged_jobs SET reason = 'not here'");
    let (_, told, said) = run.with("", &late);
    assert!(told.contains("not here") && !said.contains("taken by no node"), "{told}{said}");
}
