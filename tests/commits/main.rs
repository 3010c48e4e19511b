//! The commit of a phase: races for a row, leases, batches, lost answers, and a store that fails.

#[path = "../support/mod.rs"]
mod support;

mod batch;
mod batch_parts;
mod batch_statements;
mod commits;
mod distributed_tables;
mod hostile;
mod infrastructure_faults;
mod lease;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "mysql")]
mod mysql_batch;
#[cfg(feature = "mysql")]
mod mysql_faults;
#[cfg(feature = "mysql")]
mod mysql_large;
#[cfg(feature = "mysql")]
mod mysql_sessions;
#[cfg(feature = "mysql")]
mod mysql_waits;
mod poolers;
mod races;
mod sessions;
mod shared_commit;
mod visits;
mod windows;
