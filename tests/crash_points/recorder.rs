//! Records what each task does: the points that it passes, and the statements that it sends.

use std::sync::Mutex;

use crate::support::*;
use diesel::connection::InstrumentationEvent;
use tokio::task::Id;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Record};
use tracing::{Event, Metadata, Subscriber};

/// What a task did, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Point(String),
    Sent(String),
    /// The server refused the last statement, or did not answer it: a transaction is rolled back.
    Failed,
    /// The test has emptied the tables: what stood anywhere before has ended.
    Emptied,
}

/// `None`: the test's own future.
pub(super) type Task = Option<Id>;

pub(super) static SEEN: Mutex<Vec<(Task, Step)>> = Mutex::new(Vec::new());

tokio::task_local! {
    /// Set while the test itself changes rows.
    static ARRANGES: ();
}

pub(super) fn see(step: Step) {
    if ARRANGES.try_with(|()| ()).is_err() {
        SEEN.lock().unwrap().push((tokio::task::try_id(), step));
    }
}

/// What the test does itself, and not the engine.
pub(super) async fn arranged<S: TestDb, T>(_: &S, work: impl Future<Output = T>) -> T {
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

pub(super) fn record() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        diesel::connection::set_default_instrumentation(|| Some(Box::new(see_statement))).unwrap();
        tracing::subscriber::set_global_default(Points).unwrap();
    });
}

/// These tests read what all tasks did, so they run one at a time.
pub(super) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Everything since the last call.
pub(super) fn seen() -> Vec<(Task, Step)> {
    std::mem::take(&mut *SEEN.lock().unwrap())
}
