//! What is explored: the tests' requests, each in a world whose ledger and database the checks read.
#![allow(clippy::type_complexity)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use atomic_phases::fault::{Explorer, Report, explore};
use atomic_phases::phase::{DerivedKey, Reconciled};
use atomic_phases::store::Postgres;
use atomic_phases::{Engine, ForeignCall, PhaseResult, Reply, Tx, atomic_phases, crash_point};

/// What the checks compare: the ledger of the provider, and the database.
pub struct World<S> {
    pub db: S,
    pub app: App,
}

/// How long a duplicate waits.
pub const CREATION_WAIT: Duration = Duration::from_millis(30);

/// One database for all cases, emptied for each.
pub async fn emptied<S: TestDb>(db: &S, provider: Provider) -> (TestEngine<S>, World<S>) {
    db.sql(
        "DELETE FROM atomic_phases_keys; DELETE FROM atomic_phases_staged_jobs; \
         DELETE FROM rides; DELETE FROM steps",
    )
    .await;
    let app = App::new(provider);
    let engine = engine_with(db, &app, |builder| {
        let builder = builder.lease(Duration::from_secs(60)).creation_wait(CREATION_WAIT);
        builder.back_off(Duration::from_millis(1), Duration::from_millis(1))
    });
    (engine, World { db: db.clone(), app })
}

pub fn booking<S: TestDb>(
    db: S,
) -> Explorer<impl AsyncFn() -> (TestEngine<S>, World<S>), Book, World<S>> {
    explore(async move || emptied(&db, Provider::default()).await, book(20))
        .and_another(book(21))
        .always("one charge at most", async |world: &World<S>| {
            assert!(world.app.provider.effects() <= 1);
        })
        .check("one charge", async |world| assert_eq!(world.app.provider.effects(), 1))
        .effects(counted)
}

/// The numbers of rides, steps, requests with steps and jobs; and the provider's ledger.
pub async fn counted<S: TestDb>(world: &World<S>) -> (String, usize) {
    let counts = "SELECT (SELECT count(*) FROM rides) || ' ' || (SELECT count(*) FROM steps) || ' ' \
                  || (SELECT count(DISTINCT request) FROM steps) || ' ' \
                  || (SELECT count(*) FROM atomic_phases_staged_jobs)";
    (world.db.text(counts).await, world.app.provider.effects())
}

pub fn shipping<S: TestDb>(
    db: S,
    form: Form,
) -> Explorer<impl AsyncFn() -> (TestEngine<S>, World<S>), Parcel, World<S>> {
    let other = Parcel { weight: 4, ..form.parcel(Trouble::None) };
    explore(async move || emptied(&db, Provider::default()).await, form.parcel(Trouble::None))
        .and_another(other)
        .always("one charge at most", async |world: &World<S>| {
            assert!(world.app.provider.effects() <= 1);
        })
        .check("40 updates, once", async |world| {
            let weights = world.db.text("SELECT max(amount) FROM rides WHERE amount <> 3").await;
            assert_eq!(weights.len(), 11, "{weights}");
        })
        .effects(counted)
}

pub fn notifying<S: TestDb>(
    db: S,
    searchable: bool,
) -> Explorer<impl AsyncFn() -> (TestEngine<S>, World<S>), Notify, World<S>> {
    let other = Notify { who: "copilot".into(), trouble: Trouble::None.into() };
    let world = async move || {
        let provider = Provider::that_ignores_keys();
        if searchable {
            provider.answer_searches();
        }
        emptied(&db, provider).await
    };
    explore(world, notify(Trouble::None))
        .and_another(other)
        .always("G2: one notification at most", async |world: &World<S>| {
            assert!(world.app.provider.effects() <= 1);
        })
        .effects(counted)
}

/// Its call takes some time to reach the provider.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Ring {}

#[atomic_phases(name = "ring", version = 1)]
impl<Db: TestDb> Ring {
    // Longer than the process is frozen: the lease ends the call.
    #[phase(foreign(at_most_once), timeout = "5m")]
    async fn rung(&self, call: ForeignCall, app: &App) -> PhaseResult<u8> {
        call.make(async |key| {
            crash_point!("connected");
            app.provider.call(key.as_str(), "rung").await;
            Ok(1)
        })
        .await
    }

    #[reconcile(rung)]
    async fn was_rung(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<u8>> {
        Ok(match app.provider.search(key.as_str()) {
            Some(Some(_)) => Reconciled::Executed(1),
            _ => Reconciled::NotExecuted,
        })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "rung"))
    }
}

pub fn ringing<S: TestDb>(
    db: S,
) -> Explorer<impl AsyncFn() -> (TestEngine<S>, World<S>), Ring, World<S>> {
    let world = async move || {
        let (_, world) = emptied(&db, Provider::that_ignores_keys()).await;
        world.app.provider.answer_searches();
        let engine: TestEngine<S> = Engine::builder(db.clone())
            .app(world.app.clone())
            .register::<Ring>()
            .lease(Duration::from_secs(60))
            .back_off(Duration::from_millis(1), Duration::from_millis(1))
            .build()
            .unwrap();
        (engine, world)
    };
    explore(world, Ring {})
        .always("G2: one ring at most", async |world: &World<S>| {
            assert!(world.app.provider.effects() <= 1);
        })
        .effects(counted)
}

pub fn shown(report: &Report) {
    println!("{report}");
    report.assert_ok();
}

/// A world with a pool of its own returns its connections before the next case begins.
#[tokio::test(flavor = "multi_thread")]
async fn worlds_do_not_pile_up_connections() {
    let db = <Postgres as TestDb>::fresh().await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let before = db.number(open).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = seen.clone();
    let url = crate::support::db::url_of(&db);
    let world = async move || {
        let counted = db.number(open).await - before;
        seeing.lock().unwrap().push(counted);
        let (_, world) = emptied(&db, Provider::default()).await;
        let store = Postgres::connect(&url).await.unwrap();
        let engine = engine_with(&store, &world.app, |builder| {
            builder.lease(Duration::from_secs(60)).creation_wait(CREATION_WAIT)
        });
        (engine, world)
    };
    shown(&explore(world, book(20)).crash_at_every_point().run().await);
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 50, "{seen:?}");
    assert!(seen.iter().all(|&open| open <= 8), "of the last case alone: {seen:?}");
}
