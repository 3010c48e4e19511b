//! [`NodeRow`]: a process that runs workers, as a row of its table. It writes the row anew every few seconds, and
//! takes it away when it ends as it should.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Of this life of the process.
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) build: String,
    /// A list of [`NodeDefinition`]s as JSON.
    pub(crate) definitions: String,
}

/// A definition that a process can continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeDefinition {
    pub(crate) name: String,
    pub(crate) version: u32,
    /// As they stand with the rows that it runs.
    pub(crate) phases: String,
}

/// What was read of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    pub(crate) entry: NodeEntry,
    pub(crate) started_at: DateTime<Utc>,
    pub(crate) seen_at: DateTime<Utc>,
    /// The database's clock.
    pub(crate) now: DateTime<Utc>,
}

/// The columns of one, in the order in which each store selects them.
pub(super) type NodeColumns =
    ((Uuid, String, String, String), (DateTime<Utc>, DateTime<Utc>, DateTime<Utc>));

pub(super) fn node((entry, times): NodeColumns) -> NodeRow {
    let ((id, name, build, definitions), (started_at, seen_at, now)) = (entry, times);
    NodeRow { entry: NodeEntry { id, name, build, definitions }, started_at, seen_at, now }
}
