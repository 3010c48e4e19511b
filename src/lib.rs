//! API requests that survive a crash between a charge, a booking and an email.
//!
//! A request that touches a foreign system cannot be one transaction. Instead, it is declared as an
//! ordered list of **atomic phases**:
//!
//! * a *local* phase commits its business writes, its output and the next **recovery point** in one
//!   database transaction, which is your own diesel transaction ([`Tx`]); or, if it does not read from
//!   the database, it adds its statements to a [`Batch`], which the engine sends in one round trip;
//! * a *foreign* phase makes at most one foreign side effect ([`ForeignCall`]), with no transaction
//!   open, and then commits its result and the next recovery point.
//!
//! The row of the client's **idempotency key** records how far the request got. The holder of the
//! row's **lease** runs the request; a retry resumes after the last committed phase; a finished key
//! replays its stored reply, byte for byte.
//!
//! In this reference, (G13) is a promise of [the README's table](https://github.com/atomic-phases/atomic-phases#what-is-promised),
//! and (H11) a fact about a database or driver, of which
//! [design](https://github.com/atomic-phases/atomic-phases/blob/main/docs/design.md#facts-about-databases-and-drivers) has the list.
//!
//! ```
//! # #[cfg(feature = "sqlite")] mod doc {
//! use atomic_phases::phase::DerivedKey;
//! use atomic_phases::store::Sqlite;
//! use atomic_phases::{
//!     Batch, Engine, ForeignCall, IdempotencyKey, Outcome, PhaseError, PhaseResult, Reply,
//!     RequestContext, Scope, Store, Tx, atomic_phases,
//! };
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct CreateOrder { cents: u32 }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order { id: String }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Charge { id: String }
//!
//! # struct Bank; impl Bank { async fn charge(&self, key: DerivedKey, cents: u32) -> Result<Charge, PhaseError> {
//! #     Ok(Charge { id: format!("{cents} by {}", key.as_str().len()) }) } }
//! struct App { bank: Bank }
//!
//! #[atomic_phases(name = "orders.create", version = 1)]
//! impl CreateOrder {
//!     #[phase]
//!     async fn order_created(&self, tx: &mut Tx<'_, Sqlite>, ctx: &RequestContext) -> PhaseResult<Order> {
//!         // diesel::insert_into(orders::table).values(..).execute(tx).await?;
//! #       let _ = tx;
//!         Ok(Order { id: ctx.uuid(0).to_string() })
//!     }
//!
//!     #[phase(foreign(idempotent, window = "24h"))]
//!     async fn charge_created(&self, call: ForeignCall, app: &App) -> PhaseResult<Charge> {
//!         call.make(|key| app.bank.charge(key, self.cents)).await
//!     }
//!
//!     #[phase]
//!     async fn receipt_staged(&self, batch: &mut Batch<'_, Sqlite>, order: &Order, charge: &Charge) -> PhaseResult<Reply> {
//!         // batch.add(diesel::insert_into(receipts::table).values(..));
//!         batch.stage_job("send_receipt", &charge.id)?;
//!         Ok(Reply::json(201, order)?)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # pub async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Sqlite::connect(":memory:").await?;
//! store.migrate().await?;
//! let engine = Engine::builder(store).app(App { bank: Bank }).register::<CreateOrder>().build()?;
//!
//! let scope = Scope::new("tenant-1")?;
//! let key = IdempotencyKey::new("8e03978e-40d5-43dd-bc93-6894a57f9324")?;
//! let first = engine.call(&scope, &key, CreateOrder { cents: 2000 }).await?;
//! let retry = engine.call(&scope, &key, CreateOrder { cents: 2000 }).await?;
//! let (Outcome::Finished(first), Outcome::Finished(retry)) = (first, retry) else { panic!() };
//! assert_eq!(first.reply, retry.reply);
//! assert!(retry.replayed && !first.replayed);
//!
//! let other = engine.call(&scope, &key, CreateOrder { cents: 9 }).await?;
//! assert!(matches!(other, Outcome::Mismatch));
//! # Ok(()) }
//! # } #[cfg(feature = "sqlite")] fn main() { doc::main().unwrap() }
//! # #[cfg(not(feature = "sqlite"))] fn main() {}
//! ```
//!
//! # How a phase can end
//!
//! | a phase returns | its writes | the request |
//! |---|---|---|
//! | `Ok(output)` | committed | continues |
//! | `Ok(Flow::Finish(reply))` | committed | is finished with this reply |
//! | [`PhaseError::reject`] | rolled back | is finished with this reply |
//! | [`PhaseError::retryable`], a panic | rolled back | is released; a retry runs the phase again |
//! | a diesel error (`?`), or an error of a [`Batch`]'s statement | rolled back | runs the phase again a few times if that may help, then is released |
//! | [`ForeignError::not_executed`] | | is released: the call certainly had no effect |
//! | [`ForeignError::unknown`] | | is [`Outcome::Unknown`]: the call is not repeated |
//!
//! In an `at_most_once` phase, every call whose outcome is uncertain is *unknown*.
//!
//! # Effect classes
//!
//! A foreign phase declares how its provider handles a repeated call. `idempotent`: the provider honors an
//! idempotency key, and the engine hands out a [`DerivedKey`] that is the same in each attempt. With
//! `window = "24h"`, the provider forgets keys after that time; past it, the request is *unknown*
//! rather than charged twice. `at_most_once`: the provider honors no keys. The engine commits the intent before
//! the call; if it finds an open intent after a crash, the request is *unknown*.
//!
//! # What the compiler does not see
//!
//! A field that serde skips, a set, a clock in a request's constructor, an effect made without the
//! framework: [the macro's page](macro@atomic_phases#what-the-compiler-does-not-see) lists what compiles but goes
//! wrong, with the remedy. [`assert_sound`] finds most of these in a test of the request type.
//!
//! # Time
//!
//! Leases, back-offs and expiry use the database's clock. The application's clock is never compared
//! with a stored time. Safety rests on neither clock: each write is guarded by the lease's fencing
//! token and the recovery point.
//!
//! # What is logged
//!
//! Spans and events of `tracing` name definitions, phases, statuses and short hashes of scope and
//! key; never a key, a parameter, an output, a reply or a database's message, at any level. The
//! PostgreSQL driver does log values: `tokio_postgres` logs the parameters of every statement at
//! `debug`, through the `log` crate. Keep that target at `info`. The driver for MySQL and MariaDB logs nothing,
//! unless another crate of the application turns on the feature `tracing` of `mysql_async`. Then it emits
//! statements and their values at `debug`, and the server's messages, which may contain values, at `warn` and
//! `error`: turn its target off.
//!
//! Spans are at `debug`. An engine with [`traces`] emits them at `info`, for OpenTelemetry for example, and links
//! the spans of a request's attempts across processes.
//!
//! Each line about a request, from `info` on, names its definition, its request id and the hashes of its
//! scope and key. A row that this process leaves alone is logged once, a failing store once a second.
//!
//! # Over HTTP
//!
//! With the feature `axum`, a route takes keys in three lines: `Idempotency::new(engine, scope_of)` as
//! the router's state, `keyed: Keyed<Db>` and `Params(order): Params<CreateOrder>` as the handler's
//! arguments, `keyed.answer(order).await` as its body. Replays, duplicates, mismatches and failures
//! are then answered as the IETF draft specifies, or as the Stripe API does. `Idempotency` documents
//! all of this, also for servers other than axum.
//!
//! # Requests finish without a client
//!
//! [`Engine::spawn_workers`] runs, on any number of nodes, a [`Completer`] that runs accepted requests
//! ([`Call::accept`]) and resumes abandoned ones, a [`Reconciler`] that calls the `#[reconcile]`
//! functions for unknown outcomes, an [`Enqueuer`] that delivers staged jobs to a [`JobSink`], a
//! [`Reaper`] that deletes finished keys past their expiry, a runner of operators'
//! [bulk acts](ops::Ops::start_bulk), and an [`Announcer`](worker::Announcer) that registers the process for
//! operators. Work of one scope that hangs delays no other scope:
//! see [`Completer`](worker::Completer#fairness). [`Engine::status`] reports the state of a request;
//! [`Engine::resolve`] records a resolution from a webhook or an operator. [`Ops::dead_jobs`](ops::Ops::dead_jobs) lists
//! the staged jobs that gave up, and [`Ops::late_jobs`](ops::Ops::late_jobs) those that no node delivers.
//!
//! # Metrics
//!
//! The cargo feature `metrics` exports, through the facade of that name: outcomes of calls, phases and foreign
//! calls, resumes, unknown outcomes, dead letters, jobs. Labels are names from the code, never keys. The
//! chapter [Metrics](https://github.com/atomic-phases/atomic-phases/blob/main/docs/metrics.md) has the table.
//!
//! # Where things are
//!
//! The root has the names that every program uses, whichever its database; [`prelude`] has those that a file with
//! phases imports. The rest is in modules: [`store`] (the databases), [`phase`](mod@phase) (what a phase is given and
//! returns), [`engine`] (configuration, outcomes, resolutions), [`worker`], [`ops`] (what operators see and do),
//! [`compat`] (whether a change may be deployed), `http` and [`client`], `console`, [`codec`], [`config`],
//! [`definition`], [`request`] (and [`assert_sound`]), [`fingerprint`](mod@fingerprint), [`key`], [`replay_cache`],
//! [`traces`], and for tests `fault` and `simulation`.
//!
//! # Cargo features
//!
//! * `postgres` (default): [`Postgres`](store::Postgres), with deadpool. `bb8`: that pool as well.
//! * `sqlite` (default): [`Sqlite`](store::Sqlite), bundled.
//! * `mysql`: `Mysql`, for MySQL and MariaDB. `mysql-tls`: with TLS, through rustls.
//! * `encryption`: `EncryptingCodec`, which encrypts user data at rest.
//! * `redis`: a sink that delivers staged jobs to Redis Streams, and a [cache in front of replays](replay_cache).
//! * `metrics`: see above. `metrics-seed-names`: the same under the names of the literature as well.
//! * `http`: the HTTP boundary (`Idempotency`) on plain `http` types. `axum`: its extractors too.
//! * `console`: the operators' web console, for axum.
//! * `ops-api`: `console::Api`, what operators see and do as JSON over HTTP.
//! * `reqwest`: `client::Caller`, which sends a request with its key until it has an answer. The
//!   rest of [`client`], which decides when to retry, is always available.
//! * `simulation`: an in-memory store with simulated time and randomness, for tests.
//! * `fault-injection`: the module `fault`, with which your tests crash your requests at every point. A
//!   release build refuses it without `fault-injection-in-release`.
//!
//! # diesel
//!
//! Phases use diesel 2.3 (from 2.3.14) and diesel-async 0.9 (from 0.9.2), whose traits [`Tx`] and [`Batch`] implement. Both are
//! re-exported:
//!
//! ```
//! use atomic_phases::diesel_async::{RunQueryDsl, SimpleAsyncConnection};
//! ```
//!
//! So an application needs no dependency on diesel-async. It needs one on diesel as soon as it has a `table!`: the macro
//! expands to paths of a crate `diesel`, which no re-export provides. Cargo then selects one version for both, or a statement
//! of the other version does not compile.
//!
//! [`assert_sound`]: request::assert_sound
//! [`Call::accept`]: engine::Call::accept
//! [`Completer`]: worker::Completer
//! [`DerivedKey`]: phase::DerivedKey
//! [`Enqueuer`]: worker::Enqueuer
//! [`ForeignError::not_executed`]: phase::ForeignError::not_executed
//! [`ForeignError::unknown`]: phase::ForeignError::unknown
//! [`JobSink`]: worker::JobSink
//! [`Reaper`]: worker::Reaper
//! [`Reconciler`]: worker::Reconciler

// A request must not panic. (Tests may, so this is not a workspace lint.)
#![warn(missing_debug_implementations, unreachable_pub)]
// Only where documentation is built with an unstable compiler, as docs.rs does.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![cfg_attr(not(all(feature = "postgres", feature = "sqlite")), allow(dead_code))]

extern crate self as atomic_phases;

#[macro_use]
#[cfg_attr(not(feature = "fault-injection"), doc(hidden))]
pub mod fault;
#[macro_use]
mod task;

mod caller;
mod chance;
pub mod client;
pub mod codec;
pub mod compat;
pub mod config;
#[cfg(any(feature = "console", feature = "ops-api"))]
pub mod console;
pub mod definition;
mod derived_key;
pub mod engine;
mod error;
pub mod fingerprint;
#[cfg(feature = "http")]
pub mod http;
mod job;
pub mod key;
mod latch;
mod lock;
mod moment;
mod movable_task;
mod number;
mod observe;
pub mod ops;
mod panics;
pub mod phase;
pub mod prelude;
mod probe;
#[cfg(feature = "redis")]
mod redis_connection;
mod repeats;
pub mod replay_cache;
pub mod request;
mod roundtrip;
mod setting;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod store;
pub mod traces;
pub mod worker;

/// Declares a request as an ordered list of phases:
///
/// ```
/// use atomic_phases::prelude::*;
/// # use atomic_phases::store::Sqlite as Db;
/// # use atomic_phases::diesel_async::RunQueryDsl;
/// # use serde::{Deserialize, Serialize};
/// # diesel::table! { rides (id) { id -> Text, user_id -> BigInt, } }
/// # #[derive(Serialize, Deserialize)] struct Ride { id: String }
/// # #[derive(Serialize, Deserialize)] struct Charge { id: String }
/// # struct App { stripe: Stripe }
/// # struct Stripe;
/// # impl Stripe {
/// #     async fn charge(&self, _: DerivedKey, _: &str) -> Result<Charge, ForeignError> { todo!() }
/// # }
///
/// #[derive(Serialize, Deserialize)]
/// struct CreateRide {
///     user_id: i64,
/// }
///
/// #[atomic_phases(name = "rides.create", version = 1)]
/// impl CreateRide {
///     #[phase]
///     async fn ride_created(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Ride> {
/// #         use diesel::ExpressionMethods;
///         let id = ctx.uuid(0).to_string();
///         let ride = (rides::id.eq(&id), rides::user_id.eq(self.user_id));
///         diesel::insert_into(rides::table).values(ride).execute(tx).await?;
///         Ok(Ride { id })
///     }
///
///     #[phase(foreign(idempotent, window = "24h"), timeout = "10s")]
///     async fn charge_created(
///         &self,
///         call: ForeignCall,
///         app: &App,
///         ctx: &RequestContext,
///     ) -> PhaseResult<Charge, ForeignError> {
///         let reference = ctx.key_uuid(0).to_string();
///         call.make(|key| app.stripe.charge(key, &reference)).await
///     }
///
///     #[phase]
///     async fn receipt_staged(
///         &self,
///         batch: &mut Batch<'_, Db>,
///         ride: &Ride,
///         charge: &Charge,
///     ) -> PhaseResult<Reply> {
///         batch.stage_job("send_receipt", &charge.id)?;
///         Ok(Reply::json(201, ride)?)
///     }
/// }
/// ```
///
/// For several stores, with a trait that each of them implements:
///
/// ```
/// use atomic_phases::Store;
/// use atomic_phases::diesel_async::RunQueryDsl;
/// use atomic_phases::prelude::*;
/// use atomic_phases::store::Sqlite;
/// use diesel::{ExpressionMethods, QueryResult};
/// # use serde::{Deserialize, Serialize};
/// # diesel::table! { rides (id) { id -> Text, user_id -> BigInt, } }
/// # #[derive(Serialize, Deserialize)] struct CreateRide { user_id: i64 }
///
/// trait RidesDb: Store {
///     // `Send`, because phases run on any thread.
///     fn insert_ride(
///         tx: &mut Tx<'_, Self>,
///         id: &str,
///         user: i64,
///     ) -> impl Future<Output = QueryResult<usize>> + Send;
/// }
///
/// impl RidesDb for Sqlite {
///     async fn insert_ride(tx: &mut Tx<'_, Self>, id: &str, user: i64) -> QueryResult<usize> {
///         let ride = (rides::id.eq(id), rides::user_id.eq(user));
///         diesel::insert_into(rides::table).values(ride).execute(tx).await
///     }
/// }
///
/// #[atomic_phases(name = "rides.create", version = 1, app = ())]
/// impl<Db: RidesDb> CreateRide {
///     #[phase]
///     async fn ride_created(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<Reply> {
///         let id = ctx.uuid(0).to_string();
///         Db::insert_ride(tx, &id, self.user_id).await?;
///         Ok(Reply::json(201, &id)?)
///     }
/// }
/// ```
pub use atomic_phases_macros::atomic_phases;
pub use atomic_phases_macros::phase;
/// A phase whose call has an unknown outcome after a crash, and the function that finds it out:
///
/// ```
/// use atomic_phases::prelude::*;
/// # use atomic_phases::store::Sqlite as Db;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)] struct PayOut { cents: i64 }
/// # #[derive(Serialize, Deserialize)] struct Transfer { number: u64 }
/// # struct App { bank: Bank }
/// # struct Bank;
/// # impl Bank {
/// #     async fn pay(&self, _: &str, _: i64) -> Result<Transfer, ForeignError> { todo!() }
/// #     async fn find(&self, _: &str) -> Option<Transfer> { None }
/// # }
///
/// #[atomic_phases(name = "payouts.create", version = 1)]
/// impl PayOut {
///     #[phase(foreign(at_most_once), timeout = "2s")]
///     async fn sent(
///         &self,
///         call: ForeignCall,
///         ctx: &RequestContext,
///         app: &App,
///     ) -> PhaseResult<Transfer, ForeignError> {
///         let reference = ctx.key_uuid(0).to_string();
///         call.make(async |_no_key| app.bank.pay(&reference, self.cents).await).await
///     }
///
///     #[reconcile(sent)]
///     async fn find(&self, ctx: &RequestContext, app: &App) -> PhaseResult<Reconciled<Transfer>> {
///         Ok(match app.bank.find(&ctx.key_uuid(0).to_string()).await {
///             Some(transfer) => Reconciled::Executed(transfer),
///             None => Reconciled::StillUnknown,
///         })
///     }
///
///     #[phase]
///     async fn answered(&self, _: &mut Batch<'_, Db>, sent: &Transfer) -> PhaseResult<Reply> {
///         Ok(Reply::json(201, sent)?)
///     }
/// }
/// ```
pub use atomic_phases_macros::reconcile;
// What phases are written with: see `# diesel` above.
pub use diesel;
pub use diesel_async;
#[doc(inline)]
pub use engine::{Engine, Outcome};
#[doc(inline)]
pub use key::{IdempotencyKey, Scope};
#[doc(inline)]
pub use phase::{Batch, ForeignCall, PhaseError, PhaseResult, Reply, RequestContext, Tx};
#[doc(inline)]
pub use store::Store;

/// The items that code generated by `#[atomic_phases]` uses. Not part of the public interface:
/// it changes with the macro, in any release.
#[doc(hidden)]
pub mod __private;
