//! G18: staged jobs reach their sink at least once, in order, with a stable id, and a poison job blocks
//! no other. Over both stores.

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use atomic_phases::*;
use support::work::*;
use support::*;

on_both_stores! {
    g18_jobs_are_delivered_in_order_with_stable_ids,
    g18_a_delivery_that_was_cut_off_is_repeated_with_the_same_id,
    g18_poison_job_does_not_block_others_and_can_be_revived,
    g18_two_enqueuers_deliver_each_job_once,
}

async fn g18_jobs_are_delivered_in_order_with_stable_ids<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for name in ["a", "b", "c"] {
        finished(engine.execute(&scope(), &key(name), book(20)).await);
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
    finished(engine.execute(&scope(), &key("k"), book(20)).await);
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

async fn g18_poison_job_does_not_block_others_and_can_be_revived<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for name in ["a", "b"] {
        finished(engine.execute(&scope(), &key(name), book(20)).await);
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
    assert_eq!(engine.revive_jobs().await.unwrap(), 1);
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
    assert_eq!(engine.check().await.unwrap().dead_jobs, 0);
}

async fn g18_two_enqueuers_deliver_each_job_once<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let another = support::engine(&db.another().await, &app);
    for round in 0..30 {
        finished(engine.execute(&scope(), &key(&format!("k{round}")), book(20)).await);
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
