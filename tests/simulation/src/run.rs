//! One run of a plan: nodes with engines and workers, clients, faults; then a time without faults.

mod clients;
mod faults;
mod webhooks;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::Engine;
use atomic_phases::config::{DerivedKeys, Quota};
use atomic_phases::fault::Mutant;
use atomic_phases::simulation::{
    Database, KeyChange, KeyState, Memory, Node, passed_points, simulate_with,
};
use atomic_phases::worker::{DeliveryError, Handlers, Job, WorkerConfig};
use tokio::sync::mpsc;
use tokio::time::sleep;

use self::wire::{Sent, Wire};
use super::codec::KeyService;
use super::judge::{self, Delivered, History, Watched};
use super::plan::{Build, Call, HEALED, HOSTILE, Limits, Manner, Plan};
use super::provider::{Provider, Stops};
use super::requests::{
    Alert, App, Fare, Flood, LongRide, NextRide, Note, Parcel, PatientNote, Ride, Stray, Transfer,
};
use super::trace::{self, Trace};

/// How long after the last fault every key must be settled (G17): the longest delay of a statement that was sent
/// before (60 s), the server's limit for a silent client (60 s), then lease, sweep, back-off and the phases' own
/// time. If the clock was set back, that time is added.
const SETTLED_BY: Duration = Duration::from_secs(90 + 60 + 60 + 120);

/// How many statements a node sends within one second at most (G17): no loop runs without a pause. A
/// statement takes a millisecond; a flood of twenty requests at one instant needs three hundred.
const STATEMENTS: u64 = 800;

/// The target of a stop that is not a node.
const DATABASE: &str = "database";

/// The result of a run.
pub struct Report {
    pub violations: Vec<String>,
    pub trace: String,
    pub hash: u64,
    pub simulated: Duration,
    pub requests: usize,
    pub statements: u64,
    /// The most that one node sent within one second.
    pub busiest: u64,
    pub coverage: BTreeMap<String, u64>,
}

/// A node that runs.
struct Host {
    node: Node,
    engine: Engine<Memory, App>,
    build: Build,
}

/// The state of one run.
#[derive(Clone)]
struct RunState {
    plan: Arc<Plan>,
    database: Database,
    trace: Trace,
    provider: Provider,
    stops: Stops,
    sent: Arc<Mutex<Sent>>,
    hosts: Arc<Mutex<Vec<Option<Host>>>>,
    /// What each node runs when it is started.
    builds: Arc<Mutex<Vec<Build>>>,
    jobs: Arc<Mutex<Vec<Delivered>>>,
    history: Arc<Mutex<History>>,
    watched: Arc<Mutex<Watched>>,
    codec: KeyService,
}

pub fn run(plan: &Plan, mutant: Option<Mutant>, told: trace::Told) -> Report {
    let plan = Arc::new(plan.clone());
    simulate_with(plan.seed, mutant, || RunState::play(plan, told))
}

impl RunState {
    async fn play(plan: Arc<Plan>, told: trace::Told) -> Report {
        let trace = Trace::new(told);
        // With digits that no store keeps, and some that only some stores keep.
        let began = chrono::DateTime::from_timestamp(1_800_000_000, 123_456_789).unwrap();
        let database = Database::starting_at(began);
        let (stops, stopped) = mpsc::unbounded_channel();
        let (hooks, hooked) = mpsc::unbounded_channel();
        let watched = Arc::new(Mutex::new(Watched::new(&plan)));
        let state = Self {
            codec: KeyService {
                plan: plan.clone(),
                trace: trace.clone(),
                watched: watched.clone(),
                asked: Arc::default(),
            },
            provider: Provider::new(&plan, &database, &trace, &watched, stops.clone(), hooks),
            database,
            stops,
            sent: Arc::default(),
            hosts: Arc::default(),
            builds: Arc::new(Mutex::new((0..plan.nodes).map(|node| plan.build_of(node)).collect())),
            jobs: Arc::default(),
            history: Arc::default(),
            watched,
            trace,
            plan,
        };
        state.watch();
        state.database.put("totals", "rides", 0);
        state.database.put("totals", "parcels", 0);
        state.database.put("totals", "from", 0);
        state.database.put("totals", "to", 0);
        for index in 0..state.plan.nodes {
            state.hosts.lock().unwrap().push(None);
            state.start(index);
        }
        tokio::spawn(state.clone().stop_nodes(stopped));
        tokio::spawn(state.clone().receive_webhooks(hooked));
        if state.plan.has_other_builds() {
            tokio::spawn(state.clone().deploy_everywhere());
        }
        let clients: Vec<_> =
            state.plan.calls.iter().map(|call| tokio::spawn(state.clone().client(*call))).collect();
        for event in &state.plan.events {
            tokio::spawn(state.clone().event(*event));
        }
        for client in clients {
            client.await.expect("a client");
        }
        state.settle(SETTLED_BY + state.plan.set_back()).await;
        // Some of these keys were never created, and are now.
        state.replay_all().await;
        state.settle(state.trace.elapsed() + Duration::from_secs(60)).await;
        state.judged()
    }

    fn complain(&self, what: String) {
        self.trace.note(|| format!("VIOLATION {what}"));
        self.watched.lock().unwrap().violations.push(what);
    }

    fn covers(&self, what: String) {
        self.watched.lock().unwrap().covers(what);
    }

    async fn settle(&self, until: Duration) {
        while !self.is_settled() && self.trace.elapsed() < until {
            sleep(Duration::from_secs(1)).await;
        }
        if !self.is_settled() {
            self.complain(format!("G17: not settled by then: {}", self.unsettled().join(", ")));
        }
    }

    /// Each commit that changes a key's row is checked when it happens.
    fn watch(&self) {
        let (watched, trace) = (self.watched.clone(), self.trace.clone());
        self.database.on_commit(move |change: &KeyChange<'_>| {
            let state = |state: &KeyState<'_>| {
                let (status, point) = (state.status(), state.recovery_point());
                let held = state.locked_until().is_some_and(|until| until > change.at);
                let held = if held { ", leased" } else { "" };
                let intent = state.open_intent().map(|to| format!(", about to call {to}"));
                let intent = intent.unwrap_or_default();
                format!("{status} at {point}, token {}{held}{intent}", state.lease_token())
            };
            trace.note(|| {
                let row = change.after.as_ref().or(change.before.as_ref());
                let row = row.map_or(String::new(), |row| format!("{} {}", row.scope(), row.key()));
                let text = |of: Option<KeyState<'_>>| of.as_ref().map_or("nothing".into(), state);
                match (text(change.before), text(change.after)) {
                    (before, after) if before == after => {
                        format!("{}: {row} is renewed", change.by)
                    }
                    (before, after) => format!("{}: {row} was {before}; is {after}", change.by),
                }
            });
            let mut watched = watched.lock().unwrap();
            let found = watched.violations.len();
            watched.transition(change, trace.elapsed());
            for violation in &watched.violations[found..] {
                trace.note(|| format!("VIOLATION {violation}"));
            }
        });
    }

    /// Starts or restarts the engine and workers of a node.
    fn start(&self, index: usize) {
        let name = format!("node {index}");
        let wire = Wire {
            node: name.clone(),
            plan: self.plan.clone(),
            sent: self.sent.clone(),
            trace: self.trace.clone(),
            watched: self.watched.clone(),
            stops: self.stops.clone(),
        };
        let store = Memory::connect_through(&self.database, wire, 8);
        let app = App { provider: self.provider.clone(), store: store.clone() };
        let build = self.builds.lock().unwrap()[index];
        let engine = Engine::builder(store).app(app);
        let engine = match build {
            Build::First => engine.register::<Ride>(),
            Build::Longer => engine.register::<LongRide>(),
            Build::Second => engine.register::<NextRide>(),
            Build::Both => engine.register::<LongRide>().register::<NextRide>(),
        };
        let engine = match self.is_patient(index) {
            true => engine.register::<PatientNote>(),
            false => engine.register::<Note>(),
        };
        let engine = engine
            .codec(self.codec.clone())
            .register::<Alert>()
            .register::<Fare>()
            .register::<Parcel>()
            .register::<Transfer>()
            .register::<Stray>()
            .register::<Flood>()
            .lease(Duration::from_millis(self.plan.lease))
            .retention(Duration::from_millis(self.plan.retention))
            .derived_keys(match self.plan.has_many_lives() {
                true => DerivedKeys::plain().salted_by_request(),
                false => DerivedKeys::plain(),
            })
            .back_off(Duration::from_secs(1), Duration::from_secs(10))
            .reconcile_after(Duration::from_secs(5))
            .max_attempts(self.plan.max_attempts)
            .max_reconciles(self.plan.max_reconciles)
            .quota(self.plan.quota.map_or_else(Quota::default, |Limits { keys, rate }| {
                Quota::default().keys(keys).rate(rate.0, Duration::from_millis(rate.1))
            }))
            .build()
            .expect("an engine");
        let node = Node::new(name);
        let (state, workers) = (self.clone(), engine.clone());
        let poll = Duration::from_millis(self.plan.poll);
        node.spawn(async move {
            let sink =
                ["receipt", "thanks", "slow"].into_iter().fold(Handlers::new(), |sink, name| {
                    let state = state.clone();
                    sink.on(name, move |life: serde_json::Value, job| {
                        state.clone().deliver(life, job)
                    })
                });
            let config = WorkerConfig::default()
                .poll(poll)
                .concurrency(4)
                .full_sweep(Duration::from_secs(120))
                .reap_every(Duration::from_secs(10))
                .delivery(Duration::from_secs(20))
                .sink(sink);
            let _workers = workers.spawn_workers(config).unwrap();
            std::future::pending::<()>().await;
        });
        self.watched.lock().unwrap().starts(node.name());
        self.covers(format!("build: {build:?}"));
        self.trace.note(|| format!("event: {} is started as {build:?}", node.name()));
        self.hosts.lock().unwrap()[index] = Some(Host { node, engine, build });
    }

    async fn deliver(self, life: serde_json::Value, job: Job) -> Result<(), DeliveryError> {
        self.trace.note(|| format!("sink: {} of {}", job.name, job.key.as_str()));
        if job.name == "slow" && self.trace.elapsed() < HEALED {
            sleep(Duration::from_secs(12)).await;
        }
        self.jobs.lock().unwrap().push(Delivered {
            row: (job.scope.as_str().to_owned(), job.key.as_str().to_owned()),
            life: life.as_str().unwrap_or_default().to_owned(),
            name: job.name.clone(),
            id: job.id.to_string(),
            at: self.trace.elapsed(),
        });
        Ok(())
    }

    fn unsettled(&self) -> Vec<String> {
        let mut open = Vec::new();
        self.database.each_key(|key| {
            // If its provider can be queried, a worker asks for the call's outcome.
            let can_ask = key.definition() != "ride" || self.plan.has_other_builds();
            let is_asked = self.plan.searchable && can_ask && key.open_intent().is_some();
            let waits = key.status() == "unknown" && !is_asked;
            if !waits && !matches!(key.status(), "completed" | "dead_letter") {
                open.push(format!("{} {}@{}", key.key(), key.status(), key.recovery_point()));
            }
        });
        let words = self.watched.lock().unwrap().words();
        open.extend((words > 0).then(|| format!("{words} words of webhooks")));
        open.extend(self.database.staged_jobs().iter().map(|id| format!("job {id}")));
        open
    }

    /// After the last fault, and once everything runs: whether nothing is left to do.
    fn is_settled(&self) -> bool {
        let last = self.plan.events.iter().map(|event| event.at + event.lasts).max().unwrap_or(0);
        let calm = match self.plan.is_calm() {
            true => Duration::ZERO,
            false => HEALED.max(Duration::from_millis(last)),
        };
        let is_up = self.hosts.lock().unwrap().iter().all(Option::is_some);
        self.trace.elapsed() > calm && is_up && self.unsettled().is_empty()
    }

    /// Retries each key once more without faults: the answer is the same as before.
    async fn replay_all(&self) {
        let mut asked = BTreeSet::new();
        for call in self.plan.calls.iter().filter(|call| call.scope != HOSTILE) {
            if asked.insert((call.key, call.amount)) {
                let call = Call { manner: Manner::Plain, ..*call };
                for node in 0..self.plan.nodes {
                    self.ask(&call, node, Duration::from_secs(60)).await;
                }
            }
        }
    }

    fn judged(&self) -> Report {
        // Each holds the engine, whose store holds the run's state.
        self.hosts.lock().unwrap().clear();
        let jobs = self.jobs.lock().unwrap().clone();
        let history = self.history.lock().unwrap();
        let ledger = self.provider.ledger();
        let watched = self.watched.lock().unwrap();
        let mut found =
            judge::at_the_end(&self.plan, &self.database, &watched, &ledger, &jobs, &history);
        found.extend(watched.deliveries(&jobs));
        drop(watched);
        for violation in found {
            self.complain(violation);
        }
        let watched = self.watched.lock().unwrap();
        let sent = self.sent.lock().unwrap();
        let mut coverage = watched.coverage.clone();
        coverage.extend(passed_points());
        Report {
            violations: watched.violations.clone(),
            trace: self.trace.text(),
            hash: self.trace.hash(),
            simulated: self.trace.elapsed(),
            requests: history.ops.len(),
            statements: sent.statements,
            busiest: sent.busiest,
            coverage,
        }
    }
}
