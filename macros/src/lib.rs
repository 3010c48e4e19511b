//! Procedural macros of `atomic-phases`; use them through that crate.
//!
//! `parse` and `options` read what the user wrote, `check` validates it, `expand`
//! generates code; `locked` compares the request with its lock file. The library's `tests/ui/fail` has
//! each rejected input and its error message.
//! Nothing here depends on a database.

#![warn(missing_debug_implementations, unreachable_pub)]
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
/// * `name = ".."`: 1 to 100 characters and at most 200 bytes, not blank, without control characters. Stored in each row;
///   never change it.
/// * `version = N`: from 1; raise it for a change that requests in flight cannot go through. Register the old version, too:
///   they continue in it.
/// * `app = Type`: the type of the application's shared state; default: `App`.
/// * `crate = path`: the path of this library, default `::atomic_phases`; for a dependency that is renamed
///   or re-exported by another crate.
///
/// The block is an inherent impl. The request's type owns its data and has no generic parameters (the block may have some),
/// because the engine reads a stored request back by the definition's name alone. The type is stored, so it is `Serialize` and
/// `Deserialize`; phases do not see [what serde omits from it](#what-the-compiler-does-not-see).
///
/// # On the methods
///
/// A method is a [`#[phase]`](macro@phase), a [`#[reconcile(phase)]`](macro@reconcile), or an ordinary one.
///
/// # Several stores
///
/// The generic parameters of the impl block move to the phases that name them, so that one request can run on
/// several stores. The trait `Store` knows nothing about your tables: declare what a phase does in the database as
/// the method of a trait, which each store implements with its own diesel types. A diesel statement in
/// the body of a generic phase causes a long error about `QueryFragment` and `LoadQuery` instead.
/// The second example above has such a trait.
///
/// # What the compiler does not see
///
/// | trap | what happens | what to do |
/// |---|---|---|
/// | a field of the request that serde skips, redacts or serializes in random order; a clock in its constructor | later attempts see another request, or a retry is a mismatch | `request::assert_sound` in a test of the type |
/// | an output that JSON cannot represent: NaN, `Some(None)`, a map with tuples as keys, an untagged enum whose variants look alike | the phase fails before its commit and names the place within the output; the request is a dead letter at the attempt cap | what the reason says: an `Option`, a list of pairs, a tag |
/// | an output whose `Serialize` omits something (`skip` with a default, a redaction) | later phases see the default, even in the first attempt | serialize it, and encrypt at rest with a `Codec` |
/// | a foreign effect made without its `ForeignCall`, by a client in `App` | each attempt makes it again | make it in `call.make(..)` of a foreign phase |
/// | a foreign phase that returns an output without making its call | nothing happened at the provider | a debug build logs a warning |
/// | a call that does not send the derived key, at an `idempotent` provider | a retry has a second effect | a debug build warns if the key was never read |
/// | parameters of a foreign call from a clock, a random number or the database | a provider that compares them refuses the retry | the request's parameters, `ctx.key_uuid(n)`, outputs |
/// | a side effect in a local phase outside of its transaction (a file, another connection) | it stays when the phase is rolled back, and is made again | a staged job, or a foreign phase |
/// | a rejection after an earlier commit | what was committed stays | return the refusal as output; the next local phase undoes it and answers with `Flow::Finish` |
#[proc_macro_attribute]
pub fn atomic_phases(options: TokenStream, item: TokenStream) -> TokenStream {
    expand::atomic_phases(options.into(), item.into()).into()
}

/// Marks a method of an impl block with [`#[atomic_phases]`](macro@atomic_phases) as a phase: one atomic step
/// of the request. Using it anywhere else is an error.
///
/// # Options
///
/// | option | phase | meaning |
/// |---|---|---|
/// | none | | a local phase |
/// | `foreign(idempotent)`, `foreign(idempotent, window = "24h")`, `foreign(at_most_once)` | | a foreign phase, and [what its provider does](#effect-classes) with a repeated call |
/// | `isolation = "read_committed"`, `"repeatable_read"`, `"serializable"` | local | isolation level of its transaction; default: `read_committed` |
/// | `timeout = "10s"` (`ms`, `s`, `m`, `h`; a day at most) | both | how long it may take. Foreign phase (default: 30 s): past it the body is dropped, which is treated as a crash there. Local phase with a `Batch` (default: 15 s): how long the database may take to execute its statements. Local phase with a `Tx`: no limit by default |
/// | `commit` | both | commits its recovery point immediately, even if it could be committed with the next phase |
/// | `was = "old"`, `was = ["newer", "oldest"]` | both | its [earlier names](#its-name) |
///
/// # Effect classes
///
/// A foreign phase declares what its provider does with the derived key:
///
/// * `idempotent`: the provider honors the key, so any number of calls with it has one effect. With
///   `window = ".."` (`s`, `m`, `h`, `d`), it forgets keys after that time, and no call is repeated later.
/// * `at_most_once`: the provider honors no key. The intent is committed before the call, and an interruption
///   leaves the outcome unknown: a [`#[reconcile(phase)]`](macro@reconcile) function is required.
///
/// # Its name
///
/// The recovery point of its commit: at most 50 characters, unique in the request, and not `started` or
/// `finished`. Stored rows contain it, so a renamed phase needs `was = ".."` as long as requests from before
/// the change may be in flight; the derived key is computed from the oldest name.
///
/// # Its signature
///
/// A safe `async fn` that takes `&self` and has no generic type parameters of its own; the store may be a parameter
/// of the impl block. The phase and its parameters exist in each build, because stored rows rely on them: put
/// `#[cfg]` inside its body.
///
/// A local phase takes `tx: &mut Tx<'_, Db>`, its transaction, or `batch: &mut Batch<'_, Db>`, to which it adds
/// its statements if it does not read from the database. A foreign phase takes `call: ForeignCall`, and no
/// transaction. The macro recognizes these types by name and does not resolve aliases.
///
/// # What it may ask for
///
/// By type:
///
/// * the output of an earlier phase: `&T`. If several phases return this type, or for clarity, name the
///   parameter after the phase; a parameter named after a phase asks for that phase's output. For a
///   `String`, `Vec<T>`, `Box<T>` or `Option<T>`, `&str`, `&[T]`, `&T` and `Option<&T>` work as well;
/// * `&App`, or the type given by `app = ..`: the application's state;
/// * `&RequestContext`.
///
/// Types are compared by the last segment of their path: `outs::Ride` and `Ride` ask for the same output, and the
/// compiler ensures that they are the same type. An alias has another name, and matches no output.
///
/// # What it returns
///
/// `PhaseResult<T>`, or any `Result`, where `T` is the output: an owned type that is `Serialize` and
/// `Deserialize`. `PhaseResult<Flow<T>>` if it may finish the request early and keep its writes. The last phase
/// returns `PhaseResult<Reply>`.
///
/// The output is read back from its stored form before it is committed; later phases see that form.
///
/// # How it fails
///
/// With `PhaseError`, or in a foreign phase also `ForeignError`; or with a type of your own that converts into
/// it: the conversion decides for each failure whether it rejects the request, may be retried,
/// or leaves the outcome unknown. `anyhow::Error` cannot decide this, and so does not convert.
#[proc_macro_attribute]
pub fn phase(_: TokenStream, item: TokenStream) -> TokenStream {
    expand::misplaced("phase", item.into()).into()
}

/// Marks a method of an impl block with [`#[atomic_phases]`](macro@atomic_phases) as the function that finds out
/// the outcome of a foreign phase when it is unknown. Using it anywhere else is an error.
///
/// It is an `async fn` that takes `&self`, and may ask for what its phase [may ask
/// for](macro@phase#what-it-may-ask-for), and for `&DerivedKey`; it has no transaction and makes no call. It
/// returns `PhaseResult<Reconciled<T>>`, where `T` is the output of the phase: *executed, with this output*, *not
/// executed*, or *still unknown*. An `at_most_once` phase must have one; any foreign phase may.
#[proc_macro_attribute]
pub fn reconcile(_: TokenStream, item: TokenStream) -> TokenStream {
    expand::misplaced("reconcile", item.into()).into()
}

/// Turns an async function that returns an [`Explorer`], as `impl Explore`, into a `#[test]`. The test
/// runs the explorer on a multi-threaded tokio runtime, prints the report's summary line (shown by
/// `cargo test -- --nocapture`), and fails with the script of the failed case. The docs of `fault` begin
/// with one.
///
/// Other attributes, such as `#[ignore]`, stay on the test. `#[crash_test(crate = path)]` gives the path of this
/// library if it is not `::atomic_phases`.
///
/// [`Explorer`]: https://docs.rs/atomic-phases/latest/atomic_phases/fault/struct.Explorer.html
#[proc_macro_attribute]
pub fn crash_test(options: TokenStream, item: TokenStream) -> TokenStream {
    crash_test::crash_test(options.into(), item.into()).into()
}
