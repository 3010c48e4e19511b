//! A changed default, and the retries of clients that omit the member.

use atomic_phases::compat::{Definitions, Level, Lint, Locks, compare};
use atomic_phases::request::RequestDefinition;
use atomic_phases::{Engine, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::support::*;

on_every_store! { g9_another_default_makes_a_mismatch_of_each_retry_and_is_told }

/// A build with a default of its own.
macro_rules! builds {
    ($($name:ident $seats:tt;)*) => {
        $(#[derive(Serialize, Deserialize)]
        struct $name {
            cents: u32,
            #[serde(default = $seats)]
            seats: u8,
        }

        #[atomic_phases(name = "rides.create", version = 1)]
        impl<Db: TestDb> $name {
            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
                let _ = tx;
                Ok(Reply::text(200, format!("{} {}", self.cents, self.seats)))
            }
        })*
    };
}

fn seats<const SEATS: u8>() -> u8 {
    SEATS
}

builds! {
    One "seats::<1>";
    Two "seats::<2>";
}

fn locks<S: TestDb, R: RequestDefinition<S, ()>>() -> Locks {
    Definitions::<S, ()>::new().with::<R>().locks()
}

async fn send<S: TestDb, R>(db: &S, body: &str) -> Outcome
where
    R: RequestDefinition<S, ()> + DeserializeOwned,
{
    let engine = Engine::builder(db.clone()).register::<R>().build().unwrap();
    let request: R = serde_json::from_str(body).unwrap();
    engine.call(&scope(), &key("k"), request).await.unwrap()
}

async fn g9_another_default_makes_a_mismatch_of_each_retry_and_is_told<S: TestDb>(db: S) {
    let (left_out, said) = (r#"{"cents":5}"#, r#"{"cents":5,"seats":1}"#);
    for body in [left_out, left_out, said] {
        assert!(matches!(send::<S, One>(&db, body).await, Outcome::Finished(_)));
    }
    assert!(matches!(send::<S, Two>(&db, said).await, Outcome::Finished(_)));
    assert!(
        matches!(send::<S, Two>(&db, left_out).await, Outcome::Mismatch),
        "what was sent before"
    );

    let findings = compare(&locks::<S, One>(), &locks::<S, Two>());
    let denied: Vec<_> =
        findings.iter().filter(|finding| finding.lint.level() >= Level::Deny).collect();
    assert_eq!(denied.len(), 1, "{findings:#?}");
    assert_eq!(denied[0].lint, Lint::DefaultChanged);
    assert_eq!(compare(&locks::<S, One>(), &locks::<S, One>()), []);
}
