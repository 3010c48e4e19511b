//! The commands of [`atomic_phases`]' operators inside of an application: `myapp ops status`, `myapp ops resolve ..`.
//!
//! They are those of the program `atomic-phases`, with the same output and the same exit codes. In the application
//! they have its code: its codec opens values, its types judge an output that an operator gives, and no service has
//! to be reachable. [`Operate`] is a part of a command line that is made with clap; [`operate`] takes plain arguments.
//! Depend on it with `default-features = false`: the feature `programs` is for the two programs of this package.

#![warn(missing_debug_implementations, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

#[macro_use]
mod say;

#[cfg(feature = "programs")]
mod open;
mod operate;
mod plain;

pub use operate::{Operate, operate};

/// The program `atomic-phases`.
#[cfg(feature = "programs")]
#[doc(hidden)]
#[must_use]
pub fn program() -> std::process::ExitCode {
    operate::program::main()
}
