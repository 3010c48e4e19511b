//! Each change of one of the engine's rows is committed between two crash points. The test reads this from what is
//! sent to PostgreSQL, not from the source. Separate, because it records the statements of every connection.
#![cfg(feature = "fault-injection")]

mod support;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use atomic_phases::Postgres;
use atomic_phases::fault::{Mode, explore};
use atomic_phases::worker::{Completer, Reconciler, WorkerConfig};
use diesel::connection::InstrumentationEvent;
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
}

static SEEN: Mutex<Vec<(Id, Step)>> = Mutex::new(Vec::new());

/// Only the engine's tasks: statements that a test sends itself do not count.
fn see(step: Step) {
    if let Some(task) = tokio::task::try_id() {
        SEEN.lock().unwrap().push((task, step));
    }
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
fn done_by_each_task() -> Vec<Vec<Step>> {
    let mut tasks: HashMap<Id, Vec<Step>> = HashMap::new();
    for (task, step) in std::mem::take(&mut *SEEN.lock().unwrap()) {
        tasks.entry(task).or_default().push(step);
    }
    tasks.into_values().map(changes).filter(|steps| steps.iter().any(is_point)).collect()
}

fn is_point(step: &Step) -> bool {
    matches!(step, Step::Point(_))
}

fn changes(steps: Vec<Step>) -> Vec<Step> {
    // A transaction is open: with what it has changed.
    let mut open: Option<Option<String>> = None;
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
            open = Some(None);
        } else if sql == "COMMIT" || sql == "ROLLBACK" {
            if let (Some(Some(changed)), "COMMIT") = (open.take(), sql.as_str()) {
                done.push(Step::Sent(changed));
            }
        } else if changes_a_row_of_ours(&sql) {
            match &mut open {
                Some(changed) => *changed = Some(sql),
                None => done.push(Step::Sent(sql)),
            }
        }
    }
    done
}

fn changes_a_row_of_ours(sql: &str) -> bool {
    let changes = ["INSERT INTO", "UPDATE", "DELETE FROM"]
        .iter()
        .any(|verb| sql.contains(&format!("{verb} atomic_phases_")));
    // A renewal extends the lease and changes nothing else, so a crash before it and one after it leave the same.
    let renews = sql.starts_with("UPDATE atomic_phases_keys SET locked_until = ");
    changes && !renews
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
fn assert_between_two_points(steps: &[Step]) -> usize {
    let mut changes = 0;
    for (index, step) in steps.iter().enumerate() {
        let Step::Sent(sql) = step else { continue };
        changes += 1;
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

async fn world(db: &Postgres, provider: Provider) -> (App, TestEngine<Postgres>) {
    db.sql(
        "DELETE FROM atomic_phases_keys; DELETE FROM atomic_phases_staged_jobs; \
         DELETE FROM rides; DELETE FROM steps",
    )
    .await;
    let app = App::new(provider);
    let engine = engine_with(db, &app, |builder| {
        let builder =
            builder.lease(Duration::from_secs(60)).creation_wait(Duration::from_millis(30));
        builder.back_off(Duration::from_millis(1), Duration::from_millis(1))
    });
    (app, engine)
}

/// G4, G13: for every way in which a request can run, with calls, workers and an operator.
#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_row_is_committed_between_two_crash_points() {
    let _alone = ALONE.lock().await;
    let db = Postgres::fresh().await;
    record();
    let mut seen = 0;
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
            for form in [Form::InTurn, Form::AsOne] {
                let parcel =
                    engine.call(&scope(), &key(&format!("{form:?}")), form.parcel(trouble));
                let _ = match accepts {
                    false => parcel.await,
                    true => parcel.accept().await,
                };
            }
        }
        for _ in 0..3 {
            db.let_time_pass().await;
            Completer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
            Reconciler::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
        }
        for steps in done_by_each_task() {
            seen += assert_between_two_points(&steps);
        }
    }
    assert!(seen > 200, "{seen} changes");
}

/// G13: also after a crash or a lost answer.
#[tokio::test(flavor = "multi_thread")]
async fn each_change_after_a_fault_has_a_crash_point_before_it() {
    let _alone = ALONE.lock().await;
    let db = Postgres::fresh().await;
    record();
    let requests = [Trouble::None, Trouble::RejectFirst];
    for trouble in requests {
        done_by_each_task();
        let modes =
            [Mode::Drop, Mode::NotSent, Mode::AckLost, Mode::Serialization, Mode::AnswerLost];
        let report = explore(
            async || {
                let (app, engine) = world(&db, Provider::default()).await;
                (engine, app)
            },
            troubled(trouble),
        )
        .modes(modes)
        .crash_at_every_point()
        .run()
        .await;
        report.assert_ok();
        let mut seen = 0;
        for steps in done_by_each_task() {
            for (index, step) in steps.iter().enumerate() {
                let Step::Sent(sql) = step else { continue };
                seen += 1;
                let before = index.checked_sub(1).and_then(|index| steps.get(index));
                let fits = matches!(before, Some(Step::Point(place)) if behind(place).is_some());
                assert!(fits, "{before:?} before {sql}\nin {steps:#?}");
            }
        }
        assert!(seen > 20, "{seen} changes");
    }
}
