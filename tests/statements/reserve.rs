//! `reserve` is one statement: it creates the row, or finds that one exists. In that case the engine reads the row
//! afterwards, in the round trip that rolls the transaction back. Shown by a call that saw no row and meets one
//! when it comes to create its own.

use std::borrow::Cow;
use std::sync::Mutex;

use crate::recorded::{alone, sent};
use crate::support::*;
use atomic_phases::Outcome;
use atomic_phases::codec::{Codec, CodecError, Place};
use atomic_phases::engine::CallError;
use atomic_phases::store::{Postgres, Sqlite};

/// Runs something between the read of a key and its reservation: parameters are encoded at that time.
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Codec for Meanwhile {
    fn encode<'a>(&self, _: Place<'_>, plain: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, CodecError> {
        if let Some(happens) = self.0.lock().unwrap().take() {
            tokio::task::block_in_place(happens);
        }
        Ok(plain)
    }

    fn decode<'a>(&self, _: Place<'_>, stored: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, CodecError> {
        Ok(stored)
    }
}

/// The outcome of a call that saw no row while another one created it and left it as `sql` says; and the statements
/// that the call sent from then on.
async fn met<S: TestDb>(
    db: &S,
    app: &App,
    name: &'static str,
    sql: &'static str,
    request: Book,
) -> (Result<Outcome, CallError>, Vec<String>) {
    let (other, store) = (engine(db, app), db.clone());
    let runtime = tokio::runtime::Handle::current();
    let meanwhile = move || {
        runtime.block_on(async {
            finished(other.call(&scope(), &key(name), book(20)).await);
            if !sql.is_empty() {
                store.sql(&sql.replace("KEY", name)).await;
            }
        });
        sent();
    };
    let codec = Meanwhile(Mutex::new(Some(Box::new(meanwhile))));
    let engine = engine_with(db, app, |builder| builder.codec(codec));
    let outcome = engine.call(&scope(), &key(name), request).await;
    (outcome, sent())
}

const LEFT: &str = "UPDATE atomic_phases_keys SET recovery_point = 'booked', response_status = NULL, \
    outputs = NULL, response_headers = NULL, response_body = NULL, status = ";

fn left(status: &str, more: &str) -> &'static str {
    format!("{LEFT}'{status}'{more} WHERE idempotency_key = 'KEY'").leak()
}

/// Everything that a row can mean for a call.
async fn tells_all<S: TestDb>(db: S) -> Vec<Vec<String>> {
    let app = App::default();
    let alive = match is_postgres::<S>() {
        true => ", locked_until = clock_timestamp() + interval '1 minute'",
        false => ", locked_until = created_at + 60000",
    };
    // The schema's trigger guards the recovery points, which this test moves back by hand.
    match is_postgres::<S>() {
        true => db.sql("ALTER TABLE atomic_phases_keys DISABLE TRIGGER forward_only").await,
        false => db.sql("DROP TRIGGER forward_only").await,
    }
    let mut sent = Vec::new();
    let mut meet = async |name, sql, request: Book| {
        let (outcome, statements) = met(&db, &app, name, sql, request).await;
        sent.push(statements);
        outcome
    };

    let replay = finished(meet("replay", "", book(20)).await);
    assert!(replay.replayed);
    assert!(matches!(meet("mismatch", "", book(21)).await, Ok(Outcome::Mismatch)));
    let held = meet("in-progress", left("in_progress", alive), book(20)).await;
    assert!(matches!(held, Ok(Outcome::InProgress { .. })), "{held:?}");
    let unknown = meet("unknown", left("unknown", ", open_intent = 'charged'"), book(20)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })), "{unknown:?}");
    let dead = meet("dead-letter", left("dead_letter", ""), book(20)).await;
    assert!(matches!(dead, Ok(Outcome::DeadLetter)), "{dead:?}");
    let other = meet("mismatch-in-progress", left("in_progress", alive), book(21)).await;
    assert!(matches!(other, Ok(Outcome::Mismatch)), "G9: {other:?}");
    assert_eq!(app.provider.effects(), 6);
    assert_eq!(app.bodies(), [6, 6, 6], "none of these runs anything");
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn g9_g10_a_reservation_that_finds_a_row_tells_all_that_it_can_mean() {
    let _alone = alone().await;
    tells_all(Sqlite::fresh().await).await;
    for statements in tells_all(Postgres::fresh().await).await {
        let words = |sql: &String| sql.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        // If the fingerprint differs, the stored parameters are read by the caller's type.
        let words = statements.iter().map(words).filter(|words| words != "SELECT params,");
        let words: Vec<String> = words.collect();
        assert_eq!(
            words,
            ["BEGIN ISOLATION", "WITH begun", "ROLLBACK --", "SELECT request_id,"],
            "one statement finds the key taken, and one tells which request has it"
        );
    }
    a_row_that_is_free_is_taken_over().await;
}

/// It also finds a row whose holder has died; then the guarded statement of every takeover takes that row over
/// (H19).
async fn a_row_that_is_free_is_taken_over() {
    let db = Postgres::fresh().await;
    db.sql("ALTER TABLE atomic_phases_keys DISABLE TRIGGER forward_only").await;
    let app = App::default();
    let released = "UPDATE atomic_phases_keys SET recovery_point = 'started', status = 'failed_retryable', \
        outputs = NULL, response_status = NULL, run_after = NULL WHERE idempotency_key = 'KEY'; \
        DELETE FROM atomic_phases_staged_jobs";
    let (outcome, _) = met(&db, &app, "free", released, book(20)).await;
    assert!(!finished(outcome).replayed);
    assert_eq!(app.provider.effects(), 1, "the same derived key");
    assert_eq!(app.bodies(), [2, 2, 2]);
}
