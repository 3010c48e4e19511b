//! Real processes and servers that are killed, stopped, cut off, failed over or set to another time.

#[path = "../support/mod.rs"]
mod support;

mod abandoned;
mod abort;
mod citus;
mod clock;
mod examples;
mod failover;
mod frozen;
mod kill;
#[cfg(feature = "mysql")]
mod mariadb;
mod partition;
#[cfg(feature = "redis")]
mod soak;
mod tls;
