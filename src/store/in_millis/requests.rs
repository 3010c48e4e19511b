//! The statements of operators about requests: those of `store::postgres::ops_statements`, with owned values.

use chrono::DateTime;
use diesel::sql_types::{BigInt, Binary, Nullable, Text};
use uuid::Uuid;

use super::{Allowed, InMillis};
use crate::store::operators::{Limits, ListedRow};
use crate::store::statement::statement;

pub(in crate::store) type ListedSql = (
    (Binary, Text, Text),
    (Text, BigInt, Text),
    (Text, Text, Text, Nullable<Text>, Nullable<Text>),
    (BigInt, BigInt, Nullable<Text>),
    (Nullable<BigInt>, Nullable<BigInt>, Nullable<BigInt>),
    (BigInt, BigInt),
);

pub(in crate::store) type StoredListed = (
    (Vec<u8>, String, String),
    (String, i64, String),
    (String, String, String, Option<String>, Option<String>),
    (i64, i64, Option<String>),
    (Option<i64>, Option<i64>, Option<i64>),
    (i64, i64),
);

/// A row with a value that no row of ours has was written by hand, and is passed over.
pub(in crate::store) fn listed(row: StoredListed) -> Option<ListedRow> {
    let ((id, scope, key), (definition, version, phases), stands, counts, due, times) = row;
    let time = DateTime::from_timestamp_millis;
    Some((
        (Uuid::from_slice(&id).ok()?, scope, key),
        (definition, i32::try_from(version).ok()?, phases),
        stands,
        (counts.0, i32::try_from(counts.1).ok()?, counts.2),
        (due.0.and_then(time), due.1.and_then(time), due.2.and_then(time)),
        (time(times.0)?, time(times.1)?),
    ))
}

/// One more than is counted, which tells that there are more.
const BOUNDED: &str = " LIMIT 10001) AS looked";
const OF_THOSE: &str = "COUNT(CASE WHEN allowed AND ";

statement! {
    /// How much waits, among the first of each index.
    Count in D, rows ((BigInt, BigInt, BigInt, Nullable<BigInt>), (BigInt, BigInt), (BigInt, BigInt)),
    { waiting: Allowed, due: Allowed, jobs: Allowed },
    "SELECT * FROM (SELECT count(*), ", [OF_THOSE], "status = 'unknown' THEN 1 END), ", [OF_THOSE],
    "status = 'dead_letter' THEN 1 END), MIN(CASE WHEN allowed AND status IN ('unknown', 'dead_letter') THEN waiting_since END) \
     FROM (SELECT status, waiting_since, ", waiting,
    " AS allowed FROM atomic_phases_keys WHERE waiting_since IS NOT NULL ORDER BY waiting_since", [BOUNDED],
    ") AS waiting, (SELECT count(*), ", [OF_THOSE], "waiting_since IS NULL AND run_after <= ", (D::CLOCK),
    " THEN 1 END) FROM (SELECT run_after, waiting_since, ", due,
    " AS allowed FROM atomic_phases_keys WHERE run_after IS NOT NULL ORDER BY run_after", [BOUNDED],
    ") AS due, (SELECT count(*), COUNT(CASE WHEN allowed THEN 1 END) FROM (SELECT ", jobs,
    " AS allowed FROM atomic_phases_staged_jobs WHERE run_after IS NULL", [BOUNDED], ") AS jobs"
}

impl Count {
    pub(in crate::store) fn new<D: InMillis>(limits: &Limits) -> Self {
        let allowed = || Allowed::by::<D>(limits);
        Self { waiting: allowed(), due: allowed(), jobs: allowed() }
    }
}
