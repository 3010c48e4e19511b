//! The protocol of `atomic-phases` as a model: every interleaving of its steps with crashes, zombies,
//! lost answers, a forgetful provider, a reaper, a reconciler, deploys and failovers, within budgets.
//!
//! Read [`state`] (what there is), [`actions`] (what may happen), [`protocol`] (what the engine then
//! does), [`step`] and `node` (what that changes), [`properties`] (what has to hold) and [`cases`]
//! (where, and where it has to fail). `README.md` says what is left out.

pub mod actions;
pub mod case;
pub mod cases;
pub mod check;
pub mod config;
mod node;
pub mod properties;
pub mod protocol;
pub mod script;
pub mod state;
pub mod step;
