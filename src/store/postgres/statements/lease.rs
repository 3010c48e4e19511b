//! Who may write a row: what each write is guarded by (G3, G6, G10), the takeover and the renewal of its lease.

use diesel::pg::Pg;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::sql_types::Bool;
use diesel::{QueryResult, sql_types};
use uuid::Uuid;

use super::super::numbered::{Shape, Shaped};
use super::rows::{COLUMNS, RowSql};
use crate::key::{IdempotencyKey, Scope};
use crate::store::row::millis;
use crate::store::statement::{push_bind, statement};
use crate::store::{Claim, Guard, Hold, Right};

statement! {
    /// Lease token and recovery point guard the row (G3, G6).
    Guarded<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str, request_id: Uuid, token: i64, from: &'a str },
    " WHERE scope = ", scope, " AND idempotency_key = ", key, " AND request_id = ", request_id,
    " AND lease_token = ", token, " AND recovery_point = ", from, " AND status = 'in_progress'"
}

impl Shaped for Guarded<'_> {
    fn note(&self, _: &mut Shape) {}
}

impl<'a> Guarded<'a> {
    pub(in crate::store::postgres) fn new(guard: &Guard<'a>) -> Self {
        Self {
            scope: guard.scope.as_str(),
            key: guard.key.as_str(),
            request_id: guard.request_id,
            token: guard.lease_token,
            from: guard.recovery_point,
        }
    }
}

statement! {
    /// The first of a transaction that keeps what it saw at its beginning: it locks the key's row, so that no session
    /// changes it from then on, the heartbeat neither. The lock is the better lease while it lasts. Does not wait
    /// for it: says whether it has it, and whether the row is there. And nothing of the transaction: behind Citus it is
    /// executed on the row's node, which has another one.
    Pin<'a> for Pg, rows (Bool, Bool), { locked: NotLocked<'a>, guarded: Guarded<'a> },
    "SELECT ", {locked}, ", EXISTS (SELECT 1 FROM atomic_phases_keys", {guarded}, ")"
}

impl<'a> Pin<'a> {
    pub(in crate::store::postgres) fn new(guard: &Guard<'a>) -> Self {
        let locked = NotLocked::new(guard.scope, guard.key);
        Self { locked, guarded: Guarded::new(guard) }
    }
}

statement! {
    /// Whether the row's lock is ours from here on. Never waits for it: a waiting caller keeps a connection, and
    /// a lock may be held for as long as a phase takes. That nothing is written does not yet say that the
    /// row is another holder's then: [`Stands`] does.
    NotLocked<'a> for Pg, rows sql_types::Untyped, { scope: &'a str, key: &'a str },
    "EXISTS (SELECT 1 FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " FOR NO KEY UPDATE SKIP LOCKED)"
}

impl<'a> NotLocked<'a> {
    pub(in crate::store::postgres) fn new(scope: &'a Scope, key: &'a IdempotencyKey) -> Self {
        Self { scope: scope.as_str(), key: key.as_str() }
    }
}

statement! {
    /// What a takeover is guarded by: the token and the status that were read. Of two that try, one wins
    /// (G10). A row in progress is free once its holder let the lease run out; or it is our own, after a
    /// commit that got no answer.
    Free<'a> for Pg, rows sql_types::Untyped,
    {
        scope: &'a str, key: &'a str, request_id: Uuid, token: i64, from: &'a str,
        stands_at: Option<&'a str>, own: bool,
    },
    " WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND status = ", from, "::atomic_phases_status",
    " AND recovery_point = coalesce(", stands_at, ", recovery_point) AND (status <> 'in_progress' OR ", own,
    " OR locked_until IS NULL OR locked_until <= (SELECT clock_timestamp()))"
}

impl<'a> Free<'a> {
    fn new(claim: &Claim<'a>) -> Self {
        Self {
            scope: claim.scope.as_str(),
            key: claim.key.as_str(),
            request_id: claim.request_id,
            token: claim.lease_token,
            from: claim.status.as_str(),
            stands_at: claim.recovery_point,
            own: claim.right == Right::Own,
        }
    }
}

/// A [line](crate::store::events::line) behind those that the row has, with its time, which is none before that of
/// what it came after; nothing, where there is none.
pub(in crate::store) struct NewEvent<'a>(pub(in crate::store::postgres) Option<&'a str>);

impl QueryFragment<Pg> for NewEvent<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let Some(line) = &self.0 else { return Ok(()) };
        out.push_sql(
            ", events_written = coalesce(events_written, 0) + 1, events = right(coalesce(events, '') || CAST(",
        );
        push_bind(&mut out, line)?;
        out.push_sql(
            " AS text) || (SELECT ceil(extract(epoch FROM clock_timestamp()) * 1000)::bigint::text), 4000)",
        );
        Ok(())
    }
}

/// The trace that the row has from now on; nothing, where it stays.
pub(in crate::store) struct NewTrace<'a>(Option<&'a [u8]>);

impl QueryFragment<Pg> for NewTrace<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let Some(trace) = &self.0 else { return Ok(()) };
        out.push_sql(", trace = ");
        push_bind(&mut out, trace)
    }
}

statement! {
    /// Acquires the lease of a row. Where the row is our own, after a commit that got no answer, this
    /// fences that commit off if it never arrived, and returns which recovery point holds (H5). Where nothing was called,
    /// however long the request was queued, a provider's window begins with this attempt (G11).
    TakeOver<'a> for Pg as varying, rows RowSql,
    {
        lease_ms: i64, retention_ms: i64, opens_window: bool, attempt: i32, reconcile: i32, phases: Option<&'a str>,
        is_free: bool, event: NewEvent<'a>, trace: NewTrace<'a>, free: Free<'a>, not_locked: NotLocked<'a>,
    },
    "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token = lease_token + 1, \
     locked_until = (SELECT clock_timestamp() + ", lease_ms, " * interval '1 millisecond'), \
     run_after = (SELECT clock_timestamp() + ", lease_ms, " * interval '1 millisecond'), \
     expires_at = greatest(expires_at, (SELECT clock_timestamp() + ", retention_ms, " * interval '1 millisecond')), \
     advanced_at = CASE WHEN ", opens_window, " THEN (SELECT clock_timestamp()) ELSE advanced_at END, \
     attempts = attempts + CASE WHEN open_intent IS NULL THEN ", attempt, " ELSE 0 END, reconciles = reconciles + ", reconcile,
    ", phases = coalesce(", phases, ", phases), waiting_since = CASE WHEN NOT ", is_free,
    " OR open_intent IS NOT NULL THEN waiting_since END", {event}, {trace}, {free}, " AND ", {not_locked}, " RETURNING ", [COLUMNS]
}

impl<'a> TakeOver<'a> {
    pub(in crate::store::postgres) fn new(claim: &Claim<'a>, hold: Hold) -> Self {
        Self {
            lease_ms: millis(hold.lease),
            retention_ms: millis(hold.retention),
            opens_window: claim.opens_window,
            attempt: (claim.right == Right::Free).into(),
            reconcile: (claim.right == Right::Reconcile).into(),
            phases: claim.phases,
            is_free: claim.right == Right::Free,
            event: NewEvent(claim.event),
            trace: NewTrace(claim.trace),
            free: Free::new(claim),
            not_locked: NotLocked::new(claim.scope, claim.key),
        }
    }
}

statement! {
    /// Whether a row still is what a takeover that wrote nothing is guarded by: then its lock was held.
    StandsFree<'a> for Pg, rows Bool, { free: Free<'a> },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys", {free}, ")"
}

impl<'a> StandsFree<'a> {
    pub(in crate::store::postgres) fn new(claim: &Claim<'a>) -> Self {
        Self { free: Free::new(claim) }
    }
}

statement! {
    /// What a renewal is guarded by.
    Held<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str, request_id: Uuid, token: i64 },
    " WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND lease_token = ", token, " AND status = 'in_progress'"
}

impl<'a> Held<'a> {
    fn new(guard: &Guard<'a>) -> Self {
        Self {
            scope: guard.scope.as_str(),
            key: guard.key.as_str(),
            request_id: guard.request_id,
            token: guard.lease_token,
        }
    }
}

statement! {
    /// Extends the lease while its holder lives. The holder's own commit, or a phase of its that keeps
    /// the row locked, is a lease by itself: this never waits for it.
    Renew<'a> for Pg, rows sql_types::Untyped,
    { lease_ms: i64, retention_ms: i64, held: Held<'a>, not_locked: NotLocked<'a> },
    "UPDATE atomic_phases_keys SET locked_until = (SELECT clock_timestamp() + ", lease_ms,
    " * interval '1 millisecond'), run_after = (SELECT clock_timestamp() + ", lease_ms,
    " * interval '1 millisecond'), \
     expires_at = greatest(expires_at, (SELECT clock_timestamp() + ", retention_ms,
    " * interval '1 millisecond'))", {held}, " AND ", {not_locked}
}

impl<'a> Renew<'a> {
    pub(in crate::store::postgres) fn new(guard: &Guard<'a>, hold: Hold) -> Self {
        Self {
            lease_ms: millis(hold.lease),
            retention_ms: millis(hold.retention),
            held: Held::new(guard),
            not_locked: NotLocked::new(guard.scope, guard.key),
        }
    }
}

statement! {
    /// As [`StandsFree`], of a renewal.
    StandsHeld<'a> for Pg, rows Bool, { held: Held<'a> },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys", {held}, ")"
}

impl<'a> StandsHeld<'a> {
    pub(in crate::store::postgres) fn new(guard: &Guard<'a>) -> Self {
        Self { held: Held::new(guard) }
    }
}

statement! {
    /// The same of a guarded write.
    StandsGuarded<'a> for Pg, rows Bool, { guarded: Guarded<'a> },
    "SELECT EXISTS (SELECT 1 FROM atomic_phases_keys", {guarded}, ")"
}
