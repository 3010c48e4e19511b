//! What a text is to the transaction that it is to run in, by what each of its statements begins with.

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

/// The first token of each statement in a text.
fn firsts<'s>(tokens: Tokens<'s>) -> impl Iterator<Item = Token<'s>> {
    let mut at = Position::Start;
    tokens.filter(|token| *token != Token::Comment).filter(move |token| {
        let before = at;
        at = before.behind(*token);
        matches!(before, Position::Start) && *token != Token::Sign(';')
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
