//! A change to a request is checked before it is deployed: the lock files, and their findings compared with what
//! the engine then does.

mod asked;
#[cfg(feature = "simulation")]
mod changes;
mod defaults;
#[cfg(feature = "simulation")]
mod drawn;
mod files;
mod never;
mod recipes;
mod rows;
mod staged;
mod verdicts;
