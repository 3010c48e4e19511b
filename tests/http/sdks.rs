//! How third-party clients handle the answers: Stripe's SDKs for Python and Node.js, urllib3 and curl, unchanged,
//! over real sockets, with both profiles. `docs/clients.md` shows the table; the test compares each of its lines
//! with what happens here.
//!
//! The SDKs come from their registries, into the target folder; those that cannot be had are skipped, and
//! the test says so.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::assets::{self, succeeds};
use crate::support::*;
use atomic_phases::config::OnDuplicate;
use atomic_phases::fingerprint::Unfingerprinted;
use atomic_phases::http::{
    Answer, Bodies, Idempotency, Keyed, Params, Policy, Profile, single_tenant,
};
use atomic_phases::phase::ForeignError;
use atomic_phases::store::Sqlite;
use atomic_phases::{Engine, ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases};
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Router, routing::post};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

const STRIPE_PYTHON: &str = "stripe==16.1.0";
const URLLIB3: &str = "urllib3==2.8.0";
const STRIPE_NODE: &str = "stripe@23.1.0";

/// `POST /v1/charges`, as much of it as the SDKs need.
#[derive(Debug, Serialize, Deserialize)]
struct Charge {
    amount: i64,
    #[serde(default)]
    how: Unfingerprinted<How>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum How {
    #[default]
    Well,
    Declined,
    Unknown,
    FailsOnce,
}

#[derive(Serialize, Deserialize)]
struct Made {
    id: String,
}

#[atomic_phases(name = "charges.create", version = 1)]
impl Charge {
    #[phase(foreign(idempotent))]
    async fn made(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
    ) -> PhaseResult<Made, ForeignError> {
        if *self.how == How::FailsOnce && ctx.attempt() == 1 {
            return Err(ForeignError::retryable("asked for"));
        }
        let id = call
            .make(async |key| {
                Ok::<_, ForeignError>(app.provider.call(key.as_str(), "charge").await)
            })
            .await?;
        match *self.how {
            How::Declined => {
                let error =
                    json!({ "type": "card_error", "code": "card_declined", "message": "no" });
                Err(ForeignError::reject(Reply::json(402, &json!({ "error": error }))?))
            }
            How::Unknown => Err(ForeignError::unknown("asked for")),
            How::Well | How::FailsOnce => Ok(Made { id }),
        }
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>, made: &Made) -> PhaseResult<Reply> {
        let _ = tx;
        let charge = json!({ "id": made.id, "object": "charge", "amount": self.amount });
        Ok(Reply::json(200, &charge)?)
    }
}

async fn create(keyed: Keyed<Sqlite, App>, Params(charge): Params<Charge>) -> Answer {
    keyed.answer(charge).await
}

/// A key, and the status of one answer to it.
type Answered = (String, Option<u16>);

/// Which requests of the client under test arrived, and what each was answered; `None` for an answer that
/// the server did not live to give.
#[derive(Clone, Default)]
struct Seen {
    arrived: Arc<Mutex<Vec<String>>>,
    answered: Arc<Mutex<Vec<Answered>>>,
}

impl Seen {
    fn of(&self, key: &str) -> Vec<Option<u16>> {
        let answered = self.answered.lock().unwrap();
        answered.iter().filter(|(other, _)| other == key).map(|(_, status)| *status).collect()
    }
}

/// Marks the requests that are not the client's own.
const HOLDER: &str = "x-holder";

/// Drops the first answer to a request with this key.
async fn seen_by(State(seen): State<Seen>, request: Request, next: Next) -> Response {
    if request.headers().contains_key(HOLDER) {
        return next.run(request).await;
    }
    let key = request.headers()["idempotency-key"].to_str().unwrap().to_owned();
    seen.arrived.lock().unwrap().push(key.clone());
    let response = next.run(request).await;
    let dies = key == KILLED && seen.of(&key).is_empty();
    let status = (!dies).then_some(response.status().as_u16());
    seen.answered.lock().unwrap().push((key, status));
    if dies {
        // Ends the connection's task, and so the connection, without an answer.
        std::panic::resume_unwind(Box::new("dies as asked for"));
    }
    response
}

const KILLED: &str = "killed";

struct Server {
    url: String,
    app: App,
    seen: Seen,
}

impl Server {
    async fn start(profile: Profile) -> Self {
        let (app, seen) = (App::default(), Seen::default());
        let engine = Engine::builder(Sqlite::fresh().await)
            .app(app.clone())
            .register::<Charge>()
            .lease(Duration::from_secs(60))
            // Short, so that the test does not wait for clients that read Retry-After.
            .reconcile_after(Duration::from_secs(4));
        let policy = Policy::default().profile(profile).bodies(Bodies::JsonOrForm);
        let policy = match profile {
            Profile::Ietf => policy,
            // As the default, which is 20 s: shorter than the time until an unknown outcome is reconciled.
            _ => policy.on_duplicate(OnDuplicate::Wait(Duration::from_secs(2))),
        };
        let idempotency = Idempotency::new(engine.build().unwrap(), single_tenant());
        let router = Router::new()
            .route("/v1/charges", post(create))
            .layer(middleware::from_fn_with_state(seen.clone(), seen_by))
            .with_state(idempotency.with_policy(policy).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, app, seen }
    }

    /// A request that is not the client's.
    fn holder(&self, key: &str, amount: i64) -> impl Future<Output = u16> + use<> {
        let call = reqwest::Client::new().post(format!("{}/v1/charges", self.url));
        let call = call.header("idempotency-key", key).header(HOLDER, "1");
        let call = call.form(&[("amount", amount)]);
        async move { call.send().await.unwrap().status().as_u16() }
    }
}

/// A client as a command line; base URL, key, amount and kind are appended.
struct Client {
    name: &'static str,
    command: Vec<String>,
}

impl Client {
    /// The result that the client reports, without the id of the charge.
    async fn run(&self, server: &Server, key: &str, how: How) -> String {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        let how = format!("{how:?}");
        match self.name.starts_with("curl") {
            true => command
                .args(["-H", &format!("Idempotency-Key: {key}"), "-d", "amount=2000"])
                .args(["-d", &format!("how={how}"), &format!("{}/v1/charges", server.url)]),
            false => command.args([&server.url, key, "2000", &how]),
        };
        let is_curl = self.name.starts_with("curl");
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match is_curl {
            true => format!("exit {}", output.status.code().unwrap()),
            false if text.starts_with("charge ") => "the charge".to_owned(),
            false => {
                assert!(
                    !text.is_empty(),
                    "{}: {}",
                    self.name,
                    String::from_utf8_lossy(&output.stderr)
                );
                text
            }
        }
    }
}

/// The clients that could be installed.
fn clients() -> Vec<Client> {
    let dir = assets::folder("sdks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut clients = Vec::new();
    let mut skipped = Vec::new();

    match assets::python(&dir, &[STRIPE_PYTHON, URLLIB3]) {
        Some(python) => {
            for name in ["stripe-python", "urllib3"] {
                let script = text(&source.join("client.py"));
                clients
                    .push(Client { name, command: vec![text(&python), script, name.to_owned()] });
            }
        }
        None => skipped.extend(["stripe-python", "urllib3"]),
    }
    let npm = ["install", "--prefix", ".", "--no-audit", "--no-fund", STRIPE_NODE];
    match succeeds("npm", &npm, &dir) && succeeds("node", &["--version"], &dir) {
        true => {
            // Node.js searches for a module from the folder of the script.
            let script = dir.join("client.mjs");
            std::fs::copy(source.join("client.mjs"), &script).unwrap();
            clients
                .push(Client { name: "stripe-node", command: vec!["node".into(), text(&script)] });
        }
        false => skipped.push("stripe-node"),
    }
    let curl = ["curl", "-s", "--fail-with-body", "--retry", "2"].map(str::to_owned).to_vec();
    match succeeds("curl", &["--fail-with-body", "--retry", "2", "--version"], &dir) {
        true => {
            let all = [&curl[..], &["--retry-all-errors".to_owned()]].concat();
            clients.push(Client { name: "curl --retry 2", command: curl });
            clients.push(Client { name: "curl --retry 2 --retry-all-errors", command: all });
        }
        false => skipped.push("curl"),
    }
    for name in skipped {
        assets::skipped(name, assets::NOT_TO_BE_HAD);
    }
    clients
}

/// The statuses that the client was answered, and how it ended.
fn cell(server: &Server, key: &str, ended: &str) -> String {
    let statuses = server.seen.of(key);
    let statuses =
        statuses.iter().map(|s| s.map_or("none".to_owned(), |status| status.to_string()));
    let statuses: Vec<String> = statuses.collect();
    let same = statuses.windows(2).all(|pair| pair[0] == pair[1]);
    match (same, statuses.len()) {
        (true, times @ 2..) => format!("{times} × {}: {ended}", statuses[0]),
        _ => format!("{}: {ended}", statuses.join(", ")),
    }
}

/// One line of the table.
async fn line(client: &Client, profile: Profile) -> String {
    let server = Server::start(profile).await;
    let run = async |key: &str, how: How| {
        let ended = client.run(&server, key, how).await;
        cell(&server, key, &ended)
    };
    let declined = run("declined", How::Declined).await;

    // A duplicate of a request that runs until the client has given up (or, with `stripe`, waits).
    let mut gate = server.app.provider.stop_after_the_effect();
    let holder = tokio::spawn(server.holder("running", 2000));
    let running = gate.recv().await.unwrap();
    server.app.provider.stop_no_more();
    let in_progress = match profile {
        Profile::Ietf => {
            let told = run("running", How::Well).await;
            running.send(()).unwrap();
            told
        }
        _ => {
            let release = async {
                let has_come =
                    || server.seen.arrived.lock().unwrap().iter().any(|key| key == "running");
                until(async || has_come()).await;
                running.send(()).unwrap();
            };
            tokio::join!(run("running", How::Well), release).0
        }
    };
    assert_eq!(holder.await.unwrap(), 200);

    let unknown = run("unknown", How::Unknown).await;
    assert_eq!(server.holder("reused", 1999).await, 200);
    let reused = run("reused", How::Well).await;
    let failed = run("fails", How::FailsOnce).await;
    let killed = run(KILLED, How::Well).await;
    // One effect for each key, whatever the client does.
    assert_eq!(server.app.provider.effects(), 6, "{}", client.name);
    let name = format!("`{}`", client.name);
    let cells = [name, declined, in_progress, unknown, reused, failed, killed];
    format!("| {} |", cells.join(" | "))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_clients_make_of_each_answer() {
    let clients = tokio::task::spawn_blocking(clients).await.unwrap();
    assert!(!clients.is_empty(), "not one client is to be had");
    let document = include_str!("../../docs/clients.md");
    let mut wrong = Vec::new();
    for profile in [Profile::Ietf, Profile::Stripe] {
        let section = match profile {
            Profile::Ietf => document.split("## Profile").nth(1),
            _ => document.split("## Profile").nth(2),
        };
        let lines = clients.iter().map(|client| line(client, profile));
        for line in futures_util::future::join_all(lines).await {
            if !section.unwrap_or("").lines().any(|documented| documented == line) {
                wrong.push(format!("{profile:?} {line}"));
            }
        }
    }
    assert!(wrong.is_empty(), "not as docs/clients.md has it:\n{}", wrong.join("\n"));
}
