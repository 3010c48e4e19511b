//! Every statement that the engine sends to PostgreSQL, but for what a phase's commit writes
//! (`commit_statements`), and for what is said of sessions and transactions (`session`).
//!
//! Each names the distribution column `scope`, touches one row of one table, and is prepared once
//! for each connection. Times are `clock_timestamp()`: `now()` is the transaction's start (H12). What a statement
//! changes, and its `RETURNING`, asks for it in a query of its own, `(SELECT clock_timestamp() + $1)`, and casts no
//! column: a distributed table (docs/scaling.md) takes no other form. In a phase's transaction it is
//! `statement_timestamp()`, for what stands at `NextState`.

mod due;
mod erasure;
mod job_survey;
mod jobs;
mod lease;
mod rows;
mod transaction;

use chrono::{DateTime, Utc};
use diesel::pg::Pg;
use diesel::pg::data_types::PgInterval;
use diesel::sql_types::{
    Array, BigInt, Binary, Bool, Integer, Interval, Nullable, SmallInt, Text, Uuid as SqlUuid,
};
use uuid::Uuid;

pub(super) use self::{
    due::*, erasure::*, job_survey::*, jobs::*, lease::*, rows::*, transaction::*,
};
use super::timestamptz::Timestamptz;
use crate::store::statement::Bind;

macro_rules! bind {
    ($($type:ty => $sql:ty),* $(,)?) => {
        $(impl Bind<Pg> for $type { type Sql = $sql; })*
    };
}

bind! {
    &str => Text,
    String => Text,
    Option<&str> => Nullable<Text>,
    Option<String> => Nullable<Text>,
    Option<i64> => Nullable<BigInt>,
    Option<i32> => Nullable<Integer>,
    Vec<String> => Array<Text>,
    Option<Vec<String>> => Nullable<Array<Text>>,
    Vec<Uuid> => Array<SqlUuid>,
    Vec<i64> => Array<BigInt>,
    Vec<i32> => Array<Integer>,
    Vec<Option<String>> => Array<Nullable<Text>>,
    Vec<Option<Vec<u8>>> => Array<Nullable<Binary>>,
    Vec<Option<&[u8]>> => Array<Nullable<Binary>>,
    Option<Uuid> => Nullable<SqlUuid>,
    bool => Bool,
    i64 => BigInt,
    i32 => Integer,
    DateTime<Utc> => Timestamptz,
    Option<DateTime<Utc>> => Nullable<Timestamptz>,
    i16 => SmallInt,
    PgInterval => Interval,
    Option<i16> => Nullable<SmallInt>,
    Uuid => SqlUuid,
    &[u8] => Binary,
    Vec<&str> => Array<Text>,
    Vec<&[u8]> => Array<Binary>,
    Vec<bool> => Array<Bool>,
    Option<&[u8]> => Nullable<Binary>,
}
