//! Crash tests, for this crate and for yours (feature `fault-injection`).
//!
//! The engine passes **crash points**: before and after each commit, before and after each foreign
//! call, before a lease is acquired or released, before the reply is returned. An **explorer** runs your
//! request once undisturbed, then once for each fault at each point,
//! and drives it to its end as your clients and workers would. Each time it compares the
//! reply and your effects with the undisturbed run.
//!
//! # The smallest crash test
//!
//! ```toml
//! [dev-dependencies]
//! atomic-phases = { version = "0.1", features = ["fault-injection"] }
//! ```
//!
//! Give [`explore`] a *world*, an async function that creates a fresh database and an engine on it for
//! each case, and a request:
//!
//! ```
//! # #[cfg(all(feature = "sqlite", feature = "fault-injection"))] mod doc {
//! use atomic_phases::fault::{Explore, crash_test, explore};
//! # use atomic_phases::store::Sqlite;
//! # use atomic_phases::{Engine, PhaseResult, Reply, RequestContext, Store, Tx, atomic_phases};
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct BookRide { cents: u32 }
//! # #[atomic_phases(name = "rides.book", version = 1)]
//! # impl BookRide {
//! #     #[phase]
//! #     async fn booked(&self, tx: &mut Tx<'_, Sqlite>, ctx: &RequestContext) -> PhaseResult<Reply> {
//! #         tx.stage_job("send_receipt", &self.cents)?;
//! #         Ok(Reply::json(201, &ctx.uuid(0).to_string())?)
//! #     }
//! # }
//!
//! async fn world() -> (Engine<Sqlite>, ()) {
//!     let store = Sqlite::connect(":memory:").await.unwrap();
//!     store.migrate().await.unwrap();
//!     (Engine::builder(store).register::<BookRide>().build().unwrap(), ())
//! }
//!
//! #[crash_test]
//! async fn a_ride_survives() -> impl Explore {
//!     explore(world, BookRide { cents: 2000 }).crash_at_every_point()
//! }
//! # pub fn main() {
//! #     let explored = explore(world, BookRide { cents: 2000 }).crash_at_every_point();
//! #     let runtime = tokio::runtime::Runtime::new().unwrap();
//! #     let report = runtime.block_on(explored.run());
//! #     println!("{report}");
//! #     report.assert_ok();
//! #     assert_eq!(report.points(), 5);
//! # }
//! # }
//! # #[cfg(all(feature = "sqlite", feature = "fault-injection"))] fn main() { doc::main() }
//! # #[cfg(not(all(feature = "sqlite", feature = "fault-injection")))] fn main() {}
//! ```
//!
//! `cargo test -- --nocapture` prints a line: how many points the request has, how many cases were run,
//! and how many failed. In a test without the attribute, `explore(..).run().await` returns that
//! [`Report`], with [`assert_ok`](Report::assert_ok).
//!
//! # State what must hold
//!
//! By default, each case must settle, and every client must receive the same reply as in
//! the undisturbed run. Only you can state the effects of your phases. The second value that
//! `world` returns is yours: a handle on the database, the ledger of a fake provider. Keep that
//! ledger outside of the database, so that no rollback undoes it.
//!
//! ```no_run
//! # #[cfg(all(feature = "sqlite", feature = "fault-injection"))] mod doc {
//! # use atomic_phases::fault::{Explore, explore};
//! # use atomic_phases::{Engine, request::RequestDefinition, store::Sqlite};
//! # struct Bank; impl Bank { fn charges(&self) -> usize { 0 } }
//! # fn a_ride<F, R>(world: F, ride: R, other: R) -> impl Explore
//! # where F: AsyncFn() -> (Engine<Sqlite>, Bank), R: RequestDefinition<Sqlite, ()> {
//! explore(world, ride)
//!     // After every attempt of every case; a panic fails the case.
//!     .always("one charge at most", async |bank: &Bank| assert!(bank.charges() <= 1))
//!     // At the end of each case.
//!     .check("one charge", async |bank| assert_eq!(bank.charges(), 1))
//!     // The same at the end of each case as in the undisturbed run: counts, sums, whole tables.
//!     .effects(async |bank| bank.charges())
//!     // Another request under the same key is refused, at every point.
//!     .and_another(other)
//! #   .crash_at_every_point()
//! # }
//! # }
//! ```
//!
//! `examples/crash_test.rs` is a complete one to copy: three phases, a bank, SQLite in memory.
//!
//! # On the in-memory store
//!
//! With the feature `simulation`, a request whose phases access their tables through a trait of yours can
//! be explored on an in-memory store that has PostgreSQL's locks and isolation levels, without a server:
//! `simulate(1, || explore(world::<Memory>, request).crash_at_every_point().run())` runs in virtual time, so
//! that waits take no real time. It stalls and switches workers within open transactions, as on PostgreSQL.
//! `examples/crash_test_in_memory.rs` explores one request there and on SQLite.
//!
//! # Choose how many cases to run
//!
//! | | cases of a request with three phases | finds |
//! |---|---|---|
//! | [`crash_at_every_point`](Explorer::crash_at_every_point) | about 70 | what a crash, a lost answer or a failed commit breaks |
//! | [`with_competitor`](Explorer::with_competitor) | 50 | what duplicates and zombies break |
//! | [`and_two_workers`](Explorer::and_two_workers)`(1)`, `(2)`, `(3)` | 28, 189, 1351 | what a certain order of two workers breaks |
//! | [`and_failed_reads`](Explorer::and_failed_reads) | some hundred | what a read that fails breaks, in a run and in its recovery |
//! | [`and_lost_rows`](Explorer::and_lost_rows) | 2 | values from a row, or an output of a commit, that may be lost, sent to a provider |
//! | [`and_at_every_pair`](Explorer::and_at_every_pair) | about 1,600 | what a second crash breaks, in the recovery or in an attempt that continues after the first |
//!
//! A case takes milliseconds; the chapter
//! [Testing](https://github.com/atomic-phases/atomic-phases/blob/main/docs/testing.md#how-long-a-case-takes) has the figures of
//! each store. On PostgreSQL, cases also stall, and switch workers, within open transactions. Use SQLite and PostgreSQL if
//! you deploy on PostgreSQL; [Testing](https://github.com/atomic-phases/atomic-phases/blob/main/docs/testing.md#on-postgresql)
//! shows a world for it.
//!
//! # Points
//!
//! A point is written `phase/place`, for example `charge_created/after_call`; [`Place`] lists the
//! places. [`Definition::points`](crate::definition::Definition::points) lists the points of an undisturbed run, and
//! the explorer fails if a run passes others. The reservation of the key is phase `started`. After a
//! fault the recovery passes more: `before_take_over`, `after_take_over`, `before_release`,
//! `after_release`.
//!
//! If a phase does something that no rollback undoes (it writes a file), add a point of its own:
//! [`crash_point!("after_pdf")`](crate::crash_point). The explorer treats it like the
//! engine's points; a build without the feature does not contain it.
//!
//! # Modes
//!
//! A [`Mode`] is a fault at a point; [`modes`](Explorer::modes) selects some. Each is applied where
//! it is possible:
//!
//! | mode | where | what happens |
//! |---|---|---|
//! | `panic`, `drop` | everywhere | the engine panics; the future is dropped, as in a crash |
//! | `not_sent` | before a commit | the connection dies, and the commit never arrives |
//! | `ack_lost` | after a commit | it is committed, and the engine gets no answer |
//! | `serialization`, `deadlock` | before a commit | the database rolls the transaction back |
//! | `cut_connection` | in a transaction, PostgreSQL | the server closes the connection |
//! | `call_fails` | before a call | the provider has done nothing |
//! | `answer_lost` | after a call | the provider has done it, and its answer is lost |
//! | `stall` | everywhere; on SQLite, outside of transactions; never in one with a snapshot | the holder stalls for longer than its lease: another takes over and finishes, then it continues |
//! | `duplicate` | everywhere; on SQLite, outside of transactions | a duplicate, and another request under the key, arrive meanwhile |
//! | `out_of_touch` | before and after a commit | as `not_sent` and `ack_lost`; before the holder can resolve the outcome, another takes over and holds the key |
//! | `outrun` | before and after a commit | the same; before the holder can resolve the outcome, another takes over and finishes |
//! | `read_fails` | at a read of the store: `(store)/look`, `(store)/read`, `(store)/count_keys`, `(store)/renew` | the store cannot be reached for this one read |
//! | `replicated` | before a phase | nothing: a standby receives no commit from here on |
//! | `row_lost` | after an `idempotent` call | the provider has done it, and the database fails over to that standby: what was committed since `replicated` is lost |
//! | `abort` | everywhere, in a process of its own | the process ends |
//! | `stop` | everywhere, in a process of its own | the process stops until it receives a `SIGCONT` |
//!
//! # When a case fails
//!
//! The report ends with the script of the case, and with the command to run that case alone:
//!
//! ```text
//! failed: G10: two runs finished the request
//!
//! script:
//!   worker 1 runs up to charged/after_call; each lease expires
//!   worker 2 runs to its end, then the other; worker 2 is a retry of the client
//!
//! again: ATOMIC_PHASES_CASE='two: charged/after_call#0=expire; retry' cargo test -- --exact a_ride_survives
//! ```
//!
//! Cases with fewer faults come first, so scripts are as short as possible. `#0` is the first
//! visit of that point in its attempt.
//!
//! # Real processes
//!
//! A program built with the feature aborts at the point that the environment names:
//! `ATOMIC_PHASES_FAULT='charge_created/after_call#0=abort'` ([`ENV`]). With `ATOMIC_PHASES_FAULT=list` it
//! writes the points that it passes to standard error, so that a test can take them one by one:
//! `tests/processes/abort.rs` does so with the flagship example, and `tests/processes/frozen.rs` with `=stop`:
//! the process is frozen for longer than its lease, and continues when another has finished its request.
//! A text that is wrong ends the process when it builds an engine; a phase that the engine does not have is reported there,
//! on standard error.
//!
//! # Bugs that the explorer finds
//!
//! In your phases, the explorer finds effects outside of the transaction that are not keyed (a file, an email),
//! ids and times that differ between attempts and reach the provider or the reply,
//! a provider that does not honor its keys as declared, an `at_most_once` call whose reconcile
//! function is wrong. What it finds if the engine itself breaks a guarantee is in the chapter
//! [Simulation](https://github.com/atomic-phases/atomic-phases/blob/main/docs/simulation.md#what-the-explorer-finds).
//!
//! # Limits
//!
//! * It explores one request under one key. Test separately how two requests affect each other's rows.
//! * It finds only bugs that show in the reply, the key's row, or your checks.
//! * Time passes for the key's row only ([`Stall`](Mode::Stall) and two workers): not for clocks that your
//!   phases read, and not for a provider's window.
//! * A phase with a snapshot (`isolation = ".."`) locks the key's row before its first statement. Until
//!   its transaction ends, no other holder can take the key over: no lease expires at
//!   the points within.
//! * Tasks that a phase spawns are not followed: points in them do nothing, and dropping the phase does
//!   not stop them, as in production.
//! * Two workers are switched at points, not between any two instructions. A step that takes a quarter
//!   of a second counts as waiting, for example for a lock, and the other continues.
//! * A request must finish in its first attempt if there is no fault.
//!
//! # In a release build
//!
//! Without the feature the hooks compile to nothing: no string, no branch, no await (`.ci/zero-cost` checks
//! the binary). Cargo unifies features, so a release build with it is refused, unless
//! `fault-injection-in-release` confirms it.

#![cfg_attr(not(feature = "fault-injection"), allow(rustdoc::broken_intra_doc_links))]

#[macro_use]
mod hooks;
#[cfg(feature = "fault-injection")]
mod case;
#[cfg(feature = "fault-injection")]
mod case_runner;
#[cfg(feature = "fault-injection")]
mod cases;
#[cfg(feature = "fault-injection")]
mod competitor;
#[cfg(feature = "fault-injection")]
mod explorer;
#[cfg(feature = "fault-injection")]
mod mode;
#[cfg(feature = "fault-injection")]
mod mutant;
#[cfg(feature = "fault-injection")]
mod plan;
#[cfg(feature = "fault-injection")]
mod points;
#[cfg(feature = "fault-injection")]
mod report;
#[cfg(feature = "fault-injection")]
mod test;
#[cfg(feature = "fault-injection")]
mod turns;
#[cfg(feature = "fault-injection")]
mod verdict;

#[cfg(all(
    feature = "fault-injection",
    not(debug_assertions),
    not(feature = "fault-injection-in-release")
))]
compile_error!(
    "the feature `fault-injection` of atomic-phases is on in a build without debug assertions. \
     Cargo unifies features: if a dev-dependency turned it on, build without the tests \
     (`cargo build --release`), else find who did with `cargo tree -e features -i atomic-phases`. \
     If it is meant, turn on `fault-injection-in-release` as well."
);

#[cfg(feature = "fault-injection")]
pub(crate) use self::plan::{
    at, carried, committing, inside, is_overtaken, mutated, note, reach, reading, request_id,
    stood_still_for, verify_env,
};
#[cfg(feature = "fault-injection")]
pub use self::{
    explorer::{Explorer, explore},
    mode::{Fault, Mode},
    plan::ENV,
    points::{NoSuchPoint, Place, Point},
    report::Report,
    test::Explore,
};
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use self::{mutant::Mutant, plan::__crash_point, points::__check_name, test::__crash_test};
#[cfg(feature = "fault-injection")]
pub use atomic_phases_macros::crash_test;
