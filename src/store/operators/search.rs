//! Which requests an operator's search finds, and in which order.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::ScopeLimits;

/// By which index a search finds requests, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// `atomic_phases_keys_waiting`: unknown outcomes and dead letters, the longest waiting first.
    Waiting,
    /// `atomic_phases_keys_due`: what a worker looks at some time, the longest due first.
    Due,
    /// `atomic_phases_keys_expiry`: every row, the one that expires last first.
    Newest,
}

/// A place in the order of a [`Walk`]: the time that the walk goes by, and the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPlace {
    pub(crate) time: DateTime<Utc>,
    pub(crate) request_id: Uuid,
}

/// What a [`Walk`] is in SQL.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
pub(crate) struct WalkSql {
    /// The column of the index that the walk goes by.
    pub(crate) column: &'static str,
    /// Of which rows.
    pub(crate) rows: &'static str,
    /// Behind a place, whose two binds follow.
    pub(crate) behind: &'static str,
    pub(crate) order: &'static str,
}

impl Walk {
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "mysql"))]
    pub(crate) fn sql(self) -> WalkSql {
        let (column, rows, behind, order) = match self {
            Self::Waiting => (
                "waiting_since",
                " WHERE waiting_since IS NOT NULL AND ",
                "(waiting_since, request_id) > (",
                " ORDER BY waiting_since, request_id",
            ),
            Self::Due => (
                "run_after",
                " WHERE run_after IS NOT NULL AND ",
                "(run_after, request_id) > (",
                " ORDER BY run_after, request_id",
            ),
            Self::Newest => (
                "expires_at",
                " WHERE ",
                "(expires_at, request_id) < (",
                " ORDER BY expires_at DESC, request_id DESC",
            ),
        };
        WalkSql { column, rows, behind, order }
    }

    /// From a time on, which follows.
    #[cfg(any(feature = "sqlite", feature = "mysql"))]
    pub(crate) fn from(self) -> &'static str {
        match self {
            Self::Waiting => "waiting_since >= ",
            Self::Due => "run_after >= ",
            Self::Newest => "expires_at <= ",
        }
    }

    /// The place in front of the first.
    pub(crate) fn start(self) -> ListPlace {
        match self {
            Self::Waiting | Self::Due => {
                ListPlace { time: DateTime::UNIX_EPOCH, request_id: Uuid::nil() }
            }
            Self::Newest => {
                // The year 9999: every database's times hold it.
                let time = DateTime::from_timestamp(253_370_764_800, 0).unwrap_or_default();
                ListPlace { time, request_id: Uuid::max() }
            }
        }
    }
}

/// Which requests to find.
#[derive(Clone)]
pub struct ListRequests {
    pub(crate) walk: Walk,
    pub(crate) after: ListPlace,
    pub(crate) limit: u32,
    pub(crate) limits: ScopeLimits,
    /// Names of states, as the stores tell them ([`state_name`](super::state_name)).
    pub(crate) states: Option<Vec<String>>,
    pub(crate) scope: Option<String>,
    pub(crate) definition: Option<String>,
    pub(crate) version: Option<u32>,
    /// A part of the reason.
    pub(crate) reason: Option<String>,
    /// Accepted so long ago, at least, in milliseconds.
    pub(crate) older_ms: Option<i64>,
    /// Waiting for a reconcile function or an operator for so long, in milliseconds.
    pub(crate) waiting_ms: Option<i64>,
}

impl ListRequests {
    /// The first that these limits allow.
    pub(crate) fn of(walk: Walk, after: ListPlace, limits: ScopeLimits) -> Self {
        Self {
            walk,
            after,
            limit: 1,
            limits,
            states: None,
            scope: None,
            definition: None,
            version: None,
            reason: None,
            older_ms: None,
            waiting_ms: None,
        }
    }
}

/// What a search found.
pub struct SearchPage<T, P> {
    pub(crate) rows: Vec<T>,
    /// Behind which place to continue, where the bound was reached before the page was full; a full page goes
    /// on behind its last row.
    pub(crate) searched_to: Option<P>,
}
