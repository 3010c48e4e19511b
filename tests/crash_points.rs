//! Each change of one of the engine's rows is committed between two crash points, or is in a list with the reason why a
//! crash on either side of it leaves the same. The tests read this from what is sent to PostgreSQL and to SQLite, not from the
//! source. Separate, because they record the statements of every connection.
//!
//! What they show, and what they do not:
//!
//! * In a run without faults, for calls, acceptances, workers and an operator: a change is the only one between the two
//!   points of its kind.
//! * After a fault, in the explorer's cases of a call and of an acceptance: a change has the point before it. The point
//!   after it may be where the fault was, and is not looked for.
//! * The same run without one kind of its points is reported: the tests would see a point that the engine lacks.
//! * On PostgreSQL, a takeover that several requests share is sent by a task of its own, and is in no task's order. It is left
//!   out where a task stands before its takeover, and as often as tasks came there, not more. The tests do not see for which
//!   of them it was sent.
//! * On SQLite, a thread executes the statements of all tasks, and does not know whose they are. So one request runs at a time,
//!   and everything is in one order.
//! * Not on MariaDB and in memory, where no connection reports its statements to the process. The points are the engine's, and
//!   so the same on every store; that a store changes a row in one commit is not shown for these two here.
#![cfg(feature = "fault-injection")]

mod support;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use atomic_phases::Reply;
use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::fault::{Mode, explore};
use atomic_phases::ops::{Actor, Permissions, Scopes};
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::{Completer, Enqueuer, Reaper, Reconciler, WorkerConfig};
use diesel::connection::InstrumentationEvent;
use support::work::{Inbox, config, dies_in_its_call};
use support::*;
use tokio::task::Id;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Record};
use tracing::{Event, Metadata, Subscriber};

/// What a task did, in order.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Point(String),
    Sent(String),
    /// The server refused the last statement, or did not answer it: a transaction is rolled back.
    Failed,
    /// The test has emptied the tables: what stood anywhere before has ended.
    Emptied,
}

/// `None`: the test's own future.
type Task = Option<Id>;

static SEEN: Mutex<Vec<(Task, Step)>> = Mutex::new(Vec::new());

tokio::task_local! {
    /// Set while the test itself changes rows.
    static ARRANGES: ();
}

fn see(step: Step) {
    if ARRANGES.try_with(|()| ()).is_err() {
        SEEN.lock().unwrap().push((tokio::task::try_id(), step));
    }
}

/// What the test does itself, and not the engine.
async fn arranged<S: TestDb, T>(_: &S, work: impl Future<Output = T>) -> T {
    let before = SEEN.lock().unwrap().len();
    let done = ARRANGES.scope((), work).await;
    if !is_postgres::<S>() {
        // The thread of SQLite does not know that the test has sent these; and nothing else was under way.
        SEEN.lock().unwrap().truncate(before);
    }
    done
}

fn see_statement(event: InstrumentationEvent<'_>) {
    match event {
        InstrumentationEvent::StartQuery { query, .. } => {
            let sql = query.to_string();
            see(Step::Sent(sql.split("-- binds:").next().unwrap_or_default().trim().to_owned()));
        }
        InstrumentationEvent::FinishQuery { error: Some(_), .. } => see(Step::Failed),
        _ => {}
    }
}

/// Learns of the points from the trace.
struct Points;

struct Place(Option<String>);

impl Visit for Place {
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "place" {
            self.0 = Some(value.to_owned());
        }
    }
}

impl Subscriber for Points {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == "atomic_phases::fault"
    }

    fn event(&self, event: &Event<'_>) {
        let mut place = Place(None);
        event.record(&mut place);
        if let Some(place) = place.0 {
            see(Step::Point(place));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}

fn record() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        diesel::connection::set_default_instrumentation(|| Some(Box::new(see_statement))).unwrap();
        tracing::subscriber::set_global_default(Points).unwrap();
    });
}

/// These tests read what all tasks did, so they run one at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Everything since the last call.
fn seen() -> Vec<(Task, Step)> {
    std::mem::take(&mut *SEEN.lock().unwrap())
}

/// What each task did of this, as far as it is a crash point or makes a change of the engine's durable: the points, and one
/// `Sent` for each change, whether the change is a statement by itself or part of a transaction. On SQLite, what all of them
/// did.
fn done_by_each_task<S: TestDb>(seen: Vec<(Task, Step)>) -> Vec<(Task, Vec<Step>)> {
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
struct Rules {
    /// What is committed without points, and why a crash before it and one after it leave the same.
    exempt: &'static [(&'static str, &'static str)],
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
        ("DELETE FROM atomic_phases_keys WHERE rowid IN (", REAPED),
        ("UPDATE atomic_phases_staged_jobs AS j SET attempts = ", CLAIMED),
        ("DELETE FROM atomic_phases_staged_jobs WHERE scope = ", DELIVERED),
        (
            "UPDATE atomic_phases_staged_jobs SET run_after = CAST(round(unixepoch(",
            "the next job becomes due in the transaction that deletes the one before it",
        ),
    ],
    rolls_back_in_any_case: true,
};

fn rules<S: TestDb>() -> &'static Rules {
    if is_postgres::<S>() { &POSTGRES } else { &SQLITE }
}

/// By this the explorer lets a lease and a back-off end.
const PASSES_TIME: &str = "UPDATE atomic_phases_keys SET locked_until = CASE WHEN";

/// The exemptions that a statement has used.
static EXEMPTED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// Verb and table of each change that a statement makes.
fn written(sql: &str) -> Vec<String> {
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
const PAIRS: [(&str, &str); 4] = [
    ("before_commit", "after_commit"),
    ("before_intent", "after_intent"),
    ("before_release", "after_release"),
    ("before_take_over", "after_take_over"),
];

fn behind(before: &str) -> Option<&'static str> {
    PAIRS.into_iter().find(|(place, _)| *place == before).map(|(_, after)| after)
}

/// For a run without faults: its changes, if each is the only one between the two points of its kind; or which is not.
fn between_two_points(steps: &[Step]) -> Result<Vec<&str>, String> {
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

async fn world<S: TestDb>(db: &S, provider: Provider) -> (App, TestEngine<S>) {
    let empty = "DELETE FROM atomic_phases_keys; DELETE FROM atomic_phases_staged_jobs; \
         DELETE FROM rides; DELETE FROM steps";
    arranged(db, db.sql(empty)).await;
    see(Step::Emptied);
    let app = App::new(provider);
    let engine = engine_with(db, &app, |builder| {
        let builder =
            builder.lease(Duration::from_secs(60)).creation_wait(Duration::from_millis(30));
        builder.back_off(Duration::from_millis(1), Duration::from_millis(1))
    });
    (app, engine)
}

/// On SQLite one request at a time.
fn config_of<S: TestDb>() -> WorkerConfig {
    if is_postgres::<S>() { config() } else { config().concurrency(1) }
}

/// A call that takes longer than its lease, which is renewed meanwhile.
async fn is_renewed<S: TestDb>(db: &S, engine: &TestEngine<S>) {
    let app = engine.app();
    let engine = engine_with(db, app, |builder| builder.lease(Duration::from_secs(2)));
    let mut gate = app.provider.stop_after_the_effect();
    let call = tokio::spawn(engine.call(&scope(), &key("slow"), book(20)).into_future());
    let waiting = gate.recv().await.unwrap();
    let (renews, _) = rules::<S>().exempt[0];
    let is_renewal = |(_, step): &(_, _)| matches!(step, Step::Sent(sql) if sql.contains(renews));
    until(async || SEEN.lock().unwrap().iter().any(is_renewal)).await;
    app.provider.stop_no_more();
    drop(waiting);
    let _ = call.await.unwrap();
}

/// An operator's words about two calls whose outcome stays unknown: one with an audit row, and one without.
async fn resolve<S: TestDb>(engine: &TestEngine<S>) {
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    let row = ops.find(&scope(), &key("book-false")).await.unwrap();
    let word = Resolution::not_executed("charged", row.attempts);
    let done = ops.resolve(row.request_id, &row.version, word, "asked the provider").await;
    assert_eq!(done.unwrap(), Resolved::Applied);
    let word = Resolution::finish(Reply::text(409, "by hand"));
    let done = engine.resolve(&scope(), &key("book-true"), word).await;
    assert_eq!(done.unwrap(), Resolved::Applied);
}

/// Each request, called and accepted, with this trouble; and what workers and an operator make of it.
async fn run_each_request<S: TestDb>(db: &S, trouble: Trouble) {
    let provider = Provider::that_ignores_keys();
    provider.answer_searches();
    let (_, engine) = world(db, provider).await;
    seen();
    for accepts in [false, true] {
        let key = |request: &str| key(&format!("{request}-{accepts}"));
        let _ = match accepts {
            false => engine.call(&scope(), &key("book"), troubled(trouble)).await,
            true => engine.call(&scope(), &key("book"), troubled(trouble)).accept().await,
        };
        let _ = match accepts {
            false => engine.call(&scope(), &key("notify"), notify(trouble)).await,
            true => engine.call(&scope(), &key("notify"), notify(trouble)).accept().await,
        };
        for form in [Form::OneByOne, Form::SingleStatement] {
            let parcel = engine.call(&scope(), &key(&format!("{form:?}")), form.parcel(trouble));
            let _ = match accepts {
                false => parcel.await,
                true => parcel.accept().await,
            };
        }
    }
    if trouble == Trouble::None {
        is_renewed(db, &engine).await;
        dies_in_its_call(&engine, "dead", book(20)).await;
    }
    for _ in 0..3 {
        arranged(db, db.let_time_pass()).await;
        Completer::new(&engine, config_of::<S>()).run_once().await.unwrap();
        Reconciler::new(&engine, config_of::<S>()).run_once().await.unwrap();
    }
    if trouble == Trouble::UnknownForeign {
        resolve(&engine).await;
    }
    Enqueuer::new(&engine, Inbox::default().sink(), config()).run_once().await.unwrap();
    arranged(db, db.sql("UPDATE atomic_phases_keys SET expires_at = created_at")).await;
    // A new life of an expired key; the reaper deletes the others.
    let _ = engine.call(&scope(), &key("book-false"), troubled(trouble)).await;
    Reaper::new(engine.store(), config()).run_once().await.unwrap();
}

/// G4, G13: for every way in which a request can run, with calls, workers and an operator.
async fn each_change_is_between_two_crash_points<S: TestDb>() {
    let _alone = ALONE.lock().await;
    // First, because a connection that is open by then is not recorded.
    record();
    EXEMPTED.lock().unwrap().clear();
    let db = S::fresh().await;
    let (mut changed, mut kinds) = (0, BTreeSet::new());
    for trouble in [
        Trouble::None,
        Trouble::RejectFirst,
        Trouble::RetryFirst,
        Trouble::RejectForeign,
        Trouble::RetryForeignOnce,
        Trouble::NotExecutedOnce,
        Trouble::UnknownForeign,
        Trouble::RejectLast,
        Trouble::RetryLastOnce,
        Trouble::FinishEarly,
        Trouble::SwallowError,
        Trouble::HugeReply,
        Trouble::BadStatus,
    ] {
        run_each_request(&db, trouble).await;
        for (_, steps) in done_by_each_task::<S>(seen()) {
            let changes = between_two_points(&steps).unwrap_or_else(|wrong| panic!("{wrong}"));
            for change in changes {
                changed += 1;
                kinds.extend(written(change));
            }
        }
    }
    assert!(changed > 200, "{changed} changes");
    let expected = [
        "INSERT atomic_phases_audit",
        "INSERT atomic_phases_keys",
        "INSERT atomic_phases_staged_jobs",
        "UPDATE atomic_phases_keys",
    ];
    assert_eq!(kinds.iter().collect::<Vec<_>>(), expected, "each kind is recognized");
    let exempt: BTreeSet<&str> = rules::<S>().exempt.iter().map(|(exempt, _)| *exempt).collect();
    assert_eq!(*EXEMPTED.lock().unwrap(), exempt, "no exemption without a statement");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_row_is_committed_between_two_crash_points_on_postgres() {
    each_change_is_between_two_crash_points::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_row_is_committed_between_two_crash_points_on_sqlite() {
    each_change_is_between_two_crash_points::<Sqlite>().await;
}

/// The test above would fail if the engine lacked a point: the same run is judged without each kind of point.
async fn a_point_that_is_left_out_is_reported<S: TestDb>() {
    let _alone = ALONE.lock().await;
    // First, because a connection that is open by then is not recorded.
    record();
    let db = S::fresh().await;
    run_each_request(&db, Trouble::RetryForeignOnce).await;
    let seen = seen();
    let is_reported = |seen: Vec<(Task, Step)>| {
        let tasks = done_by_each_task::<S>(seen);
        tasks.iter().any(|(_, steps)| between_two_points(steps).is_err())
    };
    assert!(!is_reported(seen.clone()), "with all of its points");
    for place in PAIRS.into_iter().flat_map(|(before, after)| [before, after]) {
        let is_there = |(_, step): &(Task, Step)| *step == Step::Point(place.to_owned());
        assert!(seen.iter().any(is_there), "the run passes {place}");
        // There, what a takeover that is shared has behind it is not looked for.
        if is_postgres::<S>() && place == "after_take_over" {
            continue;
        }
        let others = seen.iter().filter(|&step| !is_there(step)).cloned();
        assert!(is_reported(others.collect()), "{place} is left out");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_point_that_is_left_out_is_reported_on_postgres() {
    a_point_that_is_left_out_is_reported::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_point_that_is_left_out_is_reported_on_sqlite() {
    a_point_that_is_left_out_is_reported::<Sqlite>().await;
}

/// G13: also after a crash or a lost answer. Of the two points only the one before it: the fault may be at the other.
async fn each_change_after_a_fault_is_behind_a_crash_point<S: TestDb>() {
    let _alone = ALONE.lock().await;
    // First, because a connection that is open by then is not recorded.
    record();
    let db = S::fresh().await;
    let requests = [Trouble::None, Trouble::RejectFirst];
    for (trouble, accepts) in requests.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        seen();
        let modes =
            [Mode::Drop, Mode::NotSent, Mode::AckLost, Mode::Serialization, Mode::AnswerLost];
        let explorer = explore(
            async || {
                let (app, engine) = world(&db, Provider::default()).await;
                (engine, app)
            },
            troubled(trouble),
        );
        let explorer = explorer.modes(modes).crash_at_every_point();
        // The faults are then those of the acceptance, and a worker or a retry runs the request.
        let explorer = if accepts { explorer.with_a_call_that_accepts() } else { explorer };
        explorer.run().await.assert_ok();
        let mut changed = 0;
        for (task, steps) in done_by_each_task::<S>(seen()) {
            // The explorer's own.
            if is_postgres::<S>() && task.is_none() {
                continue;
            }
            for (index, step) in steps.iter().enumerate() {
                let Step::Sent(sql) = step else { continue };
                if sql.starts_with(PASSES_TIME) {
                    continue;
                }
                changed += 1;
                let before = index.checked_sub(1).and_then(|index| steps.get(index));
                let fits = matches!(before, Some(Step::Point(place)) if behind(place).is_some());
                assert!(fits, "{before:?} before {sql}\nin {steps:#?}");
            }
        }
        assert!(changed > 20, "{changed} changes, accepts: {accepts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_after_a_fault_has_a_crash_point_before_it_on_postgres() {
    each_change_after_a_fault_is_behind_a_crash_point::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_after_a_fault_has_a_crash_point_before_it_on_sqlite() {
    each_change_after_a_fault_is_behind_a_crash_point::<Sqlite>().await;
}
