//! The requests of the tests: `Book` (local, foreign, local) and `Notify` (an at-most-once call).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atomic_phases::engine::{CallError, EngineBuilder, FailureCause, Finished};
use atomic_phases::fingerprint::Unfingerprinted;
use atomic_phases::phase::{DerivedKey, Flow, ForeignError, Reconciled};
use atomic_phases::{
    Batch, Engine, ForeignCall, IdempotencyKey, Outcome, PhaseError, PhaseResult, Reply,
    RequestContext, Scope, Tx, atomic_phases, phase, reconcile,
};
use serde::{Deserialize, Serialize};

use super::{Provider, TestDb, panics_twice};

/// Shared state of the requests under test.
#[derive(Clone, Default)]
pub struct App {
    pub provider: Provider,
    /// How often each phase body began.
    pub bodies: Arc<[AtomicU32; 3]>,
}

impl App {
    pub fn new(provider: Provider) -> Self {
        Self { provider, ..Self::default() }
    }

    pub fn bodies(&self) -> [u32; 3] {
        [0, 1, 2].map(|index| self.bodies[index].load(Ordering::SeqCst))
    }

    /// Resets the counts, so that a one-time fault occurs once more.
    pub fn forget_bodies(&self) {
        self.bodies.iter().for_each(|body| body.store(0, Ordering::SeqCst));
    }

    fn begin(&self, phase: usize) -> u32 {
        self.bodies[phase].fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// The fault, and how often it occurs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    #[default]
    None,
    RejectFirst,
    PanicFirst,
    RetryFirst,
    RetryForeignOnce,
    RetryForeignAlways,
    PanicForeignOnce,
    RejectForeign,
    UnknownForeign,
    NotExecutedOnce,
    RejectLast,
    RetryLastOnce,
    PanicLastOnce,
    FinishEarly,
    SwallowError,
    RawCommit,
    RawRollback,
    NestedFailure,
    /// The phase hangs once its call has answered.
    HangAfterCall,
    HugeReply,
    HugeOutput,
    BadStatus,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Book {
    pub amount: i64,
    #[serde(default)]
    pub trouble: Unfingerprinted<Trouble>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Ride {
    pub id: String,
    pub seen: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Charge {
    pub id: String,
    pub padding: String,
}

pub fn book(amount: i64) -> Book {
    Book { amount, trouble: Trouble::None.into() }
}

pub fn troubled(trouble: Trouble) -> Book {
    Book { amount: 20, trouble: trouble.into() }
}

#[atomic_phases(name = "book", version = 1)]
impl<Db: TestDb> Book {
    #[phase]
    async fn booked(
        &self,
        tx: &mut Tx<'_, Db>,
        ctx: &RequestContext,
        app: &App,
    ) -> PhaseResult<Flow<Ride>> {
        app.begin(0);
        let id = ctx.uuid(0).to_string();
        Db::insert_ride(tx, &id, self.amount).await?;
        match *self.trouble {
            Trouble::RejectFirst => return Err(PhaseError::reject(Reply::text(402, "no credit"))),
            Trouble::PanicFirst => panic!("as asked for, canary-in-panic"),
            Trouble::RetryFirst => return Err(PhaseError::retryable("asked for")),
            Trouble::FinishEarly => return Ok(Flow::Finish(Reply::text(200, "enough"))),
            Trouble::HugeOutput => {
                return Ok(Flow::Continue(Ride { id, seen: "x".repeat(3 << 20) }));
            }
            _ => {}
        }
        Ok(Flow::Continue(Ride { id, seen: ctx.created_at().to_rfc3339() }))
    }

    #[phase(foreign(idempotent, window = "24h"))]
    async fn charged(
        &self,
        call: ForeignCall,
        app: &App,
        ride: &Ride,
        ctx: &RequestContext,
    ) -> PhaseResult<Charge, ForeignError> {
        let time = app.begin(1);
        // The provider receives everything that must be the same in every attempt (G5).
        let what = format!("{} {} {} {}", self.amount, ride.id, ride.seen, ctx.uuid(7));
        let id = call
            .make(async |key| Ok::<_, ForeignError>(app.provider.call(key.as_str(), &what).await))
            .await?;
        match *self.trouble {
            Trouble::RetryForeignOnce if time == 1 => {
                return Err(ForeignError::retryable("asked for"));
            }
            Trouble::RetryForeignAlways => return Err(ForeignError::retryable("asked for")),
            Trouble::PanicForeignOnce if time == 1 => panics_twice(),
            Trouble::RejectForeign => {
                return Err(ForeignError::reject(Reply::text(402, "declined")));
            }
            Trouble::UnknownForeign => return Err(ForeignError::unknown("asked for")),
            _ => {}
        }
        Ok(Charge { id, padding: String::new() })
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Db>,
        ctx: &RequestContext,
        app: &App,
        ride: &Ride,
        charge: &Charge,
    ) -> PhaseResult<Reply> {
        let time = app.begin(2);
        Db::insert_step(tx, &ctx.uuid(0).to_string(), "answered").await?;
        tx.stage_job("receipt", &charge.id)?;
        tx.stage_job("thanks", &ride.id)?;
        match *self.trouble {
            Trouble::RejectLast => return Err(PhaseError::reject(Reply::text(409, "sold out"))),
            Trouble::RetryLastOnce if time == 1 => return Err(PhaseError::retryable("asked for")),
            Trouble::PanicLastOnce if time == 1 => panics_twice(),
            Trouble::SwallowError => {
                let _ = Db::insert_unique(tx, "twice").await;
                let _ = Db::insert_unique(tx, "twice").await;
            }
            Trouble::RawCommit => {
                let _ = diesel_async::SimpleAsyncConnection::batch_execute(tx, "COMMIT").await;
            }
            Trouble::RawRollback => {
                let _ = diesel_async::SimpleAsyncConnection::batch_execute(tx, "ROLLBACK").await;
            }
            Trouble::NestedFailure => {
                Db::insert_unique(tx, "twice").await?;
                assert!(Db::insert_unique_nested(tx, "twice").await.is_err());
            }
            Trouble::HugeReply => return Ok(Reply::text(200, "x".repeat(3 << 20))),
            Trouble::BadStatus => return Ok(Reply::text(99, "")),
            _ => {}
        }
        let reply = serde_json::json!({ "ride": ride.id, "charge": charge.id });
        Ok(Reply::json(201, &reply)?.header("location", format!("/rides/{}", ride.id)))
    }
}

/// A request whose call the provider does not recognize when it is repeated.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Notify {
    pub who: String,
    #[serde(default)]
    pub trouble: Unfingerprinted<Trouble>,
}

pub fn notify(trouble: Trouble) -> Notify {
    Notify { who: "pilot".into(), trouble: trouble.into() }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Noted(pub String);

#[atomic_phases(name = "notify", version = 1)]
impl<Db: TestDb> Notify {
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Noted> {
        Db::insert_step(tx, &ctx.uuid(0).to_string(), "noted").await?;
        Ok(Noted(self.who.clone()))
    }

    #[phase(foreign(at_most_once))]
    async fn notified(
        &self,
        call: ForeignCall,
        app: &App,
        noted: &Noted,
    ) -> PhaseResult<Charge, ForeignError> {
        let time = app.begin(1);
        if *self.trouble == Trouble::RetryFirst && time == 1 {
            return Err(ForeignError::retryable("before the call"));
        }
        let id = call
            .make(async |key| {
                Ok::<_, ForeignError>(app.provider.call(key.as_str(), &noted.0).await)
            })
            .await?;
        match *self.trouble {
            Trouble::RetryForeignOnce if time == 1 => Err(ForeignError::retryable("timed out")),
            Trouble::NotExecutedOnce if time == 1 => Err(ForeignError::not_executed("refused")),
            Trouble::PanicForeignOnce if time == 1 => panics_twice(),
            Trouble::HangAfterCall if time == 1 => std::future::pending().await,
            Trouble::UnknownForeign => Err(ForeignError::unknown("asked for")),
            Trouble::RejectForeign => Err(ForeignError::reject(Reply::text(404, "no such pilot"))),
            Trouble::BadStatus => Err(ForeignError::reject(Reply::text(99, ""))),
            Trouble::HugeOutput => Ok(Charge { id, padding: "x".repeat(3 << 20) }),
            _ => Ok(Charge { id, padding: String::new() }),
        }
    }

    #[reconcile(notified)]
    async fn find_notification(
        &self,
        key: &DerivedKey,
        app: &App,
    ) -> PhaseResult<Reconciled<Charge>> {
        Ok(match app.provider.search(key.as_str()) {
            None => Reconciled::StillUnknown,
            Some(None) => Reconciled::NotExecuted,
            Some(Some(id)) => Reconciled::Executed(Charge { id, padding: String::new() }),
        })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, charge: &Charge) -> PhaseResult<Reply> {
        Db::insert_step(tx, &charge.id, "answered").await?;
        Ok(Reply::text(200, format!("notified {}", charge.id)))
    }
}

/// A request whose local phases use a `Batch`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Parcel {
    pub weight: i64,
    #[serde(default)]
    pub trouble: Unfingerprinted<Trouble>,
    pub form: Form,
}

/// How the statements of a batch are sent to PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    OneByOne,
    SingleStatement,
}

impl Form {
    pub fn parcel(self, trouble: Trouble) -> Parcel {
        Parcel { weight: 3, trouble: trouble.into(), form: self }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Packed {
    pub id: String,
    pub at: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Weighed;

#[atomic_phases(name = "parcel", version = 1)]
impl<Db: TestDb> Parcel {
    #[phase]
    async fn packed(
        &self,
        batch: &mut Batch<'_, Db>,
        ctx: &RequestContext,
        app: &App,
    ) -> PhaseResult<Flow<Packed>> {
        app.begin(0);
        let id = ctx.uuid(0).to_string();
        Db::add_ride(batch, &id, self.weight);
        match self.form {
            Form::OneByOne => Db::add_step(batch, &id, "packed"),
            Form::SingleStatement => Db::add_independent_step(batch, &id, "packed"),
        }
        batch.stage_job("label", &id)?;
        match *self.trouble {
            Trouble::RejectFirst => return Err(PhaseError::reject(Reply::text(402, "no credit"))),
            Trouble::PanicFirst => panics_twice(),
            Trouble::RetryFirst => return Err(PhaseError::retryable("asked for")),
            Trouble::FinishEarly => return Ok(Flow::Finish(Reply::text(200, "enough"))),
            Trouble::SwallowError => Db::add_unique(batch, "taken"),
            _ => {}
        }
        Ok(Flow::Continue(Packed { id, at: ctx.created_at().to_rfc3339() }))
    }

    #[phase(foreign(idempotent))]
    async fn sent(
        &self,
        call: ForeignCall,
        app: &App,
        packed: &Packed,
        ctx: &RequestContext,
    ) -> PhaseResult<Charge, ForeignError> {
        app.begin(1);
        let what = format!("{} {} {}", packed.id, packed.at, ctx.created_at().to_rfc3339());
        let id = call
            .make(async |key| Ok::<_, ForeignError>(app.provider.call(key.as_str(), &what).await))
            .await?;
        Ok(Charge { id, padding: String::new() })
    }

    #[phase(isolation = "serializable")]
    async fn weighed(
        &self,
        batch: &mut Batch<'_, Db>,
        app: &App,
        packed: &Packed,
    ) -> PhaseResult<Weighed> {
        let time = app.begin(2);
        for plus in 0..40 {
            Db::add_to_ride(batch, &packed.id, if plus % 2 == 0 { 3 } else { 1 }, plus);
        }
        match *self.trouble {
            Trouble::RejectLast => return Err(PhaseError::reject(Reply::text(409, "too heavy"))),
            Trouble::RetryLastOnce if time == 1 => return Err(PhaseError::retryable("asked for")),
            Trouble::PanicLastOnce if time == 1 => panics_twice(),
            Trouble::NestedFailure => Db::add_unique(batch, "taken"),
            _ => {}
        }
        Ok(Weighed)
    }

    #[phase]
    async fn delivered(
        &self,
        batch: &mut Batch<'_, Db>,
        packed: &Packed,
        charge: &Charge,
    ) -> PhaseResult<Reply> {
        Db::add_step(batch, &packed.id, "delivered");
        if self.form == Form::OneByOne {
            Db::add_to_ride(batch, &packed.id, 1, 0);
        }
        batch.stage_job("thanks", &packed.id)?;
        Ok(Reply::json(201, &serde_json::json!({ "parcel": packed.id, "charge": charge.id }))?)
    }
}

pub type TestEngine<S> = Engine<S, App>;

pub fn engine_with<S: TestDb>(
    db: &S,
    app: &App,
    set: impl FnOnce(EngineBuilder<S, App>) -> EngineBuilder<S, App>,
) -> TestEngine<S> {
    let builder = Engine::builder(db.clone()).app(app.clone());
    let builder = builder.register::<Book>().register::<Notify>().register::<Parcel>();
    set(builder).build().unwrap()
}

/// An engine with a long lease: tests end it by SQL.
pub fn engine<S: TestDb>(db: &S, app: &App) -> TestEngine<S> {
    engine_with(db, app, |builder| builder.lease(Duration::from_secs(60)))
}

pub fn scope() -> Scope {
    Scope::new("tenant-1").unwrap()
}

pub fn key(name: &str) -> IdempotencyKey {
    IdempotencyKey::new(name).unwrap()
}

/// The reply of an outcome that must be a finished one.
#[track_caller]
pub fn finished(outcome: Result<Outcome, CallError>) -> Finished {
    match outcome {
        Ok(Outcome::Finished(finished)) => finished,
        other => panic!("not finished: {other:?}"),
    }
}

#[track_caller]
pub fn failed(outcome: Result<Outcome, CallError>) -> FailureCause {
    match outcome {
        Ok(Outcome::Failed { cause, .. }) => cause,
        other => panic!("not failed: {other:?}"),
    }
}
