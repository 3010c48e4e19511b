//! A pool without a free connection, one that is handed a connection in a transaction, a server without one to give, and
//! phases that run another request; [`infrastructure_faults`](super::infrastructure_faults) has the catalogue.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::support::db::url_of;
use crate::support::*;
use atomic_phases::engine::CallError;
use atomic_phases::http::Policy;
use atomic_phases::phase::DerivedKey;
use atomic_phases::store::{Pool, PoolSettings, Postgres, StoreError};
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use diesel_async::{AsyncConnection, SimpleAsyncConnection, TransactionManager};
use serde::{Deserialize, Serialize};

on_every_store! {
    a_request_that_asks_for_its_own_key_hears_that_it_is_running,
    g20_a_phase_may_run_another_request_on_its_last_connection,
}

/// A request that calls the engine from within its phases.
#[derive(Clone)]
struct Nesting<S: TestDb> {
    provider: Provider,
    engine: Arc<OnceLock<Engine<S, Nesting<S>>>>,
    heard: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Nests {
    key: String,
    in_the_first: bool,
}

impl<S: TestDb> Nesting<S> {
    fn engine(db: &S) -> (Engine<S, Self>, Self) {
        let app =
            Self { provider: Provider::default(), engine: Arc::default(), heard: Arc::default() };
        let builder = Engine::builder(db.clone()).app(app.clone()).register::<Nests>();
        let engine = builder.creation_wait(Duration::from_millis(100)).build().unwrap();
        app.engine.set(engine.clone()).ok().unwrap();
        (engine, app)
    }

    /// Runs the request with this key, from within another.
    async fn nest(&self, name: &str) {
        let inner = Nests { key: String::new(), in_the_first: false };
        let engine = self.engine.get().unwrap();
        let call = engine.call(&scope(), &key(name), inner.clone());
        let outcome = match name == "k" {
            // The same request, as in a retry.
            true => engine.call(&scope(), &key(name), Nests { key: "k".into(), ..inner }).await,
            false => call.await,
        };
        let heard = match outcome {
            Ok(Outcome::Finished(_)) => "finished".to_owned(),
            Ok(Outcome::InProgress { .. }) => "in progress".to_owned(),
            Err(CallError::Unavailable(StoreError::NoConnection(_))) => "no connection".to_owned(),
            other => format!("{other:?}"),
        };
        self.heard.lock().unwrap().push(heard);
    }
}

#[atomic_phases(name = "nests", version = 1, app = Nesting<Db>)]
impl<Db: TestDb> Nests {
    #[phase]
    async fn first(
        &self,
        tx: &mut Tx<'_, Db>,
        app: &Nesting<Db>,
        ctx: &RequestContext,
    ) -> PhaseResult<()> {
        Db::insert_step(tx, &ctx.uuid(0).to_string(), "first").await?;
        if self.in_the_first {
            Box::pin(app.nest(&self.key)).await;
        }
        Ok(())
    }

    #[phase(foreign(idempotent))]
    async fn called(&self, call: ForeignCall, app: &Nesting<Db>) -> PhaseResult<u8> {
        if !self.key.is_empty() && !self.in_the_first {
            Box::pin(app.nest(&self.key)).await;
        }
        let paid = async |key: DerivedKey| {
            app.provider.call(key.as_str(), "nests").await;
            Ok::<_, PhaseError>(0)
        };
        call.make(paid).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::new(204))
    }
}

async fn a_request_that_asks_for_its_own_key_hears_that_it_is_running<S: TestDb>(db: S) {
    let (engine, app) = Nesting::engine(&db);
    let outer = Nests { key: "k".into(), in_the_first: false };
    finished(engine.call(&scope(), &key("k"), outer).await);
    assert_eq!(*app.heard.lock().unwrap(), ["in progress"]);
    assert_eq!(app.provider.effects(), 1);
    if is_postgres::<S>() {
        // From the first phase, whose row is not committed yet: the answer is that after a short wait.
        let outer = Nests { key: "own".into(), in_the_first: true };
        finished(engine.call(&scope(), &key("own"), outer).await);
        assert_eq!(app.heard.lock().unwrap()[1], "in progress");
        assert_eq!(app.provider.effects(), 2);
    }
}

/// G20: a foreign phase holds no connection, so one is enough. A local phase holds its own: if it needs a second
/// one, it gets an error after the pool's wait, and there is no deadlock.
async fn g20_a_phase_may_run_another_request_on_its_last_connection<S: TestDb>(db: S) {
    if is_memory::<S>() {
        return;
    }
    let db = pool_of_one(db).await;
    let (engine, app) = Nesting::engine(&db);
    let outer = Nests { key: "inner".into(), in_the_first: false };
    finished(engine.call(&scope(), &key("outer"), outer).await);
    let outer = Nests { key: "other".into(), in_the_first: true };
    finished(engine.call(&scope(), &key("in-a-transaction"), outer).await);
    assert_eq!(*app.heard.lock().unwrap(), ["finished", "no connection"]);
    assert_eq!(app.provider.effects(), 3);
}

/// SQLite has one connection anyway, and waits ten seconds for it.
async fn pool_of_one<S: TestDb>(db: S) -> S {
    #[cfg(feature = "mysql")]
    if let Some(mysql) = (&db as &dyn std::any::Any).downcast_ref::<atomic_phases::store::Mysql>() {
        let settings = PoolSettings::default().max_size(1).wait(WAIT);
        let url = mysql.__url();
        let connect = async || atomic_phases::store::Mysql::connect_with(url, settings).await;
        let one = answer_within(LONG, connect).await;
        return *(Box::new(one) as Box<dyn std::any::Any>).downcast().unwrap();
    }
    match (&db as &dyn std::any::Any).downcast_ref::<Postgres>() {
        None => db,
        Some(postgres) => {
            let one = small(&url_of(postgres), 1, WAIT).await;
            *(Box::new(one) as Box<dyn std::any::Any>).downcast().unwrap()
        }
    }
}

/// The wait for a connection of a pool that has none.
const WAIT: Duration = Duration::from_millis(1500);

/// The same, where there is one.
const LONG: Duration = Duration::from_secs(60);

/// A store with few connections. On a busy machine, it may take longer than the wait to open one.
async fn small(url: &str, max_size: usize, wait: Duration) -> Postgres {
    let settings = PoolSettings::default().max_size(max_size).wait(wait);
    answer_within(LONG, async || Postgres::connect_with(url, settings).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn g12_an_exhausted_pool_is_503_after_its_bound_and_nothing_runs() {
    let db = Postgres::fresh().await;
    let store = small(&url_of(&db), 2, WAIT).await;
    let app = App::default();
    let engine = engine(&store, &app);
    let take = async || answer_within(LONG, async || Pool::get(store.pool()).await).await;
    let taken = [take().await, take().await];
    let began = Instant::now();
    let outcome = engine.call(&scope(), &key("k"), book(20)).await;
    assert!(began.elapsed() >= WAIT - Duration::from_millis(10));
    let Err(CallError::Unavailable(StoreError::NoConnection(_))) = &outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(Policy::default().answer(Some(&key("k")), outcome).status(), 503);
    assert_eq!(app.bodies(), [0, 0, 0]);
    drop(taken);
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 1);
}

/// A transaction that the application left open on a pooled connection is closed with it.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_connection_that_comes_back_in_a_transaction_is_not_used() {
    let db = Postgres::fresh().await;
    let store = small(&url_of(&db), 1, LONG).await;
    let mut left_open = Pool::get(store.pool()).await.unwrap();
    type Manager = <diesel_async::AsyncPgConnection as AsyncConnection>::TransactionManager;
    Manager::begin_transaction(&mut *left_open).await.unwrap();
    left_open.batch_execute("INSERT INTO steps VALUES ('theirs', 'theirs')").await.unwrap();
    drop(left_open);
    let app = App::default();
    finished(engine(&store, &app).call(&scope(), &key("k"), book(20)).await);
    assert_eq!(app.provider.effects(), 1);
    assert_eq!(db.number("SELECT count(*) FROM steps WHERE step = 'theirs'").await, 0);
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "completed");
}

/// 53300: the server takes no more connections.
#[tokio::test(flavor = "multi_thread")]
async fn g12_53300_too_many_connections_is_503_and_nothing_is_lost() {
    let db = Postgres::fresh().await;
    let role = db.text("SELECT 'few_' || current_database()").await;
    db.sql(&format!(
        "CREATE ROLE {role} LOGIN CONNECTION LIMIT 1; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"
    ))
    .await;
    let url = url_of(&db).replace("postgres@", &format!("{role}@"));
    let store = small(&url, 8, LONG).await;
    let app = App::default();
    let engine = engine(&store, &app);
    let taken = Pool::get(store.pool()).await.unwrap();
    for name in ["a", "b"] {
        let outcome = engine.call(&scope(), &key(name), book(20)).await;
        let Err(CallError::Unavailable(StoreError::NoConnection(_))) = outcome else {
            panic!("{outcome:?}")
        };
    }
    assert_eq!(app.bodies(), [0, 0, 0]);
    drop(taken);
    for name in ["a", "b"] {
        finished(engine.call(&scope(), &key(name), book(20)).await);
    }
    assert_eq!(app.provider.effects(), 2);
}
