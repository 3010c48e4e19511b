//! Three builds that run one row, one after the other: the second must not lose for the third what it does not
//! understand itself (G1, G2).

use std::time::Duration;

use crate::support::*;
use atomic_phases::engine::{Resolution, ResolveError, Resolved};
use atomic_phases::phase::{DerivedKey, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::Status;
use atomic_phases::worker::{Completer, WorkerConfig};
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    g2_a_build_that_cannot_decode_a_row_keeps_the_record_of_its_class,
    g1_a_build_that_inserts_a_phase_keeps_the_record_of_the_provider_key,
    g2_a_build_that_inserts_a_phase_keeps_the_record_of_the_class,
    g11_an_operators_not_executed_is_not_told_as_known_where_nothing_is_known,
    g2_an_undecodable_row_at_its_cap_keeps_the_record_of_its_class,
    g14_an_unknown_outcome_behind_an_inserted_phase_is_counted_as_stranded,
    g2_not_executed_is_remembered_of_a_dead_letter_whose_class_changed,
    g2_not_executed_is_not_told_as_known_of_a_call_that_was_made_under_another_class,
    g2_what_was_said_of_a_call_is_known_by_each_name_of_its_phase,
}

#[derive(Serialize, Deserialize)]
struct Paid(String);

async fn pay(call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
    let paid =
        async |key: DerivedKey| Ok::<_, PhaseError>(app.provider.call(key.as_str(), "pay").await);
    let id = call.make(paid).await?;
    match ctx.attempt() == 1 {
        true => Err(PhaseError::retryable("the answer was lost")),
        false => Ok(Paid(id)),
    }
}

/// One definition, in one version, as consecutive builds deploy it.
macro_rules! build {
    ($name:ident, $amount:ty, $($phase:tt)*) => {
        #[derive(Serialize, Deserialize)]
        struct $name {
            amount: $amount,
        }

        #[atomic_phases(name = "deploy", version = 1)]
        impl<Db: TestDb> $name {
            #[phase]
            async fn first(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
                Db::insert_step(tx, "-", "first").await?;
                Ok(())
            }

            $($phase)*

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<Reply> {
                Db::insert_step(tx, &paid.0, "answered").await?;
                Ok(Reply::text(200, "answered"))
            }
        }
    };
}

async fn insert<Db: TestDb>(tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u16> {
    Db::insert_step(tx, "-", "inserted").await?;
    match ctx.attempt() == 2 {
        true => Err(PhaseError::retryable("a bug of the new phase")),
        false => Ok(1),
    }
}

build! {
    Old,
    i64,
    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx).await
    }
}

build! {
    Windowed,
    i64,
    #[phase(foreign(idempotent, window = "24h"))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx).await
    }
}

build! {
    OnceInText,
    String,
    #[phase(foreign(at_most_once))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx).await
    }
    #[reconcile(paid)]
    async fn find(&self) -> PhaseResult<Reconciled<Paid>> {
        Ok(Reconciled::StillUnknown)
    }
}

build! {
    Once,
    i64,
    #[phase(foreign(at_most_once))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx).await
    }
    #[reconcile(paid)]
    async fn find(&self) -> PhaseResult<Reconciled<Paid>> {
        Ok(Reconciled::StillUnknown)
    }
}

build! {
    OnceRenamed,
    i64,
    #[phase(foreign(at_most_once), was = "paid")]
    async fn settled(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
    ) -> PhaseResult<Paid> {
        pay(call, app, ctx).await
    }
    #[reconcile(settled)]
    async fn find(&self) -> PhaseResult<Reconciled<Paid>> {
        Ok(Reconciled::StillUnknown)
    }
}

build! {
    Inserted,
    i64,
    #[phase]
    async fn checked(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u16> {
        insert(tx, ctx).await
    }
    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx).await
    }
}

build! {
    InsertedRenamed,
    i64,
    #[phase]
    async fn checked(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u16> {
        insert(tx, ctx).await
    }
    #[phase(foreign(idempotent))]
    async fn charged(
        &self,
        call: ForeignCall,
        app: &App,
        ctx: &RequestContext,
    ) -> PhaseResult<Paid> {
        pay(call, app, ctx).await
    }
}

build! {
    InsertedOnce,
    i64,
    #[phase]
    async fn checked(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u16> {
        insert(tx, ctx).await
    }
    #[phase(foreign(at_most_once))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx).await
    }
    #[reconcile(paid)]
    async fn find(&self) -> PhaseResult<Reconciled<Paid>> {
        Ok(Reconciled::StillUnknown)
    }
}

fn running<S: TestDb, R: RequestDefinition<S, App>>(db: &S, app: &App) -> Engine<S, App> {
    Engine::builder(db.clone()).app(app.clone()).register::<R>().build().unwrap()
}

const ROW: &str = "SELECT status || ' at ' || recovery_point || ' [' || phases || '] attempts ' \
    || attempts FROM atomic_phases_keys";

async fn show<S: TestDb>(db: &S, app: &App, when: &str) {
    if !is_memory::<S>() {
        println!("{when}: {}; provider calls {:?}", db.text(ROW).await, app.provider.calls());
    }
}

/// A build's completer processes the row.
async fn complete<S: TestDb>(db: &S, engine: &Engine<S, App>) {
    db.let_time_pass().await;
    let config = WorkerConfig::default().grace(Duration::ZERO);
    println!("completer: {:?}", Completer::new(engine, config).run_once().await.unwrap());
}

/// The old build calls, and gets no answer.
async fn called_once<S: TestDb>(db: &S, app: &App) {
    failed(running::<S, Old>(db, app).call(&scope(), &key("k"), Old { amount: 1 }).await);
    assert_eq!(app.provider.effects(), 1);
    show(db, app, "old build").await;
}

async fn g2_a_build_that_cannot_decode_a_row_keeps_the_record_of_its_class<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    called_once(&db, &app).await;
    let undecoding = running::<S, OnceInText>(&db, &app);
    complete(&db, &undecoding).await;
    show(&db, &app, "build that does not decode it").await;
    db.let_time_pass().await;
    let fixed = running::<S, Once>(&db, &app);
    println!("check: {:?}", fixed.check().await.unwrap().stranded);
    let told = fixed.call(&scope(), &key("k"), Once { amount: 1 }).await;
    show(&db, &app, "fixed build").await;
    assert_eq!(app.provider.effects(), 1, "G2: called a second time; {told:?}");
}

async fn g1_a_build_that_inserts_a_phase_keeps_the_record_of_the_provider_key<S: TestDb>(db: S) {
    let app = App::default();
    called_once(&db, &app).await;
    let inserted = running::<S, Inserted>(&db, &app);
    complete(&db, &inserted).await;
    show(&db, &app, "inserted").await;
    db.let_time_pass().await;
    let renamed = running::<S, InsertedRenamed>(&db, &app);
    println!("check: {:?}", renamed.check().await.unwrap().stranded);
    let told = renamed.call(&scope(), &key("k"), InsertedRenamed { amount: 1 }).await;
    show(&db, &app, "renamed").await;
    assert_eq!(app.provider.effects(), 1, "G1: a second effect; {told:?}");
}

async fn g2_a_build_that_inserts_a_phase_keeps_the_record_of_the_class<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    called_once(&db, &app).await;
    let inserted = running::<S, Inserted>(&db, &app);
    complete(&db, &inserted).await;
    db.let_time_pass().await;
    let once = running::<S, InsertedOnce>(&db, &app);
    println!("check: {:?}", once.check().await.unwrap().stranded);
    let told = once.call(&scope(), &key("k"), InsertedOnce { amount: 1 }).await;
    show(&db, &app, "once").await;
    assert_eq!(app.provider.effects(), 1, "G2: called a second time; {told:?}");
}

async fn g11_an_operators_not_executed_is_not_told_as_known_where_nothing_is_known<S: TestDb>(
    db: S,
) {
    let app = App::default();
    let engine = running::<S, Windowed>(&db, &app);
    failed(engine.call(&scope(), &key("k"), Windowed { amount: 1 }).await);
    let attempt = engine.status(&scope(), &key("k")).await.unwrap().unwrap().attempt;
    let word = Resolution::not_executed("paid", attempt);
    let said = engine.resolve(&scope(), &key("k"), word).await;
    assert!(matches!(said, Err(ResolveError::NotThatPhase)), "it is not recorded: {said:?}");
}

async fn g2_an_undecodable_row_at_its_cap_keeps_the_record_of_its_class<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    called_once(&db, &app).await;
    let undecoding = Engine::builder(db.clone()).app(app.clone()).register::<OnceInText>();
    let undecoding = undecoding.max_attempts(1).build().unwrap();
    complete(&db, &undecoding).await;
    let fixed = running::<S, Once>(&db, &app);
    let status = fixed.status(&scope(), &key("k")).await.unwrap().unwrap();
    println!("{:?} {:?} {:?}", status.status, status.unknown_phase, status.reason);
    assert_eq!(status.status, Status::DeadLetter);
    println!("check: {:?}", fixed.check().await.unwrap().stranded);
    let said = fixed.resolve(&scope(), &key("k"), Resolution::retry()).await;
    println!("retry: {said:?}");
    let told = fixed.call(&scope(), &key("k"), Once { amount: 1 }).await;
    assert_eq!(app.provider.effects(), 1, "G2: called a second time; {told:?}");
}

async fn g14_an_unknown_outcome_behind_an_inserted_phase_is_counted_as_stranded<S: TestDb>(db: S) {
    if is_memory::<S>() {
        return;
    }
    let app = App::default();
    let old = running::<S, Windowed>(&db, &app);
    failed(old.call(&scope(), &key("k"), Windowed { amount: 1 }).await);
    let a_day_ago = match is_postgres::<S>() {
        true => "(SELECT clock_timestamp() - interval '25 hours')",
        false => "advanced_at - 25 * 3600 * 1000",
    };
    db.sql(&format!("UPDATE atomic_phases_keys SET advanced_at = {a_day_ago}")).await;
    db.let_time_pass().await;
    let told = old.call(&scope(), &key("k"), Windowed { amount: 1 }).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    let new = running::<S, Inserted>(&db, &app);
    let report = new.check().await.unwrap();
    println!("check: stranded {:?}, waiting {:?}", report.stranded, report.waiting);
    let attempt = new.status(&scope(), &key("k")).await.unwrap().unwrap().attempt;
    let words = [
        Resolution::executed("paid", &Paid("effect-1".into())).unwrap(),
        Resolution::not_executed("paid", attempt),
        Resolution::retry(),
    ];
    let mut told = Vec::new();
    for word in words {
        told.push(new.resolve(&scope(), &key("k"), word).await);
    }
    println!("told: {told:?}");
    assert!(
        !report.found_nothing_stranded() || told.iter().any(Result::is_ok),
        "clean, and: {told:?}"
    );
}

/// The call was made under a class without an intent, so the new build assumes that it may have been made. Once an
/// operator has reported *not executed*, the call is made, and no reconcile function is called for it.
async fn g2_not_executed_is_remembered_of_a_dead_letter_whose_class_changed<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let old = Engine::builder(db.clone()).app(app.clone()).register::<Old>();
    let old = old.max_attempts(1).build().unwrap();
    let told = old.call(&scope(), &key("k"), Old { amount: 1 }).await;
    assert!(matches!(told, Ok(Outcome::DeadLetter)), "{told:?}");
    let new = running::<S, Once>(&db, &app);
    let word = || Resolution::not_executed("paid", 1);
    assert_eq!(new.resolve(&scope(), &key("k"), word()).await.unwrap(), Resolved::Applied);
    assert_eq!(new.resolve(&scope(), &key("k"), word()).await.unwrap(), Resolved::Already);
    complete(&db, &new).await;
    let status = new.status(&scope(), &key("k")).await.unwrap().unwrap();
    assert_eq!((status.status, app.provider.effects()), (Status::Completed, 2), "{status:?}");

    // The report covered the earlier calls, and not a later one.
    let told = old.call(&scope(), &key("l"), Old { amount: 1 }).await;
    assert!(matches!(told, Ok(Outcome::DeadLetter)), "{told:?}");
    let settled = old.resolve(&scope(), &key("l"), word()).await;
    assert_eq!(settled.unwrap(), Resolved::Applied);
    db.sql("UPDATE atomic_phases_keys SET attempts = 2 WHERE idempotency_key = 'l'").await;
    complete(&db, &new).await;
    let status = new.status(&scope(), &key("l")).await.unwrap().unwrap();
    assert_eq!((status.status, app.provider.effects()), (Status::Unknown, 3), "{status:?}");
}

/// Nothing is known of the call, and nothing waits to be: the next attempt makes its outcome unknown, and then it is said.
async fn g2_not_executed_is_not_told_as_known_of_a_call_that_was_made_under_another_class<
    S: TestDb,
>(
    db: S,
) {
    let app = App::default();
    called_once(&db, &app).await;
    let new = running::<S, Once>(&db, &app);
    let word = || Resolution::not_executed("paid", 1);
    let said = new.resolve(&scope(), &key("k"), word()).await;
    assert!(matches!(said, Err(ResolveError::NotThatPhase)), "it is not recorded: {said:?}");
    let told = new.call(&scope(), &key("k"), Once { amount: 1 }).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    assert_eq!(new.resolve(&scope(), &key("k"), word()).await.unwrap(), Resolved::Applied);
}

/// A webhook is delivered again behind a deploy that has renamed the phase; and another says the opposite.
async fn g2_what_was_said_of_a_call_is_known_by_each_name_of_its_phase<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let old = running::<S, Once>(&db, &app);
    let told = old.call(&scope(), &key("k"), Once { amount: 1 }).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    let denied = || Resolution::not_executed("paid", 1);
    assert_eq!(old.resolve(&scope(), &key("k"), denied()).await.unwrap(), Resolved::Applied);
    let new = running::<S, OnceRenamed>(&db, &app);
    assert_eq!(new.resolve(&scope(), &key("k"), denied()).await.unwrap(), Resolved::Already);
    let executed = Resolution::executed("paid", &Paid("effect-1".into())).unwrap();
    let said = new.resolve(&scope(), &key("k"), executed).await;
    assert!(matches!(said, Err(ResolveError::Conflict(_))), "it was not executed: {said:?}");
}
