//! Procedural macros of `atomic-phases`; use them through that crate.
//!
//! `parse` and `options` read what the user wrote, `check` decides whether it is a request, `expand`
//! quotes. What they refuse, and in which words, is in the library's `tests/ui/fail`.
//! Nothing here knows a database.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod check;
mod crash_test;
mod expand;
mod options;
mod parse;

use proc_macro::TokenStream;

/// Declares a request as an ordered list of phases. Put it on an impl block of the request type;
/// each method marked `#[phase]` is a phase, in the order of the source, and its name is the
/// recovery point that its commit reaches.
///
/// ```ignore
/// #[atomic_phases(name = "rides.create", version = 1)]
/// impl CreateRide {
///     #[phase]
///     async fn ride_created(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Ride> { .. }
///
///     #[phase(foreign(idempotent, window = "24h"))]
///     async fn charge_created(&self, call: ForeignCall, app: &App, ride: &Ride)
///         -> PhaseResult<Charge, ForeignError> { .. }
///
///     #[phase]
///     async fn receipt_staged(&self, batch: &mut Batch<'_, Db>, ride: &Ride, charge: &Charge)
///         -> PhaseResult<Reply> { .. }
/// }
/// ```
///
/// # On the impl block
///
/// * `name = ".."`: 1 to 100 characters, stored in each row; keep it for ever.
/// * `version = N`: from 1; raise it for a change that requests in flight must not survive.
/// * `app = Type`: the type of the application's shared state; `App` if not said.
///
/// Type parameters of the impl block move to the phases, so that one request can run on several
/// stores: `impl<Db: RidesDb> CreateRide`.
///
/// # On a phase
///
/// An `async fn` that takes `&self` first, has no generic parameters of its own, and exists in each
/// build: stored rows count on it, so `#[cfg]` goes inside of its body.
///
/// * `#[phase]`: local. Takes `tx: &mut Tx<'_, Db>`, its transaction, or `batch: &mut Batch<'_, Db>`,
///   to which it adds its statements where it needs no answer of the database.
/// * `#[phase(foreign(idempotent))]`, `#[phase(foreign(idempotent, window = "24h"))]`,
///   `#[phase(foreign(at_most_once))]`: foreign. Takes `call: ForeignCall`. The effect class says
///   what the provider does with the derived key; `window` (`s`, `m`, `h`, `d`), how long it
///   remembers one. An `at_most_once` phase needs a `#[reconcile(phase)]` function.
/// * `isolation = "read_committed" | "repeatable_read" | "serializable"`: of a local phase.
/// * `timeout = "10s"` (`ms`, `s`, `m`, `h`; a day at most): how long the phase may take. A foreign phase, 30 s
///   if not said: past it the body is dropped, which is what a crash there is. A local phase that takes a
///   `Batch`, 15 s if not said: how long the database may take to execute its statements. A local phase
///   that takes a `Tx` has a limit only where it says so.
/// * `commit`: a durable recovery point right after this phase, even where it could ride along.
/// * `was = "old"`, `was = ["newer", "oldest"]`: its earlier names. Keep them as long as requests
///   of that time may be in flight: the derived key is made of the oldest.
///
/// # What a phase may ask for
///
/// By type: `&T`, where `T` is the output of an earlier phase (where two return the same type, the
/// parameter is named after the phase); `&App`; `&RequestContext`. Types are compared as they are
/// written, so write each alike everywhere.
///
/// # What a phase returns
///
/// `PhaseResult<T>`; `PhaseResult<Flow<T>>` where it may finish early and keep its writes;
/// `PhaseResult<Reply>` in the last phase. A foreign phase may name `ForeignError` as its error.
///
/// # `#[reconcile(phase)]`
///
/// Answers, for a foreign phase whose outcome is unknown, `PhaseResult<Reconciled<T>>`. It may ask
/// for what the phase may ask for, and for `&DerivedKey`.
#[proc_macro_attribute]
pub fn atomic_phases(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::atomic_phases(options.into(), item.into()).into()
}

/// Marks a phase inside of an impl block with `#[atomic_phases]`, where that macro reads it; an
/// error anywhere else.
#[proc_macro_attribute]
pub fn phase(_: TokenStream, item: TokenStream) -> TokenStream {
    expand::misplaced("phase", item.into()).into()
}

/// Marks a reconcile function inside of an impl block with `#[atomic_phases]`, where that macro
/// reads it; an error anywhere else.
#[proc_macro_attribute]
pub fn reconcile(_: TokenStream, item: TokenStream) -> TokenStream {
    expand::misplaced("reconcile", item.into()).into()
}

/// A crash test: an async function that returns an [`Explorer`], as `impl Explore`. Makes a `#[test]`
/// that runs it on a tokio runtime of several threads, prints the report's line (see it with
/// `cargo test -- --nocapture`), and fails with the script of the case that went wrong.
///
/// ```ignore
/// #[crash_test]
/// async fn a_ride_survives() -> impl Explore {
///     explore(async || fresh_engine().await, CreateRide { .. }).crash_at_every_point()
/// }
/// ```
///
/// Other attributes, `#[ignore]` for example, stay with the test.
///
/// [`Explorer`]: https://docs.rs/atomic-phases/latest/atomic_phases/fault/struct.Explorer.html
#[proc_macro_attribute]
pub fn crash_test(options: TokenStream, item: TokenStream) -> TokenStream {
    crash_test::crash_test(options.into(), item.into()).into()
}
