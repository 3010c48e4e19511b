//! G18: staged jobs reach their sink at least once, in order, with a stable id.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::proxy::{Cut, proxied};
use crate::support::work::*;
use crate::support::*;
use atomic_phases::codec::{Codec, CodecError, Place};
use atomic_phases::worker::{Delivered, DeliveryError, Enqueuer, Handlers, Job, JobSink};
use atomic_phases::{Engine, PhaseResult, Reply, Scope, Tx, atomic_phases};

on_every_store! {
    g18_jobs_are_delivered_in_order_with_stable_ids,
    g18_a_delivery_that_was_cut_off_is_repeated_with_the_same_id,
    g18_a_panic_of_the_sink_or_the_codec_fails_that_one_job,
    g18_two_enqueuers_deliver_each_job_once,
    g18_a_job_without_a_handler_here_waits_for_another_node_in_its_order,
    g18_a_job_that_the_codec_cannot_open_here_waits_for_another_node,
    g16_jobs_that_wait_for_another_of_their_request_are_not_searched,
    arguments_that_do_not_come_back_are_not_staged,
}

async fn g18_jobs_are_delivered_in_order_with_stable_ids<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for name in ["a", "b", "c"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config());
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 3, "of each request the first");
    assert!(inbox.0.lock().unwrap().iter().all(|job| job.name == "receipt"));
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 3);
    assert_eq!(enqueuer.run_once().await.unwrap(), Delivered::default());
    let jobs = inbox.take();
    assert!(jobs[3..].iter().all(|job| job.name == "thanks"));
    assert_eq!(
        jobs[0].args::<String>().unwrap(),
        "effect-1".replace('1', &jobs[0].args::<String>().unwrap()[7..])
    );
    let ids: std::collections::HashSet<_> = jobs.iter().map(|job| job.id).collect();
    assert_eq!(ids.len(), 6);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);
}

async fn g18_a_delivery_that_was_cut_off_is_repeated_with_the_same_id<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    struct Hangs(Inbox);
    impl JobSink for Hangs {
        async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
            self.0.0.lock().unwrap().push(job.clone());
            std::future::pending().await
        }
    }
    let inbox = Inbox::default();
    let mut hanging = Enqueuer::new(&engine, Hangs(inbox.clone()), config());
    let cut = tokio::spawn(async move { hanging.run_once().await });
    let first = loop {
        match inbox.take().pop() {
            Some(job) => break job,
            None => tokio::task::yield_now().await,
        }
    };
    cut.abort();
    let _ = cut.await;
    let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config());
    assert_eq!(
        enqueuer.run_once().await.unwrap().delivered,
        0,
        "another node may be delivering it"
    );
    db.let_time_pass().await;
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
    let second = inbox.take().pop().unwrap();
    assert_eq!((second.id, second.attempt), (first.id, 2));
    assert_eq!(second.args, first.args);
}

/// Panics outside the future that `deliver` returns: before it exists, and in the other calls into the application.
async fn g18_a_panic_of_the_sink_or_the_codec_fails_that_one_job<S: TestDb>(db: S) {
    struct PanickingCodec;
    impl Codec for PanickingCodec {
        fn encode<'v>(
            &self,
            _: Place<'_>,
            plain: Cow<'v, [u8]>,
        ) -> Result<Cow<'v, [u8]>, CodecError> {
            Ok(plain)
        }

        fn decode<'v>(
            &self,
            place: Place<'_>,
            stored: Cow<'v, [u8]>,
        ) -> Result<Cow<'v, [u8]>, CodecError> {
            assert_ne!((place.column, place.key.as_str()), ("args", "decode"), "as asked for");
            Ok(stored)
        }
    }
    struct PanickingSink(Inbox);
    impl JobSink for PanickingSink {
        fn deliver(&self, job: &Job) -> impl Future<Output = Result<(), DeliveryError>> + Send {
            assert_ne!(job.key.as_str(), "deliver", "as asked for");
            self.0.clone().keep(job.clone())
        }

        fn handles(&self, name: &str) -> bool {
            assert_ne!(name, "thanks", "as asked for");
            true
        }
    }
    let app = App::default();
    let engine = engine_with(&db, &app, |builder| builder.codec(PanickingCodec));
    for name in ["decode", "deliver", "healthy"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    let inbox = Inbox::default();
    let sink = PanickingSink(inbox.clone());
    let mut enqueuer = Enqueuer::new(&engine, sink, config().max_deliveries(1));
    let first = enqueuer.run_once().await.unwrap();
    let counts = |swept: Delivered| (swept.delivered, swept.dead_letters, swept.left);
    assert_eq!(counts(first), (1, 1, 1), "the first jobs of each request");
    let second = enqueuer.run_once().await.unwrap();
    assert_eq!(counts(second), (0, 2, 1), "no sink says that it handles them");
    let delivered = inbox.take();
    assert_eq!(delivered.len(), 1);
    assert_eq!(delivered[0].key.as_str(), "healthy");
}

async fn g18_two_enqueuers_deliver_each_job_once<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let another = crate::support::engine(&db.another().await, &app);
    for round in 0..30 {
        finished(engine.call(&scope(), &key(&format!("k{round}")), book(20)).await);
    }
    let inbox = Inbox::default();
    let mut one = Enqueuer::new(&engine, inbox.sink(), config());
    let mut other = Enqueuer::new(&another, inbox.sink(), config());
    loop {
        let (one, other) = tokio::join!(one.run_once(), other.run_once());
        if one.unwrap() == Delivered::default() && other.unwrap() == Delivered::default() {
            break;
        }
    }
    let jobs = inbox.take();
    assert_eq!(jobs.len(), 60, "none is claimed twice while both live");
    let mut of_key: HashMap<&str, Vec<&str>> = HashMap::new();
    for job in &jobs {
        of_key.entry(job.key.as_str()).or_default().push(&job.name);
    }
    assert!(of_key.values().all(|names| names == &["receipt", "thanks"]), "{of_key:?}");
}

async fn g18_a_job_without_a_handler_here_waits_for_another_node_in_its_order<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let another = crate::support::engine(&db.another().await, &app);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let inbox = Inbox::default();
    let handlers = |name: &'static str| {
        let inbox = inbox.clone();
        Handlers::new().on(name, move |_: String, job| inbox.clone().keep(job))
    };
    // This node has a handler for the second job of the request only.
    let mut thanks = Enqueuer::new(&engine, handlers("thanks"), config());
    let mut receipts = Enqueuer::new(&another, handlers("receipt"), config());
    for _ in 0..3 {
        let swept = thanks.run_once().await.unwrap();
        assert_eq!((swept.delivered, swept.left), (0, 1), "{swept:?}");
    }
    let untouched = "SELECT max(attempts) FROM atomic_phases_staged_jobs";
    assert_eq!(db.number(untouched).await, 0, "no attempt is counted");
    assert!(inbox.0.lock().unwrap().is_empty(), "in order");
    // The job is visible until a node takes it.
    db.let_time_pass().await;
    receipts_are_late(&db).await;
    let late = ops_of(&engine).late_jobs(10).await.unwrap();
    assert_eq!(late.iter().filter(|job| job.name == "receipt").count(), 1, "{late:?}");

    assert_eq!(receipts.run_once().await.unwrap().delivered, 1);
    assert_eq!(receipts.run_once().await.unwrap().delivered, 0);
    assert_eq!(thanks.run_once().await.unwrap().delivered, 1);
    let names: Vec<_> = inbox.take().into_iter().map(|job| (job.name, job.attempt)).collect();
    assert_eq!(names, [("receipt".to_owned(), 1), ("thanks".to_owned(), 1)]);
    assert!(ops_of(&engine).late_jobs(10).await.unwrap().is_empty());
}

/// Those that are still staged have been due for two minutes.
async fn receipts_are_late<S: TestDb>(db: &S) {
    let ago = if is_postgres::<S>() { "interval '2 minutes'" } else { "120000" };
    let late = format!("SET run_after = staged_at - {ago} WHERE name = 'receipt'");
    db.sql(&format!("UPDATE atomic_phases_staged_jobs {late}")).await;
}

/// For example with another secret: another node can decode its values.
struct OtherSecret;

impl Codec for OtherSecret {
    fn encode<'v>(&self, _: Place<'_>, plain: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Ok(plain)
    }

    fn decode<'v>(
        &self,
        at: Place<'_>,
        stored: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        match (at.column, at.key.as_str()) {
            ("args", "sealed") => Err(CodecError("another secret")),
            _ => Ok(stored),
        }
    }
}

async fn g18_a_job_that_the_codec_cannot_open_here_waits_for_another_node<S: TestDb>(db: S) {
    let app = App::default();
    let opening = engine(&db, &app);
    let sealed = engine_with(&db, &app, |builder| builder.codec(OtherSecret));
    for name in ["sealed", "open"] {
        finished(opening.call(&scope(), &key(name), book(20)).await);
    }
    let counted = "SELECT max(attempts - forgiven_attempts) FROM atomic_phases_staged_jobs";
    let inbox = Inbox::default();
    for look in 0..4 {
        // Longer than the cap would allow, and each time by a process that does not know the previous tries.
        let mut cannot = Enqueuer::new(&sealed, inbox.sink(), config().max_deliveries(2));
        let swept = cannot.run_once().await.unwrap();
        assert_eq!((swept.delivered, swept.left), (u32::from(look == 0), 1), "{look}: {swept:?}");
        assert_eq!(db.number(counted).await, 0, "no attempt counts");
        let claims = "SELECT max(attempts) FROM atomic_phases_staged_jobs";
        let before = db.number(claims).await;
        assert_eq!(cannot.run_once().await.unwrap().left, 1);
        assert_eq!(db.number(claims).await, before, "it is claimed once, and left from then on");
    }
    receipts_are_late(&db).await;
    let late = ops_of(&opening).late_jobs(10).await.unwrap();
    let reason = late[0].reason.as_deref().unwrap();
    assert!(late.len() == 1 && reason.contains("cannot open its arguments"), "{late:?}");
    assert!(inbox.take().iter().all(|job| job.key.as_str() == "open"));

    let mut can = Enqueuer::new(&opening, inbox.sink(), config());
    for _ in 0..2 {
        assert_eq!(can.run_once().await.unwrap().delivered, 1);
    }
    let names: Vec<_> = inbox.take().into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["receipt", "thanks"]);
}

/// However many there are: jobs of another scope come after those of one scope.
async fn g16_jobs_that_wait_for_another_of_their_request_are_not_searched<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let inbox = Inbox::default();
    let due = if is_postgres::<S>() { "now()" } else { "unixepoch('subsec') * 1000" };
    let due = format!("SELECT count(*) FROM atomic_phases_staged_jobs WHERE run_after <= {due}");
    // Two jobs of one phase; and jobs of two phases, the first of which failed.
    finished(engine.call(&scope(), &key("one-phase"), book(20)).await);
    assert_eq!(db.number(&due).await, 1);
    finished(engine.call(&scope(), &key("two-phases"), Form::OneByOne.parcel(Trouble::None)).await);
    assert_eq!(db.number(&due).await, 3, "no worker has looked yet");
    let is_up = Arc::new(Mutex::new(false));
    let (up, kept) = (is_up.clone(), inbox.clone());
    let sink = || {
        let (up, kept) = (up.clone(), kept.clone());
        let take = move |_: String, job: Job| {
            let (up, kept) = (*up.lock().unwrap(), kept.clone());
            async move {
                match up {
                    true => kept.keep(job).await,
                    false => Err(DeliveryError::retry_after("down", Duration::from_secs(3600))),
                }
            }
        };
        Handlers::new().on("receipt", take.clone()).on("label", take.clone()).on("thanks", take)
    };
    assert_eq!(Enqueuer::new(&engine, sink(), config()).run_once().await.unwrap().put_back, 2);
    assert_eq!(db.number(&due).await, 0, "what waits is not due");
    *is_up.lock().unwrap() = true;
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = staged_at WHERE attempts > 0").await;
    for due_now in [2, 2] {
        assert_eq!(db.number(&due).await, due_now, "and is as soon as it is its turn");
        let delivered = Enqueuer::new(&engine, sink(), config()).run_once().await.unwrap();
        assert_eq!(i64::from(delivered.delivered), due_now);
    }
    assert_eq!(inbox.take().len(), 4);

    // After a dead letter, too.
    finished(engine.call(&scope(), &key("dead"), book(20)).await);
    let dead = Handlers::new().on("receipt", async |_: String, _| Err(DeliveryError::dead("no")));
    Enqueuer::new(&engine, dead, config()).run_once().await.unwrap();
    assert_eq!(db.number(&due).await, 1);
    assert_eq!(Enqueuer::new(&engine, sink(), config()).run_once().await.unwrap().delivered, 1);
    assert_eq!(inbox.take().pop().unwrap().name, "thanks");
}

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Pays {
    units: i32,
}

#[atomic_phases(name = "pays", version = 1)]
impl<Db: TestDb> Pays {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "pays", "answered").await?;
        // Without units, this is NaN, which JSON cannot represent.
        tx.stage_job("pay", &(Some(0.0 / f64::from(self.units)), None::<f64>))?;
        Ok(Reply::new(204))
    }
}

async fn arguments_that_do_not_come_back_are_not_staged<S: TestDb>(db: S) {
    let engine = Engine::builder(db.clone()).app(()).register::<Pays>().build().unwrap();
    failed(engine.call(&scope(), &key("nan"), Pays { units: 0 }).await);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 0);
    finished(engine.call(&scope(), &key("finite"), Pays { units: 1 }).await);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 1);
}

/// G18, in order: a claim counts from before its statement was sent, whenever its answer is read.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_is_not_delivered_under_a_claim_that_was_read_late() {
    let (db, behind, proxy) = proxied().await;
    let app = App::default();
    let (slow, prompt) = (engine(&behind, &app), engine(&db, &app));
    let claimed_for = || config().delivery(Duration::from_secs(2));
    let (late, early) = (Inbox::default(), Inbox::default());
    // Its connection and its statements are prepared before answers become slow.
    finished(prompt.call(&scope(), &key("first"), book(20)).await);
    let mut slowly = Enqueuer::new(&slow, late.sink(), claimed_for());
    while slowly.run_once().await.unwrap().delivered > 0 {}
    assert_eq!(late.take().len(), 2);

    finished(prompt.call(&scope(), &key("k"), book(20)).await);
    proxy.answer_slowly(8000);
    let slowly = tokio::spawn(async move { slowly.run_once().await.unwrap() });
    let claimed = "SELECT count(*) FROM atomic_phases_staged_jobs WHERE attempts = 1";
    until(async || db.number(claimed).await == 1).await;
    until(async || {
        let mut promptly = Enqueuer::new(&prompt, early.sink(), claimed_for());
        promptly.run_once().await.unwrap();
        db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await == 0
    })
    .await;
    assert!(!slowly.is_finished(), "its answer is still under way");
    proxy.answer_slowly(0);
    assert_eq!(slowly.await.unwrap().lost, 1);
    assert!(late.take().is_empty());
    let names: Vec<_> = early.take().into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["receipt", "thanks"]);
}

/// The answer comes after two thirds of the claim, when it is too late to deliver, and not too late to say so.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_job_whose_claim_is_answered_late_is_given_back_uncounted() {
    let (db, behind, proxy) = proxied().await;
    let app = App::default();
    let (slow, prompt) = (engine(&behind, &app), engine(&db, &app));
    let inbox = Inbox::default();
    let config = config().delivery(Duration::from_secs(12));
    let mut enqueuer = Enqueuer::new(&slow, inbox.sink(), config);
    // Its connection and its statements are prepared before an answer becomes slow.
    finished(prompt.call(&scope(), &key("first"), book(20)).await);
    while enqueuer.run_once().await.unwrap().delivered > 0 {}
    assert_eq!(inbox.take().len(), 2);

    finished(prompt.call(&scope(), &key("k"), book(20)).await);
    proxy.arm("UPDATE atomic_phases_staged_jobs AS j SET attempts", 1, Cut::Stall);
    let slowly = tokio::spawn(async move { enqueuer.run_once().await.unwrap() });
    until(async || proxy.fired() == 1).await;
    // Past two thirds of the claim.
    tokio::time::sleep(Duration::from_millis(8400)).await;
    proxy.arrive_now();
    assert_eq!(slowly.await.unwrap().lost, 1);
    assert!(inbox.take().is_empty());
    let uncounted = "SELECT count(*) FROM atomic_phases_staged_jobs \
        WHERE attempts = 1 AND forgiven_attempts = 1";
    assert_eq!(db.number(uncounted).await, 1);
}

/// The store is unavailable for a moment after a delivery, as in a failover: no job waits until the claim has
/// expired, and nothing is delivered twice.
#[tokio::test(flavor = "multi_thread")]
async fn g18_what_came_of_a_delivery_is_said_until_the_store_hears_it() {
    let (db, behind, proxy) = proxied().await;
    let app = App::default();
    let (through, direct) = (engine(&behind, &app), engine(&db, &app));
    let inbox = Inbox::default();
    for (name, cut) in [("unsent", Cut::Before), ("unheard", Cut::Answer)] {
        finished(direct.call(&scope(), &key(name), book(20)).await);
        proxy.arm("WITH ended AS (DELETE", 1, cut);
        let mut enqueuer = Enqueuer::new(&through, inbox.sink(), config());
        let swept = enqueuer.run_once().await.unwrap();
        assert_eq!((swept.delivered, swept.lost, proxy.fired()), (1, 0, proxy.fired().max(1)));
        assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1, "the next one need not wait");
        let names: Vec<_> = inbox.take().into_iter().map(|job| job.name).collect();
        assert_eq!(names, ["receipt", "thanks"], "{name}: each once");
    }
    assert_eq!(proxy.fired(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_a_sink_that_keeps_its_thread_delays_no_other_scope() {
    keeps_its_thread(<atomic_phases::store::Sqlite as TestDb>::fresh().await).await;
    #[cfg(feature = "simulation")]
    keeps_its_thread(<atomic_phases::simulation::Memory as TestDb>::fresh().await).await;
}

/// One scope's delivery computes, or blocks, and does not return its thread. (If sockets are involved, this depends
/// on tokio: if that thread was the one that polls sockets and timers, all of them wait.)
async fn keeps_its_thread<S: TestDb>(db: S) {
    type Gate = std::sync::mpsc::Receiver<()>;
    struct Keeps(Arc<Mutex<Gate>>, Inbox);
    impl JobSink for Keeps {
        async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
            if job.scope.as_str() == "hung" {
                let _ = self.0.lock().unwrap().recv_timeout(Duration::from_secs(20));
            }
            self.1.clone().keep(job.clone()).await
        }
    }
    let engine = engine(&db, &App::default());
    for name in ["hung", "other"] {
        finished(engine.call(&Scope::new(name).unwrap(), &key("k"), book(20)).await);
    }
    let (open, gate) = std::sync::mpsc::channel();
    let inbox = Inbox::default();
    let sink = Keeps(Arc::new(Mutex::new(gate)), inbox.clone());
    let workers = engine.spawn_workers(config().sink(sink)).unwrap();
    // The other scope's two jobs, one after the other.
    let delivered =
        |of: &str| inbox.0.lock().unwrap().iter().filter(|job| job.scope.as_str() == of).count();
    until(async || delivered("other") == 2).await;
    assert_eq!(delivered("hung"), 0, "it still keeps its thread");
    drop(open);
    until(async || delivered("hung") == 2).await;
    drop(workers);
}

/// A node that froze in the middle of a delivery does not continue it after its claim has expired: another node has
/// delivered that job by then, and the next one (G18, in order).
#[cfg(feature = "simulation")]
#[test]
fn g18_a_delivery_ends_with_its_claim() {
    use atomic_phases::simulation::{Database, Memory, Node, simulate};
    type Log = Arc<Mutex<Vec<String>>>;
    /// Reads something for a second, and then sends.
    struct Sends(Log, &'static str);
    impl JobSink for Sends {
        async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.0.lock().unwrap().push(format!("{} {}", self.1, job.name));
            Ok(())
        }
    }
    let log = simulate(1, || async {
        let (log, database, app) = (Log::default(), Database::default(), App::default());
        let [a, b] = ["a", "b"].map(Node::new);
        let [on_a, on_b] = [(); 2].map(|()| engine(&Memory::connect(&database), &app));
        finished(on_a.call(&scope(), &key("k"), book(20)).await);
        let mut first = Enqueuer::new(&on_a, Sends(log.clone(), "a"), config());
        let frozen = a.spawn(async move { first.run_once().await });
        tokio::time::sleep(Duration::from_millis(500)).await;
        a.freeze();
        tokio::time::sleep(Duration::from_secs(120)).await;
        let mut second = Enqueuer::new(&on_b, Sends(log.clone(), "b"), config());
        let others = b.spawn(async move {
            second.run_once().await.unwrap();
            second.run_once().await.unwrap();
        });
        others.await.unwrap();
        a.thaw();
        let _ = frozen.await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        log.lock().unwrap().clone()
    });
    assert_eq!(log, ["b receipt", "b thanks"]);
}
