//! G14: old and new binaries, renamed, added and removed phases, while requests are in flight.

mod support;

use std::time::Duration;

use atomic_phases::*;
use serde::{Deserialize, Serialize};
use support::*;

on_both_stores! {
    g14_a_row_in_flight_survives_a_rename_and_an_added_phase,
    g14_a_removed_phase_strands_its_rows_and_is_reported,
    g14_another_version_is_left_to_the_node_that_knows_it,
    g14_what_a_newer_process_wrote_is_left_alone,
}

#[derive(Serialize, Deserialize)]
struct Paid(String);

async fn pay(call: ForeignCall, app: &App, ctx: &RequestContext, fail: bool) -> PhaseResult<Paid> {
    let paid =
        async |key: DerivedKey| Ok::<_, PhaseError>(app.provider.call(key.as_str(), "pay").await);
    let id = call.make(paid).await?;
    match fail && ctx.attempt() == 1 {
        true => Err(PhaseError::retryable("asked for")),
        false => Ok(Paid(id)),
    }
}

/// The three deploys of one definition: `first`, the second phase, `answered`.
macro_rules! deploy {
    ($name:ident, version $version:literal, $($phase:tt)*) => {
        #[derive(Serialize, Deserialize)]
        struct $name { fail: Unfingerprinted<bool> }

        impl $name {
            fn new(fail: bool) -> Self {
                Self { fail: fail.into() }
            }
        }

        #[atomic_phases(name = "deploy", version = $version)]
        impl<Db: TestDb> $name {
            #[phase]
            async fn first(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<()> {
                Db::insert_step(tx, &ctx.uuid(0).to_string(), "first").await?;
                Ok(())
            }

            $($phase)*
        }
    };
}

deploy!(Old, version 1,
    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx, *self.fail).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<Reply> {
        Db::insert_step(tx, &paid.0, "answered").await?;
        Ok(Reply::text(200, "old"))
    }
);

deploy!(Renamed, version 1,
    #[phase(foreign(idempotent), was = "paid")]
    async fn charged(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx, *self.fail).await
    }

    #[phase]
    async fn thanked(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<u8> {
        Db::insert_step(tx, &paid.0, "thanked").await?;
        Ok(1)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid, thanked: &u8) -> PhaseResult<Reply> {
        Db::insert_step(tx, &format!("{} {thanked}", paid.0), "answered").await?;
        Ok(Reply::text(200, "renamed"))
    }
);

deploy!(Removed, version 1,
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "removed"))
    }
);

deploy!(NextVersion, version 2,
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "next"))
    }
);

fn running<S: TestDb, R: RequestDefinition<S, App>>(db: &S, app: &App) -> Engine<S, App> {
    Engine::builder(db.clone())
        .app(app.clone())
        .register::<R>()
        .lease(Duration::from_secs(60))
        .build()
        .unwrap()
}

/// Leaves a row behind `first`, and one behind `paid`, both of the old deploy.
async fn old_rows<S: TestDb>(db: &S, app: &App) {
    let old = running::<S, Old>(db, app);
    failed(old.execute(&scope(), &key("before"), Old::new(true)).await);
    failed(old.execute(&scope(), &key("behind"), Old::new(true)).await);
    db.sql(
        "UPDATE atomic_phases_keys SET recovery_point = 'paid' WHERE idempotency_key = 'behind'",
    )
    .await;
    let outputs = r#"[["first",null],["paid","effect-2"]]"#;
    let hex: String = outputs.bytes().map(|byte| format!("{byte:02x}")).collect();
    let literal =
        match db.text("SELECT created_at FROM atomic_phases_keys LIMIT 1").await.contains('-') {
            true => format!("'\\x{hex}'::bytea"),
            false => format!("x'{hex}'"),
        };
    db.sql(&format!(
        "UPDATE atomic_phases_keys SET outputs = {literal} WHERE idempotency_key = 'behind'"
    ))
    .await;
}

async fn g14_a_row_in_flight_survives_a_rename_and_an_added_phase<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    let new = running::<S, Renamed>(&db, &app);
    assert!(new.check().await.unwrap().is_clean());
    for name in ["before", "behind"] {
        let done = finished(new.execute(&scope(), &key(name), Renamed::new(false)).await);
        assert_eq!(done.reply.bytes(), b"renamed");
    }
    let calls = app.provider.calls();
    assert_eq!(calls.len(), 3, "the call behind its recovery point was not repeated");
    assert_eq!(calls[2], calls[0], "G1: a rename does not change the derived key");
    assert_eq!(app.provider.effects(), 2);
    assert_eq!(db.number("SELECT count(*) FROM steps WHERE step = 'first'").await, 2);
    assert_eq!(db.number("SELECT count(*) FROM steps WHERE step = 'thanked'").await, 2);
}

async fn g14_a_removed_phase_strands_its_rows_and_is_reported<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    let token = "SELECT sum(lease_token) FROM atomic_phases_keys";
    let before = db.number(token).await;
    let new = running::<S, Removed>(&db, &app);
    let report = new.check().await.unwrap();
    assert_eq!(report.stranded.len(), 1);
    assert_eq!(report.stranded[0].because, StrandedBecause::UnknownRecoveryPoint);
    assert_eq!(report.stranded[0].rows.recovery_point, "paid");
    let outcome = new.execute(&scope(), &key("behind"), Removed::new(false)).await;
    assert_eq!(failed(outcome), FailureCause::NotKnownHere);
    assert_eq!(db.number(token).await, before, "left as it was, for a node that knows it");
    assert_eq!(
        finished(
            running::<S, Old>(&db, &app).execute(&scope(), &key("behind"), Old::new(false)).await
        )
        .reply
        .bytes(),
        b"old"
    );
    // A row whose removed phase is still ahead goes on with the new list.
    assert_eq!(
        finished(new.execute(&scope(), &key("before"), Removed::new(false)).await).reply.bytes(),
        b"removed"
    );
}

async fn g14_another_version_is_left_to_the_node_that_knows_it<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    let new = running::<S, NextVersion>(&db, &app);
    let report = new.check().await.unwrap();
    assert!(report.stranded.iter().all(|s| s.because == StrandedBecause::UnknownVersion));
    assert_eq!(report.stranded.iter().map(|s| s.rows.rows).sum::<u64>(), 2);
    let outcome = new.execute(&scope(), &key("before"), NextVersion::new(false)).await;
    assert_eq!(failed(outcome), FailureCause::NotKnownHere);
    // Both versions in one process, while requests of the old one are in flight.
    let twice =
        Engine::builder(db.clone()).app(app.clone()).register::<Old>().register::<NextVersion>();
    let both = twice.build().unwrap();
    assert!(both.check().await.unwrap().is_clean());
    finished(both.execute(&scope(), &key("before"), Old::new(false)).await);
    finished(both.execute(&scope(), &key("new"), NextVersion::new(false)).await);
    let none = running::<S, Book>(&db, &app).check().await.unwrap();
    assert_eq!(none.stranded[0].because, StrandedBecause::UnknownDefinition);
    let twice = Engine::builder(db).app(app).register::<Old>().register::<Renamed>().build();
    assert!(matches!(twice, Err(BuildError::Twice { name: "deploy", version: 1 })));
}

async fn g14_what_a_newer_process_wrote_is_left_alone<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    let old = running::<S, Old>(&db, &app);
    db.sql("UPDATE atomic_phases_keys SET fingerprint = 'v9:abc' WHERE idempotency_key = 'before'")
        .await;
    let outcome = old.execute(&scope(), &key("before"), Old::new(false)).await;
    assert_eq!(failed(outcome), FailureCause::NotKnownHere);
    let blob =
        match db.text("SELECT created_at FROM atomic_phases_keys LIMIT 1").await.contains('-') {
            true => "bytea",
            false => "blob",
        };
    for broken in ["params", "outputs"] {
        db.sql(&format!("UPDATE atomic_phases_keys SET {broken} = CAST('x' AS {blob}) WHERE idempotency_key = 'behind'")).await;
        let outcome = old.execute(&scope(), &key("behind"), Old::new(false)).await;
        assert!(!matches!(outcome, Ok(Outcome::Finished(_))), "{outcome:?}");
    }
    assert_eq!(app.provider.calls().len(), 2);
    let not_registered =
        running::<S, Book>(&db, &app).execute(&scope(), &key("x"), Old::new(false)).await;
    let Err(error) = not_registered else { panic!("it is not registered") };
    assert!(error.to_string().contains(".register::<"), "{error}");
}
