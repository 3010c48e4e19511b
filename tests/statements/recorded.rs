//! Every statement that this process sends. One test at a time: what is recorded is the driver's, for all
//! connections of the process.

use std::sync::Mutex;

use diesel::connection::InstrumentationEvent;
use tokio::sync::MutexGuard;

static SENT: Mutex<Vec<String>> = Mutex::new(Vec::new());
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Held by a test from before it opens its connections until its end.
pub async fn alone() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().await;
    diesel::connection::set_default_instrumentation(|| Some(Box::new(record))).unwrap();
    sent();
    turn
}

fn record(event: InstrumentationEvent<'_>) {
    if let InstrumentationEvent::StartQuery { query, .. } = event {
        SENT.lock().unwrap().push(query.to_string());
    }
}

/// What was sent since the last call.
pub fn sent() -> Vec<String> {
    std::mem::take(&mut *SENT.lock().unwrap())
}

/// How many statements were sent since then that are like this.
pub fn count(is_one: impl Fn(&str) -> bool) -> usize {
    SENT.lock().unwrap().iter().filter(|sql| is_one(sql)).count()
}
