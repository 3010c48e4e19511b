//! Statements about many rows of keys: each finds its own, and none waits for another's lock.

use diesel::pg::Pg;
use diesel::sql_types::BigInt;
use uuid::Uuid;

use super::statements::{COLUMNS, RowSql};
use crate::key::{IdempotencyKey, Scope};
use crate::store::row::millis;
use crate::store::statement::statement;
use crate::store::{Claim, Hold, Right, Status};

/// What is read of many rows arrives as one answer: a row with a value of more than 64 KiB is passed over, and is asked for
/// alone (G16). The server knows the length of a value that it keeps apart from its row without reading it.
const IS_SMALL: &str = "greatest(octet_length(params), octet_length(context), octet_length(outputs), \
    octet_length(resolution), octet_length(response_headers), octet_length(response_body)) <= 65536";

statement! {
    /// Rows of keys, with their numbers counted from one. How many there are is kept from the planner, which
    /// would plan anew each time for as many as are at hand.
    ReadMany for Pg, rows (BigInt, RowSql), { scopes: Vec<String>, keys: Vec<String> },
    "SELECT given.number, k.* FROM unnest((SELECT ", scopes, "), (SELECT ", keys,
    ")) WITH ORDINALITY AS given (of_scope, of_key, number), LATERAL (SELECT ", [COLUMNS],
    " FROM atomic_phases_keys WHERE scope = given.of_scope AND idempotency_key = given.of_key AND ", [IS_SMALL],
    " OFFSET 0) AS k"
}

impl ReadMany {
    pub(super) fn new(of: &[(Scope, IdempotencyKey)]) -> Self {
        let text = |(scope, key): &(Scope, IdempotencyKey)| {
            (scope.as_str().to_owned(), key.as_str().to_owned())
        };
        let (scopes, keys) = of.iter().map(text).unzip();
        Self { scopes, keys }
    }
}

/// A [`Claim`] of a free row, to travel with others.
pub(super) struct FreeClaim {
    scope: Scope,
    key: IdempotencyKey,
    request_id: Uuid,
    lease_token: i64,
    status: Status,
    recovery_point: Option<String>,
    phases: Option<String>,
    opens_window: bool,
    event: Option<String>,
    trace: Option<Vec<u8>>,
    pub(super) hold: Hold,
}

impl FreeClaim {
    pub(super) fn new(claim: &Claim<'_>, hold: Hold) -> Self {
        Self {
            scope: claim.scope.clone(),
            key: claim.key.clone(),
            request_id: claim.request_id,
            lease_token: claim.lease_token,
            status: claim.status,
            recovery_point: claim.recovery_point.map(str::to_owned),
            phases: claim.phases.map(str::to_owned),
            opens_window: claim.opens_window,
            event: claim.event.map(str::to_owned),
            trace: claim.trace.map(<[u8]>::to_vec),
            hold,
        }
    }

    /// To travel alone.
    pub(super) fn alone(&self) -> Claim<'_> {
        Claim {
            scope: &self.scope,
            key: &self.key,
            request_id: self.request_id,
            lease_token: self.lease_token,
            status: self.status,
            recovery_point: self.recovery_point.as_deref(),
            phases: self.phases.as_deref(),
            right: Right::Free,
            opens_window: self.opens_window,
            event: self.event.as_deref(),
            trace: self.trace.as_deref(),
        }
    }
}

statement! {
    /// [`TakeOver`](super::statements::TakeOver) of many free rows, each guarded as it is alone (G10). A row
    /// that is locked is passed over, and one that is not small is not locked. Of two that name one row, one wins.
    TakeOverMany for Pg, rows (BigInt, RowSql),
    {
        scopes: Vec<String>, keys: Vec<String>, requests: Vec<Uuid>, tokens: Vec<i64>,
        statuses: Vec<String>, points: Vec<Option<String>>, phases: Vec<Option<String>>,
        leases_ms: Vec<i64>, retentions_ms: Vec<i64>, openings: Vec<bool>, events: Vec<Option<String>>,
        traces: Vec<Option<Vec<u8>>>,
    },
    "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token = lease_token + 1, \
     locked_until = clock.now + given.lease_ms * interval '1 millisecond', \
     run_after = clock.now + given.lease_ms * interval '1 millisecond', \
     expires_at = greatest(expires_at, clock.now + given.retention_ms * interval '1 millisecond'), \
     advanced_at = CASE WHEN given.opens_window THEN clock.now ELSE advanced_at END, \
     attempts = attempts + CASE WHEN open_intent IS NULL THEN 1 ELSE 0 END, phases = coalesce(given.of_phases, phases), waiting_since = CASE WHEN open_intent IS NOT NULL THEN waiting_since END, \
     events_written = CASE WHEN given.event IS NULL THEN events_written ELSE coalesce(events_written, 0) + 1 END, \
     events = coalesce(right(coalesce(events, '') || given.event \
     || ceil(extract(epoch FROM clock.now) * 1000)::bigint::text, 4000), events), trace = coalesce(given.of_trace, trace) \
     FROM unnest(", scopes, ", ", keys, ", ", requests, ", ", tokens, ", ", statuses, ", ", points, ", ",
    phases, ", ", leases_ms, ", ", retentions_ms, ", ", openings, ", ", events, ", ", traces, ") WITH ORDINALITY AS given (of_scope, of_key, of_request, \
     token, of_status, stands_at, of_phases, lease_ms, retention_ms, opens_window, event, of_trace, number), \
     (SELECT clock_timestamp() AS now OFFSET 0) AS clock \
     WHERE scope = given.of_scope AND idempotency_key = given.of_key AND request_id = given.of_request \
     AND lease_token = given.token AND status = given.of_status::atomic_phases_status \
     AND recovery_point = coalesce(given.stands_at, recovery_point) \
     AND (status <> 'in_progress' OR locked_until IS NULL OR locked_until <= clock.now) \
     AND EXISTS (SELECT 1 FROM atomic_phases_keys AS free WHERE free.scope = given.of_scope \
     AND free.idempotency_key = given.of_key AND ", [IS_SMALL], " FOR NO KEY UPDATE SKIP LOCKED) RETURNING given.number, ", [COLUMNS]
}

impl TakeOverMany {
    pub(super) fn new(claims: Vec<FreeClaim>) -> Self {
        let mut all = Self {
            scopes: Vec::new(),
            keys: Vec::new(),
            requests: Vec::new(),
            tokens: Vec::new(),
            statuses: Vec::new(),
            points: Vec::new(),
            phases: Vec::new(),
            leases_ms: Vec::new(),
            retentions_ms: Vec::new(),
            openings: Vec::new(),
            events: Vec::new(),
            traces: Vec::new(),
        };
        for claim in claims {
            all.scopes.push(claim.scope.as_str().to_owned());
            all.keys.push(claim.key.as_str().to_owned());
            all.requests.push(claim.request_id);
            all.tokens.push(claim.lease_token);
            all.statuses.push(claim.status.as_str().to_owned());
            all.points.push(claim.recovery_point);
            all.phases.push(claim.phases);
            all.openings.push(claim.opens_window);
            all.events.push(claim.event);
            all.traces.push(claim.trace);
            all.leases_ms.push(millis(claim.hold.lease));
            all.retentions_ms.push(millis(claim.hold.retention));
        }
        all
    }
}
