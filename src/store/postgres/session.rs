//! The settings that the engine relies on in a session and in a transaction, and how it sets them.
//!
//! | | a connection that the engine opened | one of an application's pool |
//! |---|---|---|
//! | two bounds for a client that is gone (H13) | set once, for the session ([`SetUp`]); by statements that are sent without waiting, in each transaction ([`MarkTransaction`]) | set in each transaction |
//! | a bound for the lock of a key's row | rides in the statement that waits for it | the same |
//! | the mark by which a transaction is recognized (H7) | returned by the first statement of each ([`Known`]) | the same |
//!
//! What was set once can be lost: by a phase's `RESET ALL`, by an application's `DISCARD ALL`, by a pooler that gives the next
//! transaction another session. So the first statement of a phase's transaction also checks whether [it still holds](SET_UP).
//! If it does not, the engine sets it again before the phase begins.

use std::time::Duration;

use diesel::pg::Pg;
use diesel::sql_types::{self, Bool, Integer, Text};

use super::error::Mark;
use crate::store::TransactionId;
use crate::store::statement::statement;

/// By what the engine knows a transaction again that it began for a phase: the number that the server gave it
/// (H7), and which table of staged jobs it reached then. A phase may have changed the `search_path` since, also
/// for the next user of the connection, and to a schema that has such a table, too.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) number: String,
    pub(super) jobs: String,
}

impl Known {
    pub(super) fn id(&self) -> TransactionId {
        TransactionId(self.number.clone())
    }
}

/// A [`Known`], and whether the session is [`SET_UP`].
pub(super) type KnownRow = (String, String, bool);
pub(super) type KnownSql = (Text, Text, Bool);

/// The number of this transaction.
pub(super) const NUMBER: &str = "pg_current_xact_id()::text";

/// The table of staged jobs that is in reach.
pub(super) const JOBS: &str = "coalesce(to_regclass('atomic_phases_staged_jobs')::oid::text, '')";

/// Whether the session has what [`SetUp`] said: that wrote down what it was. By itself it is `NULL` in a session
/// in which nothing was said.
pub(super) const SET_UP: &str = "current_setting('atomic_phases.session', true) \
    = current_setting('client_connection_check_interval') || ' ' \
    || current_setting('idle_in_transaction_session_timeout')";

/// What the engine says once to a session that it opened: the server looks twice a second whether its client is
/// still there, also while it executes a statement, and ends a transaction whose client is silent for a minute.
/// A shorter bound of the session's own stays.
///
/// Answers first whether the session is shared (`pool::is_shared`), and has the first bound only because the
/// engine said it. What the session had before is written down when it is told for the first time.
pub(super) const SAY: &str = "SELECT coalesce(current_setting('atomic_phases.session', true), '') <> '' \
    AND NOT coalesce(nullif(current_setting('atomic_phases.found', true), '')::interval \
    BETWEEN '1ms' AND '10s', false), \
    set_config('atomic_phases.found', coalesce(nullif(current_setting('atomic_phases.found', true), ''), \
    current_setting('client_connection_check_interval')), false), \
    set_config('atomic_phases.session', \
    set_config('client_connection_check_interval', '500', false) || ' ' \
    || set_config('idle_in_transaction_session_timeout', CASE WHEN \
    current_setting('idle_in_transaction_session_timeout')::interval BETWEEN '1ms' AND '60s' \
    THEN current_setting('idle_in_transaction_session_timeout') ELSE '60s' END, false), false)";

statement! {
    /// [`SAY`], in a session that has lost it.
    SetUp for Pg, rows sql_types::Untyped, {}, [SAY]
}

/// The same for this transaction only, so that it passes through any pooler.
const SAY_LOCALLY: &str = "set_config('client_connection_check_interval', '500', true) || ' ' \
    || set_config('idle_in_transaction_session_timeout', CASE WHEN \
    current_setting('idle_in_transaction_session_timeout')::interval BETWEEN '1ms' AND '60s' \
    THEN current_setting('idle_in_transaction_session_timeout') ELSE '60s' END, true)";

statement! {
    /// Behind `BEGIN`, in a session that the engine opened.
    Know for Pg, rows KnownSql, {}, "SELECT ", [NUMBER], ", ", [JOBS], ", ", [SET_UP], " IS TRUE"
}

statement! {
    /// The same in a session of an application's, and behind [`Pin`](super::statements::Pin).
    KnowAndSay for Pg, rows KnownSql, {},
    "SELECT ", [NUMBER], ", ", [JOBS], ", (", [SAY_LOCALLY], ") IS NOT NULL"
}

// A bound for a lock that rides in the statement which waits for it.

/// Columns of a part that is executed before the wait: the lock timeout that the session has (behind [`Settings`], the one
/// that it had before them), and from here on a lock is waited for [`ROW_LOCK_WAIT`](super::twin::ROW_LOCK_WAIT) at most.
pub(super) const WAIT_BRIEFLY: &str = "coalesce(nullif(current_setting('atomic_phases.lock_timeout', true), ''), \
    current_setting('lock_timeout')) AS lock_timeout, set_config('lock_timeout', '20', true)";

/// The same in a statement that is a transaction by itself, and so behind no [`Settings`].
pub(super) const WAIT_BRIEFLY_ALONE: &str =
    "current_setting('lock_timeout') AS lock_timeout, set_config('lock_timeout', '20', true)";

/// Where the columns of [`WAIT_BRIEFLY`] are in reach: from here on as long as the session says.
pub(super) const WAIT_AS_BEFORE: &str = "set_config('lock_timeout', lock_timeout, true)";

// Transactions whose statements are all sent before the first of them is answered: what they are known by is
// written down in settings that end with them.

/// Whether a statement runs in the transaction that the engine began: [`Settings`] or [`MarkTransaction`] wrote that transaction's
/// number down.
pub(super) const OURS: &str =
    "current_setting('atomic_phases.transaction', true) = pg_current_xact_id()::text";

/// Whether the table of staged jobs is the one that it was when the transaction began.
pub(super) const SAME_JOBS: &str = "to_regclass('atomic_phases_staged_jobs')::oid::text \
    = current_setting('atomic_phases.jobs', true)";

statement! {
    /// The bounds, what [`OURS`] and [`SAME_JOBS`] compare, and a bound for locks.
    Settings for Pg, rows sql_types::Untyped, { lock_timeout: Option<String> },
    "SELECT set_config('atomic_phases.lock_timeout', current_setting('lock_timeout'), true), ", [SAY_LOCALLY],
    ", set_config('atomic_phases.jobs', ", [JOBS], ", true), set_config('atomic_phases.transaction', ", [NUMBER],
    ", true), set_config('lock_timeout', coalesce(", lock_timeout, ", current_setting('lock_timeout')), true)"
}

impl Settings {
    pub(super) fn new(lock_wait: Option<Duration>) -> Self {
        Self { lock_timeout: lock_wait.map(|wait| wait.as_millis().max(1).to_string()) }
    }
}

/// The transaction's number; and the bounds, which a session that the engine opened has lost if a phase or the application
/// has reset it. Nothing could wait for the answer if that were asked.
const MARK: &str = "set_config('client_connection_check_interval', '500', true), \
    CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval BETWEEN '1ms' AND '60s' \
    THEN NULL ELSE set_config('idle_in_transaction_session_timeout', '60s', true) END, \
    set_config('atomic_phases.transaction', pg_current_xact_id()::text, true)";

statement! {
    /// In a session that the engine opened: the bounds, and what [`OURS`] compares.
    MarkTransaction for Pg, rows sql_types::Untyped, {}, "SELECT ", [MARK]
}

statement! {
    /// What [`SAME_JOBS`] compares, too.
    MarkTransactionAndJobs for Pg, rows sql_types::Untyped, {},
    "SELECT ", [MARK], ", set_config('atomic_phases.jobs', ", [JOBS], ", true)"
}

statement! {
    /// Last before the `COMMIT` of statements that were sent without waiting for an answer: an error
    /// where they left the transaction, or put the engine's tables out of reach, which turns that `COMMIT`
    /// into a rollback. A staged job says the same, so this is for phases without one, of which a statement is more than an
    /// `INSERT`, `UPDATE` or `DELETE`: these cannot leave a transaction, and the key's row is written before them.
    StillOurs for Pg, rows Integer, {},
    "SELECT CASE WHEN (", [OURS], ") IS NOT TRUE THEN ", (Mark::Left.sql()), " WHEN (", [SAME_JOBS],
    ") IS NOT TRUE THEN ", (Mark::Strayed.sql()), " ELSE '1' END::integer"
}

#[cfg(test)]
mod tests {
    use super::{WAIT_BRIEFLY, WAIT_BRIEFLY_ALONE};
    use crate::store::postgres::twin::ROW_LOCK_WAIT;

    #[test]
    fn a_reservation_waits_as_long_as_the_rest_of_the_store_says() {
        let wait = ROW_LOCK_WAIT.as_millis();
        for says in [WAIT_BRIEFLY, WAIT_BRIEFLY_ALONE] {
            assert!(says.contains(&format!("'lock_timeout', '{wait}', true")), "{wait} ms: {says}");
        }
    }
}
