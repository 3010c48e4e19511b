use proptest::prelude::*;

use super::{Backslash, Dialect, Token, Tokens, controls_transaction};
#[cfg(feature = "sqlite")]
use super::{changes_connection, holds_several};

const BOTH: [Dialect; 2] = [Dialect::Postgres, Dialect::Sqlite];

#[test]
fn a_statement_that_controls_the_transaction_is_found_behind_anything() {
    for sql in [
        "COMMIT",
        "COMMIT;",
        " rollback to savepoint a",
        "End;",
        "; COMMIT",
        ";COMMIT",
        ";;/**/;\u{feff}COMMIT",
        "\u{feff}COMMIT",
        "\u{a0}\u{2003}\u{b}commit",
        "-- just so\nABORT",
        "-- a\r\nCOMMIT",
        "/* a */ /* b */\n-- c\n  begin",
        "/**/COMMIT/**/",
        "PREPARE TRANSACTION 'a'",
        "INSERT INTO a VALUES ('--'); COMMIT",
        "INSERT INTO a VALUES ('it''s; '); COMMIT",
        "INSERT INTO \"a;\"\"\" VALUES (1); COMMIT",
        "SELECT 'a\\'; COMMIT; --'",
        "CREATE TABLE a (begin int, trigger int); COMMIT",
        "CREATE TRIGGER a AFTER INSERT ON b BEGIN SELECT CASE 1 WHEN 1 THEN 2 END; END; COMMIT",
        "START TRANSACTION",
    ] {
        for dialect in BOTH {
            assert!(controls_transaction(sql, dialect), "{sql:?} {dialect:?}");
        }
    }
}

#[test]
fn what_only_looks_like_one_is_let_through() {
    for sql in [
        "",
        ";",
        "INSERT INTO commit VALUES (1)",
        "-- COMMIT",
        "/* COMMIT",
        "ENDED",
        "commit_all()",
        "SELECT 'x; COMMIT'",
        "SELECT \"x; COMMIT\"",
        "SELECT CASE WHEN true THEN 1 END",
        "SAVEPOINT a",
        "UPDATE a SET b = 1 /* ; COMMIT */",
        "CREATE TRIGGER a AFTER INSERT ON b BEGIN DELETE FROM c; SELECT 1; END",
        "CREATE OR REPLACE FUNCTION a() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
    ] {
        for dialect in BOTH {
            assert!(!controls_transaction(sql, dialect), "{sql:?} {dialect:?}");
        }
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn a_second_statement_is_found_behind_anything() {
    for sql in [
        "SELECT 1; SELECT 2",
        ";SELECT 1;;;SELECT 2;",
        "SELECT ';' -- ;\n; (VALUES (1))",
        "CREATE TRIGGER a AFTER INSERT ON b BEGIN DELETE FROM c; SELECT 1; END; SELECT 2",
    ] {
        assert!(holds_several(sql, Dialect::Sqlite), "{sql:?}");
    }
    for sql in [
        "",
        ";;",
        "SELECT 1",
        ";SELECT 1; -- SELECT 2\n; /* ; SELECT 3 */",
        "INSERT INTO \"a;b\" VALUES ('c; d', [e; f], `g; h`)",
        "CREATE TEMP TRIGGER IF NOT EXISTS a AFTER INSERT ON b WHEN CASE 1 WHEN 1 THEN 2 END \
         BEGIN SELECT CASE 1 WHEN 1 THEN 2 END; SELECT 1; END;",
    ] {
        assert!(!holds_several(sql, Dialect::Sqlite), "{sql:?}");
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn a_statement_that_changes_the_connection_is_found_behind_anything() {
    for sql in [
        "PRAGMA query_only = ON",
        "pragma query_only(1)",
        ";-- a\nPRAGMA /* b */ main . cache_size /* c */ = -1",
        "PRAGMA 'query_only' = 1",
        "PRAGMA main.\"busy_timeout\"(0)",
        "EXPLAIN PRAGMA query_only = ON",
        "explain query plan /**/ PRAGMA query_only = ON",
        "SELECT 1; ATTACH 'a.db' AS a",
        "Detach DATABASE a",
        "CREATE TRIGGER a AFTER INSERT ON b BEGIN SELECT 1; END; PRAGMA foreign_keys = OFF",
        "PRAGMA table_info(a); PRAGMA foreign_keys = OFF",
    ] {
        assert!(changes_connection(sql), "{sql:?}");
    }
    for sql in [
        "",
        "PRAGMA",
        "PRAGMA query_only",
        "PRAGMA main.query_only; -- = 1",
        "PRAGMA defer_foreign_keys = ON",
        "PRAGMA main.table_info(a)",
        "EXPLAIN SELECT 1",
        "INSERT INTO pragma VALUES ('; PRAGMA query_only = ON')",
        "SELECT * FROM pragma_table_info('a')",
        "UPDATE attach SET detach = 1",
    ] {
        assert!(!changes_connection(sql), "{sql:?}");
    }
}

#[test]
fn each_dialect_is_read_as_its_server_reads_it() {
    let only_postgres = [
        // A return ends a comment, comments nest, and a backslash escapes.
        "-- a\rCOMMIT",
        "--\r\rCOMMIT",
        "/* /* */ */ COMMIT",
        "/*/**/*/COMMIT",
        "SELECT E'\\''; COMMIT --'",
        "SELECT $$'$$; COMMIT --'",
        "SELECT $a$ ' $$ $a$; COMMIT --'",
    ];
    let only_sqlite = [
        "/* /* */ COMMIT",
        "SELECT `'`; COMMIT --'",
        "SELECT [']; COMMIT --'",
        "SELECT $$; COMMIT; $$",
    ];
    for (texts, yes, no) in [
        (&only_postgres[..], Dialect::Postgres, Dialect::Sqlite),
        (&only_sqlite[..], Dialect::Sqlite, Dialect::Postgres),
    ] {
        for sql in texts {
            assert!(controls_transaction(sql, yes), "{sql:?} {yes:?}");
            assert!(!controls_transaction(sql, no), "{sql:?} {no:?}");
        }
    }
}

#[test]
fn tokens_are_what_the_lexer_makes_of_them() {
    let tokens = Tokens::of("a$1 = $12+E'\\''||$x$ $ $x$ -- b\n.\"c\"\"d\"", Dialect::Postgres);
    let expected = [
        Token::Word("a$1"),
        Token::Sign('='),
        Token::Bind("$12"),
        Token::Sign('+'),
        Token::Quoted("E'\\''"),
        Token::Sign('|'),
        Token::Sign('|'),
        Token::Quoted("$x$ $ $x$"),
        Token::Comment,
        Token::Sign('.'),
        Token::Quoted("\"c\"\"d\""),
    ];
    assert_eq!(tokens.collect::<Vec<_>>(), expected);
    for open in ["'a", "\"a", "/* a", "$a$ b", "E'\\'"] {
        let last = Tokens::of(open, Dialect::Postgres).last();
        assert_eq!(last, Some(Token::Unterminated), "{open}");
    }
}

/// Pieces that are complete in both dialects.
fn harmless() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(" ".to_owned()),
        Just("\t\u{feff}".to_owned()),
        "'[a-z;-]{0,6}(''){0,2}'",
        "\"[a-z;*/]{0,6}\"",
        "/\\*[a-z; ]{0,6}\\*/",
        "--[a-z;' ]{0,6}\n",
        "[(),=+]",
        "x[a-z0-9_]{0,4} ",
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_control_behind_any_statement_is_found(
        before in harmless(), after in harmless(), control in "commit|COMMIT|Rollback|eNd|begin|ABORT|prepare"
    ) {
        for dialect in BOTH {
            let text = format!("SELECT {before};{control} {after}");
            prop_assert!(controls_transaction(&text, dialect), "{text:?}");
            let alone = format!("SELECT {before}");
            prop_assert!(!controls_transaction(&alone, dialect), "{alone:?}");
        }
    }

    #[test]
    fn no_text_is_too_strange_to_be_read(text in "[-/*!#'\"$`\\[\\]EeA-BM0-9;\\\\ \r\n\u{feff}ä]{0,40}") {
        #[cfg(feature = "mysql")]
        let mysql = Some(Dialect::Mysql);
        #[cfg(not(feature = "mysql"))]
        let mysql = None;
        for dialect in BOTH.into_iter().chain(mysql) {
            for backslash in [Backslash::IsALetter, Backslash::Escapes] {
                let tokens = Tokens { text: &text, dialect, backslash };
                prop_assert!(tokens.count() <= text.chars().count());
            }
            controls_transaction(&text, dialect);
        }
    }
}
