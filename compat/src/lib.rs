//! What a change of a request does to the requests that are under way.
//!
//! Rows in flight, clients' retries and providers depend on things that a code review does not show:
//! the names and the order of phases, their effect classes, the name that a provider's key is made of,
//! and the stored form of parameters and outputs. A [`Lock`] records them, one file for each definition
//! and version, in the user's repository. [`compare`] says what becomes of the rows of one build under
//! another, as [`Finding`]s with a name ([`Lint`]) and a [`Level`].
//!
//! Use it through `atomic-phases` (`locked!` in a test) or `cargo atomic-phases`. Everything here is
//! pure but [`Locks::read`] and [`Locks::write`]: no database, no build of the user's code.

#![warn(missing_debug_implementations, unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod alternatives;
mod compare;
mod examples;
mod finding;
mod fits;
mod folder;
mod format;
mod levels;
mod lint;
mod lock;
mod members;
mod reader;
mod resume;
mod sent;
mod shape;
mod tags;
mod unprobed;

pub use compare::{Code, Stored, compare, compare_with};
pub use examples::{Example, examples};
pub use finding::{Finding, blocks, github, json, text};
pub use fits::{Misfit, fits};
pub use folder::{FolderError, Locks, file_name};
pub use levels::{LevelError, Levels};
pub use lint::{Level, Lint};
pub use lock::{Effect, Lock, LockError, Locked, LockedJob, Output, RequestSample, State};
pub use resume::{
    CallState, Class, KnownPhase, Resumed, StopsBecause, Written, after_call, phases_done, resumed,
};
pub use shape::{
    Absent, FLOATS, Field, Float, INTEGERS, Integer, LETTERS, Length, Letter, List, Manner, OTHER,
    Order, REST, Shape, ShapeError, StrFormat, TEXTS, Types, Unknown, Variant,
};
