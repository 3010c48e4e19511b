//! The table of `docs/metrics.md`, which a unit test compares with the code, by the names in Prometheus.

use std::collections::{BTreeMap, BTreeSet};

pub const CHAPTER: &str = include_str!("../../docs/metrics.md");

/// The series of each metric, and their labels.
pub fn series() -> BTreeMap<String, BTreeSet<String>> {
    let rows = CHAPTER.lines().filter(|line| line.starts_with("| `atomic_phases."));
    let mut all = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`').replace('.', "_");
        let labels: BTreeSet<String> = cells[3]
            .split(", ")
            .map(|label| label.trim_matches('`').to_owned())
            .filter(|label| !label.is_empty())
            .collect();
        let seconds = if cells[2].ends_with("seconds") { "_seconds" } else { "" };
        let endings: &[&str] = match cells[2].split(',').next().unwrap() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["", "_bucket", "_sum", "_count"],
            other => panic!("{other}: {row}"),
        };
        for ending in endings {
            all.insert(format!("{name}{seconds}{ending}"), labels.clone());
        }
    }
    assert!(all.len() > 40, "{all:#?}");
    all
}

/// Labels whose values are fixed names of the library: the chapter has each of them.
pub const CLOSED: [&str; 6] = ["outcome", "effect", "resolution", "because", "held_by", "worker"];

/// The values in the chapter's table of labels.
pub fn values() -> BTreeSet<&'static str> {
    let table = CHAPTER.split("\n| label | values |\n").nth(1).unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let words = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let words: BTreeSet<&str> = words.collect();
    assert!(words.len() > 40, "{words:?}");
    words
}

/// Labels that Prometheus adds to each series, or that a histogram has.
const OF_PROMETHEUS: [&str; 4] = ["job", "instance", "le", "quantile"];

/// Asserts that each name of this library in a PromQL text is a metric, and each label that it queries is one of
/// that metric's.
#[track_caller]
pub fn are_metrics(text: &str) -> BTreeSet<String> {
    let (known, values, mut used) = (series(), values(), BTreeSet::new());
    let mut rest = text;
    while let Some(at) = rest.find("atomic_phases_") {
        let here = &rest[at..];
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let end = here.find(|letter| !is_of_name(letter)).unwrap_or(here.len());
        let (name, behind) = here.split_at(end);
        let labels = known.get(name).unwrap_or_else(|| panic!("{name} is not a metric"));
        let is_counted =
            ["_total", "_bucket", "_sum", "_count"].iter().any(|it| name.ends_with(it));
        let is_rated = ["rate(", "increase("].iter().any(|it| rest[..at].ends_with(it));
        assert_eq!(is_counted, is_rated, "{name}: of a counter its rate, and of a gauge none");
        if let Some(selector) = behind.strip_prefix('{').and_then(|rest| rest.split('}').next()) {
            for part in selector.split(',').filter(|part| !part.trim().is_empty()) {
                let label = part.split(['=', '!']).next().unwrap().trim();
                assert!(
                    labels.contains(label) || OF_PROMETHEUS.contains(&label),
                    "{name} has no label {label}"
                );
                let asked = part.split('"').nth(1).unwrap_or_default();
                for value in asked.split('|').filter(|_| CLOSED.contains(&label)) {
                    let value = value.trim_end_matches(".*");
                    let is_one = values.iter().any(|known| known.starts_with(value));
                    assert!(is_one, "{label} is never {value}");
                }
            }
        }
        used.insert(name.to_owned());
        rest = behind;
    }
    used
}

#[test]
fn what_is_no_metric_is_found() {
    assert_eq!(are_metrics(r#"max(atomic_phases_due{job="a"}) - atomic_phases_due"#).len(), 1);
    are_metrics(r#"rate(atomic_phases_requests_total{outcome=~"finished|dead.*"}[5m])"#);
    for wrong in [
        "atomic_phases_dew",
        r#"atomic_phases_due{because="a"}"#,
        "atomic_phases_requests",
        "rate(atomic_phases_due[5m])",
        "atomic_phases_requests_total",
        r#"rate(atomic_phases_requests_total{outcome="done"}[5m])"#,
    ] {
        let found = std::panic::catch_unwind(|| are_metrics(wrong));
        assert!(found.is_err(), "{wrong}");
    }
}
