//! G18: a job whose deliveries fail is repeated with a back-off, becomes a dead letter that blocks no other job, and is
//! retried or discarded by an operator.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::Scope;
use atomic_phases::ops::{Actor, OpsError, Permissions, Scopes};
use atomic_phases::store::Postgres;
use atomic_phases::worker::{Delivered, DeliveryError, Enqueuer, Handlers, Job, JobSink};

on_every_store! {
    g18_poison_job_does_not_block_others_and_can_be_revived,
    g18_a_revived_job_waits_for_a_later_one_that_is_under_way,
    g17_g18_a_revived_job_that_fails_again_waits_for_none_that_was_cut_off,
    an_operator_sees_why_a_job_died_and_retries_or_discards_each,
    dead_jobs_are_listed_page_by_page,
    the_back_off_that_a_sink_asks_for_is_bounded_on_both_sides,
    a_job_whose_deliveries_are_cut_off_is_a_dead_letter_at_the_cap,
}

async fn g18_poison_job_does_not_block_others_and_can_be_revived<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for name in ["a", "b"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    let (inbox, cured) = (Inbox::default(), Arc::new(Mutex::new(false)));
    let (thanks, receipts, healthy) = (inbox.clone(), inbox.clone(), cured.clone());
    let sink = Handlers::new()
        .on("receipt", move |_: String, job: Job| {
            let poisoned = job.key.as_str() == "a" && !*healthy.lock().unwrap();
            let inbox = receipts.clone();
            async move {
                match (poisoned, job.attempt) {
                    (true, 2) => panic!("as asked for"),
                    (true, _) => Err(DeliveryError::retry("poison")),
                    (false, _) => inbox.keep(job).await,
                }
            }
        })
        .on("thanks", move |_: String, job| thanks.clone().keep(job));
    let mut enqueuer = Enqueuer::new(&engine, sink, config().max_deliveries(3));
    let mut sum = Delivered::default();
    for _ in 0..6 {
        let one = enqueuer.run_once().await.unwrap();
        sum.delivered += one.delivered;
        sum.put_back += one.put_back;
        sum.dead_letters += one.dead_letters;
        if sum.dead_letters == 0 {
            assert!(!inbox.0.lock().unwrap().iter().any(|job| job.key.as_str() == "a"), "in order");
        }
        db.let_time_pass().await;
    }
    assert_eq!((sum.delivered, sum.put_back, sum.dead_letters), (3, 2, 1));
    let delivered: Vec<_> =
        inbox.take().iter().map(|job| format!("{} {}", job.key.as_str(), job.name)).collect();
    assert_eq!(delivered.len(), 3);
    assert!(delivered.contains(&"a thanks".to_owned()), "{delivered:?}");
    assert_eq!(engine.check().await.unwrap().dead_jobs, 1);
    *cured.lock().unwrap() = true;
    assert_eq!(retry_dead_jobs(&engine).await, 1);
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
    assert_eq!(engine.check().await.unwrap().dead_jobs, 0);
}

async fn g18_a_revived_job_waits_for_a_later_one_that_is_under_way<S: TestDb>(db: S) {
    struct Slow(tokio::sync::mpsc::UnboundedSender<tokio::sync::oneshot::Sender<()>>);
    impl JobSink for Slow {
        async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
            if job.name == "receipt" {
                return Err(DeliveryError::dead("as asked for"));
            }
            let (end, ended) = tokio::sync::oneshot::channel();
            self.0.send(end).unwrap();
            ended.await.map_err(|_| DeliveryError::retry("the receiver is gone"))
        }
    }
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let (begun, mut deliveries) = tokio::sync::mpsc::unbounded_channel();
    let mut slow = Enqueuer::new(&engine, Slow(begun), config());
    assert_eq!(slow.run_once().await.unwrap().dead_letters, 1, "the first of the request");
    let under_way = tokio::spawn(async move { slow.run_once().await.unwrap() });
    let end = deliveries.recv().await.unwrap();

    assert_eq!(retry_dead_jobs(&engine).await, 1);
    let inbox = Inbox::default();
    let mut other = Enqueuer::new(&engine, inbox.sink(), config());
    assert_eq!(other.run_once().await.unwrap(), Delivered::default(), "one of a request at a time");
    end.send(()).unwrap();
    assert_eq!(under_way.await.unwrap().delivered, 1);
    assert_eq!(other.run_once().await.unwrap().delivered, 1);
    assert_eq!(inbox.take()[0].name, "receipt");
}

/// The later job's process died while it delivered that, so no reason says how it ended. An operator lets the earlier one
/// try again; it fails once more, and the later one, which is due by then, waits for it.
async fn g17_g18_a_revived_job_that_fails_again_waits_for_none_that_was_cut_off<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let deadly = Handlers::new()
        .on("receipt", async |_: String, _: Job| Err(DeliveryError::dead("as asked for")))
        .on("thanks", move |_: String, _: Job| {
            begun.send(()).unwrap();
            std::future::pending()
        });
    let mut deadly = Enqueuer::new(&engine, deadly, config());
    assert_eq!(deadly.run_once().await.unwrap().dead_letters, 1, "the first of the request");
    let process = tokio::spawn(async move { deadly.run_once().await });
    begins.recv().await.unwrap();
    process.abort();
    assert!(process.await.unwrap_err().is_cancelled());
    assert_eq!(retry_dead_jobs(&engine).await, 1);
    // The claim of the later one ends.
    db.let_time_pass().await;

    let (inbox, has_failed) = (Inbox::default(), Mutex::new(false));
    let (receipts, thanks) = (inbox.clone(), inbox.clone());
    let sink = Handlers::new()
        .on("receipt", move |_: String, job: Job| {
            let inbox = receipts.clone();
            let is_up = std::mem::replace(&mut *has_failed.lock().unwrap(), true);
            async move {
                match is_up {
                    true => inbox.keep(job).await,
                    false => Err(DeliveryError::retry("busy")),
                }
            }
        })
        .on("thanks", move |_: String, job| thanks.clone().keep(job));
    let mut enqueuer = Enqueuer::new(&engine, sink, config());
    assert_eq!(enqueuer.run_once().await.unwrap().put_back, 1);
    // Behind the back-off of a second.
    until_within(Duration::from_secs(20), async || {
        enqueuer.run_once().await.unwrap();
        inbox.0.lock().unwrap().len() == 2
    })
    .await;
    let names: Vec<_> = inbox.take().into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["receipt", "thanks"]);
}

async fn an_operator_sees_why_a_job_died_and_retries_or_discards_each<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let (inbox, cured) = (Inbox::default(), Arc::new(Mutex::new(false)));
    let (thanks, healthy) = (inbox.clone(), cured.clone());
    let sink = Handlers::new().on("receipt", async |_: u64, _: Job| Ok(())).on(
        "thanks",
        move |_: String, job: Job| {
            let (inbox, is_cured) = (thanks.clone(), *healthy.lock().unwrap());
            async move {
                match is_cured {
                    true => inbox.keep(job).await,
                    false => Err(DeliveryError::retry("no such address")),
                }
            }
        },
    );
    let mut enqueuer = Enqueuer::new(&engine, sink, config().max_deliveries(2));
    for _ in 0..4 {
        enqueuer.run_once().await.unwrap();
        db.let_time_pass().await;
    }
    let ops = ops_of(&engine);
    let mut dead = ops.dead_jobs(None, 10).await.unwrap().rows;
    dead.sort_by(|one, other| one.name.cmp(&other.name));
    let shown: Vec<_> = dead
        .iter()
        .map(|job| (job.name.as_str(), job.reason.as_deref().unwrap(), job.attempts))
        .collect();
    let expected = [
        (
            "receipt",
            "the arguments are of another type: let the handler read both, and retry the job",
            1,
        ),
        ("thanks", "no such address", 2),
    ];
    assert_eq!(shown, expected);
    let request = ops.find(&scope(), &key("k")).await.unwrap();
    for job in &dead {
        assert_eq!((job.request_id, &job.scope_hash), (request.request_id, &request.scope_hash));
    }
    let [receipt, thanks] = [&dead[0], &dead[1]];

    // A retry starts a new count of attempts: one more failure is not the last.
    let of_another = Scopes::Only(vec![Scope::new("tenant-2").unwrap()]);
    let other = engine.ops(Actor::new("bob", Permissions::admin(), of_another).unwrap());
    let is_none = |told: Result<(), OpsError>| matches!(told, Err(OpsError::NoSuchJob));
    let (id, attempts) = (thanks.id, thanks.attempts);
    assert!(is_none(other.retry_job(id, attempts, "r").await), "not another scope's");
    assert!(is_none(other.discard_job(id, attempts, "r").await));
    ops.retry_job(id, attempts, "address found").await.unwrap();
    assert!(is_none(ops.retry_job(id, attempts, "r").await), "once");
    assert!(is_none(ops.discard_job(id, attempts, "r").await), "it is on its way");
    assert_eq!(enqueuer.run_once().await.unwrap().put_back, 1);
    *cured.lock().unwrap() = true;
    db.let_time_pass().await;
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
    // Two before it died, the operator's retry, and two after it.
    assert_eq!(inbox.take()[0].attempt, 5, "its attempts are counted on");

    let (id, attempts) = (receipt.id, receipt.attempts);
    ops.discard_job(id, attempts, "of an old build").await.unwrap();
    assert!(is_none(ops.discard_job(id, attempts, "r").await));
    assert!(ops.dead_jobs(None, 10).await.unwrap().rows.is_empty());
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);
}

async fn dead_jobs_are_listed_page_by_page<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for scope in ["a", "b", "c"] {
        let scope = Scope::new(scope).unwrap();
        finished(engine.call(&scope, &key("k"), book(20)).await);
    }
    db.sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
    let ops = ops_of(&engine);
    let (mut seen, mut next) = (Vec::new(), None);
    loop {
        let page = ops.dead_jobs(next, 4).await.unwrap();
        assert!(page.rows.len() <= 4);
        seen.extend(page.rows);
        let Some(place) = page.next else { break };
        next = Some(place);
    }
    assert_eq!(seen.len(), 6);
    let ids: std::collections::HashSet<_> = seen.iter().map(|job| job.id).collect();
    assert_eq!(ids.len(), 6);
    assert!(seen.iter().all(|job| job.reason.is_none()));
}

async fn the_back_off_that_a_sink_asks_for_is_bounded_on_both_sides<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let asked = Arc::new(Mutex::new(Duration::MAX));
    let answer = asked.clone();
    let sink = Handlers::new().on("receipt", move |_: String, _: Job| {
        let asked = *answer.lock().unwrap();
        async move { Err(DeliveryError::retry_after("busy", asked)) }
    });
    let mut enqueuer = Enqueuer::new(&engine, sink, config());
    let now = if is_postgres::<S>() {
        "extract(epoch FROM clock_timestamp()), extract(epoch FROM run_after)"
    } else {
        "unixepoch('subsec'), run_after / 1000.0"
    };
    let (now, run_after) = now.split_once(", ").unwrap();
    let rest = format!(
        "SELECT round({run_after} - {now}) FROM atomic_phases_staged_jobs WHERE name = 'receipt'"
    );
    assert_eq!(enqueuer.run_once().await.unwrap().put_back, 1);
    let rests = db.number(&rest).await;
    assert!((3590..=3600).contains(&rests), "an hour at most: {rests}");
    // Never sooner than the back-off of its attempt: the cap corresponds to all of them together.
    *asked.lock().unwrap() = Duration::ZERO;
    for expected in [2, 4, 8, 16, 32] {
        db.let_time_pass().await;
        assert_eq!(enqueuer.run_once().await.unwrap().put_back, 1);
        let rests = db.number(&rest).await;
        // Some of it has passed, but not the half that it was before.
        assert!(rests <= expected && (expected < 16 || rests > expected / 2), "{rests}");
    }
}

/// Its process dies during each delivery, so that no failure is ever recorded.
async fn a_job_whose_deliveries_are_cut_off_is_a_dead_letter_at_the_cap<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let inbox = Inbox::default();
    let (deadly, thanks) = (begun.clone(), inbox.clone());
    let sink = || {
        let (deadly, thanks) = (deadly.clone(), thanks.clone());
        Handlers::new()
            .on("receipt", move |_: String, job: Job| {
                deadly.send(job.attempt).unwrap();
                std::future::pending()
            })
            .on("thanks", move |_: String, job| thanks.clone().keep(job))
    };
    let enqueuer = || Enqueuer::new(&engine, sink(), config().max_deliveries(2));
    for expected in [1, 2] {
        let mut enqueuer = enqueuer();
        let process = tokio::spawn(async move { enqueuer.run_once().await });
        assert_eq!(begins.recv().await, Some(expected));
        process.abort();
        assert!(process.await.unwrap_err().is_cancelled());
        db.let_time_pass().await;
    }
    assert_eq!(enqueuer().run_once().await.unwrap().dead_letters, 1);
    assert!(begins.try_recv().is_err(), "undelivered");
    let dead = ops_of(&engine).dead_jobs(None, 10).await.unwrap().rows;
    let reason = dead[0].reason.as_deref().unwrap();
    assert!(reason.contains("the last delivery up to the cap was cut off"), "{reason}");
    assert_eq!(enqueuer().run_once().await.unwrap().delivered, 1, "it blocks no successor");
    assert_eq!(inbox.take()[0].name, "thanks");
    // An operator's retry has a new count.
    assert_eq!(retry_dead_jobs(&engine).await, 1);
    let mut enqueuer = enqueuer();
    let process = tokio::spawn(async move { enqueuer.run_once().await });
    assert!(begins.recv().await.is_some());
    process.abort();
}

/// A claim of a later job began before an operator revived an earlier one; then the earlier one is claimed.
#[tokio::test(flavor = "multi_thread")]
async fn g18_a_claim_that_began_before_an_earlier_job_was_revived_is_no_second_delivery() {
    use diesel_async::SimpleAsyncConnection;
    use std::sync::atomic::{AtomicU32, Ordering};
    #[derive(Clone, Default)]
    struct One {
        running: Arc<AtomicU32>,
        most: Arc<AtomicU32>,
        names: Arc<Mutex<Vec<String>>>,
        leave: Arc<tokio::sync::Notify>,
        dies: Arc<Mutex<bool>>,
    }
    impl JobSink for One {
        async fn deliver(&self, job: &Job) -> Result<(), DeliveryError> {
            if std::mem::replace(&mut *self.dies.lock().unwrap(), false) {
                return Err(DeliveryError::dead("as asked for"));
            }
            let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(running, Ordering::SeqCst);
            self.names.lock().unwrap().push(job.name.clone());
            self.leave.notified().await;
            self.running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    }
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    let sink = One::default();
    *sink.dies.lock().unwrap() = true;
    let mut enqueuer = Enqueuer::new(&engine, sink.clone(), config());
    assert_eq!(enqueuer.run_once().await.unwrap().dead_letters, 1, "the first of the request");
    let ops = ops_of(&engine);
    let dead = ops.dead_jobs(None, 1).await.unwrap().rows.remove(0);

    // The claim of the second one has begun, and waits for its row.
    let mut holder = crate::support::db::pg(&crate::support::db::url_of(&db)).await;
    let lock =
        "BEGIN; SELECT 1 FROM atomic_phases_staged_jobs WHERE run_after IS NOT NULL FOR UPDATE";
    holder.batch_execute(lock).await.unwrap();
    let later = tokio::spawn(async move { enqueuer.run_once().await.unwrap() });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND wait_event_type = 'Lock' AND query LIKE 'UPDATE atomic_phases_staged_jobs AS j%'";
    until(async || db.number(waiting).await == 1).await;
    let mut earlier = Enqueuer::new(&engine, sink.clone(), config());
    let revived = tokio::spawn(async move {
        // The row is in use until that claim is committed.
        let (id, attempts) = (dead.id, dead.attempts);
        until(async move || ops.retry_job(id, attempts, "r").await.is_ok()).await;
        until(async move || earlier.run_once().await.unwrap().delivered > 0).await;
    });
    // Either the earlier job was revived and is being delivered, or it must wait.
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND wait_event_type = 'Lock' \
        AND query LIKE 'WITH settled AS (UPDATE atomic_phases_staged_jobs SET%'";
    let delivered = || sink.names.lock().unwrap().len();
    until(async || delivered() == 1 || db.number(waits).await == 1).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    let both = async {
        later.await.unwrap();
        revived.await.unwrap();
    };
    let mut both = std::pin::pin!(both);
    for _ in 0..3000 {
        if tokio::time::timeout(Duration::from_millis(10), &mut both).await.is_ok() {
            break;
        }
        sink.leave.notify_waiters();
    }
    assert_eq!(sink.most.load(Ordering::SeqCst), 1, "one of a request at a time");
    assert_eq!(sink.names.lock().unwrap().len(), 2);
}
