//! What a change of a request does to the requests that are under way.
//!
//! Rows in flight, clients' retries and providers depend on the names and the order of phases, on effect
//! classes, on the names that derived keys are made of and on the stored form of parameters and outputs.
//! A [`Lock`] records all that, in one file for each definition and version; [`locked!`](crate::locked)
//! compares the files with the code in a test, and [`compare`] two states of them. The book's chapter
//! is `docs/changing-a-request.md`.

mod definitions;
mod in_flight;
mod locked;
mod staged;

pub use atomic_phases_compat::*;

pub use self::definitions::Definitions;
pub use self::in_flight::{InFlight, Left};
pub use self::locked::{Mode, NotLocked, check_locks};
pub use self::staged::{JobsLeftBecause, LeftJobs, StagedJobs};
pub use crate::probe::ValueType;
