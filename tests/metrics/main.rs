//! What is measured, and what is made of it: the metrics as Prometheus reads them, the rules that call somebody, and
//! the boards.
#![cfg(feature = "metrics")]

#[path = "../support/mod.rs"]
mod support;

mod alerts;
mod boards;
mod counted;
mod replays;
mod table;
