//! The engine: requests from their first attempt to their last, the commits of their phases, and the workers.

mod commits;
mod requests;
mod support;
mod workers;
