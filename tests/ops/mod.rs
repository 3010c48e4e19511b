//! The operators' layer: what it shows, does, refuses, and records.

mod acts;
#[cfg(feature = "ops-api")]
mod api;
mod bulk;
pub mod cast;
#[cfg(feature = "metrics")]
mod census;
mod cut_off;
mod events;
mod given;
mod later_build;
mod list;
#[cfg(feature = "mysql")]
mod mysql;
mod nodes;
mod pause_acts;
mod pause_names;
mod pauses;
mod permissions;
mod postgres;
mod redaction;
mod search_bounds;
mod why;
mod without_code;
