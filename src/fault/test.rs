//! What `#[crash_test]` is made of.

use std::future::Future;

use super::explorer::Explorer;
use super::report::Report;
use crate::engine::Engine;
use crate::request::RequestDefinition;
use crate::store::Store;

/// What a function with [`#[crash_test]`](crate::fault::crash_test) returns: an [`Explorer`], whose
/// own type is too long to write.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an explorer",
    note = "a crash test returns what `explore(world, request)` and the methods behind it make, and \
            awaits nothing of it"
)]
pub trait Explore {
    /// Whether it takes place in memory, where time need not pass.
    #[doc(hidden)]
    const IN_MEMORY: bool;

    /// Runs every case until one fails; see [`Explorer::run`].
    fn run(self) -> impl Future<Output = Report>;
}

impl<F, S, A, R, W> Explore for Explorer<F, R, W>
where
    F: AsyncFn() -> (Engine<S, A>, W),
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A>,
    W: 'static,
{
    const IN_MEMORY: bool = S::IN_MEMORY;

    fn run(self) -> impl Future<Output = Report> {
        Self::run(self)
    }
}

/// Runs a test's explorer to its end, on a runtime of its own: on simulated time where the store is in memory.
#[doc(hidden)]
#[track_caller]
pub fn __crash_test<E: Explore>(test: impl AsyncFnOnce() -> E) {
    let report = run(test);
    if report.failure().is_none() {
        println!("{report}");
    }
    report.assert_ok();
}

#[track_caller]
#[expect(clippy::panic, reason = "this is how a test fails")]
fn run<E: Explore>(test: impl AsyncFnOnce() -> E) -> Report {
    #[cfg(feature = "simulation")]
    if E::IN_MEMORY {
        return crate::simulation::simulate(1, async || test().await.run().await);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no tokio runtime: {error}"),
    };
    runtime.block_on(async { test().await.run().await })
}
