//! The explorer: a crash at every point of a request, and the mutants that it finds.

#![cfg(feature = "fault-injection")]
#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../../examples/rocket_rides/charge_api.rs"]
mod charge_api;
#[path = "../../examples/rocket_rides/create_ride.rs"]
mod create_ride;
#[path = "../../examples/rocket_rides/db.rs"]
mod db;
#[path = "../../examples/rocket_rides/pilot_api.rs"]
mod pilot_api;
#[path = "../../examples/rocket_rides/pilots.rs"]
mod pilots;
#[path = "../../examples/rocket_rides/provider.rs"]
mod provider;
#[path = "../support/mod.rs"]
mod support;

mod bookings;
mod mutants;
mod points;
mod reports;
mod rides;
mod unanswered;
mod worlds;

// The modules that the flagship's own files import from their root.
use support::rides::signature;
