//! The statements that are sent to the server.

mod recorded;
#[path = "../support/mod.rs"]
mod support;

mod abandoned;
mod accepted;
mod counts;
mod distributed;
mod distributed_rules;
mod hot;
mod idle_workers;
mod jobs;
#[cfg(feature = "mysql")]
mod mysql;
mod one_job;
mod operators;
#[cfg(feature = "mysql")]
mod operators_mariadb;
mod operators_million;
mod passed_over;
mod plans;
mod reserve;
mod single_statement;
mod stored;
#[cfg(feature = "mysql")]
mod stored_mariadb;
