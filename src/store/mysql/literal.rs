//! From a diesel query to what the driver sends: a text with binds, or a text with literals in their place.
//!
//! Several statements of the engine's travel as one text (`transaction`). A user's never does: what a
//! semicolon in it would begin is another statement.

use diesel::QueryResult;
use diesel::deserialize::FromSql;
use diesel::mysql::data_types::MysqlTime;
use diesel::mysql::{Mysql, MysqlQueryBuilder, MysqlType, MysqlValue};
use diesel::query_builder::bind_collector::RawBytesBindCollector;
use diesel::query_builder::{QueryBuilder, QueryFragment, QueryId};
use diesel::result::Error;
use mysql_async::Value;

/// A statement, with what is bound in it.
#[derive(Clone)]
pub(super) struct BoundStatement {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
    /// How many bytes of the text may differ each time: none, if it is always the same, as far as diesel knows.
    pub(super) varying: usize,
}

impl BoundStatement {
    /// Of the engine's own that has few texts.
    pub(super) fn of(query: &impl QueryFragment<Mysql>) -> QueryResult<Self> {
        let mut sql = MysqlQueryBuilder::new();
        query.to_sql(&mut sql, &Mysql)?;
        let mut binds = RawBytesBindCollector::<Mysql>::new();
        query.collect_binds(&mut binds, &mut (), &Mysql)?;
        let mut values = Vec::with_capacity(binds.binds.len());
        for bind in binds.metadata.into_iter().zip(binds.binds) {
            values.push(value(bind)?);
        }
        Ok(Self { sql: sql.finish(), values, varying: 0 })
    }

    /// The same of one that may have a text for each number of its values: then diesel knows of it.
    pub(super) fn of_any(query: &impl QueryFragment<Mysql>) -> QueryResult<Self> {
        let mut bound = Self::of(query)?;
        if !query.is_safe_to_cache_prepared(&Mysql)? {
            bound.varying = bound.sql.len();
        }
        Ok(bound)
    }

    /// The same of an application's query. One without a type of its own, which a program has put together, may have any
    /// text.
    pub(super) fn of_application<Q>(query: &Q) -> QueryResult<Self>
    where
        Q: QueryFragment<Mysql> + QueryId,
    {
        let mut bound = Self::of_any(query)?;
        if !Q::HAS_STATIC_QUERY_ID {
            bound.varying = bound.sql.len();
        }
        Ok(bound)
    }

    /// About as many bytes as it takes to send.
    pub(super) fn size(&self) -> usize {
        self.sql.len() + self.values.iter().map(size_of).sum::<usize>()
    }

    /// The same without binds. Of a statement of the engine's: no string in it has a question mark.
    pub(super) fn into_text(self) -> String {
        let mut text = String::with_capacity(self.sql.len() + 2 * self.size());
        let mut values = self.values.iter();
        for (at, part) in self.sql.split('?').enumerate() {
            if at > 0 {
                // As many as there are question marks.
                values.next().into_iter().for_each(|value| push_literal(&mut text, value));
            }
            text.push_str(part);
        }
        text
    }
}

/// About as many bytes as it takes to send.
pub(super) fn size_of(value: &Value) -> usize {
    match value {
        Value::Bytes(bytes) => bytes.len() + 9,
        _ => 16,
    }
}

/// A literal that means the same whatever `sql_mode`, character set and language of the session are.
fn push_literal(text: &mut String, value: &Value) {
    use std::fmt::Write;
    let pushed = match value {
        Value::Bytes(bytes) if bytes.is_empty() => write!(text, "''"),
        Value::Bytes(bytes) => {
            text.push_str("x'");
            for byte in bytes {
                let [high, low] = [byte >> 4, byte & 15]
                    .map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0'));
                text.push(high);
                text.push(low);
            }
            write!(text, "'")
        }
        Value::Int(number) => write!(text, "{number}"),
        Value::UInt(number) => write!(text, "{number}"),
        // Floats and times: no column of the engine's has such a type.
        _ => write!(text, "NULL"),
    };
    // Writing to a String does not fail.
    let _ = pushed;
}

/// What diesel serialized, as the driver's value.
fn value((kind, bytes): (MysqlType, Option<Vec<u8>>)) -> QueryResult<Value> {
    let Some(bytes) = bytes else { return Ok(Value::NULL) };
    Ok(match kind {
        // diesel writes a bool as four bytes.
        MysqlType::Tiny => Value::Int(i8::from_ne_bytes(first(&bytes)?).into()),
        MysqlType::UnsignedTiny => Value::UInt(u8::from_ne_bytes(first(&bytes)?).into()),
        MysqlType::Short => Value::Int(i16::from_ne_bytes(first(&bytes)?).into()),
        MysqlType::UnsignedShort => Value::UInt(u16::from_ne_bytes(first(&bytes)?).into()),
        MysqlType::Long => Value::Int(i32::from_ne_bytes(first(&bytes)?).into()),
        MysqlType::UnsignedLong => Value::UInt(u32::from_ne_bytes(first(&bytes)?).into()),
        MysqlType::LongLong => Value::Int(i64::from_ne_bytes(first(&bytes)?)),
        MysqlType::UnsignedLongLong => Value::UInt(u64::from_ne_bytes(first(&bytes)?)),
        MysqlType::Float => Value::Float(f32::from_ne_bytes(first(&bytes)?)),
        MysqlType::Double => Value::Double(f64::from_ne_bytes(first(&bytes)?)),
        MysqlType::Date | MysqlType::DateTime | MysqlType::Timestamp => date(&bytes, kind)?,
        MysqlType::Time => time(&bytes)?,
        // Text, bytes, and what the server reads as a text: numbers with a point, enums, sets, bits.
        _ => Value::Bytes(bytes),
    })
}

fn first<const N: usize>(bytes: &[u8]) -> QueryResult<[u8; N]> {
    let first = bytes.get(..N).and_then(|first| first.try_into().ok());
    first.ok_or_else(|| Error::SerializationError("a bind that is too short".into()))
}

fn date(bytes: &[u8], kind: MysqlType) -> QueryResult<Value> {
    let value = MysqlValue::new(bytes, kind);
    let read = <MysqlTime as FromSql<diesel::sql_types::Timestamp, Mysql>>::from_sql(value);
    let date = read.map_err(Error::SerializationError)?;
    Ok(Value::Date(
        fitting(date.year)?,
        fitting(date.month)?,
        fitting(date.day)?,
        fitting(date.hour)?,
        fitting(date.minute)?,
        fitting(date.second)?,
        fitting(date.second_part)?,
    ))
}

fn time(bytes: &[u8]) -> QueryResult<Value> {
    let value = MysqlValue::new(bytes, MysqlType::Time);
    let read = <MysqlTime as FromSql<diesel::sql_types::Time, Mysql>>::from_sql(value);
    let time = read.map_err(Error::SerializationError)?;
    Ok(Value::Time(
        time.neg,
        time.day,
        fitting(time.hour)?,
        fitting(time.minute)?,
        fitting(time.second)?,
        fitting(time.second_part)?,
    ))
}

fn fitting<F, T: TryFrom<F>>(value: F) -> QueryResult<T>
where
    T::Error: std::error::Error + Send + Sync + 'static,
{
    T::try_from(value).map_err(|error| Error::SerializationError(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_stand_where_binds_stood() {
        let values = vec![
            Value::Bytes(b"a'b\\".to_vec()),
            Value::NULL,
            Value::Int(-7),
            Value::Bytes(Vec::new()),
        ];
        let sql = "SELECT ?, ?, t + ? WHERE a = ?".to_owned();
        let bound = BoundStatement { sql, values, varying: 0 };
        assert_eq!(bound.into_text(), "SELECT x'6127625c', NULL, t + -7 WHERE a = ''");
    }
}
