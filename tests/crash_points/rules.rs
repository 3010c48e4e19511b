//! What of that is a change of one of the engine's rows, and between which points it has to be.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;

use super::recorder::{Step, Task};
use crate::support::*;

/// What each task did of this, as far as it is a crash point or makes a change of the engine's durable: the points, and one
/// `Sent` for each change, whether the change is a statement by itself or part of a transaction. On SQLite, what all of them
/// did.
pub(super) fn done_by_each_task<S: TestDb>(seen: Vec<(Task, Step)>) -> Vec<(Task, Vec<Step>)> {
    let mut tasks: HashMap<Task, Vec<Step>> = HashMap::new();
    if is_postgres::<S>() {
        for (task, step) in without_shared(seen) {
            tasks.entry(task).or_default().push(step);
        }
    } else {
        let steps = seen.into_iter().map(|(_, step)| step);
        tasks.insert(None, steps.filter(|step| *step != Step::Emptied).collect());
    }
    tasks.into_iter().map(|(task, steps)| (task, changes(steps, rules::<S>()))).collect()
}

const TAKES_OVER: &str =
    "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token = lease_token + 1, ";

/// By this the store asks whether a takeover wrote nothing because the row was locked. Then it is sent again.
const STANDS_FREE: &str = "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys";

/// Without the takeovers that several requests share. A task of its own sends them, which passes no point, while those
/// that wait for it stand between their points. They are not more than the tasks that came there, unless one is sent
/// again.
fn without_shared(seen: Vec<(Task, Step)>) -> Vec<(Task, Step)> {
    let is_point = |(_, step): &&(Task, Step)| matches!(step, Step::Point(_));
    let with_points: HashSet<Task> = seen.iter().filter(is_point).map(|(task, _)| *task).collect();
    let (mut standing, mut sharing): (HashSet<Task>, HashSet<Task>) = Default::default();
    // How many shared takeovers there may be, and how many there were.
    let (mut allowed, mut shared) = (0, 0);
    let mut kept = Vec::new();
    for (task, step) in seen {
        match &step {
            Step::Emptied => {
                standing.clear();
                (allowed, shared) = (0, 0);
                continue;
            }
            Step::Point(place) => {
                standing.remove(&task);
                if place == "before_take_over" {
                    standing.insert(task);
                    allowed += 1;
                }
            }
            Step::Sent(sql) if sql.starts_with(TAKES_OVER) => {
                let is_shared = !with_points.contains(&task);
                if is_shared && !standing.is_empty() && shared < allowed {
                    sharing.insert(task);
                    shared += 1;
                    continue;
                }
            }
            // The takeover wrote nothing, and those that stand there try again without another point.
            Step::Sent(sql) if sql.starts_with(STANDS_FREE) => allowed += 1,
            Step::Failed if sharing.contains(&task) => allowed += 1,
            Step::Sent(_) | Step::Failed => {}
        }
        kept.push((task, step));
    }
    kept
}

fn changes(steps: Vec<Step>, rules: &Rules) -> Vec<Step> {
    // A transaction is open: with what it has changed.
    let mut open: Option<Vec<String>> = None;
    let mut done = Vec::new();
    let mut is_behind_rollback = false;
    for step in steps {
        let sql = match step {
            Step::Sent(sql) => sql,
            // There was nothing to roll back.
            Step::Failed if rules.rolls_back_in_any_case && is_behind_rollback => continue,
            Step::Failed => {
                // If several statements were sent together, the first error counts: the statements after it had no
                // effect.
                while matches!(done.last(), Some(Step::Sent(_))) {
                    done.pop();
                }
                continue;
            }
            point => {
                done.push(point);
                continue;
            }
        };
        // Another connection may read meanwhile.
        if !sql.starts_with("SELECT") {
            is_behind_rollback = sql == "ROLLBACK";
        }
        if sql.starts_with("BEGIN") {
            open = Some(Vec::new());
        } else if sql == "COMMIT" || sql == "ROLLBACK" {
            let changed = open.take().unwrap_or_default();
            if sql == "COMMIT" && !changed.is_empty() {
                done.push(Step::Sent(changed.join("; ")));
            }
        } else if changes_a_row_of_ours(&sql, rules) {
            match &mut open {
                Some(changed) => changed.push(sql),
                None => done.push(Step::Sent(sql)),
            }
        }
    }
    done
}

/// What a store sends.
pub(super) struct Rules {
    /// What is committed without points, and why a crash before it and one after it leave the same.
    pub(super) exempt: &'static [(&'static str, &'static str)],
    /// Behind each transaction, also where none is open any more.
    rolls_back_in_any_case: bool,
}

const RENEWED: &str = "a renewal extends the lease and changes nothing else";
const ENTERED: &str =
    "an abandoned row is entered in the index of due rows, by the next look if not by this one";
const EXPIRED: &str = "a call treats an expired row as one that is not there, and deletes it before it creates its own";
const REAPED: &str = "the reaper deletes it, in the next pass if not in this one";
const CLAIMED: &str = "a claim of a job has a lease, which ends by itself";
const DELIVERED: &str = "a job is delivered at least once: if this is not committed, once more";

/// The first is the renewal.
const POSTGRES: Rules = Rules {
    exempt: &[
        ("UPDATE atomic_phases_keys SET locked_until = (SELECT clock_timestamp()", RENEWED),
        ("UPDATE atomic_phases_keys SET run_after = locked_until", ENTERED),
        ("AND status = 'completed' AND expires_at <= (SELECT clock_timestamp())", EXPIRED),
        ("AND status = 'completed' AND expires_at <= statement_timestamp()", REAPED),
        ("UPDATE atomic_phases_staged_jobs AS j SET attempts = ", CLAIMED),
        ("WITH ended AS (DELETE FROM atomic_phases_staged_jobs", DELIVERED),
    ],
    rolls_back_in_any_case: false,
};

const SQLITE: Rules = Rules {
    exempt: &[
        ("UPDATE atomic_phases_keys SET locked_until = CAST(round(unixepoch(", RENEWED),
        ("UPDATE atomic_phases_keys SET run_after = locked_until", ENTERED),
        ("AND status = 'completed' AND expires_at <= CAST(round(unixepoch(", EXPIRED),
        ("DELETE FROM atomic_phases_keys WHERE (expires_at, ", REAPED),
        ("UPDATE atomic_phases_staged_jobs AS j SET attempts = ", CLAIMED),
        ("DELETE FROM atomic_phases_staged_jobs WHERE scope = ", DELIVERED),
        (
            "UPDATE atomic_phases_staged_jobs SET run_after = CAST(round(unixepoch(",
            "the next job becomes due in the transaction that deletes the one before it",
        ),
    ],
    rolls_back_in_any_case: true,
};

pub(super) fn rules<S: TestDb>() -> &'static Rules {
    if is_postgres::<S>() { &POSTGRES } else { &SQLITE }
}

/// By this the explorer lets a lease and a back-off end.
pub(super) const PASSES_TIME: &str = "UPDATE atomic_phases_keys SET locked_until = CASE WHEN";

/// The exemptions that a statement has used.
pub(super) static EXEMPTED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// Verb and table of each change that a statement makes.
pub(super) fn written(sql: &str) -> Vec<String> {
    let words: Vec<&str> = sql.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let is_table = |word: &&str| word.starts_with("atomic_phases_");
    let at = (0..words.len()).filter(|at| is_table(&words[*at]));
    at.filter_map(|at| match words[..at] {
        [.., "INSERT", "INTO"] => Some(format!("INSERT {}", words[at])),
        [.., "DELETE", "FROM"] => Some(format!("DELETE {}", words[at])),
        [.., "UPDATE"] => Some(format!("UPDATE {}", words[at])),
        [.., "MERGE", "INTO"] | [.., "TRUNCATE"] | [.., "COPY"] => Some(words[at].to_owned()),
        _ => None,
    })
    .collect()
}

fn changes_a_row_of_ours(sql: &str, rules: &Rules) -> bool {
    if let Some((exempt, _)) = rules.exempt.iter().find(|(exempt, _)| sql.contains(exempt)) {
        EXEMPTED.lock().unwrap().insert(exempt);
        return false;
    }
    !written(sql).is_empty()
}

/// The points before a commit, and those after it that belong to them.
pub(super) const PAIRS: [(&str, &str); 4] = [
    ("before_commit", "after_commit"),
    ("before_intent", "after_intent"),
    ("before_release", "after_release"),
    ("before_take_over", "after_take_over"),
];

pub(super) fn behind(before: &str) -> Option<&'static str> {
    PAIRS.into_iter().find(|(place, _)| *place == before).map(|(_, after)| after)
}

/// For a run without faults: its changes, if each is the only one between the two points of its kind; or which is not.
pub(super) fn between_two_points(steps: &[Step]) -> Result<Vec<&str>, String> {
    let mut changes = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let Step::Sent(sql) = step else { continue };
        changes.push(&**sql);
        let before = index.checked_sub(1).and_then(|index| steps.get(index));
        let Some(Step::Point(before)) = before else {
            return Err(format!("no point before {sql}\nin {steps:#?}"));
        };
        let Some(after) = behind(before) else {
            return Err(format!("{before} before {sql}\nin {steps:#?}"));
        };
        if steps.get(index + 1) != Some(&Step::Point(after.to_owned())) {
            return Err(format!("no {after} after {sql}\nin {steps:#?}"));
        }
    }
    Ok(changes)
}

/// What the tests look for, in lists made by hand.
#[test]
fn a_change_that_is_not_between_its_points_is_found() {
    let point = |place: &str| Step::Point(place.to_owned());
    let sent = |sql: &str| Step::Sent(sql.to_owned());
    let change = || sent("UPDATE atomic_phases_keys SET status = 'completed'");
    let (before, after) = (|| point("before_commit"), || point("after_commit"));
    let found = |steps: Vec<Step>| {
        between_two_points(&changes(steps, &POSTGRES)).ok().map(|changes| changes.len())
    };
    let in_a_transaction = || vec![sent("BEGIN"), change(), sent("COMMIT")];
    let between = |inner: Vec<Step>| [vec![before()], inner, vec![after()]].concat();

    assert_eq!(found(between(vec![change()])), Some(1));
    assert_eq!(found(between(in_a_transaction())), Some(1));
    assert_eq!(found(between(vec![change(), Step::Failed])), Some(0), "it was not done");
    assert_eq!(found(between(vec![sent("BEGIN"), change(), sent("ROLLBACK")])), Some(0));

    assert_eq!(found(vec![change(), after()]), None, "no point before it");
    assert_eq!(found(vec![before(), change()]), None, "no point after it");
    assert_eq!(found(vec![point("before_call"), change(), after()]), None, "not a commit's point");
    assert_eq!(found(vec![point("before_intent"), change(), after()]), None, "of two kinds");
    assert_eq!(found(between(vec![change(), change()])), None, "two changes between two points");
    let twice = [in_a_transaction(), in_a_transaction()].concat();
    assert_eq!(found(between(twice)), None, "two transactions between two points");

    let rolled_back = [in_a_transaction(), vec![sent("ROLLBACK"), Step::Failed]].concat();
    let steps = changes(between(rolled_back), &SQLITE);
    assert_eq!(between_two_points(&steps).map(|changes| changes.len()), Ok(1), "it was committed");
}

/// Which takeovers count as shared, in lists made by hand.
#[tokio::test]
async fn a_takeover_that_is_shared_by_no_task_that_stands_before_its_own_is_found() {
    let [one, other, sends] = std::array::from_fn(|_| Some(tokio::spawn(async {}).id()));
    let stands = |task: Task| (task, Step::Point("before_take_over".to_owned()));
    let goes_on = |task: Task| (task, Step::Point("after_take_over".to_owned()));
    let sent = |task: Task, sql: &str| (task, Step::Sent(sql.to_owned()));
    let takes = || sent(sends, TAKES_OVER);
    let emptied = || (None, Step::Emptied);
    let found = |seen: Vec<(Task, Step)>| {
        without_shared(seen).into_iter().filter(|step| *step == takes()).count()
    };

    assert_eq!(found(vec![stands(one), takes(), goes_on(one)]), 0);
    let for_two = vec![stands(one), stands(other), takes(), goes_on(one), goes_on(other)];
    assert_eq!(found(for_two), 0, "one statement for two");
    let one_by_one = vec![stands(one), stands(other), takes(), goes_on(one), takes()];
    assert_eq!(found(one_by_one), 0, "one statement for each");
    let locked = vec![stands(one), takes(), sent(sends, STANDS_FREE), takes(), goes_on(one)];
    assert_eq!(found(locked), 0, "the row was locked at first");
    let failed = vec![stands(one), takes(), (sends, Step::Failed), takes(), goes_on(one)];
    assert_eq!(found(failed), 0, "it had no answer at first");

    assert_eq!(found(vec![takes()]), 1, "no task stands there");
    assert_eq!(found(vec![stands(one), goes_on(one), takes()]), 1, "it has gone on");
    assert_eq!(found(vec![stands(one), takes(), takes(), goes_on(one)]), 1, "two for one task");
    let dropped = vec![stands(one), emptied(), takes()];
    assert_eq!(found(dropped), 1, "the task was dropped in an earlier case");
    let left = [stands(one), stands(other), takes(), emptied()];
    let left = [&left[..], &[stands(one), takes(), takes()]].concat();
    assert_eq!(found(left), 1, "what an earlier case did not use up is not left");
    let with_points = vec![stands(one), takes(), goes_on(one), goes_on(sends)];
    assert_eq!(found(with_points), 1, "the sender has points of its own");

    // What is found has no point before it.
    assert!(between_two_points(&changes(vec![takes().1], &POSTGRES)).is_err());
}
