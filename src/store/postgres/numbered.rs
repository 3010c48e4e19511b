//! [`load`]: sends a statement of the engine's whose text depends on what it holds, and keeps it prepared by a number.
//!
//! diesel finds a prepared statement again by its Rust type, or, where the type does not tell the text, by the text: it
//! builds that at each execution, copies it twice and hashes it. For the two statements of a request that was a quarter
//! of the engine's instructions on the client (`docs/bench.md`). Here a statement says what its text depends on, its
//! [`Shape`]. The first [`NUMBERS`] shapes have a number, for which a Rust type stands, and their text is built once.

use std::any::TypeId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use diesel::QueryResult;
use diesel::deserialize::{self, FromSqlRow};
use diesel::pg::{Pg, PgMetadataLookup, PgQueryBuilder};
use diesel::query_builder::bind_collector::RawBytesBindCollector;
use diesel::query_builder::{AstPass, Query, QueryBuilder, QueryFragment, QueryId};
use diesel::result::Error;
use diesel::sql_types::Untyped;
use diesel_async::{AsyncConnectionCore, AsyncPgConnection};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};

use super::statement::{About, Statement};
use crate::store::ByText;

/// So many texts have a number, the first ones: what a connection has prepared by a number must stay what the number means.
/// The others go by their text. Each number costs the build of this crate a copy of the function that sends its statement. An
/// application has two or three texts for each of its request types.
const NUMBERS: usize = 64;

/// A part of a statement whose text depends on what it holds.
pub(super) trait Shaped {
    /// Notes all that its text depends on. In a debug build each text is compared with that of its shape.
    fn note(&self, shape: &mut Shape);
}

/// Declares a statement as `statement!` does one that varies. It goes by its [`Shape`]: its text depends on the parts that
/// were declared on their own.
macro_rules! shaped {
    (
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? for $backend:ty, rows $row:ty,
        { $($field:ident: $type:ty),* $(,)? },
        $($part:tt),* $(,)?
    ) => {
        statement! {
            $(#[$doc])*
            $name $(<$life>)? for $backend as varying, rows $row, { $($field: $type),* }, $($part),*
        }

        impl $(<$life>)? $crate::store::postgres::numbered::Shaped for $name $(<$life>)? {
            fn note(&self, shape: &mut $crate::store::postgres::numbered::Shape) {
                $(shaped!(@note shape, self, $part);)*
            }
        }
    };
    (@note $shape:ident, $self:ident, {$fragment:ident}) => {
        $crate::store::postgres::numbered::Shaped::note(&$self.$fragment, $shape)
    };
    (@note $shape:ident, $self:ident, $part:tt) => {};
}
pub(super) use shaped;

/// What the text of a statement depends on: two with the same shape have the same text and the same types of binds.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    of: TypeId,
    /// What was noted, one behind the other.
    noted: u64,
    /// The phase's, in their order.
    statements: Vec<Arc<About>>,
    /// Whether a statement is in it that may look the same as another one.
    is_unknown: bool,
}

impl Shape {
    pub(super) fn of<S: Shaped + QueryId>(statement: &S) -> Option<Self> {
        let of = TypeId::of::<S::QueryId>();
        // The first one stands in front of what is noted, so that also a leading zero counts.
        let mut shape = Self { of, noted: 1, statements: Vec::new(), is_unknown: false };
        statement.note(&mut shape);
        (!shape.is_unknown).then_some(shape)
    }

    /// One of `below` values.
    pub(super) fn note(&mut self, value: impl Into<u64>, below: u64) {
        let value = value.into();
        debug_assert!(value < below, "{value} of {below}");
        match self.noted.checked_mul(below) {
            Some(noted) if value < below => self.noted = noted + value,
            _ => self.is_unknown = true,
        }
    }

    pub(super) fn note_statement(&mut self, statement: &Statement) {
        match statement.known() {
            Some(about) => self.statements.push(about.clone()),
            None => self.is_unknown = true,
        }
    }
}

/// The text of a shape.
struct Text {
    sql: Box<str>,
    number: usize,
    /// How many binds it has, once it was sent.
    binds: AtomicUsize,
}

/// The texts that have a number. All stores of the process share them, because several may share a pool, and a connection
/// finds what it has prepared by the number.
static TEXTS: LazyLock<RwLock<HashMap<Shape, Arc<Text>>>> = LazyLock::new(RwLock::default);

impl Text {
    /// `None` where the statement goes by its own text.
    fn of<S: Shaped + QueryId + QueryFragment<Pg>>(statement: &S) -> Option<Arc<Self>> {
        let shape = Shape::of(statement)?;
        let (known, has_room) = {
            let texts = TEXTS.read().unwrap_or_else(PoisonError::into_inner);
            (texts.get(&shape).cloned(), texts.len() < NUMBERS)
        };
        let text = match known {
            Some(text) => text,
            None if has_room => Self::new(shape, statement)?,
            None => return None,
        };
        debug_assert!(sql(statement).is_none_or(|sql| sql == *text.sql), "not {}", text.sql);
        Some(text)
    }

    fn new(shape: Shape, statement: &impl QueryFragment<Pg>) -> Option<Arc<Self>> {
        let sql = sql(statement)?.into_boxed_str();
        let mut texts = TEXTS.write().unwrap_or_else(PoisonError::into_inner);
        let number = texts.len();
        match texts.entry(shape) {
            // Of two that were as fast, the first has built it.
            Entry::Occupied(text) => Some(text.get().clone()),
            Entry::Vacant(new) if number < NUMBERS => {
                let text = Self { sql, number, binds: AtomicUsize::new(0) };
                Some(new.insert(Arc::new(text)).clone())
            }
            Entry::Vacant(_) => None,
        }
    }
}

/// `None` where it has no SQL form with these values: that is the error of sending it.
fn sql(statement: &impl QueryFragment<Pg>) -> Option<String> {
    let mut text = PgQueryBuilder::default();
    statement.to_sql(&mut text, &Pg).ok()?;
    Some(text.finish())
}

type Rows<'c> = <&'c AsyncPgConnection as AsyncConnectionCore>::LoadFuture<'c, 'c>;
type PgRow<'c> = <&'c AsyncPgConnection as AsyncConnectionCore>::Row<'c, 'c>;

/// Sends the statement when it is first polled, and waits for its rows.
pub(super) fn load<'c, S, T>(
    conn: &'c AsyncPgConnection,
    statement: &S,
) -> BoxFuture<'c, QueryResult<Vec<T>>>
where
    S: Shaped + QueryId + Query + QueryFragment<Pg>,
    T: FromSqlRow<S::SqlType, Pg> + Send + 'c,
{
    read(send(conn, statement), |row| T::build_from_row(row)).boxed()
}

async fn read<'c, T>(
    sent: Rows<'c>,
    of_a_row: fn(&PgRow<'c>) -> deserialize::Result<T>,
) -> QueryResult<Vec<T>> {
    let rows = sent.await?.try_collect::<Vec<_>>().await?;
    rows.iter().map(|row| of_a_row(row).map_err(Error::DeserializationError)).collect()
}

/// The same, without reading the rows.
pub(super) fn send<'c, S>(mut conn: &'c AsyncPgConnection, statement: &S) -> Rows<'c>
where
    S: Shaped + QueryId + Query + QueryFragment<Pg>,
{
    let text = Text::of(statement);
    match text.as_deref() {
        Some(text) => SEND[text.number](conn, text, statement),
        None => AsyncConnectionCore::load(&mut conn, ByText { query: statement, kept: true }),
    }
}

/// The type that stands for a number.
struct Number<const N: usize>;

/// A statement that a connection keeps prepared by the number of its text.
struct Numbered<'a, const N: usize> {
    text: &'a Text,
    statement: &'a dyn QueryFragment<Pg>,
}

impl<const N: usize> QueryId for Numbered<'_, N> {
    type QueryId = Number<N>;
    const HAS_STATIC_QUERY_ID: bool = true;
}

impl<const N: usize> Query for Numbered<'_, N> {
    type SqlType = Untyped;
}

impl<const N: usize> QueryFragment<Pg> for Numbered<'_, N> {
    fn walk_ast<'b>(&'b self, out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        self.statement.walk_ast(out)
    }

    fn to_sql(&self, out: &mut PgQueryBuilder, _: &Pg) -> QueryResult<()> {
        out.push_sql(&self.text.sql);
        Ok(())
    }

    fn collect_binds<'b>(
        &'b self,
        out: &mut RawBytesBindCollector<Pg>,
        types: &mut (dyn PgMetadataLookup + 'static),
        backend: &'b Pg,
    ) -> QueryResult<()> {
        let binds = self.text.binds.load(Ordering::Relaxed);
        out.metadata.reserve(binds);
        out.binds.reserve(binds);
        self.statement.collect_binds(out, types, backend)?;
        self.text.binds.store(out.binds.len(), Ordering::Relaxed);
        Ok(())
    }

    fn is_safe_to_cache_prepared(&self, _: &Pg) -> QueryResult<bool> {
        Ok(true)
    }
}

fn numbered<'c, const N: usize>(
    mut conn: &'c AsyncPgConnection,
    text: &Text,
    statement: &dyn QueryFragment<Pg>,
) -> Rows<'c> {
    AsyncConnectionCore::load(&mut conn, Numbered::<N> { text, statement })
}

macro_rules! for_each_number {
    ($($number:literal)*) => { [$(numbered::<$number>),*] };
}

type Sender = for<'c> fn(&'c AsyncPgConnection, &Text, &dyn QueryFragment<Pg>) -> Rows<'c>;

/// For each number the function that sends its statement.
static SEND: [Sender; NUMBERS] = for_each_number!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);
