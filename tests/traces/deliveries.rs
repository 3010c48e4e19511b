//! The span of a delivery: what it is linked to, and how it ends.

use std::sync::Mutex;

use atomic_phases::traces::{LinkKind, TraceContext};
use atomic_phases::worker::{DeliveryError, Enqueuer};

use crate::seen::{Numbered, Numbers, all, at, below, name, of_key, traced};
use crate::support::work::*;
use crate::support::*;

on_every_store! {
    g18_a_delivery_is_linked_to_the_phase_that_staged_its_job,
    a_delivery_is_an_error_once_it_gives_up,
    a_delivery_that_cannot_be_written_down_says_so,
}

/// Whichever statement writes the job.
async fn g18_a_delivery_is_linked_to_the_phase_that_staged_its_job<S: TestDb>(db: S) {
    let app = App::default();
    let (engine, silent) = (traced(&db, &app), self::engine(&db, &app));
    for request in [None, Some(Form::OneByOne), Some(Form::SingleStatement)] {
        let name = name();
        let call = (scope(), key(&name));
        match request {
            None => finished(engine.call(&call.0, &call.1, book(20)).await),
            Some(form) => finished(engine.call(&call.0, &call.1, form.parcel(Trouble::None)).await),
        };
        let (_, stages): (_, Vec<Numbered>) =
            of_key(&name).pop().map(|of| (of.0, below(of.0))).unwrap();
        let phase = |name: &str| at(stages.iter().find(|(_, seen)| seen.name == name).unwrap());
        let staged = match request {
            None => [("receipt", phase("phase answered")), ("thanks", phase("phase answered"))],
            Some(_) => [("label", phase("phase packed")), ("thanks", phase("phase delivered"))],
        };
        // The second one by an engine that does not trace.
        let (inbox, other) = (Inbox::default(), Inbox::default());
        let one = std::sync::Arc::new(Mutex::new(Vec::new()));
        for (engine, inbox) in [(&engine, &inbox), (&silent, &other)] {
            let (kept, inside) = (inbox.clone(), one.clone());
            let handlers = atomic_phases::worker::Handlers::new();
            let handlers =
                ["receipt", "thanks", "label"].into_iter().fold(handlers, |all, name| {
                    let (kept, inside) = (kept.clone(), inside.clone());
                    all.on(name, move |_: String, job| {
                        inside.lock().unwrap().push(Numbers.current());
                        kept.clone().keep(job)
                    })
                });
            let mut enqueuer = Enqueuer::new(engine, handlers, config().batch(1));
            assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
            db.let_time_pass().await;
        }
        let (first, second) = (inbox.take().remove(0), other.take().remove(0));
        assert_eq!((first.name.as_str(), second.name.as_str()), (staged[0].0, staged[1].0));
        assert_eq!(second.traceparent(), Some(staged[1].1), "{request:?}");
        let id = first.id.to_string();
        let all = all();
        let delivery: Vec<_> =
            all.iter().filter(|it| it.1.says("atomic_phases.job_id") == id).collect();
        let [delivery] = delivery.as_slice() else { panic!("{delivery:?}") };
        assert_eq!(delivery.1.name, format!("job {}", first.name));
        assert_eq!(delivery.1.links, [(LinkKind::Staging, staged[0].1)], "{request:?}");
        assert_eq!(delivery.1.status(), ("OK", ""));
        // The handler's spans are within the delivery's span, and the context that it propagates names that span.
        assert_eq!(first.traceparent(), Some(at(delivery)));
        assert_eq!(one.lock().unwrap()[0], Some(at(delivery)));
    }
}

async fn a_delivery_is_an_error_once_it_gives_up<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    finished(engine.call(&scope(), &key(&name), book(20)).await);
    let sink = atomic_phases::worker::Handlers::new()
        .on("receipt", async |_: String, _| Err(DeliveryError::retry("mail is down")));
    let mut enqueuer = Enqueuer::new(&engine, sink, config().max_deliveries(2));
    for _ in 0..2 {
        enqueuer.run_once().await.unwrap();
        db.let_time_pass().await;
    }
    let seen = of_key(&name);
    let [_, failed, dead] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((failed.1.status(), failed.1.outcome()), (("", ""), "failed"));
    assert_eq!((dead.1.status(), dead.1.outcome()), (("ERROR", "dead_letter"), "dead_letter"));
    assert_eq!((failed.1.links.len(), &failed.1.links), (1, &dead.1.links));
}

/// The job was delivered, and its result is not recorded: the store is unavailable, or another node has claimed the
/// job meanwhile.
async fn a_delivery_that_cannot_be_written_down_says_so<S: TestDb>(db: S) {
    let app = App::default();
    let engine = traced(&db, &app);
    let (gone, back) = match is_mysql::<S>() {
        true => (
            "RENAME TABLE atomic_phases_staged_jobs TO elsewhere",
            "RENAME TABLE elsewhere TO atomic_phases_staged_jobs",
        ),
        false => (
            "ALTER TABLE atomic_phases_staged_jobs RENAME TO elsewhere",
            "ALTER TABLE elsewhere RENAME TO atomic_phases_staged_jobs",
        ),
    };
    let others = "DELETE FROM atomic_phases_staged_jobs";
    for (during, outcome) in [(gone, "unavailable"), (others, "lost")] {
        // The store in memory has no statement that takes it away.
        if is_memory::<S>() && during == gone {
            continue;
        }
        let name = name();
        finished(engine.call(&scope(), &key(&name), book(20)).await);
        let store = db.clone();
        let sink = atomic_phases::worker::Handlers::new().on("receipt", move |_: String, _| {
            let store = store.clone();
            async move {
                store.sql(during).await;
                Ok::<_, DeliveryError>(())
            }
        });
        let short = config().delivery(std::time::Duration::from_secs(2));
        let mut enqueuer = Enqueuer::new(&engine, sink, short);
        assert_eq!(enqueuer.run_once().await.unwrap().lost, 1, "{outcome}");
        if during == gone {
            db.sql(back).await;
        }
        let seen = of_key(&name);
        let [_, delivery] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!((delivery.1.status(), delivery.1.outcome()), (("", ""), outcome));
        db.sql(others).await;
    }
}
