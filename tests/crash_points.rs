//! Each change of one of the engine's rows is committed between two crash points, or is in a list with the reason why a
//! crash on either side of it leaves the same. The tests read this from what is sent to PostgreSQL, not from the source.
//! Separate, because they record the statements of every connection.
//!
//! What they show, and what they do not:
//!
//! * In a run without faults, for calls, acceptances, workers and an operator: a change is the only one between the two
//!   points of its kind.
//! * After a fault, in the explorer's cases of a call and of an acceptance: a change has the point before it. The point
//!   after it may be where the fault was, and is not looked for.
//! * A takeover that several requests share is sent by a task of its own, and is in no task's order. It is left out where a
//!   task stands before its takeover, and as often as tasks came there, not more. The tests do not see for which of them it
//!   was sent.
//! * On PostgreSQL only. The points are the engine's, and so the same on every store; that a store changes a row in one
//!   commit is not shown for the others here.
#![cfg(feature = "fault-injection")]

mod support;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use atomic_phases::Reply;
use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::fault::{Mode, explore};
use atomic_phases::ops::{Actor, Permissions, Scopes};
use atomic_phases::store::Postgres;
use atomic_phases::worker::{Completer, Enqueuer, Reaper, Reconciler};
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
async fn arranged<T>(work: impl Future<Output = T>) -> T {
    ARRANGES.scope((), work).await
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

/// Both tests read what all tasks did, so they run one at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What each task did since the last call, as far as it is a crash point or makes a change of the engine's durable:
/// the points, and one `Sent` for each change, whether the change is a statement by itself or part of a
/// transaction.
fn done_by_each_task() -> Vec<(Task, Vec<Step>)> {
    let mut tasks: HashMap<Task, Vec<Step>> = HashMap::new();
    for (task, step) in without_shared(std::mem::take(&mut *SEEN.lock().unwrap())) {
        tasks.entry(task).or_default().push(step);
    }
    tasks.into_iter().map(|(task, steps)| (task, changes(steps))).collect()
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

fn changes(steps: Vec<Step>) -> Vec<Step> {
    // A transaction is open: with what it has changed.
    let mut open: Option<Vec<String>> = None;
    let mut done = Vec::new();
    for step in steps {
        let sql = match step {
            Step::Sent(sql) => sql,
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
        if sql.starts_with("BEGIN") {
            open = Some(Vec::new());
        } else if sql == "COMMIT" || sql == "ROLLBACK" {
            let changed = open.take().unwrap_or_default();
            if sql == "COMMIT" && !changed.is_empty() {
                done.push(Step::Sent(changed.join("; ")));
            }
        } else if changes_a_row_of_ours(&sql) {
            match &mut open {
                Some(changed) => changed.push(sql),
                None => done.push(Step::Sent(sql)),
            }
        }
    }
    done
}

/// What is committed without points, and why a crash before it and one after it leave the same.
const EXEMPT: [(&str, &str); 6] = [
    (
        "UPDATE atomic_phases_keys SET locked_until = (SELECT clock_timestamp()",
        "a renewal extends the lease and changes nothing else",
    ),
    (
        "UPDATE atomic_phases_keys SET run_after = locked_until",
        "an abandoned row is entered in the index of due rows, by the next look if not by this one",
    ),
    (
        "AND status = 'completed' AND expires_at <= (SELECT clock_timestamp())",
        "a call treats an expired row as one that is not there, and deletes it before it creates its own",
    ),
    (
        "AND status = 'completed' AND expires_at <= statement_timestamp()",
        "the reaper deletes it, in the next pass if not in this one",
    ),
    (
        "UPDATE atomic_phases_staged_jobs AS j SET attempts = ",
        "a claim of a job has a lease, which ends by itself",
    ),
    (
        "WITH ended AS (DELETE FROM atomic_phases_staged_jobs",
        "a job is delivered at least once: if this is not committed, once more",
    ),
];

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

fn changes_a_row_of_ours(sql: &str) -> bool {
    if let Some((exempt, _)) = EXEMPT.iter().find(|(exempt, _)| sql.contains(exempt)) {
        EXEMPTED.lock().unwrap().insert(exempt);
        return false;
    }
    !written(sql).is_empty()
}

/// The point after a commit that belongs to the given point before it.
fn behind(before: &str) -> Option<&'static str> {
    Some(match before {
        "before_commit" => "after_commit",
        "before_intent" => "after_intent",
        "before_release" => "after_release",
        "before_take_over" => "after_take_over",
        _ => return None,
    })
}

/// For a run without faults: each change is the only one between the two points of its kind.
fn assert_between_two_points(steps: &[Step]) -> Vec<&str> {
    let mut changes = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let Step::Sent(sql) = step else { continue };
        changes.push(&**sql);
        let before = index.checked_sub(1).and_then(|index| steps.get(index));
        let Some(Step::Point(before)) = before else {
            panic!("no point before {sql}\nin {steps:#?}");
        };
        let Some(after) = behind(before) else {
            panic!("{before} before {sql}\nin {steps:#?}");
        };
        assert_eq!(steps.get(index + 1), Some(&Step::Point(after.to_owned())), "{sql}\n{steps:#?}");
    }
    changes
}

/// What the tests look for, in lists made by hand.
#[test]
fn a_change_that_is_not_between_its_points_is_found() {
    let point = |place: &str| Step::Point(place.to_owned());
    let sent = |sql: &str| Step::Sent(sql.to_owned());
    let change = || sent("UPDATE atomic_phases_keys SET status = 'completed'");
    let (before, after) = (|| point("before_commit"), || point("after_commit"));
    let found = |steps: Vec<Step>| {
        let steps = changes(steps);
        std::panic::catch_unwind(|| assert_between_two_points(&steps).len()).ok()
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
    let steps = || changes(vec![takes().1]);
    assert!(std::panic::catch_unwind(|| assert_between_two_points(&steps()).len()).is_err());
}

async fn world(db: &Postgres, provider: Provider) -> (App, TestEngine<Postgres>) {
    let empty = "DELETE FROM atomic_phases_keys; DELETE FROM atomic_phases_staged_jobs; \
         DELETE FROM rides; DELETE FROM steps";
    arranged(db.sql(empty)).await;
    see(Step::Emptied);
    let app = App::new(provider);
    let engine = engine_with(db, &app, |builder| {
        let builder =
            builder.lease(Duration::from_secs(60)).creation_wait(Duration::from_millis(30));
        builder.back_off(Duration::from_millis(1), Duration::from_millis(1))
    });
    (app, engine)
}

/// A call that takes longer than its lease, which is renewed meanwhile.
async fn is_renewed(db: &Postgres, engine: &TestEngine<Postgres>) {
    let app = engine.app();
    let engine = engine_with(db, app, |builder| builder.lease(Duration::from_secs(2)));
    let mut gate = app.provider.stop_after_the_effect();
    let call = tokio::spawn(async move { engine.call(&scope(), &key("slow"), book(20)).await });
    let waiting = gate.recv().await.unwrap();
    let (renews, _) = EXEMPT[0];
    let is_renewal = |(_, step): &(_, _)| matches!(step, Step::Sent(sql) if sql.contains(renews));
    until(async || SEEN.lock().unwrap().iter().any(is_renewal)).await;
    app.provider.stop_no_more();
    drop(waiting);
    let _ = call.await.unwrap();
}

/// An operator's words about two calls whose outcome stays unknown: one with an audit row, and one without.
async fn resolve(engine: &TestEngine<Postgres>) {
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    let row = ops.find(&scope(), &key("book-false")).await.unwrap();
    let word = Resolution::not_executed("charged", row.attempts);
    let done = ops.resolve(row.request_id, &row.version, word, "asked the provider").await;
    assert_eq!(done.unwrap(), Resolved::Applied);
    let word = Resolution::finish(Reply::text(409, "by hand"));
    let done = engine.resolve(&scope(), &key("book-true"), word).await;
    assert_eq!(done.unwrap(), Resolved::Applied);
}

/// G4, G13: for every way in which a request can run, with calls, workers and an operator.
#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_row_is_committed_between_two_crash_points() {
    let _alone = ALONE.lock().await;
    // First, because a connection that is open by then is not recorded.
    record();
    let db = Postgres::fresh().await;
    let (mut seen, mut kinds) = (0, BTreeSet::new());
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
        let provider = Provider::that_ignores_keys();
        provider.answer_searches();
        let (_, engine) = world(&db, provider).await;
        done_by_each_task();
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
                let parcel =
                    engine.call(&scope(), &key(&format!("{form:?}")), form.parcel(trouble));
                let _ = match accepts {
                    false => parcel.await,
                    true => parcel.accept().await,
                };
            }
        }
        if trouble == Trouble::None {
            is_renewed(&db, &engine).await;
            dies_in_its_call(&engine, "dead", book(20)).await;
        }
        for _ in 0..3 {
            arranged(db.let_time_pass()).await;
            Completer::new(&engine, config()).run_once().await.unwrap();
            Reconciler::new(&engine, config()).run_once().await.unwrap();
        }
        if trouble == Trouble::UnknownForeign {
            resolve(&engine).await;
        }
        Enqueuer::new(&engine, Inbox::default().sink(), config()).run_once().await.unwrap();
        arranged(db.sql("UPDATE atomic_phases_keys SET expires_at = clock_timestamp()")).await;
        // A new life of an expired key; the reaper deletes the others.
        let _ = engine.call(&scope(), &key("book-false"), troubled(trouble)).await;
        Reaper::new(engine.store(), config()).run_once().await.unwrap();
        for (_, steps) in done_by_each_task() {
            for change in assert_between_two_points(&steps) {
                seen += 1;
                kinds.extend(written(change));
            }
        }
    }
    assert!(seen > 200, "{seen} changes");
    let expected = [
        "INSERT atomic_phases_audit",
        "INSERT atomic_phases_keys",
        "INSERT atomic_phases_staged_jobs",
        "UPDATE atomic_phases_keys",
    ];
    assert_eq!(kinds.iter().collect::<Vec<_>>(), expected, "each kind is recognized");
    let exempt: BTreeSet<&str> = EXEMPT.iter().map(|(exempt, _)| *exempt).collect();
    assert_eq!(*EXEMPTED.lock().unwrap(), exempt, "no exemption without a statement");
}

/// G13: also after a crash or a lost answer. Of the two points only the one before it: the fault may be at the other.
#[tokio::test(flavor = "multi_thread")]
async fn each_change_after_a_fault_has_a_crash_point_before_it() {
    let _alone = ALONE.lock().await;
    // First, because a connection that is open by then is not recorded.
    record();
    let db = Postgres::fresh().await;
    let requests = [Trouble::None, Trouble::RejectFirst];
    for (trouble, accepts) in requests.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        done_by_each_task();
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
        let mut seen = 0;
        for (task, steps) in done_by_each_task() {
            // The explorer's own.
            if task.is_none() {
                continue;
            }
            for (index, step) in steps.iter().enumerate() {
                let Step::Sent(sql) = step else { continue };
                seen += 1;
                let before = index.checked_sub(1).and_then(|index| steps.get(index));
                let fits = matches!(before, Some(Step::Point(place)) if behind(place).is_some());
                assert!(fits, "{before:?} before {sql}\nin {steps:#?}");
            }
        }
        assert!(seen > 20, "{seen} changes, accepts: {accepts}");
    }
}
