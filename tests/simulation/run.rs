//! One run of a plan: nodes with engines and workers, clients, faults; then a healthy time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::fault::Mutant;
use atomic_phases::simulation::{
    Database, KeyChange, Memory, Network, Node, Passage, passed_points, simulate_with,
};
use atomic_phases::*;
use tokio::time::sleep;

use super::judge::{self, History, Op, Told};
use super::plan::{Call, Event, HEALED, Kind, Manner, Plan, What};
use super::provider::Provider;
use super::requests::{App, Note, Parcel, Ride, Transfer};
use super::trace::{self, Trace};

/// How long after the last fault every key has to be settled (G17): the longest delay of a statement that
/// was sent before (60 s), the server's patience with a client that fell silent (60 s), then lease,
/// sweep, back-off and the phases' own time.
const SETTLED_BY: Duration = Duration::from_secs(90 + 60 + 60 + 120);

/// What a run came to.
pub struct Report {
    pub violations: Vec<String>,
    pub trace: String,
    pub hash: u64,
    pub simulated: Duration,
    pub requests: usize,
    pub coverage: BTreeMap<String, u64>,
}

/// The rows that were met, and what changed in them.
#[derive(Default)]
pub struct Watched {
    pub violations: Vec<String>,
    pub coverage: BTreeMap<String, u64>,
    /// Who acquired the lease last.
    holders: BTreeMap<(String, String), String>,
}

/// How a node's statements travel.
struct Wire {
    node: String,
    plan: Arc<Plan>,
    count: Arc<AtomicU64>,
    trace: Trace,
    fired: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Network for Wire {
    fn passage(&self, what: &'static str) -> Passage {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let healed = self.trace.elapsed() >= HEALED;
        let Some(fault) = self.plan.statements.get(&number).filter(|_| !healed) else {
            return Passage { there: Duration::from_micros(200), ..Passage::default() };
        };
        self.trace.note(|| format!("{}: statement {number}, {what}: {fault:?}", self.node));
        let kind = match fault.cut {
            Some(cut) => format!("fault: cut {cut:?}").split('(').next().unwrap_or("").to_owned(),
            None => "fault: delay".to_owned(),
        };
        *self.fired.lock().unwrap().entry(kind).or_default() += 1;
        fault.passage()
    }

    fn client(&self) -> &str {
        &self.node
    }
}

/// A node that runs.
struct Host {
    node: Node,
    engine: Engine<Memory, App>,
    provider: Provider,
}

/// Everything of one run.
#[derive(Clone)]
struct Scene {
    plan: Arc<Plan>,
    database: Database,
    trace: Trace,
    provider: Provider,
    statements: Arc<AtomicU64>,
    hosts: Arc<Mutex<Vec<Option<Host>>>>,
    jobs: Arc<Mutex<Vec<(String, String, String)>>>,
    history: Arc<Mutex<History>>,
    watched: Arc<Mutex<Watched>>,
    fired: Arc<Mutex<BTreeMap<String, u64>>>,
}

pub fn run(plan: &Plan, mutant: Option<Mutant>, told: trace::Told) -> Report {
    let plan = Arc::new(plan.clone());
    simulate_with(plan.seed, mutant, || Scene::play(plan, told))
}

impl Scene {
    async fn play(plan: Arc<Plan>, told: trace::Told) -> Report {
        let trace = Trace::new(told);
        let began = chrono::DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let database = Database::starting_at(began);
        let scene = Self {
            provider: Provider::new(&plan, &database, &trace),
            database,
            statements: Arc::default(),
            hosts: Arc::default(),
            jobs: Arc::default(),
            history: Arc::default(),
            watched: Arc::default(),
            fired: Arc::default(),
            trace,
            plan,
        };
        scene.watch();
        scene.database.put("totals", "rides", 0);
        scene.database.put("totals", "parcels", 0);
        scene.database.put("totals", "from", 0);
        scene.database.put("totals", "to", 0);
        for index in 0..scene.plan.nodes {
            scene.hosts.lock().unwrap().push(None);
            scene.start(index);
        }
        let clients: Vec<_> =
            scene.plan.calls.iter().map(|call| tokio::spawn(scene.clone().client(*call))).collect();
        for event in &scene.plan.events {
            tokio::spawn(scene.clone().event(*event));
        }
        for client in clients {
            client.await.expect("a client");
        }
        scene.settle(SETTLED_BY).await;
        // Some of these keys never came to be, and do now.
        scene.replay_all().await;
        scene.settle(scene.trace.elapsed() + Duration::from_secs(60)).await;
        scene.judged()
    }

    fn complain(&self, what: String) {
        self.trace.note(|| format!("VIOLATION {what}"));
        self.watched.lock().unwrap().violations.push(what);
    }

    fn covers(&self, what: String) {
        *self.watched.lock().unwrap().coverage.entry(what).or_default() += 1;
    }

    async fn settle(&self, until: Duration) {
        while !self.is_settled() && self.trace.elapsed() < until {
            sleep(Duration::from_secs(1)).await;
        }
        if !self.is_settled() {
            self.complain(format!("G17: not settled by then: {}", self.unsettled().join(", ")));
        }
    }

    /// Each commit that changes a key's row is judged where it happens.
    fn watch(&self) {
        let (watched, trace) = (self.watched.clone(), self.trace.clone());
        self.database.on_commit(move |change: &KeyChange<'_>| {
            let mut watched = watched.lock().unwrap();
            let state = |state: &atomic_phases::simulation::KeyState<'_>| {
                let (status, point) = (state.status(), state.recovery_point());
                let held = state.locked_until().is_some_and(|until| until > change.at);
                format!("{status}@{point} token {} held {held}", state.lease_token())
            };
            let (before, after) = (change.before.as_ref(), change.after.as_ref());
            trace.note(|| {
                let key = after.or(before).map_or("", |state| state.key());
                let (before, after) = (before.map(state), after.map(state));
                format!("{} commits {key}: {before:?} -> {after:?}", change.by)
            });
            let statuses = (before.map(|s| s.status()), after.map(|s| s.status()));
            let transition = format!(
                "row: {} -> {}",
                statuses.0.unwrap_or("none"),
                statuses.1.unwrap_or("none")
            );
            *watched.coverage.entry(transition).or_default() += 1;
            let Watched { violations, holders, .. } = &mut *watched;
            judge::transition(change, holders, violations);
        });
    }

    /// Starts, or starts again, what runs on a node.
    fn start(&self, index: usize) {
        let name = format!("node {index}");
        let wire = Wire {
            node: name.clone(),
            plan: self.plan.clone(),
            count: self.statements.clone(),
            trace: self.trace.clone(),
            fired: self.fired.clone(),
        };
        let store = Memory::connect_through(&self.database, wire, 8);
        let engine = Engine::builder(store)
            .app(App { provider: self.provider.clone() })
            .register::<Ride>()
            .register::<Note>()
            .register::<Parcel>()
            .register::<Transfer>()
            .lease(Duration::from_millis(self.plan.lease))
            .retention(Duration::from_secs(24 * 3600))
            .back_off(Duration::from_secs(1), Duration::from_secs(10))
            .reconcile_after(Duration::from_secs(5))
            .max_attempts(1000)
            .max_reconciles(1000)
            .build()
            .expect("an engine");
        let node = Node::new(name);
        let (scene, workers) = (self.clone(), engine.clone());
        let poll = Duration::from_millis(self.plan.poll);
        node.spawn(async move {
            let (one, other) = (scene.clone(), scene);
            let sink = Handlers::new()
                .on("receipt", move |life: String, job| one.clone().deliver(life, job))
                .on("thanks", move |life: String, job| other.clone().deliver(life, job));
            let config = WorkerConfig::default()
                .poll(poll)
                .concurrency(4)
                .full_sweep(Duration::from_secs(120))
                .delivery(Duration::from_secs(20))
                .sink(sink);
            let _workers = workers.spawn_workers(config).unwrap();
            std::future::pending::<()>().await;
        });
        let host = Host { node, engine, provider: self.provider.clone() };
        self.hosts.lock().unwrap()[index] = Some(host);
    }

    async fn deliver(self, life: String, job: Job) -> Result<(), DeliveryError> {
        self.trace.note(|| format!("sink: {} for {life}", job.name));
        self.jobs.lock().unwrap().push((life, job.name.clone(), job.id.to_string()));
        Ok(())
    }

    async fn event(self, event: Event) {
        sleep(Duration::from_millis(event.at)).await;
        self.trace.note(|| format!("event: {:?} for {} ms", event.what, event.lasts));
        self.covers(format!("event: {}", format!("{:?}", event.what).split('(').next().unwrap()));
        let lasts =
            Duration::from_millis(event.lasts).min(HEALED.saturating_sub(self.trace.elapsed()));
        let of = |index: usize| {
            let hosts = self.hosts.lock().unwrap();
            hosts[index].as_ref().map(|host| (host.node.clone(), host.engine.clone()))
        };
        match event.what {
            What::Freeze(index) => {
                let Some((node, _)) = of(index) else { return };
                node.freeze();
                sleep(lasts).await;
                node.thaw();
                self.trace.note(|| format!("event: {} goes on", node.name()));
            }
            What::Kill(index) => {
                let Some((node, _)) = of(index) else { return };
                self.hosts.lock().unwrap()[index] = None;
                node.kill();
                sleep(lasts).await;
                self.start(index);
                self.trace.note(|| format!("event: {} is started again", node.name()));
            }
            What::Drain(index) => {
                let Some((node, engine)) = of(index) else { return };
                self.hosts.lock().unwrap()[index] = None;
                let drain =
                    node.spawn(async move { engine.shutdown(Duration::from_secs(15)).await });
                let _ = tokio::time::timeout(Duration::from_secs(20), drain).await;
                node.kill();
                self.start(index);
                self.trace.note(|| format!("event: {} is started again", node.name()));
            }
            What::DatabaseAway => {
                self.database.stop();
                sleep(lasts.min(Duration::from_secs(10))).await;
                self.database.start();
                self.trace.note(|| "event: the database is back".to_owned());
            }
        }
    }

    /// A client with its retries.
    async fn client(self, call: Call) {
        sleep(Duration::from_millis(call.at)).await;
        for attempt in 0..call.tries {
            let node = (call.node + usize::from(attempt)) % self.plan.nodes;
            let told = self.ask(&call, node, Duration::from_millis(call.patience)).await;
            match told {
                Told::Finished { .. } | Told::Mismatch | Told::Unknown | Told::DeadLetter => return,
                _ => sleep(Duration::from_millis(call.pause.max(1))).await,
            }
        }
    }

    /// One request, through a node, until its answer or until the client hangs up.
    async fn ask(&self, call: &Call, node: usize, patience: Duration) -> Told {
        let number = self.history.lock().unwrap().ops.len();
        let invoked = self.trace.elapsed();
        let stored = self.fingerprint_of(call);
        let op = Op { call: *call, invoked, returned: None, told: Told::Nothing, stored };
        self.history.lock().unwrap().ops.push(op);
        self.trace.note(|| format!("client {number} asks node {node}: {call:?}"));
        let told = match self.through(call, node) {
            None => Told::Error,
            Some(running) => {
                let abort = running.abort_handle();
                match tokio::time::timeout(patience, running).await {
                    Ok(Ok(told)) => told,
                    Ok(Err(_)) => Told::Error,
                    Err(_) => {
                        abort.abort();
                        Told::Nothing
                    }
                }
            }
        };
        self.trace.note(|| format!("client {number} is told {told:?}"));
        self.covers(format!("told: {}", told.name()));
        let returned = Some(self.trace.elapsed());
        let mut history = self.history.lock().unwrap();
        let op = &mut history.ops[number];
        (op.returned, op.told) = (returned, told.clone());
        told
    }

    fn through(&self, call: &Call, index: usize) -> Option<tokio::task::JoinHandle<Told>> {
        let hosts = self.hosts.lock().unwrap();
        let host = hosts[index].as_ref()?;
        let _ = &host.provider;
        let (engine, scene, call) = (host.engine.clone(), self.clone(), *call);
        Some(host.node.spawn(async move {
            let amount = call.amount;
            let outcome = match call.kind {
                Kind::Ride => execute(&engine, &call, Ride { amount }).await,
                Kind::Note => execute(&engine, &call, Note { amount }).await,
                Kind::Parcel => execute(&engine, &call, Parcel { amount }).await,
                Kind::Transfer => execute(&engine, &call, Transfer { amount }).await,
            };
            let told = Told::of(outcome);
            // In the same breath: what is told is durable (G8).
            scene.is_durable(&call, &told);
            told
        }))
    }

    fn is_durable(&self, call: &Call, told: &Told) {
        let Told::Finished { status, body, .. } = told else { return };
        let mut found = false;
        self.database.each_key(|key| {
            if key.scope() == scope(call).as_str() && key.key() == key_of(call).as_str() {
                let stored = key.response();
                found = stored == Some((*status as i16, Some(body.as_slice())));
            }
        });
        if !found {
            self.complain(format!("G8: {told:?} was told, and the row does not say so: {call:?}"));
        }
    }

    /// The fingerprint that the key's row has, if it has one.
    fn fingerprint_of(&self, call: &Call) -> Option<String> {
        let mut found = None;
        self.database.each_key(|key| {
            if key.scope() == scope(call).as_str() && key.key() == key_of(call).as_str() {
                found = Some(key.fingerprint().to_owned());
            }
        });
        found
    }

    fn unsettled(&self) -> Vec<String> {
        let mut open = Vec::new();
        self.database.each_key(|key| {
            if !matches!(key.status(), "completed" | "unknown" | "dead_letter") {
                open.push(format!("{} {}@{}", key.key(), key.status(), key.recovery_point()));
            }
        });
        open.extend(self.database.staged_jobs().iter().map(|id| format!("job {id}")));
        open
    }

    /// Once the healthy time has begun and everything is up: whether nothing is left to be done.
    fn is_settled(&self) -> bool {
        let last = self.plan.events.iter().map(|event| event.at + event.lasts).max().unwrap_or(0);
        let calm = match self.plan.is_calm() {
            true => Duration::ZERO,
            false => HEALED.max(Duration::from_millis(last)),
        };
        self.trace.elapsed() > calm && self.unsettled().is_empty()
    }

    /// Each key once more, in a healthy world: what was told once is told again.
    async fn replay_all(&self) {
        let mut asked = BTreeSet::new();
        for call in self.plan.calls.clone() {
            if asked.insert((call.key, call.amount)) {
                let call = Call { manner: Manner::Plain, ..call };
                for node in 0..self.plan.nodes {
                    self.ask(&call, node, Duration::from_secs(60)).await;
                }
            }
        }
    }

    fn judged(&self) -> Report {
        let jobs = self.jobs.lock().unwrap().clone();
        let history = self.history.lock().unwrap();
        let found =
            judge::at_the_end(&self.plan, &self.database, &self.provider.ledger(), &jobs, &history);
        for violation in found {
            self.complain(violation);
        }
        let watched = self.watched.lock().unwrap();
        let mut coverage = watched.coverage.clone();
        coverage.extend(self.fired.lock().unwrap().clone());
        coverage.extend(passed_points());
        Report {
            violations: watched.violations.clone(),
            trace: self.trace.text(),
            hash: self.trace.hash(),
            simulated: self.trace.elapsed(),
            requests: history.ops.len(),
            coverage,
        }
    }
}

pub fn scope(call: &Call) -> Scope {
    Scope::new(format!("tenant-{}", call.scope)).unwrap()
}

pub fn key_of(call: &Call) -> IdempotencyKey {
    IdempotencyKey::new(format!("key-{}", call.key)).unwrap()
}

async fn execute<R: RequestDefinition<Memory, App>>(
    engine: &Engine<Memory, App>,
    call: &Call,
    request: R,
) -> Result<Outcome, ExecuteError> {
    let asked = engine.call(&scope(call), &key_of(call), request);
    match call.manner {
        Manner::Plain => asked.execute().await,
        Manner::Accept => asked.accept().await,
        Manner::Wait => {
            asked.on_duplicate(OnDuplicate::Wait(Duration::from_secs(5))).execute().await
        }
        Manner::ExpectNew => asked.expect_new().execute().await,
    }
}
