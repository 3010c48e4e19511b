//! One run of a plan: nodes with engines and workers, clients, faults; then a time without faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::client;
use atomic_phases::client::{Attempt, Decision, End, Reason, RetryPolicy, Transport, decide};
use atomic_phases::config::{DerivedKeys, OnDuplicate};
use atomic_phases::engine::{Resolution, ResolveError, Resolved};
use atomic_phases::fault::Mutant;
use atomic_phases::http::Policy;
use atomic_phases::request::RequestDefinition;
use atomic_phases::simulation::{
    Chance, Database, KeyChange, KeyState, Memory, Network, Node, Passage, passed_points,
    simulate_with,
};
use atomic_phases::worker::{DeliveryError, Handlers, Job, WorkerConfig};
use atomic_phases::{CallError, Engine, IdempotencyKey, Outcome, Scope};
use tokio::sync::mpsc;
use tokio::time::sleep;
use uuid::Uuid;

use super::codec::KeyService;
use super::judge::{self, Delivered, History, Op, Told, Watched};
use super::plan::{Build, Call, Event, HEALED, HOSTILE, Kind, Manner, Plan, Stop, What};
use super::provider::{Hook, Provider, Stops, Word};
use super::requests::{
    Alert, App, Charged, Fare, Flood, LongRide, NextRide, Note, Parcel, PatientNote, Ride, Stray,
    Transfer, reply,
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

/// What was sent so far, by all nodes.
#[derive(Default)]
struct Sent {
    statements: u64,
    by_kind: BTreeMap<&'static str, u64>,
    /// The second, and how many statements each node has sent in it.
    second: (u64, BTreeMap<String, u64>),
    busiest: u64,
}

/// The path of a node's statements.
struct Wire {
    node: String,
    plan: Arc<Plan>,
    sent: Arc<Mutex<Sent>>,
    trace: Trace,
    watched: Arc<Mutex<Watched>>,
    stops: Stops,
}

impl Wire {
    /// The statement's number, its number among those of its kind, and the count within this second.
    fn count(&self, what: &'static str) -> (u64, u64, u64) {
        let mut sent = self.sent.lock().unwrap();
        let second = self.trace.elapsed().as_secs();
        if sent.second.0 != second {
            sent.second = (second, BTreeMap::new());
        }
        let in_second = sent.second.1.entry(self.node.clone()).or_default();
        *in_second += 1;
        let in_second = *in_second;
        sent.busiest = sent.busiest.max(in_second);
        let of_kind = sent.by_kind.entry(what).or_default();
        *of_kind += 1;
        let of_kind = *of_kind - 1;
        sent.statements += 1;
        (sent.statements - 1, of_kind, in_second)
    }
}

impl Network for Wire {
    fn passage(&self, what: &'static str) -> Passage {
        let (number, of_kind, in_second) = self.count(what);
        let usual = Passage { there: Duration::from_micros(200), ..Passage::default() };
        if in_second >= STATEMENTS {
            if in_second == STATEMENTS {
                let violation = format!("G17: {} spins: {what}", self.node);
                self.trace.note(|| format!("VIOLATION {violation}"));
                self.watched.lock().unwrap().violations.push(violation);
            }
            return Passage { there: Duration::from_secs(1), ..usual };
        }
        if self.trace.elapsed() >= HEALED {
            return usual;
        }
        let aimed =
            self.plan.aimed.get(what).and_then(|of_kind_faults| of_kind_faults.get(&of_kind));
        let Some(fault) = aimed.or(self.plan.statements.get(&number)) else { return usual };
        self.trace.note(|| format!("{}: statement {number}, {what}: {fault}", self.node));
        let mut watched = self.watched.lock().unwrap();
        match fault.cut {
            Some(cut) => {
                let name = format!("{cut:?}");
                let name = name.split('(').next().unwrap_or_default();
                watched.covers(format!("fault: cut {name}"));
            }
            None => watched.covers("fault: delay".to_owned()),
        }
        if let Some(stop) = fault.stop {
            let _ = self.stops.send((self.node.clone(), stop));
        }
        if fault.away > 0 {
            let stop = Stop { after: 0, lasts: fault.away, kill: true };
            let _ = self.stops.send((DATABASE.to_owned(), stop));
        }
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
    build: Build,
}

/// The state of one run.
#[derive(Clone)]
struct Scene {
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
    simulate_with(plan.seed, mutant, || Scene::play(plan, told))
}

impl Scene {
    async fn play(plan: Arc<Plan>, told: trace::Told) -> Report {
        let trace = Trace::new(told);
        // With digits that no store keeps, and some that only some stores keep.
        let began = chrono::DateTime::from_timestamp(1_800_000_000, 123_456_789).unwrap();
        let database = Database::starting_at(began);
        let (stops, stopped) = mpsc::unbounded_channel();
        let (hooks, hooked) = mpsc::unbounded_channel();
        let watched = Arc::new(Mutex::new(Watched::new(&plan)));
        let scene = Self {
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
        scene.watch();
        scene.database.put("totals", "rides", 0);
        scene.database.put("totals", "parcels", 0);
        scene.database.put("totals", "from", 0);
        scene.database.put("totals", "to", 0);
        for index in 0..scene.plan.nodes {
            scene.hosts.lock().unwrap().push(None);
            scene.start(index);
        }
        tokio::spawn(scene.clone().stop_nodes(stopped));
        tokio::spawn(scene.clone().receive_webhooks(hooked));
        if scene.plan.has_other_builds() {
            tokio::spawn(scene.clone().deploy_everywhere());
        }
        let clients: Vec<_> =
            scene.plan.calls.iter().map(|call| tokio::spawn(scene.clone().client(*call))).collect();
        for event in &scene.plan.events {
            tokio::spawn(scene.clone().event(*event));
        }
        for client in clients {
            client.await.expect("a client");
        }
        scene.settle(SETTLED_BY + scene.plan.set_back()).await;
        // Some of these keys were never created, and are now.
        scene.replay_all().await;
        scene.settle(scene.trace.elapsed() + Duration::from_secs(60)).await;
        scene.judged()
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
            .max_reconciles(1000)
            .build()
            .expect("an engine");
        let node = Node::new(name);
        let (scene, workers) = (self.clone(), engine.clone());
        let poll = Duration::from_millis(self.plan.poll);
        node.spawn(async move {
            let sink =
                ["receipt", "thanks", "slow"].into_iter().fold(Handlers::new(), |sink, name| {
                    let scene = scene.clone();
                    sink.on(name, move |life: serde_json::Value, job| {
                        scene.clone().deliver(life, job)
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

    async fn event(self, event: Event) {
        sleep(Duration::from_millis(event.at)).await;
        self.trace.note(|| format!("event: {:?} for {} ms", event.what, event.lasts));
        let name = format!("{:?}", event.what);
        let name = name.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        self.covers(format!("event: {name}"));
        let lasts = Duration::from_millis(event.lasts);
        match event.what {
            What::Freeze(index) => self.freeze(index, lasts).await,
            What::Kill(index) => self.kill(index, lasts).await,
            What::Drain(index) => self.drain(index).await,
            What::Deploy(index, build) => {
                self.builds.lock().unwrap()[index] = build;
                self.drain(index).await;
            }
            What::DatabaseAway => self.take_database_away(lasts).await,
            What::FailOver { losing } => {
                // The tables existed before.
                let mut watched = self.watched.lock().unwrap();
                let lost = losing.min(watched.commits);
                watched.commits -= lost;
                drop(watched);
                self.database.fail_over_losing(lost);
            }
            What::ClockJump(by) => self.database.set_clock_forward(Duration::from_millis(by)),
            What::ClockBack(by) => self.database.set_clock_back(Duration::from_millis(by)),
            What::Erase { node, scope, key } => self.erase(node, scope, key).await,
        }
    }

    /// Retries until the key is erased, or must not be erased because it is not settled.
    async fn erase(&self, index: usize, scope: u8, key: u8) {
        for _ in 0..20 {
            let erasing = {
                let hosts = self.hosts.lock().unwrap();
                hosts[index].as_ref().map(|host| {
                    let engine = host.engine.clone();
                    let scope = Scope::new(judge::scope_name(scope)).unwrap();
                    let key = IdempotencyKey::new(judge::key_name(key)).unwrap();
                    host.node.spawn(async move { engine.erase(&scope, &key).await })
                })
            };
            let erased = match erasing {
                Some(erasing) => erasing.await.ok(),
                None => None,
            };
            self.trace.note(|| format!("event: erasing comes to {erased:?}"));
            if let Some(Ok(())) = erased {
                return self.watched.lock().unwrap().was_erased(scope, key, self.trace.elapsed());
            }
            if self.trace.elapsed() >= HEALED {
                return;
            }
            sleep(Duration::from_secs(3)).await;
        }
    }

    async fn take_database_away(&self, lasts: Duration) {
        self.covers("stop: database".to_owned());
        self.trace.note(|| "event: the database is away".to_owned());
        self.database.stop();
        sleep(self.until_healed(lasts).min(Duration::from_secs(10))).await;
        self.database.start();
        self.trace.note(|| "event: the database is back".to_owned());
    }

    fn until_healed(&self, lasts: Duration) -> Duration {
        lasts.min(HEALED.saturating_sub(self.trace.elapsed()))
    }

    /// Applies the faults of statements and of calls to nodes.
    async fn stop_nodes(self, mut stopped: mpsc::UnboundedReceiver<(String, Stop)>) {
        while let Some((name, stop)) = stopped.recv().await {
            let scene = self.clone();
            tokio::spawn(async move {
                sleep(Duration::from_millis(stop.after)).await;
                if name == DATABASE {
                    return scene.take_database_away(Duration::from_millis(stop.lasts)).await;
                }
                let is_it = |host: &Option<Host>| {
                    host.as_ref().is_some_and(|host| host.node.name() == name)
                };
                let index = scene.hosts.lock().unwrap().iter().position(is_it);
                let Some(index) = index.filter(|_| scene.trace.elapsed() < HEALED) else { return };
                let lasts = Duration::from_millis(stop.lasts);
                match stop.kill {
                    true => scene.kill(index, lasts).await,
                    false => scene.freeze(index, lasts).await,
                }
            });
        }
    }

    async fn freeze(&self, index: usize, lasts: Duration) {
        let node = {
            let hosts = self.hosts.lock().unwrap();
            let Some(host) = &hosts[index] else { return };
            host.node.clone()
        };
        self.covers("stop: freeze".to_owned());
        self.trace.note(|| format!("event: {} stands still for {lasts:?}", node.name()));
        node.freeze();
        sleep(self.until_healed(lasts)).await;
        node.thaw();
        self.trace.note(|| format!("event: {} goes on", node.name()));
    }

    async fn kill(&self, index: usize, lasts: Duration) {
        let Some(host) = self.hosts.lock().unwrap()[index].take() else { return };
        self.covers("stop: kill".to_owned());
        self.trace.note(|| format!("event: {} dies for {lasts:?}", host.node.name()));
        host.node.kill();
        sleep(self.until_healed(lasts)).await;
        self.start(index);
    }

    async fn drain(&self, index: usize) {
        let Some(Host { node, engine, .. }) = self.hosts.lock().unwrap()[index].take() else {
            return;
        };
        self.covers("stop: drain".to_owned());
        let drain = node.spawn(async move { engine.shutdown(Duration::from_secs(15)).await });
        let _ = tokio::time::timeout(Duration::from_secs(20), drain).await;
        node.kill();
        self.start(index);
    }

    /// Completes an unfinished rollout.
    async fn deploy_everywhere(self) {
        sleep(HEALED).await;
        self.builds.lock().unwrap().fill(Build::Both);
        for index in 0..self.plan.nodes {
            self.drain(index).await;
        }
    }

    /// Sends a webhook to any running node, again and again until it is accepted, as providers do.
    async fn receive_webhooks(self, mut hooked: mpsc::UnboundedReceiver<Hook>) {
        let mut number = 0;
        while let Some(hook) = hooked.recv().await {
            number += 1;
            tokio::spawn(self.clone().webhook(number, hook));
        }
    }

    /// No true resolution of the last call is refused, and a refused one changes nothing (G17).
    async fn webhook(self, number: usize, hook: Hook) {
        let row = (hook.scope.clone(), hook.key.clone());
        self.watched.lock().unwrap().word_begins(&row);
        let until = SETTLED_BY.max(self.trace.elapsed()) + self.plan.set_back();
        for again in 0.. {
            let waits = self.watched.lock().unwrap().intended_in(&row);
            let (before, began) =
                (self.watched.lock().unwrap().settled(&row), self.trace.elapsed());
            let told = self.tell(&hook, number + again, again == 0).await;
            self.trace.note(|| format!("webhook {number}, {hook:?}: {told:?}"));
            let still_waits = self.watched.lock().unwrap().intended_in(&row);
            let is_news = match hook.word {
                Word::Executed(_) => true,
                Word::NotExecuted(attempt) => {
                    waits == still_waits && waits == Some(attempt.cast_signed())
                }
            };
            // A resolution of a request that has ended, and whose key belongs to another request by now, or to
            // none.
            let is_gone = self.request_of(&row) != Some(hook.request);
            let (what, is_final) = match &told {
                Some(Ok(Resolved::Applied)) => ("applied", true),
                Some(Ok(Resolved::Finished)) => ("finished", true),
                Some(Ok(_)) => ("known already", true),
                Some(Err(ResolveError::InProgress { .. })) => ("in progress", false),
                Some(Err(ResolveError::Conflict(_) | ResolveError::NotThatPhase)) => {
                    if is_news && !self.plan.is_beyond_promises() {
                        self.complain(format!("G17: a true word is refused: {hook:?}: {told:?}"));
                    }
                    ("contradicts", true)
                }
                Some(Err(ResolveError::AnotherRequest)) => {
                    if !is_gone && !self.plan.is_beyond_promises() {
                        self.complain(format!("G17: a word is told to be of another: {hook:?}"));
                    }
                    ("of another", true)
                }
                Some(Err(ResolveError::NoSuchKey)) if is_gone => ("of none", true),
                Some(Err(ResolveError::NotStorable)) => ("not storable", false),
                Some(Err(_)) => ("refused", false),
                None => ("nothing", false),
            };
            self.covers(format!("webhook: {what}"));
            if what == "finished" && self.plan.erases_row(&row) {
                self.covers("word: behind an erasure".to_owned());
            }
            // A resolution that took longer than a lease may have acquired the row, lost it, and read it again.
            let is_quick = self.trace.elapsed() - began < Duration::from_millis(self.plan.lease);
            let is_its = is_quick && !self.plan.erases_row(&row) && !self.plan.has_other_builds();
            let after = self.watched.lock().unwrap().settled(&row);
            if what == "not storable" && is_its && before < after && before.is_some() {
                self.complain(format!("G17: a word was refused and has changed the row: {hook:?}"));
            }
            let gives_up = self.plan.is_beyond_promises() && again >= 20;
            if is_final || gives_up {
                break;
            }
            if self.trace.elapsed() > until {
                self.complain(format!("G17: a true word is never taken: {hook:?}: {told:?}"));
                break;
            }
            sleep(Duration::from_secs(3)).await;
        }
        self.watched.lock().unwrap().word_ends(&row);
    }

    /// The id of the request of the key's row.
    fn request_of(&self, (scope, key): &judge::Row) -> Option<Uuid> {
        let mut found = None;
        self.database.each_key(|row| {
            if (row.scope(), row.key()) == (scope.as_str(), key.as_str()) {
                found = Some(row.request_id());
            }
        });
        found
    }

    /// One delivery: the node's answer, if there is one. The provider may disconnect during the first delivery.
    async fn tell(
        &self,
        hook: &Hook,
        node: usize,
        is_first: bool,
    ) -> Option<Result<Resolved, ResolveError>> {
        let (what, word) = self.word_of(hook);
        self.covers(format!("word: {what}"));
        let scope = Scope::new(hook.scope.clone()).unwrap();
        let key = IdempotencyKey::new(hook.key.clone()).unwrap();
        let running = {
            let hosts = self.hosts.lock().unwrap();
            let host = hosts[node % self.plan.nodes].as_ref()?;
            let engine = host.engine.clone();
            let word = word.of_request(hook.request);
            host.node.spawn(async move { engine.resolve(&scope, &key, word).await })
        };
        let handler = running.abort_handle();
        let hung_up = self.plan.hung_up.get(&hook.call).filter(|_| is_first);
        let patience =
            hung_up.map_or(Duration::from_secs(20), |after| Duration::from_micros(*after));
        match tokio::time::timeout(patience, running).await {
            Ok(told) => told.ok(),
            Err(_) => {
                handler.abort();
                self.covers("word: cut off".to_owned());
                None
            }
        }
    }

    /// The resolution that a webhook's handler derives from it.
    fn word_of(&self, hook: &Hook) -> (&'static str, Resolution) {
        match &hook.word {
            Word::NotExecuted(attempt) => {
                ("not executed", Resolution::not_executed(hook.phase, *attempt))
            }
            // It ends with its call.
            Word::Executed(effect) if hook.phase == "alerted" => {
                let rides = self.database.rows("rides");
                let ride = rides.iter().find(|(life, _)| *life == hook.life);
                let amount = ride.and_then(|(_, amount)| amount.as_i64()).unwrap_or(0);
                ("finish", Resolution::finish(reply(&hook.life, amount, effect).unwrap()))
            }
            Word::Executed(effect) => {
                let output = Charged { id: effect.clone() };
                ("executed", Resolution::executed(hook.phase, &output).unwrap())
            }
        }
    }

    /// A client with its retries.
    async fn client(self, call: Call) {
        sleep(Duration::from_millis(call.at)).await;
        if call.manner == Manner::Decide {
            return self.deciding_client(call).await;
        }
        for attempt in 0..call.tries {
            let node = (call.node + usize::from(attempt)) % self.plan.nodes;
            let (told, _) = self.ask(&call, node, Duration::from_millis(call.patience)).await;
            match told {
                Told::Finished { .. }
                | Told::Erased
                | Told::Mismatch
                | Told::Unknown
                | Told::DeadLetter => return,
                _ => sleep(Duration::from_millis(call.pause.max(1))).await,
            }
            if call.pause <= 10 {
                self.covers("client: asks again at once".to_owned());
            }
        }
    }

    /// A client that uses the library's own half: it gets an HTTP answer, or none, and decides.
    async fn deciding_client(self, call: Call) {
        let policy = RetryPolicy::new(Duration::from_secs(120)).attempts(100);
        let mut chance = Chance::from_seed(self.plan.seed ^ call.at);
        let began = self.trace.elapsed();
        for number in 1.. {
            let node = (call.node + number as usize) % self.plan.nodes;
            let within = policy.time_for_attempt(self.trace.elapsed() - began);
            let (told, answer) = self.ask(&call, node, within).await;
            let end = answer.map_or(End::Unanswered(Transport::Unknown), End::Answered);
            let (elapsed, random) = (self.trace.elapsed() - began, chance.number() as u32);
            let decision = decide(&policy, &Attempt { number, end, elapsed, random });
            let (what, fits) = match decision {
                Decision::Done { .. } => ("done", matches!(told, Told::Finished { .. })),
                Decision::RetryAfter(_) => ("again", !told.is_final()),
                Decision::GiveUp(Reason::Deadline | Reason::Attempts) => {
                    ("deadline", !told.is_final())
                }
                Decision::GiveUp(Reason::DeadLetter) => ("dead letter", told == Told::DeadLetter),
                Decision::GiveUp(Reason::ResponseNotRetained) => {
                    ("not retained", told == Told::Erased)
                }
                Decision::GiveUp(_) => ("refused", told == Told::Mismatch),
            };
            self.covers(format!("decide: {what}"));
            if !fits {
                self.complain(format!(
                    "HTTP client: told {told:?}, and the client decides {decision:?}"
                ));
            }
            match decision {
                Decision::RetryAfter(wait) => sleep(wait).await,
                _ => return,
            }
        }
    }

    /// One request, through a node, until its answer or until the client disconnects.
    async fn ask(
        &self,
        call: &Call,
        node: usize,
        patience: Duration,
    ) -> (Told, Option<client::Answer>) {
        let number = self.history.lock().unwrap().ops.len();
        let invoked = self.trace.elapsed();
        let stored = self.fingerprint_of(call);
        let (told, returned, of_nothing) = (Told::Nothing, None, false);
        let op = Op { call: *call, invoked, returned, told, stored, of_nothing };
        self.history.lock().unwrap().ops.push(op);
        self.trace.note(|| {
            let Call { kind, amount, scope, key, manner, .. } = call;
            let (scope, key) = (judge::scope_name(*scope), judge::key_name(*key));
            format!(
                "client {number} asks node {node}: {kind:?} of {amount}, {scope} {key}, {manner:?}"
            )
        });
        let (told, of_nothing, answer) = match self.through(call, node) {
            None => (Told::Error, false, None),
            Some(running) => {
                let abort = running.abort_handle();
                match tokio::time::timeout(patience, running).await {
                    Ok(Ok(told)) => told,
                    Ok(Err(_)) => (Told::Error, false, None),
                    Err(_) => {
                        abort.abort();
                        (Told::Nothing, false, None)
                    }
                }
            }
        };
        self.trace.note(|| format!("client {number} is told {told:?}"));
        self.covers(format!("told: {}", told.name()));
        self.covers(format!("client: {:?}", call.manner));
        if call.scope == HOSTILE {
            self.covers("client: floods".to_owned());
        }
        if told == Told::Nothing {
            self.covers("client: hangs up".to_owned());
        }
        if self.plan.has_another_body(call) {
            self.covers("client: another body".to_owned());
        }
        let returned = Some(self.trace.elapsed());
        // What was true during the whole call.
        let still = self.fingerprint_of(call);
        let mut history = self.history.lock().unwrap();
        let op = &mut history.ops[number];
        (op.returned, op.told, op.of_nothing) = (returned, told.clone(), of_nothing);
        op.stored = op.stored.take().filter(|stored| still.as_ref() == Some(stored));
        (told, answer)
    }

    /// Whether the node waits longer than the others for the call of a note: a rollout that changes a time limit is
    /// always half done.
    fn is_patient(&self, index: usize) -> bool {
        index % 2 == 1 && !self.plan.is_calm()
    }

    fn through(&self, call: &Call, index: usize) -> Option<tokio::task::JoinHandle<Heard>> {
        let hosts = self.hosts.lock().unwrap();
        let host = hosts[index].as_ref()?;
        let (engine, scene, call, build) = (host.engine.clone(), self.clone(), *call, host.build);
        let is_patient = self.is_patient(index);
        Some(host.node.spawn(async move {
            let amount = call.amount;
            let outcome = match (call.kind, build) {
                (Kind::Ride, Build::First) => execute(&engine, &call, Ride { amount }).await,
                (Kind::Ride, Build::Longer) => execute(&engine, &call, LongRide { amount }).await,
                (Kind::Ride, _) => execute(&engine, &call, NextRide { amount }).await,
                (Kind::Fare, _) => execute(&engine, &call, Fare { amount }).await,
                (Kind::Note, _) if is_patient => {
                    execute(&engine, &call, PatientNote { amount }).await
                }
                (Kind::Note, _) => execute(&engine, &call, Note { amount }).await,
                (Kind::Parcel, _) => execute(&engine, &call, Parcel { amount }).await,
                (Kind::Transfer, _) => execute(&engine, &call, Transfer { amount }).await,
                (Kind::Alert, _) => execute(&engine, &call, Alert { amount }).await,
                (Kind::Stray, _) => execute(&engine, &call, Stray { amount }).await,
                (Kind::Flood, _) => execute(&engine, &call, Flood { amount }).await,
            };
            let told = Told::of(&outcome);
            // At the same moment: the answer is durable (G8).
            scene.is_durable(&call, &told);
            let of_nothing = told == Told::InProgress && scene.is_nothing(&call);
            (told, of_nothing, Some(read_by_a_client(&call, outcome)))
        }))
    }

    fn is_durable(&self, call: &Call, told: &Told) {
        // A late answer may be of a key that was erased or has expired since then.
        let may_have_ended = self.plan.has_many_lives() || self.plan.erases(call.scope, call.key);
        let has_row = match told {
            Told::Finished { status, headers, body, .. } => {
                let mut found = false;
                self.database.each_key(|key| {
                    if is_of(&key, call) {
                        let stored = key.response_headers().map(serde_json::from_slice);
                        let stored: Option<Vec<(String, String)>> = stored.and_then(Result::ok);
                        found = stored.as_ref() == Some(headers)
                            && key.response() == Some((*status as i16, Some(body.as_slice())));
                    }
                });
                found
            }
            Told::Accepted => self.fingerprint_of(call).is_some(),
            _ => return,
        };
        if !has_row && !self.plan.loses_commits() && !may_have_ended {
            self.complain(format!("G8: {told:?} was told, and the row does not say so: {call:?}"));
        }
    }

    /// Whether the key has no row, and none is about to be created.
    fn is_nothing(&self, call: &Call) -> bool {
        let (scope, key) = (judge::scope_name(call.scope), judge::key_name(call.key));
        self.fingerprint_of(call).is_none() && !self.database.is_locked(&scope, &key)
    }

    /// The fingerprint of the key's row, if the row has not expired.
    fn fingerprint_of(&self, call: &Call) -> Option<String> {
        let mut found = None;
        let now = self.database.now();
        self.database.each_key(|key| {
            let is_over = key.status() == "completed" && key.expires_at() <= now;
            if is_of(&key, call) && !is_over {
                found = Some(key.fingerprint().to_owned());
            }
        });
        found
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

fn is_of(key: &KeyState<'_>, call: &Call) -> bool {
    key.scope() == judge::scope_name(call.scope) && key.key() == judge::key_name(call.key)
}

/// A client's answer, whether it is *in progress* without a request, and the answer over HTTP.
type Heard = (Told, bool, Option<client::Answer>);

/// The HTTP answer to it, as the client half takes it.
fn read_by_a_client(call: &Call, outcome: Result<Outcome, CallError>) -> client::Answer {
    let key = IdempotencyKey::new(judge::key_name(call.key)).unwrap();
    let response = Policy::default().answer(Some(&key), outcome).into_http();
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    client::Answer::read(response.status().as_u16(), header, response.body())
}

async fn execute<R: RequestDefinition<Memory, App>>(
    engine: &Engine<Memory, App>,
    call: &Call,
    request: R,
) -> Result<Outcome, CallError> {
    let scope = Scope::new(judge::scope_name(call.scope)).unwrap();
    let key = IdempotencyKey::new(judge::key_name(call.key)).unwrap();
    let asked = engine.call(&scope, &key, request);
    match call.manner {
        Manner::Plain | Manner::Decide => asked.await,
        Manner::Accept => asked.accept().await,
        Manner::Wait => asked.on_duplicate(OnDuplicate::Wait(Duration::from_secs(5))).await,
        Manner::ExpectNew => asked.expect_new().await,
    }
}
