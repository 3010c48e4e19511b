//! A key's row, as a call reads it, and what it counts against.

use diesel::pg::Pg;
use diesel::sql_types;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, SmallInt, Text, Uuid as SqlUuid};
use uuid::Uuid;

use super::super::timestamptz::Timestamptz;
use crate::store::statement::statement;

/// The columns of a [`Row`]. What a run needs stays behind where the row is completed.
pub(in crate::store::postgres) const COLUMNS: &str = "request_id, definition, definition_version, fingerprint, \
    status, recovery_point, open_intent, lease_token, attempts, \
    forgiven_attempts, reconciles, resolution, phases, reason, \
    (SELECT clock_timestamp()), locked_until, run_after, waiting_since, advanced_at, created_at, expires_at, \
    CASE WHEN status <> 'completed' THEN params END, \
    CASE WHEN status <> 'completed' THEN context END, \
    CASE WHEN status <> 'completed' THEN outputs END, trace, \
    response_status, response_headers, response_body";

pub(in crate::store::postgres) type RowSql = (
    (SqlUuid, Text, Integer, Text),
    (Text, Text, Nullable<Text>, BigInt, Integer),
    (Integer, Integer, Nullable<Text>, Text, Nullable<Text>),
    (Timestamptz, Nullable<Timestamptz>, Nullable<Timestamptz>, Nullable<Timestamptz>),
    (Timestamptz, Timestamptz, Timestamptz),
    (Nullable<Binary>, Nullable<Binary>, Nullable<Binary>, Nullable<Binary>),
    (Nullable<SmallInt>, Nullable<Binary>, Nullable<Binary>),
);

/// The columns of a [`KeySummaryRow`](crate::store::row::KeySummaryRow).
const SEEN: &str = "request_id, definition, definition_version, fingerprint, status, lease_token, \
    clock_timestamp(), locked_until, run_after, expires_at, \
    trace, response_status, response_headers, response_body";

type KeySummarySql = (
    (SqlUuid, Text, Integer, Text),
    (Text, BigInt, Timestamptz, Nullable<Timestamptz>, Nullable<Timestamptz>, Timestamptz),
    (Nullable<Binary>, Nullable<SmallInt>, Nullable<Binary>, Nullable<Binary>),
);

statement! {
    /// What a call has to see of the key's row. A replay is this statement and no other.
    Look<'a> for Pg, rows KeySummarySql,
    { scope: &'a str, key: &'a str },
    "SELECT ", [SEEN], " FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// The key's row, if there is one.
    Read<'a> for Pg, rows RowSql,
    { scope: &'a str, key: &'a str },
    "SELECT ", [COLUMNS], " FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// Makes room for a new life of a key whose request is finished and expired. `request_id` guards
    /// it: of two that come concurrently, the second finds the new row.
    DeleteExpired<'a> for Pg, rows sql_types::Untyped,
    { scope: &'a str, key: &'a str, request_id: Uuid },
    "DELETE FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id, " AND status = 'completed' AND expires_at <= (SELECT clock_timestamp())"
}

statement! {
    /// The outputs alone, for a word about a request that may be finished.
    Outputs<'a> for Pg, rows Nullable<Binary>,
    { scope: &'a str, key: &'a str },
    "SELECT outputs FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

statement! {
    /// The parameters alone, where the fingerprints of two requests differ.
    ParamsAndContext<'a> for Pg, rows (Binary, Nullable<Binary>),
    { scope: &'a str, key: &'a str, request_id: Uuid },
    "SELECT params, context FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key,
    " AND request_id = ", request_id
}

statement! {
    /// The scope's keys that are not past their retention, counted up to a cap (G16). Read from the
    /// primary key's index alone, before and behind the reserved keys of requests that had none; how many
    /// expired ones it may pass over is bounded too.
    CountKeys<'a> for Pg, rows BigInt,
    { scope: &'a str, most: i64, cap: i64 },
    "SELECT count(*) FROM (SELECT FROM ((SELECT expires_at FROM atomic_phases_keys \
     WHERE scope = ", scope, " AND idempotency_key < '~keyless:' ORDER BY idempotency_key LIMIT ", most,
    ") UNION ALL (SELECT expires_at FROM atomic_phases_keys \
     WHERE scope = ", scope, " AND idempotency_key >= '~keyless;' ORDER BY idempotency_key LIMIT ", most,
    ")) AS seen WHERE expires_at > statement_timestamp() LIMIT ", cap, ") AS live"
}
