//! A change to a request is checked before it is deployed: the lock files, and their findings compared with what
//! the engine then does.

#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../../examples/rocket_rides/charge_api.rs"]
mod charge_api;
#[path = "../../examples/rocket_rides/create_ride.rs"]
mod create_ride;
#[path = "../../examples/rocket_rides/db.rs"]
mod db;
#[path = "../../examples/rocket_rides/pilot_api.rs"]
mod pilot_api;
#[path = "../support/mod.rs"]
mod support;

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
