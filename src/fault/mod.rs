//! Crash tests, for this crate and for yours (feature `fault-injection`).
#[macro_use]
mod hooks;
#[cfg(feature = "fault-injection")]
mod explorer;
#[cfg(feature = "fault-injection")]
mod mutant;
#[cfg(feature = "fault-injection")]
mod plan;
#[cfg(feature = "fault-injection")]
mod points;
#[cfg(feature = "fault-injection")]
mod report;

#[cfg(feature = "fault-injection")]
pub(crate) use self::plan::{at, carried, committing, mutated, reach, request_id};
#[cfg(feature = "fault-injection")]
pub use self::{
    explorer::{Explorer, explore},
    mutant::Mutant,
    plan::{ENV, Fault, Mode},
    points::{NoSuchPoint, Place, Point},
    report::Report,
};
