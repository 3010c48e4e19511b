//! Records every statement that this process sends. The tests run one at a time, because the driver records for all
//! connections of the process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use diesel::connection::InstrumentationEvent;
use tokio::sync::MutexGuard;

static SENT: Mutex<Vec<String>> = Mutex::new(Vec::new());
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A test holds this from before it opens its connections until its end.
pub async fn alone() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().await;
    diesel::connection::set_default_instrumentation(|| Some(Box::new(record))).unwrap();
    sent();
    turn
}

/// The number of queries of the pauses, which a timer sends besides the requests.
static ASKED_FOR_PAUSES: AtomicUsize = AtomicUsize::new(0);
static PAUSES: Mutex<String> = Mutex::new(String::new());

fn asks_for_pauses(query: &str) -> bool {
    query.contains("FROM atomic_phases_pauses WHERE coalesce")
}

fn record(event: InstrumentationEvent<'_>) {
    match event {
        InstrumentationEvent::StartQuery { query, .. } => {
            let query = query.to_string();
            // One more connection, for that query: its setting is not part of a request.
            let is_of_a_new_connection = query.starts_with("SET client_connection_check_interval");
            if asks_for_pauses(&query) {
                *PAUSES.lock().unwrap() = query;
            } else if !is_of_a_new_connection {
                SENT.lock().unwrap().push(query);
            }
        }
        InstrumentationEvent::FinishQuery { query, .. } if asks_for_pauses(&query.to_string()) => {
            ASKED_FOR_PAUSES.fetch_add(1, Ordering::SeqCst);
        }
        _ => {}
    }
}

/// The number of answered queries so far.
pub fn asked_for_pauses() -> usize {
    ASKED_FOR_PAUSES.load(Ordering::SeqCst)
}

/// The query of the pauses, as it was sent last.
pub fn query_of_pauses() -> String {
    PAUSES.lock().unwrap().clone()
}

/// The statements since the last call.
pub fn sent() -> Vec<String> {
    std::mem::take(&mut *SENT.lock().unwrap())
}

/// The number of statements since then that match.
pub fn count(is_one: impl Fn(&str) -> bool) -> usize {
    SENT.lock().unwrap().iter().filter(|sql| is_one(sql)).count()
}
