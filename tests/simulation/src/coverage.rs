//! What occurred in the runs, as a table, and what must occur.

use std::collections::{BTreeMap, BTreeSet};

/// By kind: what must occur in a thousand seeds. If something never occurs, the simulator has a defect.
const MET: &[(&str, &[&str])] = &[
    ("decision", &["Create", "TakeOver", "Recover", "Answer"]),
    (
        "answer",
        &["Mismatch", "Replay", "Erased", "InProgress", "Unknown", "DeadLetter", "NotKnownHere"],
    ),
    ("plan", &["Run", "OpenIntent", "WindowPassed", "GiveUp"]),
    (
        "point",
        &[
            "before_phase",
            "before_body",
            "before_commit",
            "after_commit",
            "before_intent",
            "after_intent",
            "before_call",
            "after_renewal",
            "after_call",
            "before_release",
            "after_release",
            "before_take_over",
            "after_take_over",
            "before_reply",
        ],
    ),
    (
        "row",
        &[
            "none -> pending",
            "none -> in_progress",
            "none -> completed",
            "pending -> in_progress",
            "in_progress -> in_progress",
            "in_progress -> pending",
            "in_progress -> completed",
            "in_progress -> failed_retryable",
            "in_progress -> unknown",
            "in_progress -> dead_letter",
            "completed -> in_progress",
            "completed -> completed",
            "completed -> none",
            "dead_letter -> completed",
            "failed_retryable -> in_progress",
            "unknown -> in_progress",
        ],
    ),
    (
        "told",
        &[
            "finished",
            "replayed",
            "in progress",
            "mismatch",
            "unknown",
            "dead letter",
            "erased",
            "failed",
            "accepted",
            "over quota",
            "error",
            "nothing",
        ],
    ),
    (
        "fault",
        &["delay", "cut Before", "cut Inside", "cut After", "cut SilentBefore", "cut SilentAfter"],
    ),
    (
        "event",
        &[
            "Freeze",
            "Kill",
            "Drain",
            "Deploy",
            "DatabaseAway",
            "FailOver",
            "ClockJump",
            "ClockBack",
            "Pause",
            "Erase",
        ],
    ),
    ("decide", &["done", "again", "refused", "dead letter", "not retained", "deadline"]),
    (
        "webhook",
        &[
            "applied",
            "finished",
            "known already",
            "in progress",
            "not encoded",
            "contradicts",
            "of another",
            "refused",
            "nothing",
        ],
    ),
    (
        "word",
        &[
            "executed",
            "not executed",
            "finish",
            "cut off",
            "behind an erasure",
            "of none, asked by a later build",
        ],
    ),
    (
        "codec",
        &[
            "encode params",
            "encode outputs",
            "encode response_headers",
            "encode response_body",
            "encode args",
            "decode params",
            "decode outputs",
            "decode response_headers",
            "decode response_body",
            "decode args",
        ],
    ),
    ("stop", &["freeze", "kill", "drain", "database"]),
    ("build", &["First", "Longer", "Second", "Both"]),
    (
        "client",
        &[
            "Plain",
            "Accept",
            "Wait",
            "ExpectNew",
            "Decide",
            "asks again immediately",
            "hangs up",
            "another body",
            "floods",
        ],
    ),
    (
        "provider",
        &[
            "Answered",
            "Refused",
            "Declined",
            "Reset",
            "Hangs",
            "Lost",
            "its caller has gone",
            "a webhook first",
            "a webhook later",
        ],
    ),
];

/// How often each occurred, and which never did.
pub fn table(coverage: &BTreeMap<String, u64>) -> (String, Vec<String>) {
    let (mut text, mut unmet) = (String::new(), Vec::new());
    for (kind, names) in MET {
        let prefix = format!("{kind}: ");
        let met = coverage.keys().filter_map(|name| name.strip_prefix(&prefix));
        let all: BTreeSet<&str> = names.iter().copied().chain(met).collect();
        for name in all {
            let times = coverage.get(&format!("{prefix}{name}")).copied().unwrap_or(0);
            text += &format!("{kind:<10}{name:<36}{times:>10}\n");
            if times == 0 {
                unmet.push(format!("{prefix}{name}"));
            }
        }
    }
    (text, unmet)
}
