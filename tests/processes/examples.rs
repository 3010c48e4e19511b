//! The examples that need no server do what README says of them: each line that they print is compared.

use std::process::Command;

use crate::support::process::example;

/// What it prints, with a folder of its own for its files.
fn printed(name: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(example(name)).env("TMPDIR", folder.path()).output().unwrap();
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{name}: {error}");
    let text = String::from_utf8(ran.stdout).unwrap();
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Each line begins so: behind it stand times.
#[track_caller]
fn begin(printed: &[String], lines: &[&str]) {
    let are_so = printed.iter().zip(lines).all(|(line, begin)| line.starts_with(begin));
    assert!(are_so && printed.len() == lines.len(), "{printed:#?}");
}

#[test]
fn g1_the_smallest_program_crashes_on_purpose_and_charges_once() {
    let printed = printed("quickstart");
    let key = printed.iter().find_map(|line| {
        line.strip_prefix("  the bank: ")?.strip_suffix(" is charged").map(str::to_owned)
    });
    let key = key.unwrap_or_else(|| panic!("no charge: {printed:#?}"));
    begin(
        &printed,
        &[
            "A first process:",
            "  ride_created: the ride is booked",
            &format!("  the bank: {key} is charged"),
            "  charged: and now the process dies",
            "A second process, with the same request and the same key:",
            &format!("  the bank: {key} is known, nothing to do"),
            "Finished(Finished { reply: Reply(201, ",
            "The bank's book:",
            &format!("  {key} 2000"),
        ],
    );
}

#[test]
fn g2_a_provider_without_keys_pays_once_and_its_outcome_is_settled_by_a_worker_or_an_operator() {
    begin(
        &printed("unknown_outcome"),
        &[
            "A bank that can be asked:",
            "  the bank: transfer 1 of 2500 cents is done",
            "  the client gets: Unknown {",
            "  a retry gets: Finished(Finished { reply: Reply(201, ",
            "  transfers at the bank: 1",
            "A bank that cannot be asked:",
            "  the bank: transfer 1 of 2500 cents is done",
            "  the client gets: Unknown {",
            "  the operator sees: sent is unknown, the bank's answer was lost;",
            "  the operator's resolution: Applied",
            "  a retry gets: Finished(Finished { reply: Reply(201, ",
            "  transfers at the bank: 1",
        ],
    );
}
