//! The commit of a phase: races for a row, leases, batches, lost answers, and a store that fails.

mod attempt_cap;
mod batch;
mod batch_parts;
mod batch_statements;
mod changed_sessions;
mod distributed_tables;
mod driver;
mod durability;
mod hostile;
mod infrastructure_faults;
mod late_answers;
mod lease;
mod lost_answers;
mod many_values;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "mysql")]
mod mysql_altered;
#[cfg(feature = "mysql")]
mod mysql_batch;
#[cfg(feature = "mysql")]
mod mysql_faults;
#[cfg(feature = "mysql")]
mod mysql_kills;
#[cfg(feature = "mysql")]
mod mysql_large;
#[cfg(feature = "mysql")]
mod mysql_open_phases;
#[cfg(feature = "mysql")]
mod mysql_prepared;
#[cfg(feature = "mysql")]
mod mysql_refusals;
#[cfg(feature = "mysql")]
mod mysql_sessions;
#[cfg(feature = "mysql")]
mod mysql_statements;
#[cfg(feature = "mysql")]
mod mysql_waits;
mod pool_faults;
mod pool_shares;
mod poolers;
mod provider_answers;
mod races;
mod replaced_file;
mod sessions;
mod shared_commit;
mod shutdown;
mod slow_batches;
mod suspends;
mod time_limits;
mod visits;
mod waits;
mod windows;
