//! Procedural macros of `atomic-phases`; use them through that crate.
//!
//! `parse` and `options` read what the user wrote, `check` decides whether it is a request, `expand`
//! quotes; `locked` compares the request with its lock file. What they refuse, and in which words, is in
//! the library's `tests/ui/fail`.
//! Nothing here knows a database.

#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod block;
mod check;
mod crash_test;
mod expand;
mod jobs;
mod locked;
mod options;
mod pages;
mod parse;
mod types;

use proc_macro::TokenStream;

/// Declares a request as an ordered list of phases. Put it on an impl block of the request type;
/// each method marked [`#[phase]`](macro@phase) is a phase, in the order of the source, and its name is
/// the recovery point that its commit reaches.
///
/// # On the impl block
///
/// * `name = ".."`: 1 to 100 characters, stored in each row; keep it for ever.
/// * `version = N`: from 1; raise it for a change that requests in flight must not survive.
/// * `app = Type`: the type of the application's shared state; `App` if not said.
/// * `crate = path`: where this library is, if that is not `::atomic_phases`: a dependency that is renamed,
///   or re-exported by another crate.
///
/// The block is an inherent one, of a type that owns its data and has no parameters of its own: its rows are
/// read back by the definition's name alone. The type is stored, so it is `Serialize` and `Deserialize`, and
/// [what serde leaves out of it](#what-the-compiler-does-not-see) no phase sees.
///
/// # On the methods
///
/// A method is a [`#[phase]`](macro@phase), a [`#[reconcile(phase)]`](macro@reconcile), or an ordinary one.
///
/// # Several stores
///
/// The parameters of the impl block move to the phases that name them, so that one request can run on several
/// stores. `Store` alone says nothing of the tables there: what a phase does in the database becomes the
/// method of a trait, which each store implements with its own diesel types. A diesel statement written in
/// the body of a generic phase is an error of many lines about `QueryFragment` and `LoadQuery`; that is what
/// it means. The second example of the library's page has one.
///
/// # What the compiler does not see
///
/// | trap | what happens | what to do |
/// |---|---|---|
/// | a member of the request that serde skips, redacts or orders at random; a clock in its construction | later attempts see another request, or a retry is a mismatch | `assert_sound` in a test of the type |
/// | an output that JSON does not hold: NaN, `Some(None)`, a map with tuples for keys, an untagged enum whose variants look alike | the phase fails with the place within the output, before its commit; the request is a dead letter at the attempt cap | what the reason says: an `Option`, a list of pairs, a tag |
/// | an output whose `Serialize` leaves something out (`skip` with a default, a redaction) | later phases see the default, in the first attempt, too | serialise it, and encrypt at rest with a `Codec` |
/// | a foreign effect made without its `ForeignCall`, by a client in `App` | it is made again by each attempt | make it in `call.make(..)` of a foreign phase |
/// | a foreign phase that returns an output without making its call | nothing happened at the provider | a debug build warns in the log |
/// | a call that does not send the derived key, at an `idempotent` provider | a retry has a second effect | a debug build warns if the key was not even read |
/// | parameters of a foreign call from a clock, a random number or the database | a provider that compares them refuses the retry | `ctx.created_at()`, `ctx.uuid(n)`, outputs |
/// | a side effect in a local phase that is no statement of its transaction (a file, another connection) | it stays when the phase is rolled back, and is made again | a staged job, or a foreign phase |
/// | a rejection after an earlier commit | what was committed stays | return the refusal as output; the next local phase undoes it and answers `Flow::Finish` |
#[proc_macro_attribute]
pub fn atomic_phases(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::atomic_phases(options.into(), item.into()).into()
}

/// Marks a method of an impl block with [`#[atomic_phases]`](macro@atomic_phases) as a phase: one atomic step
/// of the request. An error anywhere else.
///
/// # Options
///
/// | option | of | means |
/// |---|---|---|
/// | none | | a local phase |
/// | `foreign(idempotent)`, `foreign(idempotent, window = "24h")`, `foreign(at_most_once)` | | a foreign phase, and [what its provider does](#effect-classes) with a repeated call |
/// | `isolation = "read_committed"`, `"repeatable_read"`, `"serializable"` | local | its transaction's level; `read_committed` if not said |
/// | `timeout = "10s"` (`ms`, `s`, `m`, `h`; a day at most) | both | how long it may take. A foreign phase, 30 s if not said: past it the body is dropped, which is what a crash there is. A local phase with a `Batch`, 15 s if not said: how long the database may take to execute its statements. A local phase with a `Tx` has a limit only where it says so |
/// | `commit` | both | a durable recovery point right after it, even where it could ride along |
/// | `was = "old"`, `was = ["newer", "oldest"]` | both | its [earlier names](#its-name) |
///
/// # Effect classes
///
/// A foreign phase says what its provider does with the derived key:
///
/// * `idempotent`: it honours the key, so that any number of calls with it has one effect. With
///   `window = ".."` (`s`, `m`, `h`, `d`), it forgets keys after that time, and no call is repeated later.
/// * `at_most_once`: it honours no key. The intent is committed before the call, and an interruption leaves
///   the outcome unknown: a [`#[reconcile(phase)]`](macro@reconcile) function must be there that finds out.
///
/// # Its name
///
/// The recovery point of its commit: at most 50 characters, different in each phase, and not `started` or
/// `finished`. Stored rows hold it, so a phase that is renamed says `was = ".."` for as long as requests of
/// that time may be in flight; the derived key is made of the oldest name.
///
/// # Its signature
///
/// A safe `async fn` that takes `&self`, and no type of its own as a parameter; the store may be one of the
/// impl block. It and its parameters exist in each build, because stored rows count on them: `#[cfg]` goes
/// inside of its body.
///
/// A local phase takes `tx: &mut Tx<'_, Db>`, its transaction, or `batch: &mut Batch<'_, Db>`, to which it adds
/// its statements where it needs no answer of the database. A foreign phase takes `call: ForeignCall`, and no
/// transaction. The macro knows these by their names, and looks into no alias.
///
/// # What it may ask for
///
/// By type:
///
/// * the output of an earlier phase: `&T`. Where several return such a type, or to be clear, the parameter is
///   named after the phase; a parameter that is named after a phase asks for that phase's output. For a
///   `String`, `Vec<T>`, `Box<T>` or `Option<T>`, `&str`, `&[T]`, `&T` and `Option<&T>` ask as well;
/// * `&App`, or what `app = ..` says: the application's state;
/// * `&RequestContext`.
///
/// Types are compared by their last names: `outs::Ride` and `Ride` ask for one output, and the compiler sees to
/// it that they are one type. An alias has another name, and asks for nothing.
///
/// # What it returns
///
/// `PhaseResult<T>`, or any `Result`, where `T` is the output: `Serialize` and `Deserialize`, and owner of its
/// data. `PhaseResult<Flow<T>>` where it may finish the request early and keep its writes. The last phase
/// returns `PhaseResult<Reply>`.
///
/// The output is read back from its stored form before it is committed, and later phases see it so.
///
/// # How it fails
///
/// With `PhaseError`, a foreign phase also with `ForeignError`; or with a type of your own that converts into
/// that: the conversion is the place that says of each failure whether it rejects the request, may be retried,
/// or leaves the outcome unknown. `anyhow::Error` does not say, and so does not convert.
#[proc_macro_attribute]
pub fn phase(_: TokenStream, item: TokenStream) -> TokenStream {
    expand::misplaced("phase", item.into()).into()
}

/// Marks a method of an impl block with [`#[atomic_phases]`](macro@atomic_phases) as the function that finds out
/// what became of a foreign phase whose outcome is unknown. An error anywhere else.
///
/// It is an `async fn` that takes `&self`, and may ask for what its phase [may ask
/// for](macro@phase#what-it-may-ask-for), and for `&DerivedKey`; it has no transaction and makes no call. It
/// returns `PhaseResult<Reconciled<T>>`, `T` being the output of the phase: *executed, with this output*, *not
/// executed*, or *still unknown*. An `at_most_once` phase must have one; any foreign phase may.
#[proc_macro_attribute]
pub fn reconcile(_: TokenStream, item: TokenStream) -> TokenStream {
    expand::misplaced("reconcile", item.into()).into()
}

/// A crash test: an async function that returns an [`Explorer`], as `impl Explore`. Makes a `#[test]`
/// that runs it on a tokio runtime of several threads, prints the report's line (see it with
/// `cargo test -- --nocapture`), and fails with the script of the case that went wrong. The page of `fault` begins
/// with one.
///
/// Other attributes, `#[ignore]` for example, stay with the test. `#[crash_test(crate = path)]` says where this
/// library is, if that is not `::atomic_phases`.
///
/// [`Explorer`]: https://docs.rs/atomic-phases/latest/atomic_phases/fault/struct.Explorer.html
#[proc_macro_attribute]
pub fn crash_test(options: TokenStream, item: TokenStream) -> TokenStream {
    crash_test::crash_test(options.into(), item.into()).into()
}
