//! What a new build changes: requests, whose old rows it has to run, and the schema of the engine's tables.

#![allow(dead_code, unreachable_pub, missing_docs)]

// The flagship's own files, which import each other from their root.
#[path = "../examples/rocket_rides/charge_api.rs"]
mod charge_api;
#[path = "../examples/rocket_rides/create_ride.rs"]
mod create_ride;
#[path = "../examples/rocket_rides/db.rs"]
mod db;
#[path = "../examples/rocket_rides/pilot_api.rs"]
mod pilot_api;

mod compat;
#[cfg(feature = "fault-injection")]
mod migrations;
mod support;
