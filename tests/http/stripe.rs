//! The flagship with Stripe's API as its charge API.
//!
//! A front implements Stripe's contract: it accepts the form-encoded parameters that it knows and a bearer key. For each
//! `Idempotency-Key` it always returns the first answer, also a failure, unless the charge was not begun
//! (<https://docs.stripe.com/api/idempotent_requests>, <https://docs.stripe.com/error-handling>). Behind the front, the
//! test itself makes the charges, or localstripe if it can be installed. localstripe keeps customers and cards as Stripe
//! does, but does not support keys.

use std::collections::{HashMap, VecDeque};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Form, Json, Router, routing::post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::flagship::{SECRET, book, event};
use crate::support::assets;
use crate::support::look::Look;
use crate::support::process::{Process, free_port};
use crate::support::rides::{Rides, postgres, signed, sqlite};
use crate::support::until;

const LOCALSTRIPE: &str = "localstripe==1.15.10";
const API_KEY: &str = "sk_test_rocket_rides";

/// The fate of one call.
#[derive(Clone, Copy)]
enum Trouble {
    /// Refused before the charge was begun, so Stripe keeps no answer.
    RateLimited,
    InUse,
    Overloaded,
    /// The charge is made; the answer is another one, or is lost. Stripe keeps it all the same.
    FailsAfter,
    CutAfter,
}

/// Who makes the charges.
enum Bank {
    Own(Mutex<Vec<Value>>),
    Local(String),
}

struct Kept {
    form: Vec<(String, String)>,
    status: u16,
    body: Value,
}

struct Front {
    bank: Bank,
    troubles: Mutex<VecDeque<Trouble>>,
    /// The key of each call.
    keys: Mutex<Vec<String>>,
    answers: Mutex<HashMap<String, Kept>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn error(status: u16, kind: &str, code: &str) -> (u16, Value) {
    (status, json!({ "error": { "type": kind, "code": code, "message": "as asked for" } }))
}

fn answer((status, body): (u16, Value)) -> Response {
    (StatusCode::from_u16(status).unwrap(), Json(body)).into_response()
}

impl Front {
    async fn start(bank: Bank) -> (Arc<Self>, String) {
        let front = Arc::new(Self {
            bank,
            troubles: Mutex::default(),
            keys: Mutex::default(),
            answers: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/charges", post(create)).with_state(front.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (front, url)
    }

    /// The charges that moved money.
    async fn charges(&self) -> usize {
        let charges = match &self.bank {
            Bank::Own(charges) => locked(charges).clone(),
            Bank::Local(url) => {
                let list = reqwest::Client::new().get(format!("{url}/v1/charges?limit=100"));
                let list: Value =
                    list.bearer_auth(API_KEY).send().await.unwrap().json().await.unwrap();
                list["data"].as_array().unwrap().clone()
            }
        };
        charges.iter().filter(|charge| charge["status"] == "succeeded").count()
    }

    async fn charge(&self, form: &[(String, String)]) -> (u16, Value) {
        let url = match &self.bank {
            Bank::Own(charges) => return charge(&mut locked(charges), form),
            Bank::Local(url) => format!("{url}/v1/charges"),
        };
        let made = reqwest::Client::new().post(url).bearer_auth(API_KEY).form(form).send().await;
        let made = made.unwrap();
        (made.status().as_u16(), made.json().await.unwrap())
    }
}

fn charge(charges: &mut Vec<Value>, form: &[(String, String)]) -> (u16, Value) {
    let value = |name: &str| {
        form.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str())
    };
    if value("customer") == "cus_declined" {
        return error(402, "card_error", "card_declined");
    }
    let charge = json!({
        "id": format!("ch_{}", charges.len() + 1),
        "object": "charge",
        "status": "succeeded",
        "amount": value("amount").parse::<u32>().unwrap(),
        "currency": value("currency"),
        "customer": value("customer"),
        "metadata": { "ride": value("metadata[ride]") },
    });
    charges.push(charge.clone());
    (200, charge)
}

/// The parameters of a charge that the flagship uses; Stripe refuses unknown ones.
const PARAMETERS: [&str; 5] = ["amount", "currency", "customer", "description", "metadata[ride]"];

async fn create(
    State(front): State<Arc<Front>>,
    headers: HeaderMap,
    form: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    if text(header::AUTHORIZATION.as_str()) != format!("Bearer {API_KEY}") {
        return answer(error(401, "invalid_request_error", "api_key_invalid"));
    }
    let Ok(Form(form)) = form else {
        return answer(error(400, "invalid_request_error", "not_a_form"));
    };
    if !form.iter().all(|(name, _)| PARAMETERS.contains(&name.as_str())) {
        return answer(error(400, "invalid_request_error", "parameter_unknown"));
    }
    let key = text("idempotency-key").to_owned();
    if !(1..=255).contains(&key.len()) {
        return answer(error(400, "idempotency_error", "no_key_of_255_characters"));
    }
    locked(&front.keys).push(key.clone());
    let trouble = locked(&front.troubles).pop_front();
    match trouble {
        Some(Trouble::RateLimited) => {
            return answer(error(429, "invalid_request_error", "rate_limit"));
        }
        Some(Trouble::InUse) => {
            return answer(error(409, "idempotency_error", "idempotency_key_in_use"));
        }
        Some(Trouble::Overloaded) => return answer(error(503, "api_error", "overloaded")),
        Some(Trouble::FailsAfter | Trouble::CutAfter) | None => {}
    }
    if let Some(kept) = locked(&front.answers).get(&key) {
        if kept.form != form {
            return answer(error(400, "idempotency_error", "parameters_differ"));
        }
        let mut replay = answer((kept.status, kept.body.clone()));
        replay.headers_mut().insert("idempotent-replayed", "true".parse().unwrap());
        return replay;
    }
    let (status, body) = match (front.charge(&form).await, trouble) {
        (_, Some(Trouble::FailsAfter)) => error(500, "api_error", "failed"),
        (charged, _) => charged,
    };
    let kept = Kept { form, status, body: body.clone() };
    locked(&front.answers).insert(key, kept);
    if matches!(trouble, Some(Trouble::CutAfter)) {
        // Ends the connection's task, and so the connection, without an answer.
        std::panic::resume_unwind(Box::new("cut as asked for"));
    }
    answer((status, body))
}

/// The flagship, as a client of Stripe.
struct Flagship {
    front: Arc<Front>,
    rides: Rides,
    _pilots: Process,
    _dir: tempfile::TempDir,
}

impl Flagship {
    async fn start(bank: Bank, customer: &str, database: fn(&tempfile::TempDir) -> String) -> Self {
        let (front, url) = Front::start(bank).await;
        let dir = tempfile::tempdir().unwrap();
        let (pilots, rides) = tokio::task::block_in_place(|| {
            let ledger = dir.path().join("pilots");
            let ledger = ledger.to_str().unwrap();
            let pilots =
                Process::start(&["provider", "--listen", "127.0.0.1:0", "--ledger", ledger]);
            let options = [
                ("--charge-api", url.as_str()),
                ("--charge-api-secret", API_KEY),
                ("--customer", customer),
                ("--pilot-api", &pilots.url),
                ("--workers", "false"),
                ("--reconcile-after", "60"),
            ];
            let rides = Rides::start_with(database, &options);
            (pilots, rides)
        });
        Self { front, rides, _pilots: pilots, _dir: dir }
    }

    /// The client's answer for a ride, how often Stripe was called for it, and how many charges it made.
    async fn book(&self, key: &str, troubles: &[Trouble]) -> (u16, usize, usize) {
        locked(&self.front.troubles).extend(troubles);
        let charges = self.front.charges().await;
        let calls = locked(&self.front.keys).len();
        let (status, _) = book(&self.rides.server.url, "user@example.com", key).await;
        let keys = locked(&self.front.keys)[calls..].to_vec();
        assert!(keys.iter().all(|key| *key == keys[0] && key.len() == 32), "{keys:?}");
        (status, keys.len(), self.front.charges().await - charges)
    }
}

async fn g1_one_charge_at_stripe_whatever_it_answers(flagship: Flagship) {
    use Trouble::{CutAfter, FailsAfter, InUse, Overloaded, RateLimited};
    // A ride and its replay.
    assert_eq!(flagship.book("fine", &[]).await, (201, 1, 1));
    assert_eq!(flagship.book("fine", &[]).await, (201, 0, 0));
    // The phase itself retries a call that certainly did not charge.
    assert_eq!(flagship.book("busy", &[RateLimited, InUse]).await, (201, 3, 1));
    // A call that may have charged is left to the client's retry, which sends the same key.
    assert_eq!(flagship.book("cut", &[CutAfter]).await, (503, 1, 1));
    assert_eq!(flagship.book("cut", &[]).await, (201, 1, 0));
    assert_eq!(flagship.book("down", &[Overloaded]).await, (503, 1, 0));
    assert_eq!(flagship.book("down", &[]).await, (201, 1, 1));
    // A failure that Stripe keeps does not say whether it charged, and no repetition will: only an event does.
    assert_eq!(flagship.book("failed", &[FailsAfter]).await, (503, 1, 1));
    assert_eq!(flagship.book("failed", &[]).await, (409, 1, 0));
    assert_eq!(flagship.book("failed", &[]).await, (409, 0, 0));
    let look = Look::at(&flagship.rides.database).await;
    let ride = "SELECT id AS line FROM rides WHERE request_key = 'failed'";
    let event = event("charge.succeeded", &look.lines(ride).await[0]);
    let webhook = format!("{}/webhooks/charges", flagship.rides.server.url);
    assert_eq!(signed(&webhook, SECRET, event.to_string()).send().await.unwrap().status(), 200);
    assert_eq!(flagship.book("failed", &[]).await, (201, 0, 0));
    assert_eq!(look.count("rides WHERE charge_id IS NOT NULL AND NOT canceled").await, 5);
}

async fn a_declined_card_is_told_once_and_for_ever(flagship: Flagship) {
    assert_eq!(flagship.book("declined", &[]).await, (402, 1, 0));
    assert_eq!(flagship.book("declined", &[]).await, (402, 0, 0));
    // Received at the second call, because Stripe keeps refusals, too.
    assert_eq!(flagship.book("declined-late", &[Trouble::CutAfter]).await, (503, 1, 0));
    assert_eq!(flagship.book("declined-late", &[]).await, (402, 1, 0));
    let look = Look::at(&flagship.rides.database).await;
    assert_eq!(look.count("rides WHERE canceled AND charge_id IS NULL").await, 2);
}

fn own() -> Bank {
    Bank::Own(Mutex::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_one_charge_at_stripe_on_sqlite() {
    g1_one_charge_at_stripe_whatever_it_answers(Flagship::start(own(), "cus_1", sqlite).await)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_one_charge_at_stripe_on_postgres() {
    g1_one_charge_at_stripe_whatever_it_answers(Flagship::start(own(), "cus_1", postgres).await)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_stripe_declines() {
    let flagship = Flagship::start(own(), "cus_declined", sqlite).await;
    a_declined_card_is_told_once_and_for_ever(flagship).await;
}

/// A wrong Stripe API key: nothing is charged, and the request waits for its operator.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_api_key_charges_nothing() {
    let flagship = Flagship::start(own(), "cus_1", sqlite).await;
    let server = tokio::task::block_in_place(|| {
        flagship.rides.another(&[("--charge-api-secret", "sk_test_other")], &[])
    });
    assert_eq!(book(server.url(), "user@example.com", "k").await.0, 503);
    assert_eq!(flagship.front.charges().await, 0);
    assert_eq!(flagship.book("k", &[]).await, (201, 1, 1));
}

/// localstripe as a process. Dropped, it is killed, by its own id.
struct Local {
    child: Child,
    url: String,
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Local {
    async fn start() -> Option<Self> {
        let python = tokio::task::spawn_blocking(|| {
            assets::python(&assets::folder("localstripe"), &[LOCALSTRIPE])
        });
        let Some(python) = python.await.unwrap() else {
            assets::skipped(LOCALSTRIPE, assets::NOT_TO_BE_HAD);
            return None;
        };
        let port = free_port();
        // By default it would keep its objects in a file that all instances share.
        let program = "import localstripe.resources as r, localstripe.server as s; \
                       r.Store.dump_to_disk = lambda self: None; s.start()";
        let child = Command::new(python)
            .args(["-c", program, "--from-scratch", "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let local = Self { child, url: format!("http://localhost:{port}") };
        until(async || reqwest::get(format!("{}/v1/charges", local.url)).await.is_ok()).await;
        Some(local)
    }

    async fn post(&self, path: &str, form: &[(&str, &str)]) -> Value {
        let call = reqwest::Client::new().post(format!("{}/v1/{path}", self.url));
        call.bearer_auth(API_KEY).form(form).send().await.unwrap().json().await.unwrap()
    }

    /// A customer who pays with this card.
    async fn customer(&self, card: &str) -> String {
        let form = [
            ("type", "card"),
            ("card[number]", card),
            ("card[exp_month]", "12"),
            ("card[exp_year]", "2040"),
            ("card[cvc]", "123"),
        ];
        let method = self.post("payment_methods", &form).await;
        let method = method["id"].as_str().unwrap();
        let form =
            [("payment_method", method), ("invoice_settings[default_payment_method]", method)];
        self.post("customers", &form).await["id"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_one_charge_at_localstripe() {
    let Some(local) = Local::start().await else { return };
    let flagship = async |card| {
        let bank = Bank::Local(local.url.clone());
        Flagship::start(bank, &local.customer(card).await, sqlite).await
    };
    g1_one_charge_at_stripe_whatever_it_answers(flagship("4242424242424242").await).await;
    a_declined_card_is_told_once_and_for_ever(flagship("4000000000000341").await).await;
}
