//! A request that begins to wait for a reconcile function or an operator sends a notice: a job that is staged in
//! the same commit, and that waits for no other job. Also the webhook that receives these jobs.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::Outcome;
use atomic_phases::engine::{EngineBuilder, RequestStatus, Resolution, WAITING_JOB, Waiting};
use atomic_phases::store::Status;
use atomic_phases::worker::{Delivered, DeliveryError, Enqueuer, Handlers, Job, JobSink, Webhook};

on_every_store! {
    a_request_that_begins_to_wait_is_told_of_once_each_time,
    a_reconciler_that_dies_begins_no_wait_anew,
    without_being_asked_for_no_notice_is_staged,
    a_notice_waits_for_no_job_of_its_request_and_no_job_waits_for_it,
    a_webhook_is_sent_again_until_its_receiver_accepts,
    a_request_whose_notice_cannot_be_staged_does_not_wait_unheard,
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn telling<S: TestDb>(
    db: &S,
    app: &App,
    set: impl FnOnce(EngineBuilder<S, App>) -> EngineBuilder<S, App>,
) -> TestEngine<S> {
    engine_with(db, app, |builder| set(builder.lease(Duration::from_secs(60)).notify_waiting()))
}

/// The notices, with the jobs that delivered them.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<(Waiting, Job)>>>);

impl Told {
    fn handler(&self) -> Handlers {
        let told = self.0.clone();
        Handlers::new().on(WAITING_JOB, move |waiting: Waiting, job: Job| {
            told.lock().unwrap().push((waiting, job));
            async { Ok::<_, DeliveryError>(()) }
        })
    }

    async fn next<S: TestDb>(&self, engine: &TestEngine<S>) -> (Waiting, Job) {
        let mut enqueuer = Enqueuer::new(engine, self.handler(), config());
        assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
        self.0.lock().unwrap().pop().unwrap()
    }
}

fn notices() -> String {
    format!("SELECT count(*) FROM atomic_phases_staged_jobs WHERE name = '{WAITING_JOB}'")
}

async fn a_request_that_begins_to_wait_is_told_of_once_each_time<S: TestDb>(db: S) {
    let app = App::default();
    let engine = telling(&db, &app, |builder| builder.max_reconciles(2));
    let call =
        async || engine.call(&scope(), &key("canary"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(call().await, Ok(Outcome::Unknown { .. })));
    let told = Told::default();
    let (unknown, job) = told.next(&engine).await;
    let row = status(&engine, "canary").await;
    assert_eq!(unknown.request_id, row.request_id);
    assert_eq!((unknown.definition.as_str(), unknown.version), ("notify", 1));
    assert_eq!((unknown.phase.as_deref(), unknown.attempt), (Some("notified"), 1));
    assert_eq!((unknown.status, unknown.is_asked), (Status::Unknown, true));
    assert_eq!(unknown.reason.as_deref(), Some("asked for"));
    assert!((chrono::Utc::now() - unknown.since).num_seconds().abs() < 60, "{unknown:?}");
    let text = String::from_utf8(job.args).unwrap();
    for given in ["canary", "tenant-1", "pilot"] {
        assert!(!text.contains(given), "G19: {text}");
    }

    // A reconcile function that finds no outcome causes no notice; the end of its calls does.
    db.let_time_pass().await;
    reconciled(&engine).await;
    assert_eq!(db.number(&notices()).await, 0);
    db.let_time_pass().await;
    reconciled(&engine).await;
    let (dead, second) = told.next(&engine).await;
    assert_eq!((dead.status, dead.is_asked), (Status::DeadLetter, false));
    assert_eq!(dead.request_id, unknown.request_id);

    // It continues by an operator's resolution, and waits once more.
    let attempt = status(&engine, "canary").await.attempt;
    let word = Resolution::not_executed("notified", attempt);
    let _ = engine.resolve(&scope(), &key("canary"), word).await.unwrap();
    assert!(matches!(call().await, Ok(Outcome::Unknown { .. })));
    let (again, third) = told.next(&engine).await;
    assert_eq!((again.status, again.request_id), (Status::Unknown, unknown.request_id));
    assert_eq!(BTreeSet::from([job.id, second.id, third.id]).len(), 3);
    assert_eq!(db.number(&notices()).await, 0);
}

/// The process dies while the reconcile function runs: the request waits as before, since the same time and for the
/// same reason, and no new notice is sent.
async fn a_reconciler_that_dies_begins_no_wait_anew<S: TestDb>(db: S) {
    let app = App::default();
    let engine = telling(&db, &app, |builder| builder);
    let unknown = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
    let before = status(&engine, "k").await;
    assert!(before.waiting_since.is_some() && before.reason.is_some());
    for _ in 0..2 {
        // As a reconciler leaves it that took the request over and was then killed.
        db.sql(
            "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token = lease_token + 1, \
             reconciles = reconciles + 1, locked_until = created_at, run_after = created_at",
        )
        .await;
        assert_eq!(completed(&engine).await.unknown, 1);
    }
    let after = status(&engine, "k").await;
    assert_eq!(after.status, Status::Unknown);
    // The in-memory store keeps fractions of a millisecond only until SQL has changed the row.
    let since = |of: &RequestStatus| of.waiting_since.map(|since| since.timestamp_millis());
    assert_eq!((since(&after), &after.reason), (since(&before), &before.reason));
    assert_eq!(db.number(&notices()).await, 1, "it is told of once");
    // The reconcile function is still called.
    app.provider.answer_searches();
    db.let_time_pass().await;
    reconciled(&engine).await;
    assert_eq!(status(&engine, "k").await.status, Status::Completed);
}

async fn without_being_asked_for_no_notice_is_staged<S: TestDb>(db: S) {
    let engine = engine(&db, &App::default());
    let unknown = engine.call(&scope(), &key("k"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);
}

async fn a_notice_waits_for_no_job_of_its_request_and_no_job_waits_for_it<S: TestDb>(db: S) {
    let app = App::default();
    let engine = telling(&db, &app, |builder| builder.max_attempts(1));
    let parcel = || Form::OneByOne.parcel(Trouble::RetryLastOnce);
    let dead = engine.call(&scope(), &key("k"), parcel()).await;
    assert!(matches!(dead, Ok(Outcome::DeadLetter)), "{dead:?}");

    // The job of the first phase cannot be delivered; the notice can.
    let told = Told::default();
    let fails = |handlers: Handlers, name: &str| {
        handlers.on(name, async |_: serde_json::Value, _| Err(DeliveryError::retry("asked for")))
    };
    let mut enqueuer = Enqueuer::new(&engine, fails(Handlers::new(), "label"), config());
    assert_eq!(enqueuer.run_once().await.unwrap().put_back, 1);
    let mut enqueuer = Enqueuer::new(&engine, told.handler(), config());
    assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1, "put back, and not in its way");
    let (waiting, _) = told.0.lock().unwrap().pop().unwrap();
    assert_eq!((waiting.status, waiting.phase.as_deref()), (Status::DeadLetter, Some("weighed")));

    // The reverse: an unavailable receiver of notices does not delay jobs.
    app.forget_bodies();
    let _ = engine.resolve(&scope(), &key("k"), Resolution::retry()).await.unwrap();
    let again = engine.call(&scope(), &key("k"), parcel()).await;
    assert!(!matches!(again, Ok(Outcome::Finished(_))), "{again:?}");
    let _ = engine.resolve(&scope(), &key("k"), Resolution::retry()).await.unwrap();
    finished(engine.call(&scope(), &key("k"), parcel()).await);
    let inbox = Inbox::default();
    let (label, thanks) = (inbox.clone(), inbox.clone());
    let sink = fails(Handlers::new(), WAITING_JOB)
        .on("label", move |_: String, job| label.clone().keep(job))
        .on("thanks", move |_: String, job| thanks.clone().keep(job));
    let mut enqueuer = Enqueuer::new(&engine, sink, config());
    let mut sum = Delivered::default();
    for _ in 0..4 {
        db.let_time_pass().await;
        let one = enqueuer.run_once().await.unwrap();
        (sum.delivered, sum.put_back) =
            (sum.delivered + one.delivered, sum.put_back + one.put_back);
    }
    let names: Vec<String> = inbox.take().into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["label", "thanks"], "{sum:?}");
    assert!(sum.put_back >= 2, "{sum:?}");
    assert_eq!(db.number(&notices()).await, 1);
}

/// The row and the notice are one commit: neither exists without the other.
async fn a_request_whose_notice_cannot_be_staged_does_not_wait_unheard<S: TestDb>(db: S) {
    let app = App::default();
    let engine = telling(&db, &app, |builder| builder);
    let call = async |trouble| engine.call(&scope(), &key("k"), notify(trouble)).await;
    assert!(matches!(call(Trouble::UnknownForeign).await, Ok(Outcome::Unknown { .. })));
    let (told, _) = Told::default().next(&engine).await;
    // If the next holder's notice exists already, the notice cannot be staged.
    let word = Resolution::not_executed("notified", told.attempt);
    let _ = engine.resolve(&scope(), &key("k"), word).await.unwrap();
    assert!(matches!(call(Trouble::UnknownForeign).await, Ok(Outcome::Unknown { .. })));
    let token = db.number("SELECT lease_token FROM atomic_phases_keys").await;
    let word = Resolution::not_executed("notified", status(&engine, "k").await.attempt);
    let _ = engine.resolve(&scope(), &key("k"), word).await.unwrap();
    let ahead = db.number("SELECT lease_token FROM atomic_phases_keys").await + 1;
    assert!(ahead > token);
    db.sql(&format!("UPDATE atomic_phases_staged_jobs SET position = {}", (1_i64 << 62) + ahead))
        .await;
    let failed = call(Trouble::UnknownForeign).await;
    assert!(failed.is_err(), "{failed:?}");
    let row = status(&engine, "k").await;
    assert_eq!(row.status, Status::InProgress, "it is held until its lease ends, and tried again");
    assert_eq!(db.number(&notices()).await, 1);
    db.let_leases_expire().await;
    assert!(matches!(call(Trouble::None).await, Ok(Outcome::Unknown { .. })));
    assert_eq!(db.number(&notices()).await, 2);
    assert_eq!(app.bodies()[1], 3, "G2: no call is made again by itself");
}

/// The notices that a receiver got, and its answers.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<Sent>>>);

#[derive(Clone)]
struct Sent {
    id: String,
    timestamp: String,
    signature: String,
    body: Bytes,
}

impl Receiver {
    /// Fails twice, then accepts; this answer is lost, and the next one is not.
    async fn take(State(Self(sent)): State<Self>, headers: HeaderMap, body: Bytes) -> StatusCode {
        let line = |name: &str| headers[name].to_str().unwrap().to_owned();
        let (id, timestamp) = (line("webhook-id"), line("webhook-timestamp"));
        let signature = line("webhook-signature");
        let number = {
            let mut sent = sent.lock().unwrap();
            sent.push(Sent { id, timestamp, signature, body });
            sent.len()
        };
        match number {
            1 => StatusCode::SERVICE_UNAVAILABLE,
            2 => StatusCode::INTERNAL_SERVER_ERROR,
            3 => std::future::pending().await,
            _ => StatusCode::NO_CONTENT,
        }
    }

    async fn listen(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hooks", listener.local_addr().unwrap());
        let router = Router::new().route("/hooks", post(Self::take)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }
}

/// The signature, by another implementation than the library's.
fn signature(secret: &str, sent: &Sent) -> String {
    let script = "import base64, hashlib, hmac, sys\n\
                  secret, text = base64.b64decode(sys.argv[1]), sys.argv[2].encode()\n\
                  print('v1,' + base64.b64encode(hmac.new(secret, text, hashlib.sha256).digest()).decode())";
    let body = std::str::from_utf8(&sent.body).unwrap();
    let text = format!("{}.{}.{body}", sent.id, sent.timestamp);
    let mut python = std::process::Command::new("python3");
    let made = python.args(["-c", script, &secret["whsec_".len()..], &text]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

async fn a_webhook_is_sent_again_until_its_receiver_accepts<S: TestDb>(db: S) {
    let engine = telling(&db, &App::default(), |builder| builder);
    let unknown = engine.call(&scope(), &key("canary"), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(unknown, Ok(Outcome::Unknown { .. })));
    finished(engine.call(&scope(), &key("other"), book(20)).await);

    const OTHER: &str = "whsec_b3RoZXItc2VjcmV0LW9mLTI0LWJ5dGVzIQ==";
    let receiver = Receiver::default();
    let webhook = Webhook::new(&receiver.listen().await, SECRET).unwrap();
    let webhook = webhook.also_signed_with(OTHER).unwrap();
    let webhook = webhook.within(Duration::from_secs(3)).unwrap();
    let webhook = webhook.link("https://example.com/ops/requests/").unwrap();
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&engine, webhook.beside(inbox.sink()), config());
    let mut sum = Delivered::default();
    for _ in 0..4 {
        let one = enqueuer.run_once().await.unwrap();
        (sum.delivered, sum.put_back) =
            (sum.delivered + one.delivered, sum.put_back + one.put_back);
        db.let_time_pass().await;
    }
    // The other sink got the receipt and the thanks of the other request.
    assert_eq!((sum.delivered, sum.put_back), (3, 3), "{sum:?}");
    assert_eq!(inbox.take().len(), 2);
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_staged_jobs").await, 0);

    let sent = receiver.0.lock().unwrap().clone();
    assert_eq!(sent.len(), 4);
    let ids: BTreeSet<&str> = sent.iter().map(|sent| sent.id.as_str()).collect();
    assert_eq!(ids.len(), 1, "a receiver that remembers it does it once");
    for sent in &sent {
        let both = format!("{} {}", signature(SECRET, sent), signature(OTHER, sent));
        assert_eq!(sent.signature, both);
        let forged = Sent { body: Bytes::from_static(b"{}"), ..sent.clone() };
        assert_ne!(signature(SECRET, &forged), signature(SECRET, sent));
        assert_eq!(sent.body, receiver.0.lock().unwrap()[0].body);
    }
    let text = std::str::from_utf8(&sent[0].body).unwrap();
    for given in ["canary", "tenant-1", "pilot"] {
        assert!(!text.contains(given), "G19: {text}");
    }
    let event: serde_json::Value = serde_json::from_slice(&sent[0].body).unwrap();
    let id = status(&engine, "canary").await.request_id;
    assert_eq!(event["type"], "request.waiting");
    assert_eq!(event["data"]["request_id"], id.to_string());
    assert_eq!(event["data"]["link"], format!("https://example.com/ops/requests/{id}"));
    assert_eq!(event["data"]["status"], "unknown");
    assert_eq!(event["data"]["phase"], "notified");
    assert_eq!(event["timestamp"], event["data"]["since"]);
}

#[test]
fn a_webhook_takes_notices_alone_and_leaves_the_others_to_its_neighbour() {
    let webhook = || Webhook::new("http://127.0.0.1:1/", SECRET).unwrap();
    assert!(webhook().handles(WAITING_JOB) && !webhook().handles("receipt"));
    let receipts = Handlers::new().on("receipt", async |_: String, _| Ok(()));
    let beside = webhook().beside(receipts.concurrency("receipt", 3).unwrap());
    assert!(beside.handles(WAITING_JOB) && beside.handles("receipt") && !beside.handles("thanks"));
    assert_eq!(beside.concurrency("receipt"), NonZeroUsize::new(3));
    assert_eq!(beside.concurrency(WAITING_JOB), None);
}
