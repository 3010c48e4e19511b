//! What a text is to the transaction that it is to run in, by what each of its statements begins with.

use std::iter;

use super::{Backslash, Dialect, Token, Tokens};

/// Whether a text would end, or begin, the transaction that it is to run in: whether any statement in
/// it is one of `BEGIN`, `START`, `COMMIT`, `END`, `ROLLBACK`, `ABORT` and `PREPARE`.
///
/// `ROLLBACK TO` is among them: behind it a transaction continues in which a statement failed.
pub(in crate::store) fn controls_transaction(sql: &str, dialect: Dialect) -> bool {
    // Without a backslash the two readings are one.
    let may_escape = dialect.has_escape_strings() && sql.contains('\\');
    let as_a_letter = Tokens::of(sql, dialect);
    let as_escape = Tokens { backslash: Backslash::Escapes, ..as_a_letter.clone() };
    has_transaction_control(as_a_letter) || may_escape && has_transaction_control(as_escape)
}

fn has_transaction_control(tokens: Tokens<'_>) -> bool {
    const CONTROLS: [&str; 7] = ["BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE"];
    firsts(tokens).any(|token| matches!(token, Token::Word(word) if is_one_of(word, &CONTROLS)))
}

/// Whether a text is more than one statement. Behind the first, SQLite executes nothing.
#[cfg(feature = "sqlite")]
pub(in crate::store) fn holds_several(sql: &str, dialect: Dialect) -> bool {
    sql.contains(';') && firsts(Tokens::of(sql, dialect)).nth(1).is_some()
}

/// Whether a text would change the connection for all who use it later: whether any statement in SQLite's dialect is
/// `ATTACH`, `DETACH`, or a `PRAGMA` that may set something. Some of these take effect behind `EXPLAIN`, too.
#[cfg(feature = "sqlite")]
pub(in crate::store) fn changes_connection(sql: &str) -> bool {
    const EXPLAINS: [&str; 3] = ["EXPLAIN", "QUERY", "PLAN"];
    let explains =
        |token: &Token<'_>| matches!(token, Token::Word(word) if is_one_of(word, &EXPLAINS));
    statements(Tokens::of(sql, Dialect::Sqlite)).any(|tokens| {
        let mut tokens = tokens.filter(|token| *token != Token::Comment).skip_while(explains);
        match tokens.next() {
            Some(Token::Word(word)) if is_one_of(word, &["PRAGMA"]) => may_set(tokens),
            Some(Token::Word(word)) => is_one_of(word, &["ATTACH", "DETACH"]),
            _ => false,
        }
    })
}

/// Whether a `PRAGMA` may set something that outlasts the transaction: one that has a value, or an argument, unless it is
/// known. `tokens`: those behind the word.
#[cfg(feature = "sqlite")]
fn may_set<'s>(mut tokens: impl Iterator<Item = Token<'s>>) -> bool {
    const KNOWN: [&str; 13] = [
        // They read.
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
        // It ends with the transaction.
        "defer_foreign_keys",
        // They are of the file, and are rolled back with the transaction.
        "application_id",
        "user_version",
    ];
    let (mut name, mut next) = (tokens.next(), tokens.next());
    if next == Some(Token::Sign('.')) {
        (name, next) = (tokens.next(), tokens.next());
    }
    let has_value = matches!(next, Some(Token::Sign('=' | '(')));
    has_value && !matches!(name, Some(Token::Word(word)) if is_one_of(word, &KNOWN))
}

/// The first token of each statement in a text.
fn firsts<'s>(tokens: Tokens<'s>) -> impl Iterator<Item = Token<'s>> {
    statements(tokens).filter_map(|mut tokens| tokens.next())
}

/// The tokens of a text from the first of each statement on.
fn statements<'s>(mut tokens: Tokens<'s>) -> impl Iterator<Item = Tokens<'s>> {
    let mut at = Position::Start;
    iter::from_fn(move || {
        loop {
            let from = tokens.clone();
            let token = tokens.next()?;
            if token == Token::Comment {
                continue;
            }
            let before = at;
            at = before.behind(token);
            if matches!(before, Position::Start) && token != Token::Sign(';') {
                return Some(from);
            }
        }
    })
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Where in a text its next token stands.
#[derive(Clone, Copy)]
enum Position {
    /// At the begin of a statement.
    Start,
    /// Behind `CREATE`, and words only.
    Create,
    /// In the definition of a trigger or a routine, and in so many `BEGIN` or `CASE` of it.
    Body { depth: usize },
    /// Anywhere else in a statement.
    Inside,
}

impl Position {
    fn behind(self, token: Token<'_>) -> Self {
        const WITH_A_BODY: [&str; 3] = ["TRIGGER", "FUNCTION", "PROCEDURE"];
        match (self, token) {
            // In a body `;` separates, and END ends, no statement of the text's.
            (Self::Body { depth }, Token::Word(word)) => {
                let opens =
                    is_one_of(word, &["BEGIN"]) || (depth > 0 && is_one_of(word, &["CASE"]));
                let closes = is_one_of(word, &["END"]);
                let depth = if opens { depth + 1 } else { depth.saturating_sub(closes.into()) };
                Self::Body { depth }
            }
            (Self::Body { depth: 1.. }, Token::Sign(';')) => self,
            (_, Token::Sign(';')) => Self::Start,
            (Self::Start, Token::Word(word)) if is_one_of(word, &["CREATE"]) => Self::Create,
            (Self::Create, Token::Word(word)) if is_one_of(word, &WITH_A_BODY) => {
                Self::Body { depth: 0 }
            }
            (Self::Create, Token::Word(_)) | (Self::Body { .. }, _) => self,
            _ => Self::Inside,
        }
    }
}
