//! The Grafana dashboards, generated here from the existing metrics. This command writes them anew:
//! `BOARDS=write cargo test --all-features --test metrics boards`

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::table::{are_metrics, series};

/// A panel: its title, its unit, and lines of PromQL with their legends. `$` stands for the selector of the chosen
/// service.
type Panel = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// For all services: what waits, what runs, what fails.
const OVERVIEW: &[(&str, &[Panel])] = &[
    (
        "What waits",
        &[
            (
                "Waits for a reconcile function or an operator",
                "short",
                &[(
                    r#"max by (definition, held_by) (atomic_phases_waiting{$,held_by=~"unknown.*|dead_letter.*"}) > 0"#,
                    "{{definition}} {{held_by}}",
                )],
            ),
            (
                "How long the first of them has waited",
                "s",
                &[(
                    "time() - min by (held_by) (atomic_phases_waiting_oldest_timestamp_seconds{$})",
                    "{{held_by}}",
                )],
            ),
            (
                "Until a call may not be repeated any more",
                "s",
                &[("min(atomic_phases_window_next_end_timestamp_seconds{$}) - time()", "window")],
            ),
            (
                "Unfinished, and run by no holder",
                "short",
                &[(
                    "sum by (held_by) (max by (definition, held_by) (atomic_phases_waiting{$}))",
                    "{{held_by}}",
                )],
            ),
            (
                "Stranded",
                "short",
                &[("max by (because) (atomic_phases_stranded{$})", "{{because}}")],
            ),
            ("Due for a worker", "short", &[("max(atomic_phases_due{$})", "due")]),
            (
                "How long the first of these has been due",
                "s",
                &[("time() - min(atomic_phases_due_oldest_timestamp_seconds{$})", "due")],
            ),
        ],
    ),
    (
        "What goes on",
        &[
            (
                "Calls, by what they were told",
                "reqps",
                &[(
                    "sum by (outcome) (rate(atomic_phases_requests_total{$}[$__rate_interval]))",
                    "{{outcome}}",
                )],
            ),
            (
                "Duplicates that were answered again",
                "percentunit",
                &[(
                    r#"sum(rate(atomic_phases_requests_total{$,outcome="replayed"}[$__rate_interval])) / sum(rate(atomic_phases_requests_total{$}[$__rate_interval]))"#,
                    "replayed",
                )],
            ),
            (
                "Whose duplicates, where that is turned on",
                "reqps",
                &[(
                    r#"sum by (scope) (rate(atomic_phases_scope_calls_total{$,outcome!="other"}[$__rate_interval]))"#,
                    "{{scope}}",
                )],
            ),
            (
                "New keys, and keys that came to an answer",
                "reqps",
                &[
                    (
                        "sum(rate(atomic_phases_requests_created_total{$}[$__rate_interval]))",
                        "created",
                    ),
                    (
                        "sum(rate(atomic_phases_requests_completed_total{$}[$__rate_interval]))",
                        "completed",
                    ),
                ],
            ),
            (
                "Duration of a call, p50 and p99",
                "s",
                &[
                    (
                        "histogram_quantile(0.5, sum by (le, definition) (rate(atomic_phases_request_duration_seconds_bucket{$}[$__rate_interval])))",
                        "p50 {{definition}}",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le, definition) (rate(atomic_phases_request_duration_seconds_bucket{$}[$__rate_interval])))",
                        "p99 {{definition}}",
                    ),
                ],
            ),
            (
                "From a request's creation to its answer, over all attempts, p99",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (le, definition) (rate(atomic_phases_request_age_seconds_bucket{$}[$__rate_interval])))",
                    "{{definition}}",
                )],
            ),
            (
                "Resumed, and given back by workers",
                "reqps",
                &[
                    (
                        "sum by (definition) (rate(atomic_phases_resumes_total{$}[$__rate_interval]))",
                        "resumed {{definition}}",
                    ),
                    (
                        "sum by (definition) (rate(atomic_phases_requests_given_back_total{$}[$__rate_interval]))",
                        "given back {{definition}}",
                    ),
                ],
            ),
            (
                "The cache in front of replays",
                "reqps",
                &[(
                    "sum by (outcome) (rate(atomic_phases_replay_cache_asks_total{$}[$__rate_interval]))",
                    "{{outcome}}",
                )],
            ),
        ],
    ),
    (
        "What fails",
        &[
            (
                "Foreign calls, by what they came to",
                "reqps",
                &[(
                    "sum by (outcome) (rate(atomic_phases_foreign_calls_total{$}[$__rate_interval]))",
                    "{{outcome}}",
                )],
            ),
            (
                "The store could not serve",
                "reqps",
                &[(
                    "sum by (kind) (rate(atomic_phases_store_errors_total{$}[$__rate_interval]))",
                    "{{kind}}",
                )],
            ),
            (
                "Until a connection was there, p99",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (le) (rate(atomic_phases_pool_wait_seconds_bucket{$}[$__rate_interval])))",
                    "pool",
                )],
            ),
            (
                "Leases lost, commits without an answer",
                "reqps",
                &[
                    ("sum(rate(atomic_phases_zombies_total{$}[$__rate_interval]))", "zombies"),
                    (
                        "sum(rate(atomic_phases_commits_unanswered_total{$}[$__rate_interval]))",
                        "unanswered",
                    ),
                ],
            ),
            (
                "Became unknown, gave up",
                "short",
                &[
                    (
                        "sum by (definition) (increase(atomic_phases_outcomes_unknown_total{$}[$__rate_interval]))",
                        "unknown {{definition}}",
                    ),
                    (
                        "sum by (definition) (increase(atomic_phases_dead_letters_total{$}[$__rate_interval]))",
                        "dead letter {{definition}}",
                    ),
                ],
            ),
            (
                "Found out, and said",
                "short",
                &[
                    (
                        "sum by (outcome) (increase(atomic_phases_reconciles_total{$}[$__rate_interval]))",
                        "reconciled: {{outcome}}",
                    ),
                    (
                        "sum by (resolution) (increase(atomic_phases_resolutions_total{$}[$__rate_interval]))",
                        "resolved: {{resolution}}",
                    ),
                ],
            ),
            (
                "What operators did",
                "short",
                &[(
                    "sum by (act, outcome) (increase(atomic_phases_operator_acts_total{$}[$__rate_interval]))",
                    "{{act}} {{outcome}}",
                )],
            ),
            (
                "Met and left alone",
                "short",
                &[(
                    "sum by (because) (increase(atomic_phases_left_alone_total{$}[$__rate_interval]))",
                    "{{because}}",
                )],
            ),
        ],
    ),
    (
        "Jobs, workers, keys",
        &[
            (
                "Jobs",
                "short",
                &[
                    ("max(atomic_phases_jobs_staged{$})", "staged"),
                    ("max(atomic_phases_jobs_dead{$})", "gave up"),
                ],
            ),
            (
                "How long the first has been due",
                "s",
                &[("time() - min(atomic_phases_jobs_oldest_timestamp_seconds{$})", "due")],
            ),
            (
                "From the commit of a job to its delivery, p99",
                "s",
                &[(
                    "histogram_quantile(0.99, sum by (le, job_name) (rate(atomic_phases_job_lag_seconds_bucket{$}[$__rate_interval])))",
                    "{{job_name}}",
                )],
            ),
            (
                "Deliveries",
                "reqps",
                &[
                    (
                        "sum by (job_name) (rate(atomic_phases_jobs_delivered_total{$}[$__rate_interval]))",
                        "delivered {{job_name}}",
                    ),
                    (
                        "sum by (job_name) (rate(atomic_phases_jobs_failed_total{$}[$__rate_interval]))",
                        "failed {{job_name}}",
                    ),
                    (
                        "sum by (job_name) (rate(atomic_phases_jobs_dead_lettered_total{$}[$__rate_interval]))",
                        "gave up {{job_name}}",
                    ),
                ],
            ),
            (
                "Since a worker last polled",
                "s",
                &[
                    (
                        "time() - max by (worker) (atomic_phases_worker_last_poll_timestamp_seconds{$})",
                        "{{worker}}",
                    ),
                    (
                        "time() - max(atomic_phases_census_timestamp_seconds{$})",
                        "what waits was counted",
                    ),
                ],
            ),
            (
                "Workers that panicked",
                "short",
                &[(
                    "sum by (worker) (increase(atomic_phases_worker_panics_total{$}[$__rate_interval]))",
                    "{{worker}}",
                )],
            ),
            (
                "Keys deleted",
                "reqps",
                &[
                    (
                        "sum(rate(atomic_phases_keys_reaped_total{$}[$__rate_interval]))",
                        "past their retention",
                    ),
                    ("sum(rate(atomic_phases_keys_erased_total{$}[$__rate_interval]))", "erased"),
                ],
            ),
            (
                "Processes, by version of the library",
                "short",
                &[("count by (version) (atomic_phases_build_info{$})", "{{version}}")],
            ),
            (
                "Processes, by version of a definition",
                "short",
                &[(
                    "max by (definition, version) (atomic_phases_nodes{$})",
                    "{{definition}} v{{version}}",
                )],
            ),
        ],
    ),
];

/// For one definition: the states of its requests, and the duration of each phase.
const DEFINITION: &[(&str, &[Panel])] = &[(
    "Requests and phases",
    &[
        (
            "Calls, by what they were told",
            "reqps",
            &[(
                "sum by (outcome) (rate(atomic_phases_requests_total{$}[$__rate_interval]))",
                "{{outcome}}",
            )],
        ),
        (
            "Keys that were used for another request",
            "percentunit",
            &[(
                r#"sum(rate(atomic_phases_requests_total{$,outcome="mismatch"}[$__rate_interval])) / sum(rate(atomic_phases_requests_total{$}[$__rate_interval]))"#,
                "mismatch",
            )],
        ),
        (
            "Phases that ran",
            "reqps",
            &[(
                "sum by (phase) (rate(atomic_phases_phase_duration_seconds_count{$}[$__rate_interval]))",
                "{{phase}}",
            )],
        ),
        (
            "Duration of a phase, p50, p95 and p99",
            "s",
            &[
                (
                    "histogram_quantile(0.5, sum by (le, phase) (rate(atomic_phases_phase_duration_seconds_bucket{$}[$__rate_interval])))",
                    "p50 {{phase}}",
                ),
                (
                    "histogram_quantile(0.95, sum by (le, phase) (rate(atomic_phases_phase_duration_seconds_bucket{$}[$__rate_interval])))",
                    "p95 {{phase}}",
                ),
                (
                    "histogram_quantile(0.99, sum by (le, phase) (rate(atomic_phases_phase_duration_seconds_bucket{$}[$__rate_interval])))",
                    "p99 {{phase}}",
                ),
            ],
        ),
        (
            "Foreign calls, by what they came to",
            "reqps",
            &[(
                "sum by (phase, outcome) (rate(atomic_phases_foreign_calls_total{$}[$__rate_interval]))",
                "{{phase}} {{outcome}}",
            )],
        ),
        (
            "Local phases that were run again",
            "reqps",
            &[(
                "sum by (phase, kind) (rate(atomic_phases_phase_reruns_total{$}[$__rate_interval]))",
                "{{phase}} {{kind}}",
            )],
        ),
        (
            "Attempts until the answer, p50 and p99",
            "short",
            &[
                (
                    "histogram_quantile(0.5, sum by (le) (rate(atomic_phases_request_attempts_bucket{$}[$__rate_interval])))",
                    "p50",
                ),
                (
                    "histogram_quantile(0.99, sum by (le) (rate(atomic_phases_request_attempts_bucket{$}[$__rate_interval])))",
                    "p99",
                ),
            ],
        ),
        (
            "Unfinished, and run by no holder",
            "short",
            &[("max by (held_by) (atomic_phases_waiting{$}) > 0", "{{held_by}}")],
        ),
    ],
)];

fn variable(name: &str, label: &str) -> Value {
    let of = match name {
        "job" => "atomic_phases_build_info",
        _ => r#"atomic_phases_requests_total{job="$job"}"#,
    };
    json!({
        "name": name, "label": label, "type": "query", "refresh": 2, "sort": 1,
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "query": { "query": format!("label_values({of}, {name})"), "refId": name },
    })
}

fn board(uid: &str, title: &str, rows: &[(&str, &[Panel])], selector: &str) -> Value {
    let mut panels = Vec::new();
    let mut y = 0;
    for (row, of_row) in rows {
        panels.push(json!({
            "type": "row", "title": row, "collapsed": false, "panels": [],
            "id": panels.len() + 1, "gridPos": { "x": 0, "y": y, "w": 24, "h": 1 },
        }));
        y += 1;
        for (number, (title, unit, lines)) in of_row.iter().enumerate() {
            let targets = lines.iter().zip('A'..).map(|((expression, legend), id)| {
                let expression = expression.replace("{$", &format!("{{{selector}"));
                json!({ "refId": id.to_string(), "expr": expression, "legendFormat": legend })
            });
            panels.push(json!({
                "type": "timeseries", "title": title, "id": panels.len() + 1,
                "datasource": { "type": "prometheus", "uid": "${datasource}" },
                "gridPos": { "x": number % 3 * 8, "y": y + number / 3 * 8, "w": 8, "h": 8 },
                "fieldConfig": { "defaults": { "unit": unit, "min": 0 }, "overrides": [] },
                "options": { "legend": { "displayMode": "list", "placement": "bottom" } },
                "targets": targets.collect::<Vec<_>>(),
            }));
        }
        y += of_row.len().div_ceil(3) * 8;
    }
    let mut variables = vec![
        json!({ "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus" }),
        variable("job", "Service"),
    ];
    if selector.contains("$definition") {
        variables.push(variable("definition", "Definition"));
    }
    json!({
        "uid": uid, "title": title, "tags": ["atomic-phases"], "schemaVersion": 39, "version": 1,
        "editable": true, "refresh": "30s", "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": variables }, "panels": panels,
    })
}

fn boards() -> [(&'static str, Value); 2] {
    let (overview, definition) = (r#"job="$job""#, r#"job="$job",definition="$definition""#);
    [
        ("overview.json", board("atomic-phases-overview", "Atomic phases", OVERVIEW, overview)),
        (
            "definition.json",
            board(
                "atomic-phases-definition",
                "Atomic phases: one definition",
                DEFINITION,
                definition,
            ),
        ),
    ]
}

#[test]
fn the_boards_are_those_that_are_made_here() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring/dashboards");
    for (name, board) in boards() {
        let made = format!("{board:#}\n");
        let file = folder.join(name);
        if std::env::var("BOARDS").is_ok_and(|how| how == "write") {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, &made).unwrap();
        }
        let there = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(there == made, "{name} is another one: BOARDS=write writes it");
    }
}

#[test]
fn the_boards_show_metrics_that_there_are_and_each_of_them() {
    let mut shown = BTreeSet::new();
    for (_, board) in boards() {
        let panels = board["panels"].as_array().unwrap().iter();
        for target in panels.filter_map(|panel| panel["targets"].as_array()).flatten() {
            shown.extend(are_metrics(target["expr"].as_str().unwrap()));
        }
    }
    // For a histogram, one of its series.
    let stem = |name: &str| {
        let endings = ["_bucket", "_sum", "_count"];
        endings.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<String> = shown.iter().map(|name| stem(name)).collect();
    let all: BTreeSet<String> = series().keys().map(|name| stem(name)).collect();
    let not_shown: Vec<_> = all.difference(&shown).collect();
    assert!(not_shown.is_empty(), "{not_shown:?}");
}
