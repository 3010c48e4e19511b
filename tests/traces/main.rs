//! What an engine with `traces` records in the spans of a request, and what it stores for later attempts. Separate,
//! because a process has one subscriber.

#[path = "../support/mod.rs"]
mod support;

mod attempts;
mod deliveries;
mod panics;
mod seen;
mod stored;
