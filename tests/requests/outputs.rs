//! Outputs that cannot be read back from their stored form: each is refused before its commit, with the reason.

use crate::support::*;
use atomic_phases::engine::{CallError, FailureCause, Resolution, ResolveError};
use atomic_phases::fingerprint::Unfingerprinted;
use atomic_phases::phase::{DerivedKey, Flow, Reconciled};
use atomic_phases::worker::{Completer, Reconciler, WorkerConfig};
use atomic_phases::{
    Batch, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, Tx, atomic_phases,
};

on_every_store! {
    g5_an_output_that_does_not_come_back_is_refused_before_the_commit,
    g5_a_context_that_does_not_come_back_is_refused,
    g17_an_output_that_never_comes_back_is_a_dead_letter_with_its_reason,
    g2_after_a_call_an_output_that_does_not_come_back_is_unknown_until_it_is_told,
}

/// An output that JSON cannot represent, of a local or a foreign phase.
#[derive(serde::Serialize, serde::Deserialize)]
struct Quote {
    bad: Unfingerprinted<Option<Bad>>,
}

#[derive(Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
enum Bad {
    Local,
    Foreign,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Quoted {
    lines: Vec<Line>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Line {
    rate: f64,
}

fn quoted(is_bad: bool) -> Quoted {
    let rate = if is_bad { f64::NAN } else { 1.5 };
    Quoted { lines: vec![Line { rate: 1.0 }, Line { rate }] }
}

#[atomic_phases(name = "quote", version = 1)]
impl<Db: TestDb> Quote {
    #[phase(commit)]
    async fn began(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<()> {
        Db::insert_step(tx, "quote", "began").await?;
        Ok(())
    }

    #[phase]
    async fn counted(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Flow<Option<Line>>> {
        Db::insert_step(tx, "quote", "counted").await?;
        let rate = if *self.bad == Some(Bad::Local) { f64::INFINITY } else { 0.5 };
        Ok(Flow::Continue(Some(Line { rate })))
    }

    #[phase(foreign(at_most_once))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Quoted> {
        let ask = async |key: DerivedKey| {
            Ok::<_, PhaseError>(app.provider.call(key.as_str(), "quote").await)
        };
        call.make(ask).await?;
        Ok(quoted(*self.bad == Some(Bad::Foreign)))
    }

    #[reconcile(asked)]
    async fn find(&self) -> PhaseResult<Reconciled<Quoted>> {
        Ok(Reconciled::Executed(quoted(*self.bad == Some(Bad::Foreign))))
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>, quoted: &Quoted) -> PhaseResult<Reply> {
        Db::add_step(batch, "quote", "answered");
        Ok(Reply::text(200, quoted.lines[1].rate.to_string()))
    }
}

fn quotes<S: TestDb>(db: &S, app: &App) -> TestEngine<S> {
    engine_with(db, app, |builder| builder.register::<Quote>())
}

async fn g5_an_output_that_does_not_come_back_is_refused_before_the_commit<S: TestDb>(db: S) {
    let app = App::default();
    let engine = quotes(&db, &app);
    let quote = |bad| Quote { bad: Unfingerprinted(bad) };
    let told = engine.call(&scope(), &key("k"), quote(Some(Bad::Local))).await;
    let cause = failed(told);
    let FailureCause::Phase { phase: "counted", reason } = cause else { panic!("{cause:?}") };
    assert!(
        reason.starts_with("`rate` of the output is a float that is NaN or infinite"),
        "{reason}"
    );
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1, "its writes went with it");
    assert_eq!(app.provider.effects(), 0);
}

/// What JSON writes as `null` would be another context in the phases.
async fn g5_a_context_that_does_not_come_back_is_refused<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    for rate in [f64::NAN, f64::INFINITY] {
        let call = engine.call(&scope(), &key("k"), book(20)).context(&[Some(rate)]);
        let refused = call.await;
        assert!(matches!(refused, Err(CallError::NotStorable { what: "context" })), "{refused:?}");
    }
    assert_eq!(db.number("SELECT count(*) FROM atomic_phases_keys").await, 0);
    let call = engine.call(&scope(), &key("k"), book(20)).context(&[Some(1.5), None]);
    finished(call.await);
}

/// A request whose foreign phase never returns a storable output.
#[derive(serde::Serialize, serde::Deserialize)]
struct Appraise {}

#[atomic_phases(name = "appraise", version = 1)]
impl<Db: TestDb> Appraise {
    #[phase(foreign(idempotent))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Quoted> {
        let ask = async |key: DerivedKey| {
            Ok::<_, PhaseError>(app.provider.call(key.as_str(), "appraise").await)
        };
        call.make(ask).await?;
        Ok(quoted(true))
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>, quoted: &Quoted) -> PhaseResult<Reply> {
        Db::add_step(batch, "appraise", "answered");
        Ok(Reply::text(200, quoted.lines[1].rate.to_string()))
    }
}

async fn g17_an_output_that_never_comes_back_is_a_dead_letter_with_its_reason<S: TestDb>(db: S) {
    const ATTEMPTS: u32 = 3;
    let app = App::default();
    let engine =
        engine_with(&db, &app, |builder| builder.register::<Appraise>().max_attempts(ATTEMPTS));
    for _ in 1..ATTEMPTS {
        failed(engine.call(&scope(), &key("k"), Appraise {}).await);
        db.let_time_pass().await;
    }
    let last = engine.call(&scope(), &key("k"), Appraise {}).await;
    assert!(matches!(last, Ok(Outcome::DeadLetter)), "{last:?}");
    // The request does not continue from there.
    db.let_time_pass().await;
    Completer::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    let again = engine.call(&scope(), &key("k"), Appraise {}).await;
    assert!(matches!(again, Ok(Outcome::DeadLetter)), "{again:?}");
    assert_eq!((app.provider.calls().len(), app.provider.effects()), (ATTEMPTS as usize, 1));
    let reason = engine.status(&scope(), &key("k")).await.unwrap().unwrap().reason.unwrap();
    assert!(reason.contains("`lines[].rate` of the output is a float that is NaN"), "{reason}");
}

async fn g2_after_a_call_an_output_that_does_not_come_back_is_unknown_until_it_is_told<
    S: TestDb,
>(
    db: S,
) {
    let app = App::default();
    let engine = quotes(&db, &app);
    let bad = || Quote { bad: Unfingerprinted(Some(Bad::Foreign)) };
    let told = engine.call(&scope(), &key("k"), bad()).await;
    assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    // The reconcile function returns the same output, which does not settle the outcome either.
    db.let_time_pass().await;
    Reconciler::new(&engine, WorkerConfig::default()).run_once().await.unwrap();
    assert_eq!(db.text("SELECT status FROM atomic_phases_keys").await, "unknown");
    let word = |is_bad| Resolution::executed("asked", &quoted(is_bad));
    let refused = word(true).unwrap_err();
    assert!(matches!(refused, ResolveError::NotStorable), "{refused:?}");
    let _ = engine.resolve(&scope(), &key("k"), word(false).unwrap()).await.unwrap();
    let done = finished(engine.call(&scope(), &key("k"), bad()).await);
    assert_eq!(done.reply.bytes(), b"1.5");
    assert_eq!(app.provider.calls().len(), 1);
}
