//! The metrics and what uses them: the metrics as Prometheus reads them, the alert rules, and the dashboards.
#![cfg(feature = "metrics")]

#[path = "../support/mod.rs"]
mod support;

mod alerts;
mod boards;
mod counted;
mod replays;
mod table;
