//! Crash tests, for this crate and for yours (feature `fault-injection`).
#[macro_use]
mod hooks;
#[cfg(feature = "fault-injection")]
mod case;
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
mod scene;
#[cfg(feature = "fault-injection")]
mod test;
#[cfg(feature = "fault-injection")]
mod turns;

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
    at, carried, committing, inside, is_late, is_overtaken, mutated, reach, request_id,
};
#[cfg(feature = "fault-injection")]
pub use self::{
    explorer::{Explorer, explore},
    mode::{Fault, Mode},
    mutant::Mutant,
    plan::ENV,
    points::{NoSuchPoint, Place, Point},
    report::Report,
    test::Explore,
};
#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use self::{plan::__crash_point, points::__check_name, test::__crash_test};
#[cfg(feature = "fault-injection")]
pub use atomic_phases_macros::crash_test;
