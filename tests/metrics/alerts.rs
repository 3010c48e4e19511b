//! The alert rules: each fires when it should and not otherwise, according to Prometheus' own tool; and each links
//! to its section of the runbooks.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use super::table::are_metrics;

const RULES: &str = include_str!("../../monitoring/alerts.yml");
const TESTS: [&str; 2] = [
    include_str!("../../monitoring/alerts.test.yml"),
    include_str!("../../monitoring/alerts.days.test.yml"),
];
const RUNBOOKS: &str = include_str!("../../docs/runbooks.md");

/// `None` where Prometheus' tool is not installed, which is said.
fn promtool(arguments: &[&str]) -> Option<Output> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring");
    match Command::new("promtool").current_dir(folder).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("not tested: promtool: {error}; `sh tests/run` installs it");
            None
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Names of the rules, each with its text.
fn alerts() -> Vec<(&'static str, &'static str)> {
    let rules = RULES.split("- alert: ").skip(1);
    let alerts: Vec<_> = rules.map(|rule| rule.split_once('\n').unwrap()).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    alerts
}

#[test]
fn each_alert_fires_ends_and_says_nothing_of_a_healthy_service() {
    let Some(tested) = promtool(&["test", "rules", "alerts.test.yml", "alerts.days.test.yml"])
    else {
        return;
    };
    assert!(tested.status.success(), "{}", said(&tested));
    let checked = promtool(&["check", "rules", "alerts.yml"]).unwrap();
    assert!(checked.status.success(), "{}", said(&checked));
}

/// The cases of a test file, each with its name.
fn cases() -> Vec<(String, &'static str)> {
    let of_file = |file: &'static str| {
        file.split("\n  - name: ").skip(1).map(|case| {
            let (name, case) = case.split_once('\n').unwrap();
            (name.to_owned(), case)
        })
    };
    TESTS.into_iter().flat_map(of_file).collect()
}

#[test]
fn each_alert_is_seen_to_fire_and_then_to_end_and_to_be_silent_where_nothing_is_wrong() {
    let cases = cases();
    for (alert, _) in alerts() {
        let is_silent = |judged: &str| judged.contains("exp_alerts: []");
        let names = format!("alertname: {alert}");
        let fires_and_ends = |case: &str| {
            let judged: Vec<&str> = case.split("eval_time: ").skip(1).collect();
            let of_it: Vec<&str> = judged
                .into_iter()
                .filter(|judged| {
                    judged.contains(&format!("{names},")) || judged.contains(&format!("{names}\n"))
                })
                .collect();
            let fires = of_it.iter().position(|judged| !is_silent(judged));
            fires.is_some_and(|at| at > 0 && of_it[at + 1..].iter().any(|judged| is_silent(judged)))
        };
        assert!(
            cases.iter().any(|(_, case)| fires_and_ends(case)),
            "{alert} is not seen to fire and end"
        );
        let healthy = cases.iter().find(|(name, _)| name == "nothing is wrong").unwrap().1;
        assert!(healthy.contains(&format!("{names}, exp_alerts: []")), "{alert}");
    }
}

#[test]
fn each_alert_goes_by_metrics_that_there_are_and_leads_to_its_section_of_the_runbooks() {
    let used = are_metrics(RULES);
    assert!(used.len() > 10, "{used:?}");
    let headings: BTreeSet<&str> =
        RUNBOOKS.lines().filter_map(|line| line.strip_prefix("## AtomicPhases")).collect();
    let mut named = BTreeSet::new();
    for (alert, rule) in alerts() {
        let name = alert.strip_prefix("AtomicPhases").unwrap();
        assert!(headings.contains(name), "docs/runbooks.md has no section {alert}");
        named.insert(name);
        let link = format!("/docs/runbooks.md#{}\n", alert.to_lowercase());
        assert!(rule.contains(&link), "{alert}: its runbook is {link}");
        assert!(
            rule.contains("severity: page") || rule.contains("severity: ticket"),
            "{alert} has no severity"
        );
        // NaN stands for a value that a process does not know.
        assert!(!rule.contains("sum by (job) (atomic_phases_"), "{alert} adds gauges up");
    }
    assert_eq!(headings, named, "a section without an alert");
}
