//! What a call has to see of the key's row. A replay is this statement and no other.
//!
//! The server resolves and describes each column of a prepared statement at each execution, and the client reads each
//! description. So the short columns travel as one text, separated by spaces: first those that have none in them.

use diesel::mysql::Mysql as Db;
use diesel::sql_types;
use mysql_async::{Row, from_row_opt};

use super::words::CLOCK;
use crate::key::{IdempotencyKey, Scope};
use crate::store::in_millis::{StoredKeySummary, key_summary};
use crate::store::statement::statement;
use crate::store::{KeySummary, StoreError};

/// How many values travel as one text.
const VALUES: usize = 12;

statement! {
    /// The row's short columns, the stored headers and the stored body.
    Look for Db, rows sql_types::Untyped,
    { scope: String, key: String },
    "SELECT CONCAT_WS(' ', definition_version, lease_token, ", [CLOCK], ", coalesce(locked_until, ''), \
     coalesce(run_after, ''), expires_at, coalesce(response_status, ''), status, HEX(request_id), \
     coalesce(HEX(trace), ''), HEX(definition), fingerprint), response_headers, response_body \
     FROM atomic_phases_keys WHERE scope = ", scope, " AND idempotency_key = ", key
}

impl Look {
    pub(super) fn at(scope: &Scope, key: &IdempotencyKey) -> Self {
        Self { scope: scope.as_str().to_owned(), key: key.as_str().to_owned() }
    }
}

/// What was seen.
pub(super) fn seen(row: Row) -> Result<KeySummary, StoreError> {
    let unreadable = |_| StoreError::Unreadable { column: "fingerprint" };
    let (values, headers, body) =
        from_row_opt::<(Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>)>(row).map_err(unreadable)?;
    key_summary(read(&values, headers, body)?)
}

fn read(
    values: &[u8],
    headers: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
) -> Result<StoredKeySummary, StoreError> {
    let mut values = Values(values.splitn(VALUES, |byte| *byte == b' '));
    let version = values.number("definition_version")?;
    let lease_token = values.number("lease_token")?;
    let now = values.number("now")?;
    let locked_until = values.number_if_any("locked_until")?;
    let run_after = values.number_if_any("run_after")?;
    let expires_at = values.number("expires_at")?;
    let response_status = values.number_if_any("response_status")?;
    let status = values.text("status")?.to_owned();
    let request_id = values.bytes("request_id")?;
    let trace = Some(values.bytes("trace")?).filter(|trace| !trace.is_empty());
    let definition = String::from_utf8(values.bytes("definition")?)
        .map_err(|_| StoreError::Unreadable { column: "definition" })?;
    let fingerprint = values.text("fingerprint")?.to_owned();
    Ok((
        (request_id, definition, version, fingerprint),
        (status, lease_token, now, locked_until, run_after, expires_at),
        (trace, response_status, headers, body),
    ))
}

/// The values that are still to be read.
struct Values<I>(I);

impl<'v, I: Iterator<Item = &'v [u8]>> Values<I> {
    fn text(&mut self, column: &'static str) -> Result<&'v str, StoreError> {
        let text = self.0.next().and_then(|text| std::str::from_utf8(text).ok());
        text.ok_or(StoreError::Unreadable { column })
    }

    fn number_if_any(&mut self, column: &'static str) -> Result<Option<i64>, StoreError> {
        let text = self.text(column)?;
        let number = (!text.is_empty()).then(|| text.parse());
        number.transpose().map_err(|_| StoreError::Unreadable { column })
    }

    fn number(&mut self, column: &'static str) -> Result<i64, StoreError> {
        self.number_if_any(column)?.ok_or(StoreError::Unreadable { column })
    }

    fn bytes(&mut self, column: &'static str) -> Result<Vec<u8>, StoreError> {
        let digits = self.text(column)?.as_bytes().chunks(2);
        let byte = |two: &[u8]| {
            let [high, low] = two else { return None };
            let digit = |digit: u8| char::from(digit).to_digit(16);
            u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
        };
        digits.map(byte).collect::<Option<_>>().ok_or(StoreError::Unreadable { column })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_values_is_read_as_it_was_written() {
        let text = b"3 7 1700000000000 1700000030000  1700086400000 201 completed 0a1F  72 a b ";
        let (of_whom, state, answer) = read(text, None, Some(b"body".to_vec())).unwrap();
        assert_eq!(of_whom, (vec![10, 31], "r".to_owned(), 3, "a b ".to_owned()));
        let times = (1_700_000_000_000, Some(1_700_000_030_000), None, 1_700_086_400_000);
        assert_eq!(state, ("completed".to_owned(), 7, times.0, times.1, times.2, times.3));
        assert_eq!(answer, (None, Some(201), None, Some(b"body".to_vec())));
    }

    #[test]
    fn what_no_row_of_ours_has_is_unreadable_and_no_panic() {
        for text in [
            "",
            "1 2 3",
            "x 7 0   0  completed 0a  72 a",
            "3 7 0   0  completed 0  72 a",
            "3 7 0   0  completed 0a  ff a",
            "3 7 0   0  completed é  72 a",
        ] {
            assert!(read(text.as_bytes(), None, None).is_err(), "{text}");
        }
    }
}
