//! Jobs that an old build staged, compared with the lock files of a new one.

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
    what_a_build_has_staged_it_delivers_by_its_own_lock_files,
    g19_why_a_job_is_not_delivered_tells_no_key_of_its_arguments,
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

/// The same request, without a mail.
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

/// Each name of a job, the number of jobs that these lock files leave, and whether their form is the reason.
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

    // The report is right: no handler of that form takes one of them.
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

/// Its stored form is not JSON.
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

/// Read in any case, and written in lower case.
#[derive(Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[derive(Clone)]
struct LowerCase(String);

impl From<String> for LowerCase {
    fn from(text: String) -> Self {
        Self(text.to_lowercase())
    }
}

impl From<LowerCase> for String {
    fn from(LowerCase(text): LowerCase) -> Self {
        text
    }
}

/// Read in each form, and written without hyphens.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct SimpleUuid(uuid::Uuid);

impl TryFrom<String> for SimpleUuid {
    type Error = uuid::Error;

    fn try_from(text: String) -> Result<Self, uuid::Error> {
        text.parse().map(Self)
    }
}

impl Serialize for SimpleUuid {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0.simple())
    }
}

/// One of 1, 5 and 10.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
struct Rank(u8);

impl TryFrom<u8> for Rank {
    type Error = &'static str;

    fn try_from(rank: u8) -> Result<Self, &'static str> {
        [1, 5, 10].contains(&rank).then_some(Self(rank)).ok_or("no such rank")
    }
}

impl From<Rank> for u8 {
    fn from(Rank(rank): Rank) -> Self {
        rank
    }
}

#[derive(Serialize, Deserialize)]
struct Ranked {
    rank: u8,
}

#[atomic_phases(name = "ranks.give", version = 1)]
impl<Db: TestDb> Ranked {
    #[phase]
    async fn staged(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        tx.stage_job("rank", &Rank(self.rank))?;
        tx.stage_job("currency", &LowerCase("eur".to_owned()))?;
        tx.stage_job("id", &SimpleUuid(uuid::Uuid::nil()))?;
        Ok(Reply::new(204))
    }
}

/// Named before the definition is added, and after it.
async fn what_a_build_has_staged_it_delivers_by_its_own_lock_files<S: TestDb>(db: S) {
    let build = || {
        let ranked = Definitions::<S, ()>::new().job::<Ranked, Rank>("rank").with::<Ranked>();
        let ranked = ranked.job::<Ranked, LowerCase>("currency");
        ranked.job::<Ranked, SimpleUuid>("id")
    };
    let engine = Engine::builder(db.clone()).definitions(build()).build().unwrap();
    for rank in [1, 5, 10] {
        finished(engine.call(&scope(), &key(&rank.to_string()), Ranked { rank }).await);
    }
    let in_flight = InFlight::read(&db).await.unwrap();
    assert_eq!(in_flight.jobs.len(), 3);
    assert_eq!(in_flight.jobs_left_by(&build().locks()), []);
}

#[derive(Serialize, Deserialize)]
struct Guests(std::collections::BTreeMap<String, u8>);

#[atomic_phases(name = "guests.invite", version = 1)]
impl<Db: TestDb> Guests {
    #[phase]
    async fn staged(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        tx.stage_job("invite", &self.0)?;
        Ok(Reply::new(204))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Invitation {
    note: Option<String>,
}

async fn g19_why_a_job_is_not_delivered_tells_no_key_of_its_arguments<S: TestDb>(db: S) {
    let build = || {
        let guests = Definitions::<S, ()>::new().with::<Guests>();
        guests.job::<Guests, Invitation>("invite")
    };
    let engine = Engine::builder(db.clone()).definitions(build()).build().unwrap();
    let guests = Guests([("bob@a.example".to_owned(), 1)].into_iter().collect());
    finished(engine.call(&scope(), &key("k"), guests).await);
    let left = InFlight::read(&db).await.unwrap().jobs_left_by(&build().locks());
    let told: Vec<String> = left.iter().map(|left| left.because.to_string()).collect();
    assert!(told.len() == 1 && !told[0].contains("bob"), "{told:?}");
}
