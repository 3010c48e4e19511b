//! What every way in tells and does alike.

use super::*;

/// What all three ways print and do in the same way, with some acts done before.
pub(super) fn asks_and_acts_after(run: &Run, acts_before: usize) {
    let (code, told) = run.told(&["status"]);
    assert_eq!(code, 6, "{told}");
    assert!(told.starts_with("waiting     1 unknown, 1 dead letters; oldest "), "{told}");
    assert!(told.contains("\ndue         0 or more\n"), "{told}");
    assert!(told.ends_with("dead jobs   0\nlate jobs   0\n"), "{told}");
    let (_, _, said) = run.with("", &["status"]);
    assert!(said.contains("note: no process has announced itself"), "{said}");

    let (code, told) = run.told(&["list"]);
    assert_eq!((code, told.lines().count()), (0, 4), "{told}");
    let head: Vec<&str> = told
        .lines()
        .next()
        .unwrap()
        .split("  ")
        .filter(|head| !head.is_empty())
        .map(str::trim)
        .collect();
    assert_eq!(
        head,
        ["REQUEST", "DEFINITION", "STATE", "AT PHASE", "WHY", "ATTEMPT", "SINCE", "NEXT"]
    );
    let (_, told) = run.told(&["list", "--state", "unknown"]);
    assert!(told.contains("pilots.call v1  unknown  called    no answer  1"), "{told}");
    // Without code nothing is stranded, and no process runs.
    let (code, told) = run.told(&["definitions"]);
    assert!(
        code == 0 && told.contains("pilots.call v1  noted called answered  0"),
        "{code} {told}"
    );
    let (code, told) = run.told(&["nodes"]);
    assert_eq!((code, told.lines().count()), (0, 1), "the head alone: {told}");
    let (_, told) = run.told(&["list", "--scope", "tenant-2", "-o", "json"]);
    assert_eq!(told, "[]\n");
    let (_, told) = run.told(&["list", "--limit", "2", "-o", "jsonl"]);
    assert_eq!(told.lines().count(), 2);
    let rows = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    assert!(rows.clone().all(|row| row["definition"] == "pilots.call"));

    let (unknown, dead) = (run.id("unknown"), run.id("dead_letter"));
    let (code, told) = run.told(&["why", &unknown]);
    assert_eq!(code, 0);
    assert!(told.starts_with("Whether the call of `called` was executed is unknown: no answer; its reconcile function is asked at "), "{told}");
    let (code, told) = run.told(&["show", &unknown]);
    assert_eq!(code, 0);
    assert!(told.contains("noted     local         committed\n"), "{told}");
    assert!(told.contains("called    at_most_once  call without an outcome\n"), "{told}");
    assert!(told.contains("attempt 1 at called: no answer\n"), "{told}");
    assert!(!told.contains("tenant-1"), "{told}");
    let (code, told, _) = run.with("dead\n", &["find", "--scope", "tenant-1", "-o", "ids"]);
    assert_eq!((code, told.trim()), (0, dead.as_str()));

    assert_eq!(run.told(&["show", "00000000-0000-4000-8000-000000000000"]).0, 4);
    for no_id in ["../overview", &dead[..8]] {
        let (code, told) = run.told(&["show", no_id]);
        assert_eq!((code, told.contains("36 characters")), (4, true), "{told}");
    }
    misspelt(run);
    assert_eq!(run.told(&["retry", &dead]).0, 2, "an act needs a reason");
    assert_eq!(run.told(&["erase", &dead, "--reason", "r"]).0, 2, "an erasure needs a word more");

    // An act on the seen version, which `show` prints.
    let seen = version(run, &unknown);
    let (_, told) = run.told(&["list", "--state", "unknown", "-o", "jsonl"]);
    assert!(told.contains(&format!("\"version\":\"{seen}\"")), "{told}");
    let two = ["retry", &dead, &unknown, "--version", &seen, "--reason", "r"];
    assert_eq!(run.told(&two).0, 2, "a version is of one");
    for other in [&seen, "", "no/version", "0\r\nx: y"] {
        let (code, told) =
            run.told(&["retry", &dead, "--version", other, "--reason", "by version"]);
        assert!(code == 5 && told.contains("has changed"), "{code} {told}");
    }

    // Some of several are refused, each with the reason.
    let ids = format!("{dead}\n{unknown}\n");
    let (code, told, said) = run.with(&ids, &["retry", "-", "--reason", "the line is up"]);
    assert_eq!((code, told), (8, format!("{dead} applied\n")));
    assert!(said.starts_with(&format!("{unknown} The act was refused: ")), "{said}");
    let (code, told) = run.told(&["retry", &dead, "--reason", "once more"]);
    assert_eq!((code, told), (0, format!("{dead} already\n")));
    let (code, _) = run.told(&["retry", &unknown, "--reason", "r"]);
    assert_eq!(code, 5);

    if run.has_code() {
        finishes_and_erases(run, &unknown, &seen);
    }

    let expected = [
        ("erase", "applied", "ada"),
        ("erase", "refused", "ada"),
        ("resolve.finish", "applied", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "already", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "applied", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "refused", "ada"),
        ("retry", "refused", "ada"),
    ];
    let (code, told) = run.told(&["audit", "-o", "jsonl"]);
    assert_eq!(code, 0);
    let acts: Vec<serde_json::Value> =
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let acts: Vec<(&str, &str, &str)> = acts
        .iter()
        .map(|act| ["act", "outcome", "actor"].map(|name| act[name].as_str().unwrap()).into())
        .collect();
    // The last three acts need the application's code.
    let expected = &expected[if run.has_code() { 0 } else { 3 }..];
    assert_eq!(acts.len(), expected.len() + acts_before);
    assert_eq!(&acts[..expected.len()], expected);
    let count = |words: &[&str]| {
        let (code, told) = run.told(&[&["audit", "-o", "jsonl"][..], words].concat());
        assert_eq!(code, 0, "{told}");
        told.lines().count()
    };
    let retries = acts.iter().filter(|(act, ..)| *act == "retry").count();
    assert_eq!(count(&["--act", "retry"]), retries);
    assert_eq!(count(&["--act", "retry", "--request", &dead, "--actor", "ada"]), 6);
    assert_eq!(count(&["--actor", "ada & bob", "--act", "reveal"]), 0);
    let (code, told) = run.told(&["audit", "--act", "retries"]);
    assert!(code == 2 && told.contains("job.retry"), "{code} {told}");
    let waits = if run.has_code() { 0 } else { 6 };
    assert_eq!(run.told(&["status"]).0, waits, "nothing waits any more, or the unknown one");
}

fn finishes_and_erases(run: &Run, unknown: &str, seen: &str) {
    let finish = [
        "resolve",
        unknown,
        "finish",
        "--status",
        "409",
        "--header",
        "content-type: text/plain",
        "--body",
        "by hand",
        "--reason",
        "ticket 7",
        "--version",
        seen,
    ];
    assert_eq!(run.told(&finish), (0, format!("{unknown} applied\n")));
    // The reply's body, and how long it is: the operator may see values.
    let given = "7 bytes, SHA-256 c9616cb59d02c9ee41e1bd3f02c60ee7ca83b44ecf5719ced43f1a14e0391ed9";
    let (_, told) = run.told(&["audit", "--request", unknown, "--act", "resolve.finish"]);
    assert!(told.trim_end().ends_with(given), "{told}");
    let (_, told) = run.told(&["show", unknown]);
    assert!(told.contains(&format!("applied by ada ({given}): ticket 7\n")), "{told}");
    // Another operator has read it, too, before it was finished.
    let erase = ["erase", unknown, "--yes", "--reason", "asked by its owner", "--version", seen];
    let (code, told) = run.told(&erase);
    assert!(code == 5 && told.contains("has changed"), "{code} {told}");
    let (code, told) = run.told(&["erase", unknown, "--yes", "--reason", "asked by its owner"]);
    assert_eq!((code, told), (0, format!("{unknown} applied\n")));
}

/// A misspelt word is never answered as if nothing were stuck.
pub(super) fn misspelt(run: &Run) {
    for (name, wrong) in [
        ("--state", "unknown,stuck"),
        ("--older-than", "5x"),
        ("--waiting-for", "m"),
        ("--limit", "0"),
    ] {
        let (code, _, said) = run.with("", &["list", name, wrong]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(name) && !said.contains("line 1"), "{said}");
    }
    let note = |words: &[&str]| {
        let (code, out, said) = run.with("", &[&["list"][..], words].concat());
        assert_eq!((code, out.lines().count()), (0, 1), "the head alone: {out}");
        said
    };
    for words in [["--definition", "pilot.call"], ["--phase", "caled"]] {
        let said = note(&words);
        let known = said.contains("pilots.call v1") && said.contains(words[1]);
        assert!(said.starts_with("note: no process") && known, "{said}");
    }
    let fine = ["--definition", "pilots.call", "--phase", "called", "--state", "running"];
    assert_eq!(note(&fine), "", "these are there, and none of them runs");
}
