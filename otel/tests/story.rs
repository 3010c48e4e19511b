//! A request that is killed twice and finished by a worker, each attempt in a separate process; and the spans that
//! a collector receives: a receiver of OTLP in this process, to which all of them export.
//!
//! `STORY=write cargo test -p atomic-phases-otel --test story` writes the tree into docs/traces.md.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atomic_phases::config::OnDuplicate;
use atomic_phases::phase::ForeignError;
use atomic_phases::store::Sqlite;
use atomic_phases::traces::{TraceContext, Traceparent};
use atomic_phases::worker::{Handlers, Job, WorkerConfig};
use atomic_phases::{
    Batch, Engine, ForeignCall, IdempotencyKey, Outcome, PhaseResult, Reply, Scope, Store,
    atomic_phases,
};
use atomic_phases_otel::OpenTelemetry;
use axum::{Json, Router, routing::post};
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::{Instrument, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(1);

// The request, and the processes.

#[derive(Serialize, Deserialize)]
struct CreateRide {
    secret: String,
}

#[derive(Serialize, Deserialize)]
struct Id(String);

/// The foreign systems: files in a folder, one for each honored key, and a line for each call.
struct App {
    folder: PathBuf,
    /// The call that never answers.
    hangs: Option<String>,
}

impl App {
    async fn call(&self, provider: &str, key: &str) -> Result<Id, ForeignError> {
        let once = self.folder.join(format!("{provider}-{}", key.replace(['/', ':'], "_")));
        std::fs::write(once, "").unwrap();
        let mut calls = std::fs::OpenOptions::new();
        let calls = calls.create(true).append(true).open(self.folder.join("calls"));
        writeln!(calls.unwrap(), "{provider}").unwrap();
        if self.hangs.as_deref() == Some(provider) {
            std::future::pending().await
        }
        Ok(Id(provider.to_owned()))
    }
}

#[atomic_phases(name = "rides.create", version = 1)]
impl CreateRide {
    #[phase]
    async fn booked(&self, batch: &mut Batch<'_, Sqlite>) -> PhaseResult<Id> {
        let _ = batch;
        Ok(Id("ride".to_owned()))
    }

    #[phase(foreign(idempotent), commit)]
    async fn charged(&self, call: ForeignCall, app: &App) -> PhaseResult<u8, ForeignError> {
        call.make(async |key| app.call("charge", key.as_str()).await).await?;
        Ok(1)
    }

    #[phase(foreign(idempotent))]
    async fn ticketed(&self, call: ForeignCall, app: &App) -> PhaseResult<u16, ForeignError> {
        call.make(async |key| app.call("ticket", key.as_str()).await).await?;
        Ok(2)
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Sqlite>, booked: &Id) -> PhaseResult<Reply> {
        batch.stage_job("receipt", &self.secret)?;
        Ok(Reply::json(201, &booked.0)?)
    }
}

/// The exporter of a process, set up as in a service.
fn export(process: &str, collector: &str) -> SdkTracerProvider {
    let exporter = SpanExporter::builder().with_http().with_endpoint(collector).build().unwrap();
    let often = BatchConfigBuilder::default().with_scheduled_delay(Duration::from_millis(20));
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(often.build()).build();
    let resource = Resource::builder_empty().with_service_name(process.to_owned()).build();
    let provider = SdkTracerProvider::builder();
    let provider = provider.with_span_processor(processor).with_resource(resource).build();
    let layer = tracing_opentelemetry::layer()
        .with_error_events_to_status(false)
        .with_location(false)
        .with_threads(false)
        .with_tracer(provider.tracer("story"));
    tracing_subscriber::registry().with(layer.with_filter(LevelFilter::INFO)).init();
    provider
}

/// A test that does nothing, unless the story starts it as a process: `api` with a client's request, or `worker`.
#[tokio::test(flavor = "multi_thread")]
async fn process() {
    let Ok(process) = std::env::var("STORY_PROCESS") else { return };
    let said = |name: &str| std::env::var(format!("STORY_{name}")).unwrap();
    let folder = PathBuf::from(said("FOLDER"));
    let provider = export(&process, &said("COLLECTOR"));
    let store = Sqlite::connect(folder.join("rides.db").to_str().unwrap()).await.unwrap();
    let app = App { folder: folder.clone(), hangs: std::env::var("STORY_HANGS").ok() };
    let builder = Engine::builder(store).app(app).lease(LEASE).traces(OpenTelemetry);
    let engine = builder.register::<CreateRide>().build().unwrap();
    if process.starts_with("worker") {
        let done = folder.join("delivered");
        let kept = done.clone();
        let handlers = Handlers::new().on("receipt", move |_: String, job: Job| {
            let kept = kept.clone();
            async move {
                let trace = job.traceparent().expect("a delivery has a trace");
                assert_eq!(OpenTelemetry.current(), Some(trace));
                std::fs::write(kept, trace.to_string()).unwrap();
                Ok(())
            }
        });
        let config = WorkerConfig::default().poll(Duration::from_millis(50)).grace(Duration::ZERO);
        let workers = engine.spawn_workers(config.sink(handlers)).unwrap();
        until("the delivery", || done.exists()).await;
        workers.shutdown(PATIENCE).await.unwrap();
    } else {
        let server = info_span!("POST /rides", otel.kind = "server");
        let caller: Traceparent = said("TRACEPARENT").parse().unwrap();
        let caller = SpanContext::new(
            TraceId::from_bytes(caller.trace_id()),
            SpanId::from_bytes(caller.span_id()),
            TraceFlags::new(caller.flags()),
            true,
            TraceState::NONE,
        );
        let caller = opentelemetry::Context::new().with_remote_span_context(caller);
        server.set_parent(caller).unwrap();
        let (scope, key) = names();
        let call = engine.call(&scope, &key, CreateRide { secret: SECRET.to_owned() });
        let call = call.on_duplicate(OnDuplicate::Wait(PATIENCE)).into_future();
        let told = call.instrument(server).await.unwrap();
        assert!(matches!(told, Outcome::Finished(_)), "{told:?}");
    }
    tokio::task::spawn_blocking(move || provider.shutdown()).await.unwrap().unwrap();
}

const SECRET: &str = "canary-in-parameters";

fn names() -> (Scope, IdempotencyKey) {
    (Scope::new("canary-scope").unwrap(), IdempotencyKey::new("canary-key").unwrap())
}

async fn until(what: &str, fact: impl Fn() -> bool) {
    let began = Instant::now();
    while !fact() {
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// The collector.

/// A received span.
#[derive(Clone, Debug)]
struct Arrived {
    process: String,
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
    started: u64,
    status: u64,
    attributes: BTreeMap<String, String>,
    links: Vec<(String, String, String)>,
    whole: String,
}

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Arrived>>>);

impl Collector {
    /// A receiver of OTLP over HTTP, in JSON; its address.
    async fn listen(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let collector = self.clone();
        let take = move |Json(body): Json<Value>| {
            let collector = collector.clone();
            async move {
                collector.take(&body);
                Json(serde_json::json!({}))
            }
        };
        let router = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        url
    }

    fn take(&self, body: &Value) {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        for resource in list(&body["resourceSpans"]) {
            let process = attributes(&resource["resource"])["service.name"].clone();
            for span in list(&resource["scopeSpans"]).iter().flat_map(|scope| list(&scope["spans"]))
            {
                let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
                let links = list(&span["links"]).into_iter().map(|link| {
                    let kind = attributes(&link)["link.kind"].clone();
                    let id = |name: &str| link[name].as_str().unwrap().to_owned();
                    (kind, id("traceId"), id("spanId"))
                });
                self.0.lock().unwrap().push(Arrived {
                    process: process.clone(),
                    trace: text("traceId"),
                    id: text("spanId"),
                    parent: text("parentSpanId"),
                    name: text("name"),
                    kind: span["kind"].as_u64().unwrap_or_default(),
                    started: text("startTimeUnixNano").parse().unwrap(),
                    status: span["status"]["code"].as_u64().unwrap_or_default(),
                    attributes: attributes(&span),
                    links: links.collect(),
                    whole: span.to_string(),
                });
            }
        }
    }

    fn has(&self, process: &str, name: &str) -> bool {
        let spans = self.0.lock().unwrap();
        spans.iter().any(|span| span.process == process && span.name == name)
    }
}

fn attributes(of: &Value) -> BTreeMap<String, String> {
    let list = of["attributes"].as_array().cloned().unwrap_or_default();
    let one = |it: Value| {
        let value = it["value"].as_object().unwrap().values().next().unwrap().clone();
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (it["key"].as_str().unwrap().to_owned(), value)
    };
    list.into_iter().map(one).collect()
}

// The story.

struct Story {
    folder: tempfile::TempDir,
    collector: String,
}

impl Story {
    fn start(&self, process: &str, traceparent: &str, hangs: Option<&str>) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "process", "--nocapture"]).env("STORY_PROCESS", process);
        child.env("STORY_FOLDER", self.folder.path()).env("STORY_COLLECTOR", &self.collector);
        child.env("STORY_TRACEPARENT", traceparent);
        if let Some(hangs) = hangs {
            child.env("STORY_HANGS", hangs);
        }
        child.spawn().unwrap()
    }

    fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.folder.path().join("calls"));
        calls.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// The number of effects at the foreign systems: one for each key.
    fn effects(&self) -> usize {
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("charge-") || name.starts_with("ticket-")).count()
    }
}

async fn ended(mut child: Child) {
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert!(status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_killed_twice_and_finished_by_a_worker_is_one_story() {
    let collector = Collector::default();
    let url = collector.listen().await;
    let story = Story { folder: tempfile::tempdir().unwrap(), collector: url.clone() };
    let database = story.folder.path().join("rides.db");
    Sqlite::connect(database.to_str().unwrap()).await.unwrap().migrate().await.unwrap();
    let provider = tokio::task::spawn_blocking(move || export("client", &url)).await.unwrap();

    // The client sends its request, and its server is killed in the first call; it retries, and another server is
    // killed in the second.
    let turns = [("api-1", "charge", "phase booked"), ("api-2", "ticket", "phase charged")];
    for (process, hangs, arrives) in turns {
        let asks = info_span!(
            "rides.example: POST /rides",
            otel.kind = "client",
            otel.status_code = tracing::field::Empty
        );
        let trace = asks.in_scope(|| OpenTelemetry.current()).unwrap();
        let mut child = story.start(process, &trace.to_string(), Some(hangs));
        until("the call", || story.calls().last().map(String::as_str) == Some(hangs)).await;
        until("what ended before", || collector.has(process, arrives)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        asks.record("otel.status_code", "ERROR");
    }
    // A worker of a third process continues, and delivers the job.
    ended(story.start("worker-1", "", None)).await;
    // And the client retries a last time.
    let asks = info_span!("rides.example: POST /rides", otel.kind = "client");
    let trace = asks.in_scope(|| OpenTelemetry.current()).unwrap();
    ended(story.start("api-3", &trace.to_string(), None)).await;
    drop(asks);
    tokio::task::spawn_blocking(move || provider.shutdown()).await.unwrap().unwrap();

    assert_eq!(story.calls(), ["charge", "charge", "ticket", "ticket"]);
    assert_eq!(story.effects(), 2, "each call was made twice, and had one effect");
    let spans = collector.0.lock().unwrap().clone();
    let one = |process: &str, name: &str| {
        let found: Vec<_> =
            spans.iter().filter(|it| it.process == process && it.name == name).collect();
        let [one] = found.as_slice() else { panic!("{process} {name}: {found:?}") };
        (*one).clone()
    };
    let resumed = one("worker-1", "rides.create resume");
    let replay = one("api-3", "rides.create execute");
    let (booked, charged) = (one("api-1", "phase booked"), one("api-2", "phase charged"));
    // The spans of the killed attempts never ended, and so never arrived. The spans of their phases name them.
    let creation = (booked.trace.clone(), booked.parent.clone());
    let second = (charged.trace.clone(), charged.parent.clone());
    let is_there = |at: &(String, String)| spans.iter().any(|span| span.id == at.1);
    assert!(!is_there(&creation) && !is_there(&second));
    let link = |kind: &str, at: &(String, String)| (kind.to_owned(), at.0.clone(), at.1.clone());
    assert_eq!(resumed.links, [link("creation", &creation), link("previous_attempt", &second)]);
    assert_eq!(replay.links, [link("creation", &creation)]);
    let answered = one("worker-1", "phase answered");
    let job = one("worker-1", "job receipt");
    assert_eq!(job.links, [link("staging", &(answered.trace.clone(), answered.id.clone()))]);
    // Each attempt has a trace of its own: five in all.
    let mut traces: Vec<_> = spans.iter().map(|span| span.trace.as_str()).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 5);
    assert_eq!((resumed.parent.as_str(), job.parent.as_str()), ("", ""));
    assert_eq!((answered.trace, answered.parent), (resumed.trace.clone(), resumed.id.clone()));
    // OTLP: 1 is OK, 2 is an error. Of the request, one end, and no attempt is an error.
    let ours =
        |span: &&Arrived| span.name.starts_with("rides.create") || span.name.contains("phase");
    let said: Vec<_> = spans.iter().filter(ours).map(|it| (it.status, it.name.as_str())).collect();
    assert_eq!(said.iter().filter(|(status, _)| *status == 1).count(), 1, "{said:?}");
    assert!(said.iter().all(|(status, _)| *status != 2), "{said:?}");
    assert_eq!((resumed.status, resumed.attributes["atomic_phases.attempt"].as_str()), (1, "3"));
    // OTLP: 1 is internal, 3 a client, 5 a consumer.
    assert_eq!([resumed.kind, charged.kind, answered.kind, replay.kind], [5, 3, 1, 1]);
    for span in &spans {
        assert!(!span.whole.contains("canary"), "G19: {}", span.whole);
    }
    let tree = tree(&spans);
    println!("{tree}");
    told_in_the_docs(&tree);
}

/// The spans as a tree for each trace, each in the order in which they began.
fn tree(spans: &[Arrived]) -> String {
    let mut spans: Vec<&Arrived> = spans.iter().collect();
    spans.sort_by_key(|span| span.started);
    let mut traces: Vec<&str> = Vec::new();
    for span in &spans {
        if !traces.contains(&span.trace.as_str()) {
            traces.push(&span.trace);
        }
    }
    let arrived: HashMap<&str, &Arrived> =
        spans.iter().map(|span| (span.id.as_str(), *span)).collect();
    let letter = |trace: &str| {
        let number = traces.iter().position(|it| *it == trace).unwrap();
        char::from(b'A' + u8::try_from(number).unwrap())
    };
    let mut text = String::new();
    for trace in &traces {
        let of = |parent: &str| {
            let children = spans.iter().copied();
            children
                .filter(|span| span.trace == *trace && span.parent == parent)
                .collect::<Vec<_>>()
        };
        let told = |span: &Arrived, depth: usize, text: &mut String| {
            let mut line = format!("{}{}: {}", "   ".repeat(depth), span.process, span.name);
            let mut says = |what: &str| write!(line, "  {what}").unwrap();
            match span.kind {
                2 => says("SERVER"),
                3 => says("CLIENT"),
                5 => says("CONSUMER"),
                _ => {}
            }
            match span.status {
                1 => says("OK"),
                2 => says("ERROR"),
                _ => {}
            }
            for name in ["attempt", "recovery_point", "outcome"] {
                if let Some(value) = span.attributes.get(&format!("atomic_phases.{name}")) {
                    says(&format!("{name}={value}"));
                }
            }
            for (kind, trace, id) in &span.links {
                let name = arrived.get(id.as_str()).map(|span| format!(" {}", span.name));
                let name = name.unwrap_or_else(|| " (never ended)".to_owned());
                says(&format!("→ {kind} {}{name}", letter(trace)));
            }
            writeln!(text, "{line}").unwrap();
        };
        fn below<'s>(
            span: &'s Arrived,
            depth: usize,
            text: &mut String,
            of: &dyn Fn(&str) -> Vec<&'s Arrived>,
            told: &dyn Fn(&Arrived, usize, &mut String),
        ) {
            told(span, depth, text);
            for child in of(&span.id) {
                below(child, depth + 1, text, of, told);
            }
        }
        writeln!(text, "trace {}", letter(trace)).unwrap();
        for root in of("") {
            below(root, 1, &mut text, &of, &told);
        }
        // The spans below a span that never ended, and so never arrived.
        let mut lost: Vec<&str> = Vec::new();
        for span in spans.iter().filter(|span| span.trace == *trace) {
            let is_lost = !span.parent.is_empty() && !arrived.contains_key(span.parent.as_str());
            if is_lost && !lost.contains(&span.parent.as_str()) {
                lost.push(&span.parent);
            }
        }
        for parent in lost {
            let children = of(parent);
            writeln!(text, "   {}: (never ended)", children[0].process).unwrap();
            for child in children {
                below(child, 2, &mut text, &of, &told);
            }
        }
    }
    text
}

fn told_in_the_docs(tree: &str) {
    const BEGINS: &str = "<!-- The tree: written by otel/tests/story.rs. -->\n```text\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/traces.md");
    // A crate that is unpacked elsewhere has no docs.
    let Ok(docs) = std::fs::read_to_string(&file) else { return };
    let (before, rest) = docs.split_once(BEGINS).expect("the tree's place");
    let (there, after) = rest.split_once("```").unwrap();
    if std::env::var("STORY").is_ok_and(|how| how == "write") {
        std::fs::write(&file, format!("{before}{BEGINS}{tree}```{after}")).unwrap();
    } else {
        assert_eq!(there, tree, "docs/traces.md tells another one: STORY=write writes it");
    }
}
