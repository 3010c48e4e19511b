//! The three ways in: a database without the application's code, a service, and the application itself.

use super::told_alike::asks_and_acts_after;
use super::*;

pub(super) const OPERATING: &str = include_str!("../../../docs/operating.md");

/// The commands that work on a database, as the page lists them.
fn on_a_database() -> BTreeSet<String> {
    let page = OPERATING.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, said) = page.split_once("what needs none of the application's code:").unwrap();
    let (said, _) = said.split_once("What needs it").unwrap();
    let names = said.split('`').skip(1).step_by(2).filter(|name| *name != "stranded");
    names.map(|name| name.split(' ').next().unwrap().to_owned()).collect()
}

/// Each of them is run: none lacks a permission, and none asks for the application's code.
fn does_what_needs_no_code(run: &Run) {
    let (dead, finished) = (run.id("dead_letter"), run.id("finished"));
    let none = "00000000-0000-4000-8000-000000000000";
    let because = ["--reason", "r"];
    let bulk = ["bulk", "retry", "--state", "dead_letter", "--because", "r", "--yes"];
    let commands: [(i32, Vec<&str>); 16] = [
        (6, vec!["status"]),
        (0, vec!["list"]),
        (4, vec!["find", "--scope", "tenant-1"]),
        (0, vec!["show", &dead]),
        (0, vec!["why", &dead]),
        (0, vec!["definitions"]),
        (0, vec!["nodes"]),
        (5, [&["retry", &finished][..], &because].concat()),
        (4, [&["erase", none, "--yes"][..], &because].concat()),
        (0, vec!["pauses"]),
        (0, [&["unpause", "pilots.call", "called"][..], &because].concat()),
        (0, bulk.to_vec()),
        (0, vec!["jobs", "list"]),
        (4, vec!["jobs", "show", none]),
        (0, vec!["audit"]),
        (0, vec!["migrate", "status"]),
    ];
    for (ends, words) in &commands {
        let (code, out, said) = run.with("none\n", words);
        assert_eq!(code, *ends, "{words:?}: {out}{said}");
        assert!(!said.contains("only the application"), "{words:?}: {said}");
        let was_already = out == "already\n" && words[0] == "unpause";
        assert_eq!(said.contains("no phase of these names"), was_already, "{words:?}: {said}");
    }
    let run_by_now: BTreeSet<String> =
        commands.iter().map(|(_, words)| words[0].to_owned()).collect();
    assert_eq!(run_by_now, on_a_database(), "what docs/operating.md lists");
    // No worker is running that would do it.
    let (_, bulk) = run.told(&["bulk", "list", "-o", "ids"]);
    let stop = ["bulk", "stop", bulk.trim(), "--reason", "a slip"];
    assert_eq!(run.told(&stop), (0, "applied\n".to_owned()));
}

/// A command that needs the application's code says so, and what to use instead.
fn says_what_needs_code(run: &Run) {
    let id = run.id("finished");
    for arguments in [
        &["reveal", &id, "--what", "key", "--reason", "r"][..],
        &["reveal", &id, "--what", "derived-key", "--reason", "r"],
        &["resolve", &id, "executed", "--phase", "called", "--output", "1", "--reason", "r"],
        &["resolve", &id, "not-executed", "--phase", "called", "--attempt", "1", "--reason", "r"],
        &["resolve", &id, "finish", "--status", "410", "--reason", "r"],
        &["list", "--stranded"],
        &["pause", "pilots.call", "called", "--reason", "r"],
    ] {
        let (code, told) = run.told(arguments);
        assert_eq!(code, 2);
        assert!(told.contains("--url"), "{told}");
    }
}

/// What the application's code makes possible: with a service, and inside of the application.
pub(super) fn does_what_needs_code(run: &Run) {
    let finished = run.id("finished");
    let reveal = |what| run.told(&["reveal", &finished, "--what", what, "--reason", "ticket 7"]);
    let (code, told) = reveal("parameters");
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("9007199254740993"), "a number keeps its digits: {told}");
    assert_eq!(reveal("key"), (0, "tenant-1\nfine\n".to_owned()));
    let pause = ["pause", "pilots.call", "called", "--for", "2h", "--reason", "the line is cut"];
    let (code, told) = run.told(&pause.map(|word| if word == "2h" { "0s" } else { word }));
    assert_eq!((code, told.contains("a second at least")), (2, true), "{told}");
    assert_eq!(run.told(&pause), (0, "applied\n".to_owned()));
    let (code, told, said) = run.with("", &pause);
    assert_eq!((code, &*told), (5, ""), "{said}");
    assert!(
        said.contains("has changed") && said.contains("note: it is paused; `pauses` "),
        "{said}"
    );
    let seen = pause_version(run);
    let (code, told, said) = run.with("", &[&pause[..], &["--version", &seen]].concat());
    assert_eq!((code, &*told), (0, "applied\n"), "{said}");
    assert!(said.contains("note: it replaced the pause by ada"), "{said}");
    let (code, told) = run.told(&["pauses"]);
    assert_eq!((code, told.lines().count()), (0, 2), "{told}");
    assert!(told.contains("pilots.call  called") && told.contains("the line is cut"), "{told}");
    let (_, told) = run.told(&["pauses", "-o", "ids"]);
    assert_eq!(told, "pilots.call called\n", "as `unpause` takes it");
    let (_, told) = run.told(&["definitions", "-o", "ids"]);
    assert!(told.lines().any(|line| line == "pilots.call@1"), "{told}");
    let unpause = ["unpause", "pilots.call", "called", "--reason", "it is mended"];
    assert_eq!(run.told(&unpause), (0, "applied\n".to_owned()));
    assert_eq!(run.told(&unpause), (0, "already\n".to_owned()));
    let pause = ["pause", "pilots.call", "noted", "--reason", "r"];
    assert_eq!(run.told(&pause).0, 4, "a local phase is none");
    let unknown = run.id("unknown");
    let executed = |output| {
        let words = ["executed", "--phase", "called", "--output", output, "--reason", "r"];
        run.told(&[&["resolve", &*unknown][..], &words].concat())
    };
    let (code, told) = executed("{\"number\":1}");
    assert_eq!(code, 5, "{told}");
    let says = "The output cannot be read as what the phase returns: missing field `id`.";
    assert!(told.contains(says), "{told}");
    // As `asks_and_acts` finds it.
    let (code, told) = run.told(&["list", "--stranded"]);
    assert_eq!(code, 0, "{told}");
}

/// The second way: everything that needs no code.
pub(super) fn on_a_database_alone(run: &Run) {
    says_what_needs_code(run);
    does_what_needs_no_code(run);
    let acts = run.told(&["audit", "-o", "jsonl"]).1.lines().count();
    asks_and_acts_after(run, acts);
}

/// The third way: everything, without a service.
async fn inside_of_an_application<S: Store>(url: &str, store: S) {
    let engine = with_requests(store).await;
    let run = Run::inside(url);
    let (code, told) = run.told(&["list", "--stranded"]);
    assert_eq!((code, told.lines().count()), (0, 1), "the head alone: {told}");
    does_what_needs_code(&run);
    // Its own audit is as long as that of the others.
    let acts = run.told(&["audit", "-o", "jsonl"]).1.lines().count();
    assert_eq!(acts, 9, "two reveals, two pauses, an end, three refused pauses, a refused word");
    asks_and_acts_after(&run, acts);
    assert!(matches!(call(&engine, "unknown", End::Unknown).await, Outcome::Erased));
    let (code, told) = run.told(&["migrate", "status"]);
    assert_eq!((code, &*told), (0, "no migration is missing\n"));
    for arguments in [&["status", "--url", "http://localhost"][..], &["config"], &["man"]] {
        assert_eq!(run.told(arguments).0, 2, "{arguments:?} is the program's alone");
    }
    let (code, told) = run.told(&["--help"]);
    assert!(
        code == 0 && told.contains("Exit codes: 0 fine") && told.contains("Usage: application ops"),
        "{told}"
    );
}

#[tokio::test]
async fn an_application_on_sqlite_has_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("app.db").display());
    inside_of_an_application(&url, Sqlite::connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn an_application_on_postgresql_has_every_command() {
    let url = cluster::new_database();
    inside_of_an_application(&url, Postgres::connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn an_application_on_mariadb_has_every_command() {
    let url = mariadb::new_database();
    inside_of_an_application(&url, Mysql::connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn an_applications_operator_may_what_the_application_says() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("app.db").display());
    let engine = with_requests(Sqlite::connect(&url).await.unwrap()).await;
    let ids = Run::inside(&url).id("dead_letter");
    let ended = async |may, scopes, words: &[&str]| {
        let actor = Actor::new("ada", may, scopes).unwrap();
        let words = ["myapp ops"].into_iter().chain(words.iter().copied());
        format!("{:?}", atomic_phases_cli::operate(&engine, actor, words).await)
    };
    let code = |code: u8| format!("{:?}", ExitCode::from(code));
    let retry = ["retry", &*ids, "--reason", "r"];
    assert_eq!(ended(Permissions::viewer(), Scopes::All, &["status"]).await, code(6));
    assert_eq!(ended(Permissions::viewer(), Scopes::All, &retry).await, code(3));
    let others = || Scopes::Prefix("tenant-2".to_owned());
    assert_eq!(ended(Permissions::admin(), others(), &["status"]).await, code(0));
    assert_eq!(ended(Permissions::admin(), others(), &retry).await, code(4));
    assert_eq!(ended(Permissions::admin(), Scopes::All, &["retri"]).await, code(2));
    assert_eq!(ended(Permissions::admin(), Scopes::All, &["--help"]).await, code(0));
    assert_eq!(ended(Permissions::responder(), Scopes::All, &retry).await, code(0));
}

#[tokio::test]
async fn what_waits_in_a_sqlite_file_is_told_and_settled() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    let engine = with_requests(Sqlite::connect(file.to_str().unwrap()).await.unwrap()).await;
    let run = Run::on(&["--database-url", &format!("sqlite://{}", file.display())]);
    on_a_database_alone(&run);
    // What needs the application's code was refused there; the application makes the next attempt of the other.
    assert!(matches!(call(&engine, "unknown", End::Unknown).await, Outcome::Unknown { .. }));
    assert!(matches!(call(&engine, "dead", End::Refused).await, Outcome::DeadLetter));
}

#[tokio::test]
async fn what_waits_in_postgresql_is_told_and_settled() {
    let url = cluster::new_database();
    let _engine = with_requests(Postgres::connect(&url).await.unwrap()).await;
    let run = Run::on(&["--database-url", &url]);
    on_a_database_alone(&run);
}

#[tokio::test]
async fn what_waits_in_mariadb_is_told_and_settled() {
    let url = mariadb::new_database();
    let _engine = with_requests(Mysql::connect(&url).await.unwrap()).await;
    let run = Run::on(&["--database-url", &url]);
    on_a_database_alone(&run);
}
