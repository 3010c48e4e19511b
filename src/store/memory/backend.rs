//! [`MemoryBackend`]: what diesel has to know of a database that executes [`Write`]s and no SQL.
//!
//! A statement's text is the [`Write`] itself, as JSON. So a phase executes a `Write` on its `Tx`, or
//! adds it to a `Batch`, by the same calls by which it would run a query of diesel.

use std::ops::Range;

use diesel::QueryResult;
use diesel::backend::{
    Backend, DieselReserveSpecialization, SqlDialect, TrustedBackend, sql_dialect,
};
use diesel::query_builder::bind_collector::RawBytesBindCollector;
use diesel::query_builder::{QueryBuilder, QueryFragment};
use diesel::row::{Field, PartialRow, Row, RowIndex, RowSealed};
use diesel::sql_types::{self, HasSqlType, TypeMetadata};

/// The diesel backend of [`Memory`](super::Memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryBackend;

impl Backend for MemoryBackend {
    type QueryBuilder = Text;
    type RawValue<'a> = &'a [u8];
    type BindCollector<'a> = RawBytesBindCollector<Self>;
}

impl TypeMetadata for MemoryBackend {
    type TypeMetadata = ();
    type MetadataLookup = ();
}

macro_rules! sql_types {
    ($($sql:ident),* $(,)?) => {
        $(impl HasSqlType<sql_types::$sql> for MemoryBackend {
            fn metadata(_: &mut ()) {}
        })*
    };
}

sql_types! {
    SmallInt, Integer, BigInt, Float, Double, Text, Binary, Date, Time, Timestamp,
}

impl SqlDialect for MemoryBackend {
    type ReturningClause = sql_dialect::returning_clause::DoesNotSupportReturningClause;
    type OnConflictClause = sql_dialect::on_conflict_clause::DoesNotSupportOnConflictClause;
    type InsertWithDefaultKeyword =
        sql_dialect::default_keyword_for_insert::DoesNotSupportDefaultKeyword;
    type BatchInsertSupport = sql_dialect::batch_insert_support::DoesNotSupportBatchInsert;
    type ConcatClause = sql_dialect::concat_clause::ConcatWithPipesClause;
    type DefaultValueClauseForInsert = sql_dialect::default_value_clause::AnsiDefaultValueClause;
    type EmptyFromClauseSyntax = sql_dialect::from_clause_syntax::AnsiSqlFromClauseSyntax;
    type SelectStatementSyntax = sql_dialect::select_statement_syntax::AnsiSqlSelectStatement;
    type ExistsSyntax = sql_dialect::exists_syntax::AnsiSqlExistsSyntax;
    type ArrayComparison = sql_dialect::array_comparison::AnsiSqlArrayComparison;
    type AliasSyntax = sql_dialect::alias_syntax::AsAliasSyntax;
    type WindowFrameClauseGroupSupport =
        sql_dialect::window_frame_clause_group_support::NoGroupWindowFrameUnit;
    type WindowFrameExclusionSupport =
        sql_dialect::window_frame_exclusion_support::NoFrameFrameExclusionSupport;
    type AggregateFunctionExpressions =
        sql_dialect::aggregate_function_expressions::NoAggregateFunctionExpressions;
    type BuiltInWindowFunctionRequireOrder =
        sql_dialect::built_in_window_function_require_order::NoOrderRequired;
}

impl DieselReserveSpecialization for MemoryBackend {}
impl TrustedBackend for MemoryBackend {}

/// Collects the text of a statement.
#[derive(Debug, Default)]
pub struct Text(String);

impl QueryBuilder<MemoryBackend> for Text {
    fn push_sql(&mut self, sql: &str) {
        self.0.push_str(sql);
    }

    fn push_identifier(&mut self, identifier: &str) -> QueryResult<()> {
        self.0.push_str(identifier);
        Ok(())
    }

    fn push_bind_param(&mut self) {
        self.0.push('?');
    }

    fn finish(self) -> String {
        self.0
    }
}

/// The text of a statement.
pub(super) fn text_of(query: &impl QueryFragment<MemoryBackend>) -> QueryResult<String> {
    let mut text = Text::default();
    query.to_sql(&mut text, &MemoryBackend)?;
    Ok(text.finish())
}

/// A row of a query's result. There is none: this database answers no queries of diesel.
#[derive(Debug)]
pub enum NoRow {}

impl RowSealed for NoRow {}

impl RowIndex<usize> for NoRow {
    fn idx(&self, _: usize) -> Option<usize> {
        match *self {}
    }
}

impl RowIndex<&str> for NoRow {
    fn idx(&self, _: &str) -> Option<usize> {
        match *self {}
    }
}

impl<'a> Row<'a, MemoryBackend> for NoRow {
    type Field<'f>
        = NoRow
    where
        'a: 'f,
        Self: 'f;
    type InnerPartialRow = Self;

    fn field_count(&self) -> usize {
        match *self {}
    }

    fn get<'b, I>(&'b self, _: I) -> Option<Self::Field<'b>>
    where
        'a: 'b,
        Self: RowIndex<I>,
    {
        match *self {}
    }

    fn partial_row(&self, _: Range<usize>) -> PartialRow<'_, Self> {
        match *self {}
    }
}

impl Field<'_, MemoryBackend> for NoRow {
    fn field_name(&self) -> Option<&str> {
        match *self {}
    }

    fn value(&self) -> Option<&[u8]> {
        match *self {}
    }
}
