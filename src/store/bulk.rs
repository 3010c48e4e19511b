//! Bulk acts as rows: one for each act, and one for each request that it is about.
//!
//! A worker is at a bulk act for a slice at a time, under a lease and a fencing token. The outcome of a request is
//! written once, by the holder of the token; that the act itself was done once is the request's own guard.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::audit::AuditEntry;
use super::scope_limits::ScopeLimits;
use crate::number::to_u32;

/// A bulk act, and how far it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkRow {
    pub(crate) id: Uuid,
    pub(crate) act: String,
    pub(crate) actor: String,
    pub(crate) reason: String,
    /// `None`: a text of a later build. It allows nothing.
    pub(crate) limits: Option<ScopeLimits>,
    pub(crate) items: u32,
    /// How many requests had their turn, and on how many of them the act was done.
    pub(crate) settled: u32,
    pub(crate) applied: u32,
    pub(crate) started_at: DateTime<Utc>,
    pub(crate) ended_at: Option<DateTime<Utc>>,
    pub(crate) stopped_by: Option<String>,
    pub(crate) lease_token: i64,
}

/// The columns of a [`BulkRow`], in the order in which each store selects them.
pub(super) type BulkColumns = (
    (Uuid, String, String, String),
    (String, i32, i64, i64),
    (DateTime<Utc>, Option<DateTime<Utc>>, Option<String>, i64),
);

pub(super) fn bulk_row(row: BulkColumns) -> BulkRow {
    let ((id, act, actor, reason), (limits, items, settled, applied), times) = row;
    let (started_at, ended_at, stopped_by, lease_token) = times;
    BulkRow {
        id,
        act,
        actor,
        reason,
        limits: limits_of(&limits),
        items: to_u32(items),
        settled: to_u32(settled),
        applied: to_u32(applied),
        started_at,
        ended_at,
        stopped_by,
        lease_token,
    }
}

/// [`ScopeLimits`] as they are stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredLimits {
    only: Option<Vec<String>>,
    prefix: String,
}

fn limits_of(text: &str) -> Option<ScopeLimits> {
    let StoredLimits { only, prefix } = serde_json::from_str(text).ok()?;
    Some(ScopeLimits { only, prefix })
}

pub(super) fn limits_text(limits: &ScopeLimits) -> String {
    let ScopeLimits { only, prefix } = limits.clone();
    // Texts and lists of them have a JSON form.
    serde_json::to_string(&StoredLimits { only, prefix }).unwrap_or_default()
}

/// A request of a bulk act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkItem {
    pub(crate) position: u32,
    pub(crate) request_id: Uuid,
    pub(crate) seen: String,
    pub(crate) outcome: Option<String>,
    pub(crate) because: Option<String>,
}

/// Which requests of a bulk act to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkPart {
    /// Each.
    All,
    /// Those whose turn has not come.
    Waiting,
}

/// The columns of a [`BulkItem`].
pub(super) type ItemColumns = (i32, Uuid, String, Option<String>, Option<String>);

pub(super) fn bulk_item((position, request_id, seen, outcome, because): ItemColumns) -> BulkItem {
    BulkItem { position: position.max(0).cast_unsigned(), request_id, seen, outcome, because }
}

/// A bulk act that is to be started, and the audit row of that.
pub struct NewBulk<'a> {
    pub(crate) id: Uuid,
    pub(crate) act: &'static str,
    pub(crate) limits: &'a ScopeLimits,
    /// The requests, each with its version.
    pub(crate) items: &'a [(Uuid, String)],
    /// Says who and why, too.
    pub(crate) audit: &'a AuditEntry,
}

/// The outcome of one request, by the worker that has the token.
pub struct SettledItem<'a> {
    pub(crate) bulk_id: Uuid,
    pub(crate) token: i64,
    pub(crate) position: u32,
    pub(crate) outcome: &'static str,
    pub(crate) because: Option<&'a str>,
    /// Of what was not done: what was done was audited with its write.
    pub(crate) audit: Option<&'a AuditEntry>,
}

/// A slice of a worker's.
#[derive(Clone, Copy, Debug)]
pub struct BulkClaim {
    pub(crate) id: Uuid,
    /// As it was read. The claim raises it by one.
    pub(crate) token: i64,
    pub(crate) lease: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g16_limits_come_back_from_their_text_and_a_text_of_a_later_build_allows_nothing() {
        let only = Some(vec!["a".to_owned(), "b\"".to_owned()]);
        for limits in [ScopeLimits::default(), ScopeLimits { only, prefix: "eu/".into() }] {
            assert_eq!(limits_of(&limits_text(&limits)), Some(limits));
        }
        for later in ["", "{}", r#"{"only":null,"prefix":"","regions":["eu"]}"#] {
            assert_eq!(limits_of(later), None, "{later}");
        }
    }
}
