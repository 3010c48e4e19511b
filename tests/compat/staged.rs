//! Jobs that an old build staged, beside the lock files of a new one.

use std::borrow::Cow;

use atomic_phases::codec::{Codec, CodecError, Place};
use atomic_phases::compat::{Definitions, InFlight, JobsLeftBecause, Lint, Locks, compare};
use atomic_phases::worker::{Enqueuer, Handlers, Job};
use atomic_phases::{Engine, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

use crate::support::work::config;
use crate::support::*;

on_every_store! {
    g18_staged_jobs_of_a_name_that_is_gone_or_of_another_form_are_found,
    arguments_that_are_sealed_or_long_are_not_judged_and_it_is_told,
}

#[derive(Serialize, Deserialize)]
struct Letter {
    to: String,
}

#[derive(Serialize, Deserialize)]
struct LetterWithCopy {
    to: String,
    copy: String,
}

#[derive(Serialize, Deserialize)]
struct LetterWithNote {
    to: String,
    note: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Order {
    to: String,
}

#[atomic_phases(name = "orders.create", version = 1)]
impl<Db: TestDb> Order {
    #[phase]
    async fn staged(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        tx.stage_job("mail", &Letter { to: self.to.clone() })?;
        tx.stage_job("log", &1)?;
        Ok(Reply::new(204))
    }
}

/// The same, and it sends no mail.
#[derive(Serialize, Deserialize)]
struct Silent {
    to: String,
}

#[atomic_phases(name = "orders.create", version = 1)]
impl<Db: TestDb> Silent {
    #[phase]
    async fn staged(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        tx.stage_job("log", &1)?;
        Ok(Reply::new(204))
    }
}

fn with<S: TestDb, L>() -> Definitions<S, App>
where
    L: Serialize + serde::de::DeserializeOwned,
{
    Definitions::new().with::<Order>().job::<Order, L>("mail").job::<Order, u8>("log")
}

fn order(to: &str) -> Order {
    Order { to: to.to_owned() }
}

/// Each name with the number of jobs that these lock files leave, and whether their form is why.
async fn left<S: TestDb>(db: &S, locks: &Locks) -> Vec<(String, u64, &'static str)> {
    let left = InFlight::read(db).await.unwrap().jobs_left_by(locks);
    left.into_iter().map(|left| (left.name, left.jobs, left.because.as_str())).collect()
}

async fn g18_staged_jobs_of_a_name_that_is_gone_or_of_another_form_are_found<S: TestDb>(db: S) {
    let definitions = with::<S, Letter>();
    let locks = definitions.locks();
    let builder = Engine::builder(db.clone()).app(App::default());
    let engine = builder.definitions(definitions).build().unwrap();
    for name in ["one@a.example", "two@a.example"] {
        finished(engine.call(&scope(), &key(name), order(name)).await);
    }

    let silent = Definitions::<S, App>::new().with::<Silent>().locks();
    let (copy, note) = (with::<S, LetterWithCopy>().locks(), with::<S, LetterWithNote>().locks());
    assert_eq!(left(&db, &locks).await, []);
    assert_eq!(left(&db, &note).await, [], "an optional member harms no job");
    let mail = |jobs, because| vec![("mail".to_owned(), jobs, because)];
    assert_eq!(left(&db, &silent).await, mail(2, "job_not_named"));
    assert_eq!(left(&db, &copy).await, mail(2, "job_unreadable"));
    assert_eq!(left(&db, &Locks::new()).await.len(), 2, "no name is known");

    let in_flight = InFlight::read(&db).await.unwrap();
    let findings = compare(&locks, &copy);
    let unreadable = findings.iter().find(|finding| finding.lint == Lint::JobUnreadable).unwrap();
    assert_eq!((in_flight.jobs_at(unreadable), in_flight.rows_at(unreadable)), (2, 0));
    assert_eq!(in_flight.jobs_only_of(&locks, "orders.create", 1), 4);
    assert_eq!(in_flight.jobs_only_of(&silent, "orders.create", 1), 2);
    assert!(!format!("{in_flight:?}").contains("a.example"), "G19");
    let because = in_flight.jobs_left_by(&copy).remove(0).because;
    assert!(
        matches!(&because, JobsLeftBecause::Unreadable(why) if why.contains(".copy is absent"))
    );

    // What was said is what happens: no handler of that form takes one of them.
    let handlers = Handlers::new()
        .on("mail", async |_: LetterWithCopy, _: Job| Ok(()))
        .on("log", async |_: u8, _: Job| Ok(()));
    let mut enqueuer = Enqueuer::new(&engine, handlers, config());
    for _ in 0..3 {
        enqueuer.run_once().await.unwrap();
        db.let_time_pass().await;
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 2);
    let in_flight = InFlight::read(&db).await.unwrap();
    let found: Vec<_> = in_flight.jobs.iter().map(|jobs| (&*jobs.name, jobs.dead)).collect();
    assert_eq!(found, [("mail", 2)], "dead letters are found, too");
    assert_eq!(left(&db, &copy).await, mail(2, "job_unreadable"));
    assert_eq!(left(&db, &locks).await, []);
}

/// What it stores is no JSON.
struct Sealed;

impl Codec for Sealed {
    fn encode<'v>(&self, _: Place<'_>, plain: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Ok(plain.iter().map(|byte| byte ^ 0x80).collect::<Vec<_>>().into())
    }

    fn decode<'v>(
        &self,
        at: Place<'_>,
        stored: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        self.encode(at, stored)
    }
}

async fn arguments_that_are_sealed_or_long_are_not_judged_and_it_is_told<S: TestDb>(db: S) {
    let plain = Engine::builder(db.clone()).app(App::default()).definitions(with::<S, Letter>());
    let sealed = Engine::builder(db.clone()).app(App::default()).definitions(with::<S, Letter>());
    let (plain, sealed) = (plain.build().unwrap(), sealed.codec(Sealed).build().unwrap());
    finished(sealed.call(&scope(), &key("sealed"), order("a")).await);
    finished(plain.call(&scope(), &key("long"), order(&"a".repeat(5000))).await);
    finished(plain.call(&scope(), &key("short"), order("a")).await);
    let in_flight = InFlight::read(&db).await.unwrap();
    let found: Vec<_> =
        in_flight.jobs.iter().map(|jobs| (&*jobs.name, jobs.jobs, jobs.unread)).collect();
    assert_eq!(found, [("log", 3, 1), ("mail", 3, 2)]);
    let left = in_flight.jobs_left_by(&with::<S, LetterWithCopy>().locks());
    assert_eq!((left.len(), left[0].jobs), (1, 1), "of those that were read");
    assert_eq!(in_flight.jobs_left_by(&Locks::new()).iter().map(|left| left.jobs).sum::<u64>(), 6);
}
