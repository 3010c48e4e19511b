//! At which points a request is crashed: those of its phases, and those that the phases name themselves.
#![allow(clippy::type_complexity, clippy::ptr_arg)]

use std::time::Duration;

use super::worlds::{CREATION_WAIT, World, counted, emptied, shown};
use crate::support::*;
use atomic_phases::fault::{Explorer, explore};
use atomic_phases::phase::{DerivedKey, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::{Engine, ForeignCall, PhaseResult, Reply, Tx, atomic_phases, crash_point};

on_every_store! {
    the_points_are_what_the_phase_list_says,
    points_of_a_phases_own_are_crashed_at_too,
}

/// Writes a file between two statements: no rollback undoes that.
#[derive(serde::Serialize, serde::Deserialize)]
struct Print {
    /// Whether the phase checks for the file before it writes.
    careful: bool,
}

#[atomic_phases(name = "print", version = 1)]
impl<Db: TestDb> Print {
    #[phase]
    async fn printed(&self, tx: &mut Tx<'_, Db>, app: &App) -> PhaseResult<Printed> {
        Db::insert_step(tx, "-", "printed").await?;
        // The provider's ledger represents a folder.
        let name = if self.careful { "page.pdf".to_owned() } else { uuid() };
        app.provider.call(&name, "a page").await;
        crash_point!("after_pdf");
        Ok(Printed(name))
    }

    #[phase(foreign(idempotent))]
    async fn sent(&self, call: ForeignCall, app: &App, page: &Printed) -> PhaseResult<u8> {
        crash_point!("before_stamp");
        call.make(async |key| {
            app.provider.call(key.as_str(), &page.0).await;
            crash_point!("stamped");
            Ok(1)
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "printed"))
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Printed(String);

fn uuid() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("page-{}.pdf", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn printing<S: TestDb>(
    db: S,
    careful: bool,
) -> Explorer<impl AsyncFn() -> (TestEngine<S>, World<S>), Print, World<S>> {
    let world = async move || {
        let (_, world) = emptied(&db, Provider::default()).await;
        let engine: TestEngine<S> = Engine::builder(db.clone())
            .app(world.app.clone())
            .register::<Print>()
            .lease(Duration::from_secs(60))
            .creation_wait(CREATION_WAIT)
            .build()
            .unwrap();
        (engine, world)
    };
    explore(world, Print { careful }).effects(counted)
}

async fn points_of_a_phases_own_are_crashed_at_too<S: TestDb>(db: S) {
    let report = printing(db.clone(), true).crash_at_every_point().with_competitor().run().await;
    shown(&report);
    let own = "(of its own printed/after_pdf, sent/before_stamp, sent/stamped)";
    assert!(report.to_string().contains(own), "{report}");
    assert_eq!(report.points(), 15);
    let report = printing(db, false).crash_at_every_point().run().await;
    let text = report.to_string();
    // The first crash that leaves the page behind is at the crash point that the author has named.
    assert!(text.contains("at printed/after_pdf"), "{text}");
}

/// Consecutive foreign phases at the beginning, and forced commits; a local phase with another isolation level than
/// READ COMMITTED.
#[derive(serde::Serialize, serde::Deserialize)]
struct Mixed {}

#[atomic_phases(name = "mixed", version = 1)]
impl<Db: TestDb> Mixed {
    #[phase(foreign(idempotent))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<String> {
        call.make(async |key| Ok(app.provider.call(key.as_str(), "asked").await)).await
    }

    #[phase(foreign(idempotent), commit)]
    async fn told(&self, call: ForeignCall, app: &App) -> PhaseResult<u8> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "told").await;
            Ok(1)
        })
        .await
    }

    #[phase(isolation = "serializable")]
    async fn noted(&self, tx: &mut Tx<'_, Db>, asked: &String) -> PhaseResult<bool> {
        Db::insert_step(tx, asked, "noted").await?;
        Ok(true)
    }

    #[phase(foreign(at_most_once))]
    async fn rung(&self, call: ForeignCall, app: &App) -> PhaseResult<i8> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "rung").await;
            Ok(1)
        })
        .await
    }

    #[reconcile(rung)]
    async fn was_rung(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<i8>> {
        Ok(match app.provider.search(key.as_str()) {
            Some(Some(_)) => Reconciled::Executed(1),
            Some(None) => Reconciled::NotExecuted,
            None => Reconciled::StillUnknown,
        })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "done"))
    }
}

async fn the_points_are_what_the_phase_list_says<S: TestDb>(db: S) {
    let definition = <Mixed as RequestDefinition<S, App>>::DEFINITION;
    let names: Vec<String> = definition.points().iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), 29, "{names:#?}");
    let world = async || {
        let (_, world) = emptied(&db, Provider::default()).await;
        world.app.provider.answer_searches();
        let engine: TestEngine<S> = Engine::builder(db.clone())
            .app(world.app.clone())
            .register::<Mixed>()
            .lease(Duration::from_secs(60))
            .back_off(Duration::from_millis(1), Duration::from_millis(1))
            .build()
            .unwrap();
        (engine, world)
    };
    // The explorer itself compares the passed points with the declared ones.
    let explorer = explore(world, Mixed {}).effects(counted);
    let report = explorer.crash_at_every_point().with_competitor().run().await;
    shown(&report);
    assert_eq!((report.points(), report.unknown()), (29, 0));
}
