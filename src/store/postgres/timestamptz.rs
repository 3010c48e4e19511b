//! [`Timestamptz`]: the times of the engine's tables.

use chrono::{DateTime, Utc};
use diesel::deserialize::{self, FromSql};
use diesel::pg::data_types::PgTimestamp;
use diesel::pg::{Pg, PgValue};
use diesel::serialize::{self, Output, ToSql};
use diesel::sql_types;

/// As diesel's, which cannot read a time that chrono does not have, as `infinity`: written into one row by hand, it would be an
/// error of all that are read with it. Here it is the last time that chrono has, or the first; and each of these is `infinity`
/// again where it is bound, so that a list continues behind such a row.
#[derive(diesel::sql_types::SqlType)]
#[diesel(postgres_type(oid = 1184, array_oid = 1185))]
pub(in crate::store) struct Timestamptz;

/// PostgreSQL counts microseconds from the beginning of 2000.
const SINCE_1970: i64 = 946_684_800_000_000;

const FIRST: i64 = DateTime::<Utc>::MIN_UTC.timestamp_micros();
const LAST: i64 = DateTime::<Utc>::MAX_UTC.timestamp_micros();

impl FromSql<Timestamptz, Pg> for DateTime<Utc> {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        let PgTimestamp(micros) = FromSql::<sql_types::Timestamptz, Pg>::from_sql(value)?;
        let time = Self::from_timestamp_micros(micros.saturating_add(SINCE_1970));
        Ok(time.unwrap_or(if micros < 0 { Self::MIN_UTC } else { Self::MAX_UTC }))
    }
}

impl ToSql<Timestamptz, Pg> for DateTime<Utc> {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        let micros = match self.timestamp_micros() {
            FIRST => i64::MIN,
            LAST => i64::MAX,
            micros => micros - SINCE_1970,
        };
        ToSql::<sql_types::Timestamptz, Pg>::to_sql(&PgTimestamp(micros), &mut out.reborrow())
    }
}
