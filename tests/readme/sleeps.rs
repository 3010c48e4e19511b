//! Tests wait for facts: `until` and `answer_within` of `tests/support`, fault points, channels. A test that sleeps for a
//! fact passes on one machine and fails on another. Where time itself has to pass, or something takes time, the file is on
//! this list with the reason.

use std::collections::BTreeMap;

use super::files;
use super::imports::code;

/// What waits for servers and processes to start and end, and delays what passes through a proxy; and virtual time.
const FOLDERS: [&str; 2] = ["tests/support/", "tests/simulation/"];

/// Faults in random moments, and clients that wait between two tries.
const LOAD: &str = "load";
/// A lease, a window or a time limit has to end, or to be outlived.
const ENDS: &str = "time that has to pass";
/// A phase, a call, a job or a provider takes that long.
const TAKES: &str = "work that takes time";
/// Nothing is to happen: only time shows it.
const NOTHING: &str = "nothing happens in it";
/// Virtual time, as in the simulation.
const VIRTUAL: &str = "virtual time";

/// How often each file sleeps, and why.
const SLEEPS: [(&str, &[(usize, &str)]); 38] = [
    ("cli/tests/runbooks.rs", &[(1, "its `until`, without a runtime")]),
    ("otel/tests/story.rs", &[(1, "its `until`, in a package that is tested without the others")]),
    ("tests/commits/batch_parts.rs", &[(1, "the server reports its statistics late"), (1, ENDS)]),
    ("tests/commits/infrastructure_faults.rs", &[(1, "it polls within a phase")]),
    ("tests/commits/lease.rs", &[(2, TAKES)]),
    ("tests/commits/mysql_faults.rs", &[(1, LOAD)]),
    ("tests/commits/mysql_prepared.rs", &[(2, "the server is short of statements for so long")]),
    ("tests/commits/mysql_sessions.rs", &[(1, "a call meets a lock that nothing shows")]),
    ("tests/commits/mysql_waits.rs", &[(1, NOTHING), (1, "replays go on for as long as a backup")]),
    ("tests/commits/races.rs", &[(1, ENDS), (1, LOAD)]),
    ("tests/commits/sessions.rs", &[(1, "a connection grows old")]),
    ("tests/commits/suspends.rs", &[(1, ENDS)]),
    ("tests/commits/time_limits.rs", &[(2, TAKES)]),
    ("tests/commits/visits.rs", &[(2, TAKES)]),
    ("tests/commits/waits.rs", &[(1, NOTHING)]),
    ("tests/commits/windows.rs", &[(3, TAKES)]),
    ("tests/console/browser_live.rs", &[(4, NOTHING)]),
    ("tests/http/health.rs", &[(1, "an answer is kept for a second")]),
    ("tests/migrations/locks.rs", &[(1, NOTHING)]),
    ("tests/migrations/mod.rs", &[(1, "requests go on between two tries for a lock")]),
    ("tests/processes/abandoned.rs", &[(1, LOAD)]),
    ("tests/processes/clock.rs", &[(1, LOAD), (1, "a server reads its clock once a second")]),
    ("tests/processes/frozen.rs", &[(1, LOAD)]),
    ("tests/processes/kill.rs", &[(2, LOAD)]),
    ("tests/processes/partition.rs", &[(1, LOAD)]),
    ("tests/processes/soak.rs", &[(2, LOAD)]),
    ("tests/prometheus.rs", &[(1, "it polls Prometheus"), (1, "it ages rows"), (2, LOAD)]),
    ("tests/requests/begun_under.rs", &[(4, VIRTUAL)]),
    ("tests/requests/quota.rs", &[(2, TAKES), (3, VIRTUAL)]),
    ("tests/requests/redis_replays.rs", &[(1, "a server that answers slowly")]),
    ("tests/requests/replay_cache.rs", &[(1, NOTHING)]),
    (
        "tests/requests/resolve_after_faults.rs",
        &[(1, "a future is dropped at another moment each time")],
    ),
    ("tests/workers/background.rs", &[(1, NOTHING)]),
    ("tests/workers/claimed_ahead.rs", &[(1, NOTHING)]),
    ("tests/workers/jobs.rs", &[(1, ENDS), (4, VIRTUAL)]),
    ("tests/workers/no_connection.rs", &[(1, TAKES)]),
    ("tests/workers/single_polls.rs", &[(1, ENDS), (1, TAKES)]),
    ("tests/workers/young_requests.rs", &[(1, ENDS), (2, VIRTUAL)]),
];

/// How often a file sleeps. A method of that name is another thing, and so is the function of a database.
fn sleeps(text: &str) -> usize {
    let code = code(text);
    let calls = code.match_indices("sleep(").filter(|(at, _)| {
        let before = &code[..*at];
        let is_longer = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.';
        !before.ends_with(is_longer) && !before.ends_with("fn ")
    });
    calls.count()
}

#[test]
fn each_sleep_of_a_test_has_a_reason() {
    let mut tests = Vec::new();
    for below in ["tests", "cli/tests", "otel/tests"] {
        files(below, &[".rs"], &mut tests);
    }
    assert!(tests.len() > 250, "{}", tests.len());
    let found: BTreeMap<String, usize> = tests
        .iter()
        .map(|(path, text)| (path.display().to_string(), sleeps(text)))
        .filter(|(path, times)| {
            *times > 0 && !FOLDERS.iter().any(|folder| path.starts_with(folder))
        })
        .collect();
    let listed: BTreeMap<String, usize> = SLEEPS
        .iter()
        .map(|(path, reasons)| ((*path).to_owned(), reasons.iter().map(|(times, _)| times).sum()))
        .collect();
    assert_eq!(found, listed, "wait for a fact, or say on the list why time has to pass");
}

#[test]
fn a_sleep_is_seen_in_each_form() {
    for text in [
        "tokio::time::sleep(ms(10)).await;",
        "    std::thread::sleep(Duration::from_secs(1));",
        "() = sleep(rest) => {}",
    ] {
        assert_eq!(sleeps(text), 1, "{text}");
    }
    for text in [
        "\"SELECT pg_sleep(30)\"",
        "// sleep(1)",
        "self.sleep(batch, self.first);",
        "fn sleep(&self) {",
    ] {
        assert_eq!(sleeps(text), 0, "{text}");
    }
}
