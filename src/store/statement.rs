//! `statement!`: one hand-written SQL statement as a diesel query that is prepared once.
//!
//! diesel prepares an UPDATE, an `ON CONFLICT` and any `sql_query` anew at each execution, because their text may differ each
//! time. Most of the engine's statements never differ, so each is a type of its own with a static query id, by which the
//! connection's statement cache finds it again. One whose text depends on what it holds is found by its text.

use diesel::QueryResult;
use diesel::backend::Backend;
use diesel::query_builder::AstPass;
use diesel::serialize::ToSql;
use diesel::sql_types::HasSqlType;

/// The SQL type as which a Rust type is bound.
pub(super) trait Bind<DB: Backend> {
    type Sql;
}

/// What stands in a statement where it names a field: a value that is bound, or a part that was declared on its own.
pub(super) trait Part<DB: Backend> {
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, DB>) -> QueryResult<()>;
}

impl<T, DB> Part<DB> for T
where
    DB: Backend + HasSqlType<T::Sql>,
    T: Bind<DB> + ToSql<T::Sql, DB>,
{
    fn push<'b>(&'b self, out: &mut AstPass<'_, 'b, DB>) -> QueryResult<()> {
        out.push_bind_param::<T::Sql, T>(self)
    }
}

pub(super) fn push_bind<'b, T, DB>(out: &mut AstPass<'_, 'b, DB>, value: &'b T) -> QueryResult<()>
where
    DB: Backend + HasSqlType<T::Sql>,
    T: Bind<DB> + ToSql<T::Sql, DB>,
{
    out.push_bind_param::<T::Sql, T>(value)
}

/// Declares a statement for one backend, or, `in D: Trait`, for each that has the trait: its binds, the SQL types of
/// its rows, and its text, in which a field's name stands where its value is bound, `[NAME]` where a text of that name
/// stands, `(expression)` where one that is the same for the life of the process, and `{field}` where a part of a
/// statement stands that was declared on its own (in one that is declared `in D`, as a value). `for Pg as varying`: the
/// text of such a part is not always the same, so the cache goes by the text.
macro_rules! statement {
    (
        $(#[$doc:meta])*
        $name:ident in $db:ident: $common:ident $(as $varies:ident)?, rows $row:ty,
        { $($field:ident: $type:ty),* $(,)? },
        $($part:tt),* $(,)?
    ) => {
        $(#[$doc])*
        pub(in crate::store) struct $name { $(pub(in crate::store) $field: $type),* }

        impl diesel::query_builder::QueryId for $name {
            type QueryId = $name;
            const HAS_STATIC_QUERY_ID: bool = statement!(@is_static $($varies)?);
        }

        impl<$db> diesel::query_builder::QueryFragment<$db> for $name
        where
            $db: $common,
            $($type: $crate::store::statement::Part<$db>,)*
        {
            fn walk_ast<'b>(
                &'b self,
                mut out: diesel::query_builder::AstPass<'_, 'b, $db>,
            ) -> diesel::QueryResult<()> {
                $(statement!(@part out, self, $part);)*
                Ok(())
            }
        }

        impl<$db> $crate::store::statement::Part<$db> for $name
        where
            $db: $common,
            $($type: $crate::store::statement::Part<$db>,)*
        {
            fn push<'b>(
                &'b self,
                out: &mut diesel::query_builder::AstPass<'_, 'b, $db>,
            ) -> diesel::QueryResult<()> {
                diesel::query_builder::QueryFragment::walk_ast(self, out.reborrow())
            }
        }

        statement!(@query $name, $row);
    };
    (
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? for $backend:ty $(as $varies:ident)?, rows $row:ty,
        { $($field:ident: $type:ty),* $(,)? },
        $($part:tt),* $(,)?
    ) => {
        $(#[$doc])*
        pub(in crate::store) struct $name $(<$life>)? { $(pub(in crate::store) $field: $type),* }

        impl $(<$life>)? diesel::query_builder::QueryId for $name $(<$life>)? {
            type QueryId = statement!(@static $name $($life)?);
            const HAS_STATIC_QUERY_ID: bool = statement!(@is_static $($varies)?);
        }

        impl $(<$life>)? diesel::query_builder::QueryFragment<$backend> for $name $(<$life>)? {
            fn walk_ast<'b>(
                &'b self,
                mut out: diesel::query_builder::AstPass<'_, 'b, $backend>,
            ) -> diesel::QueryResult<()> {
                $(statement!(@part out, self, $part);)*
                Ok(())
            }
        }

        statement!(@query $name $(<$life>)?, $row);
    };
    (@query $name:ident $(<$life:lifetime>)?, $row:ty) => {
        impl $(<$life>)? diesel::query_builder::Query for $name $(<$life>)? {
            type SqlType = $row;
        }

        impl<$($life,)? Conn> diesel::RunQueryDsl<Conn> for $name $(<$life>)? {}
        impl<$($life,)? Conn> diesel::RunQueryDsl<Conn> for &$name $(<$life>)? {}
    };
    (@is_static) => { true };
    (@is_static varying) => { false };
    (@static $name:ident) => { $name };
    (@static $name:ident $life:lifetime) => { $name<'static> };
    (@part $out:ident, $self:ident, $text:literal) => { $out.push_sql($text) };
    (@part $out:ident, $self:ident, $field:ident) => {
        $crate::store::statement::Part::push(&$self.$field, &mut $out)?
    };
    (@part $out:ident, $self:ident, [$text:ident]) => { $out.push_sql($text) };
    (@part $out:ident, $self:ident, ($text:expr)) => { $out.push_sql($text) };
    (@part $out:ident, $self:ident, {$fragment:ident}) => {
        diesel::query_builder::QueryFragment::walk_ast(&$self.$fragment, $out.reborrow())?
    };
}
pub(super) use statement;
