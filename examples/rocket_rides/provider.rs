//! A Stripe-shaped provider, with a ledger on disk that survives `kill -9`: a charge is in the
//! ledger, fsynced, before the answer is sent.
//!
//! `POST /v1/charges` honors `Idempotency-Key`; `GET /v1/charges` lists, newest first. Customers
//! whose id ends in `declined` are. `POST /test/faults` makes it misbehave for tests.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::pilots;
use crate::signature::{SIGNATURE, sign};

/// One line of the ledger: an answer that a key was given. `charged` tells whether money moved.
#[derive(Clone, Serialize, Deserialize)]
struct Entry {
    id: String,
    key: Option<String>,
    charged: bool,
    params: ChargeParams,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct ChargeParams {
    amount: u64,
    currency: String,
    customer: String,
    #[serde(default)]
    description: String,
    #[serde(rename = "metadata[ride]", default)]
    ride: String,
}

/// How often, or how long, to misbehave. Each counter counts down with the calls it spoils.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Faults {
    delay_before_ms: u64,
    delay_after_ms: u64,
    /// 500 before the effect.
    fail_before: u32,
    /// 500 after the effect.
    fail_after: u32,
    /// The connection is dropped after the effect, without an answer.
    drop_after: u32,
}

struct Provider {
    ignore_keys: bool,
    webhook: Option<Webhook>,
    state: Mutex<Book>,
}

struct Book {
    ledger: File,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
    in_flight: HashSet<String>,
    calls: u64,
    faults: Faults,
}

impl Book {
    /// Reads the ledger; a last line that was torn by a crash was never answered, and is cut off.
    fn open(path: &Path) -> std::io::Result<Self> {
        let mut ledger = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let (mut entries, mut by_key, mut good) = (Vec::new(), HashMap::new(), 0);
        let mut reader = BufReader::new(&ledger);
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap_or(0) > 0 {
            let Some(entry) =
                line.strip_suffix('\n').and_then(|l| serde_json::from_str::<Entry>(l).ok())
            else {
                break;
            };
            good += line.len() as u64;
            by_key.extend(entry.key.clone().map(|key| (key, entries.len())));
            entries.push(entry);
            line.clear();
        }
        ledger.set_len(good)?;
        ledger.seek(SeekFrom::End(0))?;
        let (in_flight, faults) = (HashSet::new(), Faults::default());
        Ok(Self { ledger, entries, by_key, in_flight, calls: 0, faults })
    }

    fn record(&mut self, entry: Entry) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        self.ledger.write_all(&line)?;
        self.ledger.sync_data()?;
        self.by_key.extend(entry.key.clone().map(|key| (key, self.entries.len())));
        self.entries.push(entry);
        Ok(())
    }
}

/// Where to say that a charge succeeded.
#[derive(Clone)]
pub struct Webhook {
    pub url: String,
    pub secret: String,
}

/// What it is to be like.
pub struct Options {
    /// A provider that knows no idempotency.
    pub ignore_keys: bool,
    pub webhook: Option<Webhook>,
}

/// Serves until the process ends: charges, and the pilots' API beside them.
pub async fn serve(listener: TcpListener, ledger: &Path, options: Options) -> std::io::Result<()> {
    let Options { ignore_keys, webhook } = options;
    let state = Mutex::new(Book::open(ledger)?);
    let provider = Arc::new(Provider { ignore_keys, webhook, state });
    let app = Router::new()
        .route("/v1/charges", post(create).get(list))
        .route("/test/faults", post(set_faults))
        .route("/test/calls", get(calls))
        .with_state(provider)
        .merge(pilots::router(&ledger.with_extension("pilots"))?);
    axum::serve(listener, app).await
}

/// Says it until it is heard, for a minute.
async fn tell(webhook: Webhook, charge: Value) {
    let http = reqwest::Client::new();
    let event = json!({ "type": "charge.succeeded", "data": { "object": charge } }).to_string();
    for _ in 0..120 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signature = sign(&webhook.secret, now, event.as_bytes());
        let said = http.post(&webhook.url).header(SIGNATURE, signature).body(event.clone());
        let said = said.header("content-type", "application/json").send().await;
        if said.is_ok_and(|answer| answer.status().as_u16() != 503) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

impl Provider {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

async fn create(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    Form(params): Form<ChargeParams>,
) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if !text("authorization").is_some_and(|value| value.starts_with("Bearer ")) {
        return error(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            "unauthorized",
            "No API key.",
        );
    }
    let key = text("idempotency-key").filter(|_| !provider.ignore_keys).map(str::to_owned);
    let faults = {
        let mut book = provider.book();
        book.calls += 1;
        if let Some(key) = &key {
            if let Some(known) = book.by_key.get(key).map(|at| book.entries[*at].clone()) {
                return replay(&known, &params);
            }
            if !book.in_flight.insert(key.clone()) {
                let text = "There is currently another in-progress request using this key.";
                return error(
                    StatusCode::CONFLICT,
                    "idempotency_error",
                    "idempotency_key_in_use",
                    text,
                );
            }
        }
        take_faults(&mut book.faults)
    };
    // The key is free again whatever happens, a dropped connection included.
    let _in_flight = InFlight { provider: provider.clone(), key: key.clone() };
    tokio::time::sleep(Duration::from_millis(faults.delay_before_ms)).await;
    if faults.fail_before > 0 {
        return error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "api_error",
            "failed",
            "Failed before the charge.",
        );
    }
    let entry = {
        let mut book = provider.book();
        let charged = !params.customer.ends_with("declined");
        let id = format!("ch_{:08}", book.entries.len() + 1);
        let entry = Entry { id, key, charged, params };
        if book.record(entry.clone()).is_err() {
            return error(
                StatusCode::INTERNAL_SERVER_ERROR,
                "api_error",
                "ledger",
                "The ledger is not writable.",
            );
        }
        entry
    };
    if let Some(webhook) = provider.webhook.clone().filter(|_| entry.charged) {
        tokio::spawn(tell(webhook, charge(&entry)));
    }
    tokio::time::sleep(Duration::from_millis(faults.delay_after_ms)).await;
    if faults.drop_after > 0 {
        // Ends the connection's task, and so the connection, without a word.
        std::panic::resume_unwind(Box::new("dropped as asked for"));
    }
    if faults.fail_after > 0 {
        return error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "api_error",
            "failed",
            "Failed after the charge.",
        );
    }
    answer(&entry)
}

struct InFlight {
    provider: Arc<Provider>,
    key: Option<String>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            self.provider.book().in_flight.remove(key);
        }
    }
}

fn take_faults(faults: &mut Faults) -> Faults {
    let taken = faults.clone();
    for counter in [&mut faults.fail_before, &mut faults.fail_after, &mut faults.drop_after] {
        *counter = counter.saturating_sub(1);
    }
    taken
}

fn replay(known: &Entry, params: &ChargeParams) -> Response {
    if known.params != *params {
        let text = "Keys for idempotent requests can only be used with the same parameters.";
        return error(StatusCode::BAD_REQUEST, "idempotency_error", "parameters_differ", text);
    }
    let mut response = answer(known);
    response.headers_mut().insert("idempotent-replayed", "true".parse().expect("a header value"));
    response
}

fn answer(entry: &Entry) -> Response {
    match entry.charged {
        true => Json(charge(entry)).into_response(),
        false => error(
            StatusCode::PAYMENT_REQUIRED,
            "card_error",
            "card_declined",
            "Your card was declined.",
        ),
    }
}

fn charge(entry: &Entry) -> Value {
    json!({
        "id": entry.id,
        "object": "charge",
        "amount": entry.params.amount,
        "currency": entry.params.currency,
        "customer": entry.params.customer,
        "description": entry.params.description,
        "metadata": { "ride": entry.params.ride },
        "status": "succeeded",
        "idempotency_key": entry.key,
    })
}

fn error(status: StatusCode, kind: &str, code: &str, message: &str) -> Response {
    let body = json!({ "error": { "type": kind, "code": code, "message": message } });
    (status, Json(body)).into_response()
}

async fn list(State(provider): State<Arc<Provider>>) -> Json<Value> {
    let book = provider.book();
    let charges: Vec<Value> = book.entries.iter().rev().filter(|e| e.charged).map(charge).collect();
    Json(json!({ "object": "list", "data": charges }))
}

async fn set_faults(State(provider): State<Arc<Provider>>, Json(faults): Json<Faults>) {
    provider.book().faults = faults;
}

async fn calls(State(provider): State<Arc<Provider>>) -> Json<Value> {
    Json(json!({ "calls": provider.book().calls }))
}
