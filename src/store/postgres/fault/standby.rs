//! A copy of all tables, for an explorer that fails over to it: those of the schemas in which the session looks for
//! tables, so those of the application too. Each is one statement, and so one transaction.

use diesel::pg::Pg;
use diesel::sql_types;

use crate::store::statement::statement;

statement! {
    /// Copies each table and each partition, under its number.
    CopyTables for Pg, rows sql_types::Untyped, {},
    "DO $$ \
     DECLARE original regclass; \
     BEGIN \
         SET LOCAL client_min_messages = warning; \
         CREATE SCHEMA IF NOT EXISTS atomic_phases_standby; \
         FOR original IN SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.relkind = 'r' AND n.nspname = ANY (current_schemas(false)) \
         LOOP \
             EXECUTE format('DROP TABLE IF EXISTS atomic_phases_standby.t%s', original::oid); \
             EXECUTE format('CREATE UNLOGGED TABLE atomic_phases_standby.t%s AS SELECT * FROM ONLY %s', \
                 original::oid, original); \
         END LOOP; \
     END $$"
}

statement! {
    /// Brings back each table that was copied. Nothing follows from what comes back: no trigger runs, and no foreign key
    /// is checked, which is what `replica` means. A column that is computed comes back by itself.
    BringTablesBack for Pg, rows sql_types::Untyped, {},
    "DO $$ \
     DECLARE original regclass; named text; \
     BEGIN \
         SET LOCAL session_replication_role = replica; \
         FOR original, named IN SELECT c.oid::regclass, string_agg(quote_ident(a.attname), ', ') \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
                 AND a.attgenerated = '' \
             WHERE c.relkind = 'r' AND n.nspname = ANY (current_schemas(false)) \
                 AND to_regclass('atomic_phases_standby.t' || c.oid) IS NOT NULL \
             GROUP BY c.oid \
         LOOP \
             EXECUTE format('DELETE FROM ONLY %s', original); \
             EXECUTE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE \
                 SELECT %2$s FROM atomic_phases_standby.t%3$s', original, named, original::oid); \
             EXECUTE format('DROP TABLE atomic_phases_standby.t%s', original::oid); \
         END LOOP; \
     END $$"
}
