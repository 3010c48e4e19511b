//! Who is measured: the engine in its several situations.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::{CallError, EngineBuilder};
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::{PoolSettings, Postgres, StoreError};
use atomic_phases::{Engine, IdempotencyKey, Outcome, Scope, Store};
use uuid::Uuid;

use crate::by_hand::{ByHand, ENGINES, NARROW};
use crate::chains::{One, Six, Three, Twelve, TwelveLarge};
use crate::load::{Figures, for_a_while};
use crate::requests::{App, postgres, sqlite};
use crate::server::{Server, url};
use crate::yardstick;

/// One request on its way.
pub type Work = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

pub type PgEngine = Engine<Postgres, App>;

/// How many finished keys a replay chooses from, as in `select1.sql`.
const ANSWERED: u64 = 1000;

pub async fn open(port: u16, connections: usize) -> PgEngine {
    builder(store(port, connections).await).build().unwrap()
}

pub async fn store(port: u16, connections: usize) -> Postgres {
    let settings = PoolSettings::default().max_size(connections).wait(Duration::from_secs(60));
    let store = Postgres::connect_with(&url(port), settings).await.unwrap();
    store.migrate().await.unwrap();
    store
}

pub fn builder(store: Postgres) -> EngineBuilder<Postgres, App> {
    builder_with(store, App::default())
}

pub fn builder_with(store: Postgres, app: App) -> EngineBuilder<Postgres, App> {
    Engine::builder(store)
        .app(app)
        .register::<postgres::Ride>()
        .register::<postgres::BatchRide>()
        .register::<One>()
        .register::<Three>()
        .register::<Six>()
        .register::<Twelve>()
        .register::<TwelveLarge>()
}

pub fn ride() -> postgres::Ride {
    postgres::Ride { user: 1, amount: 2000 }
}

pub fn batch_ride(independent: bool) -> postgres::BatchRide {
    postgres::BatchRide { user: 1, amount: 2000, independent }
}

pub fn sqlite_ride() -> sqlite::Ride {
    sqlite::Ride { user: 1, amount: 2000 }
}

pub fn sqlite_batch_ride() -> sqlite::BatchRide {
    sqlite::BatchRide { user: 1, amount: 2000, independent: true }
}

pub fn scope_of(number: u64) -> Scope {
    Scope::new(format!("tenant-{}", number % 100)).unwrap()
}

pub fn new_key() -> IdempotencyKey {
    IdempotencyKey::new(Uuid::new_v4().to_string()).unwrap()
}

pub fn key_of(number: u64) -> IdempotencyKey {
    IdempotencyKey::new(format!("key-{number}")).unwrap()
}

/// Runs `request` under a new key, and it has to finish.
pub fn fresh<S: Store, R: RequestDefinition<S, App> + Clone + Sync>(
    engine: &Engine<S, App>,
    request: R,
) -> impl Fn() -> Work + Clone + Send + use<S, R> {
    runs(engine, request, false)
}

/// The same, and the engine is told that it is new.
pub fn new<S: Store, R: RequestDefinition<S, App> + Clone + Sync>(
    engine: &Engine<S, App>,
    request: R,
) -> impl Fn() -> Work + Clone + Send + use<S, R> {
    runs(engine, request, true)
}

fn runs<S: Store, R: RequestDefinition<S, App> + Clone + Sync>(
    engine: &Engine<S, App>,
    request: R,
    is_new: bool,
) -> impl Fn() -> Work + Clone + Send + use<S, R> {
    let (engine, next) = (engine.clone(), Arc::new(AtomicU64::new(0)));
    move || {
        let (engine, request) = (engine.clone(), request.clone());
        let scope = scope_of(next.fetch_add(1, Ordering::Relaxed));
        Box::pin(async move {
            let call = engine.call(&scope, &new_key(), request);
            let call = if is_new { call.expect_new() } else { call };
            match call.await {
                Ok(Outcome::Finished(_)) => {}
                // The engine's errors keep the database's words to themselves.
                Err(CallError::Unavailable(StoreError::Database { doing, error })) => {
                    panic!("the database could not {doing}: {:?}", error.into_inner())
                }
                other => panic!("not finished: {other:?}"),
            }
        })
    }
}

/// Those who are compared with each other, on one server.
pub struct Field<'s> {
    server: &'s Server,
    engine: PgEngine,
    by_hand: ByHand,
}

impl<'s> Field<'s> {
    pub const NAMES: [&'static str; 21] = [
        "limit2",
        "limit2_pipe",
        "limit2_one",
        "select1",
        "tx",
        "batch",
        "batch, independent",
        "batch, new key",
        "by hand",
        "by hand, guarded",
        "by hand, guarded, engine's tables",
        "by hand, pipelined",
        "by hand, guarded, pipelined",
        "by hand, guarded, pipelined, engine's tables",
        "by hand, single statement",
        "by hand, single statement, guarded, engine's tables",
        "by hand, new key",
        "by hand, new key, guarded, engine's tables",
        "replay",
        "replay by hand",
        "replay by hand, guarded",
    ];

    pub async fn open(server: &'s Server, connections: usize) -> Self {
        let engine = open(server.port(), connections).await;
        answer_some(&engine).await;
        let by_hand = ByHand::on(engine.store());
        by_hand.copy_answers().await;
        Self { server, engine, by_hand }
    }

    /// One of [`NAMES`](Self::NAMES), with so many concurrent requests.
    pub async fn run(&self, name: &str, concurrent: usize, length: Duration) -> Figures {
        let (engine, floor) = (&self.engine, self.by_hand.clone());
        let work: Box<dyn Start> = match name {
            "tx" => Box::new(fresh(engine, ride())),
            "batch" => Box::new(fresh(engine, batch_ride(false))),
            "batch, independent" => Box::new(fresh(engine, batch_ride(true))),
            "batch, new key" => Box::new(new(engine, batch_ride(true))),
            "by hand" => Box::new(move || Box::pin(floor.clone().fresh()) as Work),
            "by hand, guarded" => {
                Box::new(move || Box::pin(floor.clone().fresh_guarded(&NARROW)) as Work)
            }
            "by hand, guarded, engine's tables" => {
                Box::new(move || Box::pin(floor.clone().fresh_guarded(&ENGINES)) as Work)
            }
            "by hand, pipelined" => {
                Box::new(move || Box::pin(floor.clone().fresh_pipelined()) as Work)
            }
            "by hand, guarded, pipelined" => {
                Box::new(move || Box::pin(floor.clone().fresh_guarded_pipelined()) as Work)
            }
            "by hand, guarded, pipelined, engine's tables" => {
                Box::new(move || Box::pin(floor.clone().fresh_guarded_in_order()) as Work)
            }
            "by hand, single statement" => {
                Box::new(move || Box::pin(floor.clone().fresh_single_statement(false)) as Work)
            }
            "by hand, single statement, guarded, engine's tables" => {
                let fresh = move || floor.clone().fresh_guarded_single_statement(false);
                Box::new(move || Box::pin(fresh()) as Work)
            }
            "by hand, new key, guarded, engine's tables" => {
                let fresh = move || floor.clone().fresh_guarded_single_statement(true);
                Box::new(move || Box::pin(fresh()) as Work)
            }
            "by hand, new key" => {
                Box::new(move || Box::pin(floor.clone().fresh_single_statement(true)) as Work)
            }
            "replay" => Box::new(replay(engine)),
            "replay by hand" => Box::new(replay_by_hand(&floor, ByHand::replay)),
            "replay by hand, guarded" => Box::new(replay_by_hand(&floor, ByHand::replay_guarded)),
            script => return yardstick::run(self.server, script, concurrent, length.as_secs()),
        };
        let work: Arc<dyn Start> = Arc::from(work);
        for_a_while(concurrent, length, &|| self.server.cpu(), move || work()).await
    }
}

/// Begins one request.
pub trait Start: Fn() -> Work + Send + Sync {}

impl<F: Fn() -> Work + Send + Sync> Start for F {}

fn replay_scope() -> Scope {
    Scope::new("replay").unwrap()
}

/// The keys that [`replay`] asks for, and how many there are.
pub async fn answer_some(engine: &PgEngine) -> u64 {
    for number in 0..ANSWERED {
        engine.call(&replay_scope(), &key_of(number), ride()).await.unwrap();
    }
    ANSWERED
}

pub fn replay(engine: &PgEngine) -> impl Fn() -> Work + Clone + Send + Sync + use<> {
    replays(engine, replay_scope(), ride(), ANSWERED)
}

/// Asks again for one of so many keys that are finished.
pub fn replays<S: Store, R: RequestDefinition<S, App> + Clone + Sync>(
    engine: &Engine<S, App>,
    scope: Scope,
    request: R,
    answered: u64,
) -> impl Fn() -> Work + Clone + Send + Sync + use<S, R> {
    let (engine, next) = (engine.clone(), Arc::new(AtomicU64::new(0)));
    move || {
        let (engine, scope, request) = (engine.clone(), scope.clone(), request.clone());
        let key = key_of(next.fetch_add(7, Ordering::Relaxed) % answered);
        Box::pin(async move {
            match engine.call(&scope, &key, request).await {
                Ok(Outcome::Finished(finished)) if finished.replayed => {}
                other => panic!("not replayed: {other:?}"),
            }
        })
    }
}

/// The same without the engine.
pub fn replay_by_hand<F: Future<Output = ()> + Send + 'static>(
    by_hand: &ByHand,
    replay: fn(ByHand, String) -> F,
) -> impl Fn() -> Work + Clone + Send + Sync + use<F> {
    let (by_hand, next) = (by_hand.clone(), Arc::new(AtomicU64::new(0)));
    move || {
        let number = next.fetch_add(7, Ordering::Relaxed) % ANSWERED;
        Box::pin(replay(by_hand.clone(), key_of(number).as_str().to_owned()))
    }
}

/// Every key is asked for by as many callers as run concurrently.
pub async fn contended(
    server: &Server,
    engine: &PgEngine,
    concurrent: usize,
    length: Duration,
) -> Figures {
    let (engine, next) = (engine.clone(), Arc::new(AtomicU64::new(0)));
    let scope = Scope::new(Uuid::new_v4().to_string()).unwrap();
    let work = move || {
        let (engine, scope) = (engine.clone(), scope.clone());
        let key = key_of(next.fetch_add(1, Ordering::Relaxed) / concurrent as u64);
        async move {
            let call = engine.call(&scope, &key, ride());
            match call.on_duplicate(OnDuplicate::Wait(Duration::from_secs(10))).await {
                Ok(Outcome::Finished(_)) => {}
                other => panic!("not finished: {other:?}"),
            }
        }
    };
    for_a_while(concurrent, length, &|| server.cpu(), work).await
}
