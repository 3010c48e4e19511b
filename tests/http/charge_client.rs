//! The flagship's charge client against a provider that follows a script: what each failure means for the request,
//! how often the provider is called, and that all calls send one key.

#[allow(missing_docs)]
#[path = "../../examples/rocket_rides/charge_api.rs"]
mod charge_api;
#[allow(missing_docs, dead_code)]
#[path = "../../examples/rocket_rides/pilot_api.rs"]
mod pilot_api;

use crate::support::script::{DROP, Server, Step};
use atomic_phases::engine::FailureCause;
use atomic_phases::phase::ForeignError;
use atomic_phases::store::Sqlite;
use atomic_phases::{
    Engine, ForeignCall, IdempotencyKey, Outcome, PhaseResult, Reply, Scope, Store, Tx,
    atomic_phases,
};
use charge_api::{Charge, ChargeApi, ChargeParams};
use serde::{Deserialize, Serialize};

type App = ChargeApi;

#[derive(Serialize, Deserialize)]
struct Pay {}

#[derive(Serialize, Deserialize)]
struct Paid(String);

#[atomic_phases(name = "pay", version = 1)]
impl Pay {
    #[phase(foreign(idempotent, window = "24h"))]
    async fn charged(&self, call: ForeignCall, app: &App) -> PhaseResult<Paid, ForeignError> {
        let params = ChargeParams {
            amount: 2000,
            currency: "usd",
            customer: "cus",
            description: "ride",
            ride: "r",
        };
        Ok(Paid(match call.make(|key| app.create(key, params)).await? {
            Charge::Made { id } => id,
            Charge::Declined { message } => format!("declined: {message}"),
        }))
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, paid: &Paid) -> PhaseResult<Reply> {
        let _ = tx;
        Ok(Reply::text(201, paid.0.clone()))
    }
}

/// How the request ended, and what the provider was sent.
async fn pay(script: &'static [Step]) -> (String, Vec<String>) {
    let provider = Server::follow("/", script).await;
    let app = ChargeApi::new(&provider.url, "sk_test").unwrap();
    let store = Sqlite::connect(":memory:").await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).app(app).register::<Pay>().build().unwrap();
    let (scope, key) = (Scope::single_tenant(), IdempotencyKey::random());
    let outcome = match engine.call(&scope, &key, Pay {}).await.unwrap() {
        Outcome::Finished(end) => {
            format!("{} {}", end.reply.status(), String::from_utf8_lossy(end.reply.bytes()))
        }
        Outcome::Failed { cause: FailureCause::Phase { reason, .. }, retry_after } => {
            format!("{reason}; {}", retry_after.as_secs())
        }
        Outcome::Unknown { .. } => "unknown".to_owned(),
        other => panic!("{other:?}"),
    };
    (outcome, provider.seen())
}

macro_rules! say {
    ($status:literal, $headers:literal, $body:literal) => {
        Step::Say(concat!(
            "HTTP/1.1 ",
            $status,
            " x\r\nconnection: close\r\ncontent-type: application/json\r\n",
            $headers,
            "\r\n",
            $body
        ))
    };
}

const CHARGED: Step = say!(200, "", r#"{"id":"ch_1"}"#);
const BUSY: Step = say!(409, "", r#"{"error":{"type":"idempotency_error"}}"#);

#[tokio::test]
async fn a_provider_that_is_busy_is_asked_again_within_the_phase() {
    for script in [&[BUSY, BUSY, CHARGED][..], &[say!(429, "", ""), BUSY, CHARGED]] {
        let (outcome, seen) = pay(script).await;
        assert_eq!((outcome.as_str(), seen.len()), ("201 ch_1", 3));
        assert!(seen.iter().all(|request| *request == seen[0]), "one key, one body");
        assert!(seen[0].starts_with("POST /v1/charges HTTP/1.1\r\n"), "{}", seen[0]);
        assert!(seen[0].contains("\r\nauthorization: Bearer sk_test\r\n"));
        assert!(seen[0].ends_with(
            "amount=2000&currency=usd&customer=cus&description=ride&metadata%5Bride%5D=r"
        ));
        let key = seen[0].lines().find_map(|line| line.strip_prefix("idempotency-key: "));
        assert_eq!(key.map(str::len), Some(32));
    }
}

#[tokio::test]
async fn patience_ends() {
    let (outcome, seen) = pay(&[BUSY, BUSY, BUSY, BUSY, CHARGED]).await;
    assert!(outcome.starts_with("the provider failed or is busy; "), "{outcome}");
    assert_eq!(seen.len(), 4);
    // A wait that is too long for the phase is passed on to the client.
    let (outcome, seen) = pay(&[say!(429, "retry-after: 30\r\n", ""), CHARGED]).await;
    assert_eq!(outcome, "the provider had no time for the call; 30");
    assert_eq!(seen.len(), 1);
}

#[tokio::test]
async fn what_may_have_charged_is_left_to_the_requests_retry() {
    for script in [
        &[DROP, CHARGED][..],
        &[Step::Say("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"), CHARGED],
        &[say!(200, "", "garbage"), CHARGED],
        &[Step::Say("garbage\r\n\r\n"), CHARGED],
    ] {
        let (outcome, seen) = pay(script).await;
        assert!(outcome.starts_with("the provider did not answer; "), "{outcome}");
        assert_eq!(seen.len(), 1);
    }
    for failed in [say!(500, "", ""), say!(502, "", "<html>"), say!(503, "", "")] {
        let (outcome, seen) = pay(Box::leak(Box::new([failed, CHARGED]))).await;
        assert!(outcome.starts_with("the provider failed or is busy; "), "{outcome}");
        assert_eq!(seen.len(), 1);
    }
}

#[tokio::test]
async fn a_refused_connection_is_tried_a_few_times_and_certainly_not_charged() {
    let api = ChargeApi::new("http://127.0.0.1:1", "sk_test").unwrap();
    let store = Sqlite::connect(":memory:").await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store).app(api).register::<Pay>().build().unwrap();
    let key = IdempotencyKey::random();
    let outcome = engine.call(&Scope::single_tenant(), &key, Pay {}).await.unwrap();
    let Outcome::Failed { cause: FailureCause::Phase { reason, .. }, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(reason, "the call did not reach the provider");
}

#[tokio::test]
async fn final_answers_are_taken_at_their_word() {
    let declined = say!(402, "", r#"{"error":{"type":"card_error","message":"no"}}"#);
    let reused = say!(400, "", r#"{"error":{"type":"idempotency_error"}}"#);
    let refused = "the provider refuses the request: see its secret and version; ";
    for (step, expected) in [
        (declined, "201 declined: no"),
        (say!(402, "", ""), "201 declined: The card was declined."),
        (reused, "unknown"),
        (say!(400, "", "{}"), refused),
        (say!(401, "", ""), refused),
        (say!(404, "", ""), refused),
        (say!(302, "location: /elsewhere\r\n", ""), refused),
        // A failure that the provider keeps under the key: no repetition would return anything else.
        (say!(500, "idempotent-replayed: true\r\n", ""), "unknown"),
        (say!(500, "idempotency-expires: Sun, 06 Nov 1994 08:49:37 GMT\r\n", ""), "unknown"),
        (say!(500, "stripe-should-retry: false\r\n", ""), "unknown"),
        (say!(409, "stripe-should-retry: false\r\n", ""), "unknown"),
        (say!(409, "idempotent-replayed: true\r\n", ""), refused),
    ] {
        let (outcome, seen) = pay(Box::leak(Box::new([step, CHARGED]))).await;
        assert!(outcome.starts_with(expected), "{outcome} is not {expected}");
        assert_eq!(seen.len(), 1);
    }
}

/// A redirected notification would be another notification, and a redirected `GET` would be none.
#[tokio::test]
async fn the_pilots_api_is_not_followed_to_another_place() {
    for status in ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let elsewhere =
            Server::follow("/v1/notifications", &[say!(200, "", r#"{"id":"n"}"#)]).await;
        let redirect = format!(
            "HTTP/1.1 {status}\r\nlocation: {}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            elsewhere.url
        );
        let script = Box::leak(Box::new([Step::Say(redirect.leak())]));
        let api = Server::follow("", script).await;
        let told = pilot_api::PilotApi::new(&api.url).unwrap().notify("r").await;
        assert!(told.is_err(), "{status}");
        assert_eq!((api.seen().len(), elsewhere.seen().len()), (1, 0), "{status}");
    }
}
